"""Configuration of the Llama family, read strictly from a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlcbuild.arch.llama.rope import RopeConfig, read_rope
from mlcbuild.errors import SourceError

# Keys that this module reads.
_READ = frozenset(
    {
        "attention_bias",
        "bos_token_id",
        "eos_token_id",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "mlp_bias",
        "model_type",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "original_max_position_embeddings",
        "pretraining_tp",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "tie_word_embeddings",
        "vocab_size",
    }
)

# Keys that do not change what a forward pass computes: training, bookkeeping, generation defaults
# (read from generation_config.json instead), and how the weights were stored.
_HARMLESS = frozenset(
    {
        "_attn_implementation_autoset",
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "do_sample",
        "dtype",
        "embd_pdrop",
        "hidden_dropout",
        "id2label",
        "initializer_range",
        "is_llama_config",
        "label2id",
        "max_length",
        "max_new_tokens",
        "max_sequence_length",
        "max_window_layers",
        "model_max_length",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "repetition_penalty",
        "resid_pdrop",
        "return_dict",
        "temperature",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "unk_token_id",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    }
)

# Keys that would change the maths, and the values at which they do nothing.
_NO_EFFECT: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "attention_multiplier": (1, 1.0),
    "attn_logit_softcapping": (),
    "chunk_size_feed_forward": (0,),
    "cross_attention_hidden_size": (),
    "embedding_multiplier": (1, 1.0),
    "final_logit_softcapping": (),
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "logit_scale": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "no_rope_layers": ([],),
    "partial_rotary_factor": (1, 1.0),
    "pruned_heads": ({},),
    "qk_layernorm": (False,),
    "residual_multiplier": (1, 1.0),
    "rope_interleaved": (False,),
    "sliding_window": (),
    "tie_encoder_decoder": (False,),
    "use_bfloat16": (False,),
    "use_mrope": (False,),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
}


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """What defines the computation of one Llama model.

    ``attention_bias``: q, k and v have biases; ``output_bias``: the attention's output projection
    has one; ``mlp_bias``: gate, up and down have them; ``sliding_window``: positions that a token
    attends to in every layer, itself included, 0 for all.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int = 0
    rope: RopeConfig = field(default_factory=RopeConfig)
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def from_hf(
        cls,
        config: Mapping[str, Any],
        *,
        where: str = "config.json",
        tie_word_embeddings: bool | None = None,
    ) -> LlamaConfig:
        """Reads a config.json; ``tie_word_embeddings`` overrides the file's statement.

        Raises SourceError, naming ``where`` and the key, for a missing or wrong value and for
        keys that change the computation in a way this architecture does not know.
        """
        return read_config(config, where=where, tie_word_embeddings=tie_word_embeddings)

    @property
    def query_size(self) -> int:
        """Rows of q: num_attention_heads * head_dim."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of k and of v: num_key_value_heads * head_dim."""
        return self.num_key_value_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        """Rows of the fused q, k, v projection."""
        return self.query_size + 2 * self.kv_size

    def inv_freq(self) -> tuple[float, ...]:
        """The head_dim / 2 rotary inverse frequencies as float32 values."""
        return self.rope.inv_freq(self.head_dim)

    @property
    def attention_factor(self) -> float:
        """What the rotary cosines and sines are multiplied with."""
        return self.rope.attention_factor


