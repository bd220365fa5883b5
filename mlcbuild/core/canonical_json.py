"""Canonical JSON: equal values give equal bytes on every machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from mlcbuild.errors import InternalError

# What canonical JSON can hold; floats are finite.
Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None


def _plain(value: object, path: str) -> object:
    """``value`` as plain dicts and lists, refusing what has no single canonical form."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise InternalError(f"{path or 'value'} is {value}, which JSON cannot hold")
        return value  # repr() of a float is its shortest exact form since Python 3.1
    if isinstance(value, Path):
        raise InternalError(
            f"{path or 'value'} is a path",
            why="a path differs from machine to machine, so it must not enter a key or a payload",
        )
    if isinstance(value, Mapping):
        plain: dict[str, object] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise InternalError(f"{path or 'value'} has the key {key!r}, which is not a string")
            plain[key] = _plain(item, f"{path}.{key}" if path else key)
        return plain
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    raise InternalError(f"{path or 'value'} is a {type(value).__name__}, which JSON cannot hold")


def encode(value: object) -> bytes:
    """``value`` as UTF-8 JSON: sorted keys, no white space, no NaN or infinity.

    Raises ``InternalError`` that names the place of a value that has no canonical form.
    """
    text = json.dumps(
        _plain(value, ""),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return text.encode("utf-8")


def digest_of(value: object) -> str:
    """sha256 (64 hex digits) of the canonical JSON of ``value``."""
    return hashlib.sha256(encode(value)).hexdigest()
