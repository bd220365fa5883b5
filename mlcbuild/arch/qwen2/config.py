"""Configuration of Qwen2 and Qwen2.5: Llama's, with biases on q, k and v and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlcbuild.arch.llama import config as llama
from mlcbuild.arch.llama.config import LlamaConfig
from mlcbuild.errors import SourceError

FULL_ATTENTION = "full_attention"


def read_config(
    config: Mapping[str, Any],
    *,
    where: str = "config.json",
    tie_word_embeddings: bool | None = None,
) -> LlamaConfig:
    """Reads a config.json; see ``mlcbuild.arch.llama.config.read_config``.

    A sliding window is refused where it is used; its size alone, which these files state even
    where it is not, means nothing.
    """
    plain = dict(config)
    if plain.get("use_sliding_window"):
        raise SourceError("use_sliding_window is true, which is not supported", where=where)
    plain.pop("sliding_window", None)
    kinds = plain.pop("layer_types", None)
    if kinds is not None and set(kinds) != {FULL_ATTENTION}:
        raise SourceError(
            f"layer_types has {sorted(set(kinds))}, only {FULL_ATTENTION!r} is supported",
            where=where,
        )
    for key in ("attention_bias", "mlp_bias"):
        if key in plain:
            raise SourceError(f"{key} is no key of a Qwen2 config", where=where)
    read = llama.read_config(plain, where=where, tie_word_embeddings=tie_word_embeddings)
    return replace(read, attention_bias=True, output_bias=False, mlp_bias=False)


def tiny_config() -> LlamaConfig:
    """A model small enough for tests."""
    return replace(llama.tiny_config(), attention_bias=True)


def to_hf(config: LlamaConfig) -> dict[str, Any]:
    """The config.json (transformers 5 form) that reads back as ``config``."""
    plain = llama.to_hf(config)
    del plain["attention_bias"], plain["mlp_bias"]
    return {
        **plain,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": False,
        "layer_types": [FULL_ATTENTION] * config.num_hidden_layers,
    }
