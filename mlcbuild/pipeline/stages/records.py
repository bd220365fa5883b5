"""Frozen records as the params of actions, and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from mlcbuild.core.canonical_json import Json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")


def to_params(record: DataclassInstance) -> dict[str, Json]:
    """A dataclass as plain JSON values (tuples become lists)."""
    plain: dict[str, Json] = json.loads(json.dumps(asdict(record)))
    return plain


def from_params(kind: type[Record], params: Any) -> Record:
    """The inverse of ``to_params`` for records of plain values and tuples of them."""
    return kind(
        **{
            key: tuple(value) if isinstance(value, list) else value
            for key, value in dict(params).items()
        }
    )
