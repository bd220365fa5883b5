"""Tells early whether the runtime knows every component of a tokenizer; it checks details itself.

Of regular expressions and of ids only the runtime knows what it reads: it refuses when it opens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mlcbuild.errors import SourceError

MODELS = ("BPE", "Unigram")
NORMALIZERS = (
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Precompiled",
    "Prepend",
    "Replace",
    "Strip",
    "StripAccents",
)
PRE_TOKENIZERS = (
    "ByteLevel",
    "Digits",
    "Metaspace",
    "Punctuation",
    "Split",
    "Whitespace",
    "WhitespaceSplit",
)
DECODERS = ("ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Strip")
# Options of BPE that change ids and are not there: those of WordPiece-like and of trained ones.
_BPE_OPTIONS = ("continuing_subword_prefix", "dropout", "end_of_word_suffix")
_WHERE = "tokenizer.json"


def check_kind(tokenizer: Mapping[str, Any]) -> None:
    """Raises ``SourceError`` naming the first component of a tokenizer.json that is not known."""
    model = tokenizer.get("model")
    kind = _get(model, "type")
    if kind is not None and kind not in MODELS:
        raise _refusal(f"tokenizers of type {kind}", MODELS)
    for option in _BPE_OPTIONS:
        if kind != "Unigram" and _get(model, option):
            raise _refusal(f"the BPE option {option}", ())
    _check(tokenizer, "normalizer", "normalizers", NORMALIZERS)
    _check(tokenizer, "pre_tokenizer", "pretokenizers", PRE_TOKENIZERS)
    _check(tokenizer, "decoder", "decoders", DECODERS)
    if "decoder" in tokenizer and tokenizer["decoder"] is None:
        raise _refusal("a tokenizer without a decoder", ())
    steps = [_get(step, "type") for step in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers")]
    if "ByteLevel" in steps[:-1]:
        raise _refusal("a pre_tokenizer behind ByteLevel", ())
    if "ByteLevel" in steps and kind == "Unigram":
        raise _refusal("a unigram model over bytes", ())


def _check(tokenizer: Mapping[str, Any], part: str, list_key: str, known: tuple[str, ...]) -> None:
    for step in _steps(tokenizer.get(part), list_key):
        kind = _get(step, "type")
        if kind is not None and kind not in known:
            raise _refusal(f"the {part} {kind}", known)


def _steps(value: Any, list_key: str) -> Iterator[Any]:
    """The steps of a component, those of its sequences one by one."""
    if value is None:
        return
    if _get(value, "type") != "Sequence":
        yield value
        return
    inner = _get(value, list_key)
    for step in inner if isinstance(inner, list) else ():
        yield from _steps(step, list_key)


def _refusal(what: str, known: tuple[str, ...]) -> SourceError:
    return SourceError(
        f"{what} is not supported",
        where=_WHERE,
        why=f"the runtime reads: {', '.join(known)}" if known else None,
        hint="BPE and unigram tokenizers are supported, the kinds that language models use",
    )


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None
