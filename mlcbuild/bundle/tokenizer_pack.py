"""The packed tokenizer: a tokenizer.json in the form that the runtime loads fast."""

from __future__ import annotations

import hashlib
import json
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from mlcbuild.core import canonical_json
from mlcbuild.errors import SourceError

PACKED_NAME = "tokenizer.bin"
MAGIC = b"MLCBTOK\0"
PACKED_VERSION = 1
_WHERE = "tokenizer.json"
_MAX_ID = (1 << 24) - 1


def pack_tokenizer(tokenizer_json: bytes) -> bytes:
    """tokenizer.bin for the bytes of a tokenizer.json; docs/formats.md describes it.

    Equal input gives equal bytes. Raises SourceError for a file that does not hold together; which
    kinds of tokenizers the runtime reads is for ``tokenizer_kind`` to say.
    """
    try:
        return _pack(tokenizer_json)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise SourceError(
            "the tokenizer cannot be read",
            where=_WHERE,
            why=f"{type(error).__name__}: {error}",
            hint="fetch the file again",
        ) from error


def _pack(tokenizer_json: bytes) -> bytes:
    tokenizer = json.loads(
        tokenizer_json, object_pairs_hook=_no_doubles, parse_float=_as_reference_reads
    )
    model = tokenizer["model"]
    vocab = model["vocab"]
    tokens, scores = _tokens(vocab)
    contents = [content.encode("utf-8") for _, content in tokens]
    merges = [] if isinstance(vocab, list) else _merges(model["merges"], vocab)
    config = dict(tokenizer)
    config["model"] = {key: value for key, value in model.items() if key not in ("vocab", "merges")}
    config["added_tokens"] = [_compact(token) for token in tokenizer.get("added_tokens") or []]
    head = canonical_json.encode(config)
    ends: list[int] = []
    size = 0
    for content in contents:
        size += len(content)
        ends.append(size)
    sizes = (PACKED_VERSION, len(head), len(tokens), size, len(scores), len(merges) // 3)
    parts = [
        MAGIC,
        struct.pack("<6I", *sizes),
        hashlib.sha256(tokenizer_json).digest(),
        head,
        _little("I", [number for number, _ in tokens]),
        _little("I", ends),
        _little("d", scores),
        _little("i", merges),
        *contents,
    ]
    return b"".join(parts)


def _as_reference_reads(literal: str) -> float:
    """A number as Hugging Face tokenizers reads it: an integer divided by a power of ten.

    That rounds twice. Scores must be off by the same last bit, or ties fall otherwise.
    """
    mantissa, _, power = literal.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    significand, exponent = abs(int(whole + fraction)), int(power or 0) - len(fraction)
    while significand >= 1 << 64:  # further digits are passed over
        significand, exponent = significand // 10, exponent + 1
    if significand == 0 or not -600 < exponent < 600:
        return float(literal)
    value = float(significand)
    while exponent < -308:
        value, exponent = value / 1e308, exponent + 308
    ten = float(f"1e{abs(exponent)}")
    value = value / ten if exponent < 0 else value * ten
    return -value if literal.startswith("-") else value


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice in one object")
    return result


def _tokens(vocab: Any) -> tuple[list[tuple[int, str]], list[float]]:
    """(id, content), ascending by id, and the scores of a unigram model."""
    if isinstance(vocab, list):
        return [(i, entry[0]) for i, entry in enumerate(vocab)], [float(e[1]) for e in vocab]
    tokens = sorted((number, content) for content, number in vocab.items())
    for number, _ in tokens:
        if type(number) is not int or number < 0:  # True is no id
            raise ValueError(f"{number!r} is not a token id")
    if tokens and tokens[-1][0] > _MAX_ID:
        raise ValueError(f"token id {tokens[-1][0]} is beyond {_MAX_ID}")
    return tokens, []


def _merges(merges: Sequence[Any], vocab: Mapping[str, int]) -> list[int]:
    """The ids of left, right and merged token of each merge, one after the other."""
    ids: list[int] = []
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        ids += (vocab[left], vocab[right], vocab[left + right])
    return ids


def _compact(token: Mapping[str, Any]) -> dict[str, Any]:
    """An added token without what the reader takes for granted."""
    defaults = {"normalized": not token.get("special", False)}
    return {
        key: value
        for key, value in token.items()
        if value is not defaults.get(key, False) or key == "id"
    }


def _little(code: str, values: Sequence[float]) -> bytes:
    packed = array(code, values)
    if struct.pack("=H", 1) != struct.pack("<H", 1):
        packed.byteswap()
    return packed.tobytes()
