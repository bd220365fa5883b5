"""Configuration of Mistral: Llama's without biases, and with a sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlcbuild.arch.llama import config as llama
from mlcbuild.arch.llama.config import LlamaConfig
from mlcbuild.errors import SourceError


def read_config(
    config: Mapping[str, Any],
    *,
    where: str = "config.json",
    tie_word_embeddings: bool | None = None,
) -> LlamaConfig:
    """Reads a config.json; see ``mlcbuild.arch.llama.config.read_config``.

    ``sliding_window`` is null in files of models without one. Where the key is missing, the
    window's size is unknown: transformers takes 4096, and so do we.
    """
    plain = dict(config)
    window = llama.read_window(plain, "sliding_window", where, default=4096)
    plain.pop("sliding_window", None)
    for key in ("attention_bias", "mlp_bias"):
        if plain.get(key):
            raise SourceError(f"{key} is no key of a Mistral config", where=where)
    read = llama.read_config(plain, where=where, tie_word_embeddings=tie_word_embeddings)
    return replace(read, sliding_window=window)


def tiny_config() -> LlamaConfig:
    """A model small enough for tests, whose window is shorter than its context."""
    return replace(llama.tiny_config(), sliding_window=24)


def to_hf(config: LlamaConfig) -> dict[str, Any]:
    """The config.json (transformers 5 form) that reads back as ``config``."""
    plain = llama.to_hf(config)
    del plain["attention_bias"], plain["mlp_bias"]
    return {
        **plain,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": config.sliding_window or None,
    }
