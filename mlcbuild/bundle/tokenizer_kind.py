"""Tells early whether the runtime knows a tokenizer's kind; it checks every component itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlcbuild.errors import SourceError

_HINT = "byte-level BPE is supported, the kind that Llama 3, Qwen and SmolLM use"


def check_kind(tokenizer: Mapping[str, Any]) -> None:
    """Raises ``SourceError`` for a decoded tokenizer.json that is not byte-level BPE."""
    kind = _get(tokenizer.get("model"), "type")
    if kind not in (None, "BPE"):
        raise SourceError(
            f"tokenizers of type {kind} are not supported", where="tokenizer.json", hint=_HINT
        )
    if "pre_tokenizer" not in tokenizer:
        return
    pre_tokenizer = tokenizer["pre_tokenizer"]
    steps = _get(pre_tokenizer, "pretokenizers") or [pre_tokenizer]
    if not any(_get(step, "type") == "ByteLevel" for step in steps):
        raise SourceError(
            "the tokenizer does not split text into bytes",
            where="tokenizer.json",
            why="it has no ByteLevel pre-tokenizer, as SentencePiece models do not",
            hint=_HINT,
        )


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None
