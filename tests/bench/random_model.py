"""Llama checkpoints of random weights, for measuring speed at sizes that no test downloads.

    python tests/bench/random_model.py FOLDER [--layers 16] [--hidden 2048] ...

Writes FOLDER/hf (float16 safetensors, config, a byte-level tokenizer), FOLDER/recipe.toml, which
builds it in q4f16_1, and FOLDER/q4_0.gguf with the same weights for llama.cpp. The defaults make
"rand1b": 1.1 B parameters, untied. Every matrix of the GGUF file is Q4_0, the output too, which
llama.cpp's own tool keeps at 6 bits: a little faster than what its users have. A second run does
nothing.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

Weights = npt.NDArray[np.float16]

SPREAD = 0.02  # standard deviation of the weights
RMS_NORM_EPS = 1e-5
ROPE_THETA = 10000.0
SPECIAL = ("<unk>", "<s>", "</s>")
TOP_LEVEL = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    context: int
    seed: int

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all tensors, in the order of the file."""
        kv = self.kv_heads * self.head_dim
        found: list[tuple[str, tuple[int, ...]]] = [
            ("model.embed_tokens.weight", (self.vocab, self.hidden))
        ]
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            shapes = {
                "input_layernorm": (self.hidden,),
                "self_attn.q_proj": (self.hidden, self.hidden),
                "self_attn.k_proj": (kv, self.hidden),
                "self_attn.v_proj": (kv, self.hidden),
                "self_attn.o_proj": (self.hidden, self.hidden),
                "post_attention_layernorm": (self.hidden,),
                "mlp.gate_proj": (self.ffn, self.hidden),
                "mlp.up_proj": (self.ffn, self.hidden),
                "mlp.down_proj": (self.hidden, self.ffn),
            }
            found += [(f"{prefix}{name}.weight", shape) for name, shape in shapes.items()]
        found += [("model.norm.weight", (self.hidden,))]
        found += [("lm_head.weight", (self.vocab, self.hidden))]
        return found

    def config(self) -> dict[str, Any]:
        """Hugging Face's config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "rms_norm_eps": RMS_NORM_EPS,
            "rope_theta": ROPE_THETA,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }

    def weights(self) -> Iterator[tuple[str, Weights]]:
        """All tensors, one at a time, the same ones every time."""
        random = np.random.default_rng(self.seed)
        for name, shape in self.tensors():
            if len(shape) == 1:
                yield name, np.ones(shape, np.float16)
            else:
                drawn = random.standard_normal(shape, dtype=np.float32)
                yield name, (drawn * np.float32(SPREAD)).astype(np.float16)


def write_safetensors(shape: Shape, path: Path) -> None:
    """The weights, written as they are drawn: nothing of the model's size is held in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dimensions in shape.tensors():
        size = 2 * int(np.prod(dimensions))
        header[name] = {
            "dtype": "F16",
            "shape": list(dimensions),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in shape.weights():
            file.write(values.tobytes())


def write_tokenizer(shape: Shape, path: Path) -> None:
    """Bytes and names that stand for nothing."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [f"tok{number}" for number in range(shape.vocab - len(tokens))]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(path))


def write_recipe(shape: Shape, folder: Path) -> None:
    """A recipe over FOLDER/hf."""
    source = json.dumps(str((folder / "hf").resolve()))
    (folder / "recipe.toml").write_text(
        f"""schema = 1
name = "random"

[model]
source = {source}

[quantization]
schemes = ["q4f16_1"]

[targets]
names = ["linux-x86_64-cpu"]

[runtime]
context_window_size = {shape.context}
prefill_chunk_size = 512
max_batch_size = 8
""",
        encoding="utf-8",
    )


def interleaved(values: Weights, heads: int) -> Weights:
    """Rows of q and k as llama.cpp's rope wants them: pairs beside each other, not halves apart."""
    half = values.shape[0] // heads // 2
    split = values.reshape(heads, 2, half, values.shape[1])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    if name in TOP_LEVEL:
        return TOP_LEVEL[name]
    layer, _, inside = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{IN_LAYER[inside.removesuffix('.weight')]}.weight"


def write_gguf(shape: Shape, path: Path) -> None:
    """The same model for llama.cpp, matrices in Q4_0."""
    writer = GGUFWriter(path, "llama", use_temp_file=True)
    writer.add_name("random")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(RMS_NORM_EPS)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(shape.vocab)
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    types += [TokenType.NORMAL] * (shape.vocab - len(tokens))
    tokens += [f"tok{number}" for number in range(shape.vocab - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(number) for number in range(shape.vocab)])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, values in shape.weights():
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values.astype(np.float32))
            continue
        if name.endswith("q_proj.weight"):
            values = interleaved(values, shape.heads)
        elif name.endswith("k_proj.weight"):
            values = interleaved(values, shape.kv_heads)
        kind = GGMLQuantizationType.Q4_0
        packed = quantize(values.astype(np.float32), kind)
        writer.add_tensor(gguf_name(name), packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    for name, default in (
        ("layers", 16),
        ("hidden", 2048),
        ("heads", 32),
        ("kv-heads", 8),
        ("ffn", 8192),
        ("vocab", 32000),
        ("context", 8192),
        ("seed", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = vars(parser.parse_args())
    folder: Path = options.pop("folder")
    shape = Shape(**options)
    ready = folder / "ready.json"
    wanted = json.dumps(options, sort_keys=True)
    if ready.exists() and ready.read_text(encoding="utf-8") == wanted:
        return
    ready.unlink(missing_ok=True)
    hf = folder / "hf"
    hf.mkdir(parents=True, exist_ok=True)
    (hf / "config.json").write_text(json.dumps(shape.config(), indent=1), encoding="utf-8")
    write_tokenizer(shape, hf / "tokenizer.json")
    write_safetensors(shape, hf / "model.safetensors")
    write_gguf(shape, folder / "q4_0.gguf")
    write_recipe(shape, folder)
    ready.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