def read_config(
    config: Mapping[str, Any],
    *,
    where: str = "config.json",
    tie_word_embeddings: bool | None = None,
    harmless: frozenset[str] = frozenset(),
) -> LlamaConfig:
    """See ``LlamaConfig.from_hf``; ``harmless`` are further keys that may be ignored."""
    _check_keys(config, where, harmless)
    hidden_size = _integer(config, "hidden_size", where)
    heads = _integer(config, "num_attention_heads", where)
    kv_heads = _integer(config, "num_key_value_heads", where, default=heads)
    if config.get("head_dim") is None and hidden_size % heads:
        raise SourceError(
            f"hidden_size {hidden_size} is not a multiple of num_attention_heads {heads}"
            " and head_dim is not given",
            where=where,
        )
    head_dim = _integer(config, "head_dim", where, default=hidden_size // heads)
    if heads % kv_heads:
        raise SourceError(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}",
            where=where,
        )
    if head_dim % 2:
        raise SourceError(f"head_dim {head_dim} is odd, rope needs pairs", where=where)
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise SourceError(
            f"hidden_act {activation!r} is not supported, only 'silu' is", where=where
        )
    # pretraining_tp splits matmuls into slices whose sum is the same; only training needs it.
    _integer(config, "pretraining_tp", where, default=1)
    tied = _boolean(config, "tie_word_embeddings", where)
    attention_bias = _boolean(config, "attention_bias", where)
    return LlamaConfig(
        vocab_size=_integer(config, "vocab_size", where),
        hidden_size=hidden_size,
        intermediate_size=_integer(config, "intermediate_size", where),
        num_hidden_layers=_integer(config, "num_hidden_layers", where),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=_epsilon(config, where),
        max_position_embeddings=_integer(config, "max_position_embeddings", where, default=2048),
        tie_word_embeddings=tied if tie_word_embeddings is None else tie_word_embeddings,
        attention_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=_boolean(config, "mlp_bias", where),
        rope=read_rope(config, head_dim, where),
        bos_token_id=next(iter(_token_ids(config, "bos_token_id", where)), None),
        eos_token_ids=_token_ids(config, "eos_token_id", where),
    )


def read_window(
    config: Mapping[str, Any], key: str, where: str, *, default: int | None = None
) -> int:
    """A window's size in tokens, 0 if the file says null; for families whose layers have one."""
    if key in config and config[key] is None:
        return 0
    return _integer(config, key, where, default=default)


def tiny_config() -> LlamaConfig:
    """A model small enough for tests, with grouped queries and a ragged last group in ffn."""
    return LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        rms_norm_eps=1e-5,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_ids=(0,),
    )


def to_hf(config: LlamaConfig) -> dict[str, Any]:
    """The config.json (transformers 5 form) that reads back as ``config``."""
    rope: dict[str, Any] = {"rope_type": config.rope.rope_type, "rope_theta": config.rope.theta}
    if config.rope.rope_type in ("linear", "llama3"):
        rope["factor"] = config.rope.factor
    if config.rope.rope_type == "llama3":
        rope["low_freq_factor"] = config.rope.low_freq_factor
        rope["high_freq_factor"] = config.rope.high_freq_factor
        rope["original_max_position_embeddings"] = config.rope.original_max_position_embeddings
    if config.rope.rope_type == "frequency_factors":
        rope["frequency_factors"] = list(config.rope.frequency_factors)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "rope_parameters": rope,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }


def _check_keys(config: Mapping[str, Any], where: str, harmless: frozenset[str]) -> None:
    problems = []
    for key, value in config.items():
        if key in _READ or key in _HARMLESS or key in harmless or value is None:
            continue
        if key == "quantization_config":
            method = value.get("quant_method", "?") if isinstance(value, Mapping) else value
            problems.append(f"quantization_config (the weights are quantized with {method})")
        elif key not in _NO_EFFECT:
            problems.append(f"{key} = {value!r}")
        elif value not in _NO_EFFECT[key]:
            problems.append(f"{key} = {value!r} (it changes the computation)")
    if problems:
        raise SourceError(
            "the config has keys that this architecture does not know: " + ", ".join(problems),
            where=where,
            why="ignoring a key that changes the computation would give wrong results",
            hint="if a key is harmless, set it to null in a copy of the folder's config.json",
        )


def _integer(config: Mapping[str, Any], key: str, where: str, *, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        if default is None:
            raise SourceError(f"{key} is missing", where=where)
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SourceError(f"{key} is {value!r}, a positive integer was expected", where=where)
    return value


def _boolean(config: Mapping[str, Any], key: str, where: str) -> bool:
    value = config.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise SourceError(f"{key} is {value!r}, true or false was expected", where=where)
    return value


def _epsilon(config: Mapping[str, Any], where: str) -> float:
    value = config.get("rms_norm_eps")
    if value is None:
        raise SourceError("rms_norm_eps is missing", where=where)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise SourceError(f"rms_norm_eps is {value!r}, a small number was expected", where=where)
    return float(value)


def _token_ids(config: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    value = config.get(key)
    if value is None:
        return ()
    values = value if isinstance(value, (list, tuple)) else [value]
    for item in values:
        if isinstance(item, bool) or not isinstance(item, int) or item < 0:
            raise SourceError(f"{key} is {value!r}, token ids were expected", where=where)
    return tuple(values)
