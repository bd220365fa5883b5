"""Makes tiny random Llama checkpoints: a Hugging Face folder, or a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from mlcbuild.arch.llama.config import LlamaConfig, tiny_config, to_hf
from mlcbuild.arch.llama.weights import param_rules

Tensors = dict[str, npt.NDArray[Any]]


def random_tensors(config: LlamaConfig, seed: int = 0, dtype: Any = ml_dtypes.bfloat16) -> Tensors:
    """Every tensor that the model needs, by its Hugging Face name."""
    generator = np.random.default_rng(seed)
    tensors: Tensors = {}
    for rule in param_rules(config):
        for source, shape in zip(rule.sources, rule.shapes, strict=True):
            values = generator.standard_normal(shape, dtype=np.float32) * np.float32(0.05)
            tensors[source] = values.astype(dtype)
    return tensors


def save_folder(
    folder: Path,
    tensors: Tensors,
    config: LlamaConfig | None = None,
    *,
    shards: int = 1,
    extra_config: dict[str, Any] | None = None,
) -> Path:
    """Writes config.json and the weights, in ``shards`` files with an index if more than one."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {**to_hf(config or tiny_config()), **(extra_config or {})}
    (folder / "config.json").write_text(json.dumps(record))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = names[number::shards]
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def permute_rope(values: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows of q or k in the order that GGUF files have: the two halves of a head interleaved."""
    rows = values.shape[0]
    halves = values.reshape(heads, 2, rows // heads // 2, *values.shape[1:])
    result: npt.NDArray[Any] = halves.swapaxes(1, 2).reshape(values.shape)
    return result


def save_gguf(
    path: Path,
    tensors: Tensors,
    config: LlamaConfig,
    tokens: list[str],
    types: list[int],
    merges: list[str],
    *,
    quantization: str = "F32",
    pre: str = "smollm",
    rope_factors: list[float] | None = None,
    extra: dict[str, int] | None = None,
) -> Path:
    """Writes a Llama GGUF file; matrices are stored as ``quantization``."""
    from gguf import GGMLQuantizationType, GGUFWriter, quantize

    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "model.layers": "blk",
    }
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")
    for key, value in (extra or {}).items():
        writer.add_uint32(key, value)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(rope_factors, np.float32))
    for name, values in tensors.items():
        short = name
        for long, replacement in names.items():
            short = short.replace(long, replacement)
        data = values.astype(np.float32)
        if "q_proj" in name:
            data = permute_rope(data, config.num_attention_heads)
        if "k_proj" in name:
            data = permute_rope(data, config.num_key_value_heads)
        if quantization == "F32" or data.ndim == 1 or data.shape[-1] % 32:
            writer.add_tensor(short, data)
        else:
            kind = GGMLQuantizationType[quantization]
            writer.add_tensor(short, quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
