"""Turn a Llama-family GGUF file into a float32 Hugging Face folder, as the parity reference.

Independent of mlcbuild on purpose: it is what mlcbuild's own GGUF source is compared with.

    python tests/parity/gguf_to_hf.py MODEL.gguf FOLDER
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

FloatArray = npt.NDArray[np.float32]

TOP_LEVEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL


def unpermute_rotary_rows(weight: FloatArray, heads: int) -> FloatArray:
    """Rows of a q or k projection [heads * head_dim, hidden] from GGUF's order to Hugging Face's.

    GGUF interleaves the two halves that rotary embedding pairs up; Hugging Face keeps the halves
    apart.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def convert(gguf_path: Path, folder: Path) -> None:
    """Write model.safetensors, config.json and the tokenizer files of ``gguf_path``."""
    reader = GGUFReader(gguf_path)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = read_tensors(reader)
    config = read_config(reader, tied="lm_head.weight" not in tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    write_tokenizer(reader, folder)


def field(reader: GGUFReader, key: str) -> Any:
    """The value of a metadata key; KeyError if the file lacks it."""
    return reader.fields[key].contents()


def read_tensors(reader: GGUFReader) -> dict[str, FloatArray]:
    """All tensors dequantized to float32, under Hugging Face names."""
    heads = int(field(reader, "llama.attention.head_count"))
    kv_heads = int(field(reader, "llama.attention.head_count_kv"))
    tensors: dict[str, FloatArray] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name in TOP_LEVEL_NAMES:
            tensors[TOP_LEVEL_NAMES[tensor.name]] = values
            continue
        block, layer, role, suffix = tensor.name.split(".")
        if block != "blk" or suffix != "weight" or role not in LAYER_NAMES:
            raise SystemExit(f"{tensor.name}: no Hugging Face name is known for this tensor")
        if role == "attn_q":
            values = unpermute_rotary_rows(values, heads)
        elif role == "attn_k":
            values = unpermute_rotary_rows(values, kv_heads)
        tensors[f"model.layers.{layer}.{LAYER_NAMES[role]}.weight"] = values
    return tensors


def read_config(reader: GGUFReader, *, tied: bool) -> dict[str, object]:
    """A transformers Llama config; scaled rotary embedding is refused."""
    scaled = [key for key in reader.fields if key.startswith("llama.rope.scaling")]
    if scaled or field(reader, "general.architecture") != "llama":
        raise SystemExit(f"only plain Llama GGUF files are converted, found {scaled}")
    # The file holds epsilon as float32; its shortest decimal is the number that was meant.
    epsilon = np.float32(field(reader, "llama.attention.layer_norm_rms_epsilon"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": int(field(reader, "llama.embedding_length")),
        "intermediate_size": int(field(reader, "llama.feed_forward_length")),
        "num_hidden_layers": int(field(reader, "llama.block_count")),
        "num_attention_heads": int(field(reader, "llama.attention.head_count")),
        "num_key_value_heads": int(field(reader, "llama.attention.head_count_kv")),
        "vocab_size": len(field(reader, "tokenizer.ggml.tokens")),
        "max_position_embeddings": int(field(reader, "llama.context_length")),
        "rms_norm_eps": float(np.format_float_positional(epsilon, unique=True)),
        "rope_theta": float(field(reader, "llama.rope.freq_base")),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": int(field(reader, "tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(field(reader, "tokenizer.ggml.eos_token_id")),
        "torch_dtype": "float32",
    }


def write_tokenizer(reader: GGUFReader, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json of a byte-level BPE with SmolLM's pre-tokenizer."""
    pre_tokenizer = field(reader, "tokenizer.ggml.pre")
    if field(reader, "tokenizer.ggml.model") != "gpt2" or pre_tokenizer != "smollm":
        raise SystemExit(f"no rule for the pre-tokenizer {pre_tokenizer}")
    tokens: list[str] = field(reader, "tokenizer.ggml.tokens")
    kinds: list[int] = field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(pair.split(" ")) for pair in field(reader, "tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[int(field(reader, "tokenizer.ggml.bos_token_id"))],
        "eos_token": tokens[int(field(reader, "tokenizer.ggml.eos_token_id"))],
        "unk_token": tokens[int(field(reader, "tokenizer.ggml.unknown_token_id"))],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(field(reader, "llama.context_length")),
        "chat_template": field(reader, "tokenizer.chat_template"),
    }
    text = json.dumps(tokenizer_config, indent=1, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    convert(arguments.gguf, arguments.folder)


if __name__ == "__main__":
    main()
