"""Llama: Llama 2 and 3, SmolLM2 and what shares their shape."""

from __future__ import annotations

from typing import Any

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache

from mlcbuild.arch.llama.config import LlamaConfig
from mlcbuild.nn.attention import Attention
from mlcbuild.nn.layers import Embedding, GatedMLP, Linear, RMSNorm, select_rows
from mlcbuild.spec.attention import AttentionSpec
from mlcbuild.spec.kv import Window


class DecoderLayer(nn.Module):
    """Pre-norm attention and MLP, each with a residual connection."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = Attention(
            hidden,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            qkv_bias=config.attention_bias,
            out_bias=config.output_bias,
        )
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = GatedMLP(hidden, config.intermediate_size, config.mlp_bias)

    def forward(self, x: Tensor, kv: PagedKVCache, layer: int) -> Tensor:
        """[b, n, hidden] -> the same shape."""
        x = x + self.self_attn(self.input_layernorm(x), kv, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    """Embedding, layers and the final norm."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, kv: PagedKVCache) -> Tensor:
        """[b, n, hidden] -> hidden states before the head."""
        for index, layer in enumerate(self.layers):
            x = layer(x, kv, index)
        return x


class Model(nn.Module):
    """The functions of a causal language model, for every target."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = LlamaModel(config)
        self.lm_head = (
            None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size)
        )

    def _logits(self, hidden: Tensor) -> Tensor:
        hidden = self.model.norm(hidden)
        head = self.lm_head
        return self.model.embed_tokens.project(hidden) if head is None else head(hidden)

    def embed(self, input_ids: Tensor) -> Tensor:
        """int32 [n] -> float32 [n, hidden]."""
        return self.model.embed_tokens(input_ids)

    def batch_prefill(
        self, input_embeds: Tensor, logit_positions: Tensor, paged_kv_cache: PagedKVCache
    ) -> tuple[Tensor, PagedKVCache]:
        """[1, n, hidden] and the rows that need logits [r] -> float32 [1, r, vocab]."""
        hidden = select_rows(self.model(input_embeds, paged_kv_cache), logit_positions)
        return self._logits(hidden), paged_kv_cache

    def batch_decode(
        self, input_embeds: Tensor, paged_kv_cache: PagedKVCache
    ) -> tuple[Tensor, PagedKVCache]:
        """One token of each sequence: [b, 1, hidden] -> float32 [b, 1, vocab]."""
        return self._logits(self.model(input_embeds, paged_kv_cache)), paged_kv_cache

    def get_spec(self) -> Any:
        """Argument types of each function for ``export_tvm``."""
        hidden = self.config.hidden_size
        kv = nn.spec.Object(object_type=PagedKVCache)
        packed = {"param_mode": "packed", "effect_mode": "none"}
        tensor = nn.spec.Tensor
        return nn.spec.ModuleSpec.from_raw(
            {
                "embed": {"input_ids": tensor(["seq_len"], "int32"), "$": packed},
                "batch_prefill": {
                    "input_embeds": tensor([1, "seq_len", hidden], "float32"),
                    "logit_positions": tensor(["logit_rows"], "int32"),
                    "paged_kv_cache": kv,
                    "$": packed,
                },
                "batch_decode": {
                    "input_embeds": tensor(["batch_size", 1, hidden], "float32"),
                    "paged_kv_cache": kv,
                    "$": packed,
                },
            },
            self,
        )


def attention_spec(config: LlamaConfig) -> AttentionSpec:
    """The attention of ``config``, for the lowering and the runtime."""
    return AttentionSpec(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rotary_dim=config.head_dim,
        inv_freq=config.inv_freq(),
        attention_factor=config.attention_factor,
        window=Window(config.sliding_window),
    )
