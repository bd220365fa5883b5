"""Configuration of Qwen2 and Qwen2.5: Llama's, with biases on q, k and v and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlcbuild.arch.llama import config as llama
from mlcbuild.arch.llama.config import LlamaConfig
from mlcbuild.errors import SourceError

FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"


def read_config(
    config: Mapping[str, Any],
    *,
    where: str = "config.json",
    tie_word_embeddings: bool | None = None,
) -> LlamaConfig:
    """Reads a config.json; see ``mlcbuild.arch.llama.config.read_config``.

    A sliding window must hold for all layers or for none; its size alone, which these files state
    even where it is not used, means nothing.
    """
    plain = dict(config)
    window = _window(plain, where)
    for key in ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types"):
        plain.pop(key, None)
    for key in ("attention_bias", "mlp_bias"):
        if key in plain:
            raise SourceError(f"{key} is no key of a Qwen2 config", where=where)
    read = llama.read_config(plain, where=where, tie_word_embeddings=tie_word_embeddings)
    return replace(
        read, attention_bias=True, output_bias=False, mlp_bias=False, sliding_window=window
    )


def _window(config: Mapping[str, Any], where: str) -> int:
    """The window that every layer has, 0 if none has one."""
    layers, kinds = config.get("num_hidden_layers"), config.get("layer_types")
    used = config.get("use_sliding_window") or False
    first = config.get("max_window_layers", 28)  # layers below it see everything
    if not isinstance(layers, int):
        return 0  # said by the reader of the other keys
    if not isinstance(first, int) or not isinstance(used, bool):
        raise SourceError(
            f"use_sliding_window is {used!r}, max_window_layers is {first!r}: true or false and an "
            "integer were expected",
            where=where,
        )
    if kinds is not None and not isinstance(kinds, list):
        raise SourceError(f"layer_types is {kinds!r}, a list was expected", where=where)
    if kinds is None:
        kinds = [
            SLIDING_ATTENTION if used and i >= first else FULL_ATTENTION for i in range(layers)
        ]
    windowed = sum(kind == SLIDING_ATTENTION for kind in kinds)
    unknown = sorted({str(kind) for kind in kinds} - {FULL_ATTENTION, SLIDING_ATTENTION})
    if unknown or len(kinds) != layers:
        raise SourceError(
            f"layer_types names {len(kinds)} layers of {layers}"
            + (f", some of unknown kinds: {', '.join(unknown)}" if unknown else ""),
            where=where,
        )
    if windowed and not used:
        raise SourceError(
            f"layer_types has {SLIDING_ATTENTION!r} but use_sliding_window is not true", where=where
        )
    if windowed not in (0, layers):
        raise SourceError(
            f"a sliding window in {windowed} of {layers} layers is not supported, only in all or "
            "none (use_sliding_window, max_window_layers, layer_types)",
            where=where,
        )
    return llama.read_window(config, "sliding_window", where) if windowed else 0


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
        "use_sliding_window": bool(config.sliding_window),
        "sliding_window": config.sliding_window or None,
        "max_window_layers": 0 if config.sliding_window else config.num_hidden_layers,
        "layer_types": [SLIDING_ATTENTION if config.sliding_window else FULL_ATTENTION]
        * config.num_hidden_layers,
    }
