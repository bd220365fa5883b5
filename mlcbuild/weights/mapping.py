"""How a model's parameters are made of a checkpoint's tensors, each of them used exactly once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from mlcbuild.errors import InternalError, SourceError
from mlcbuild.weights.finite import check_finite

Combine = Literal["one", "concat_rows"]
Kind = Literal["linear", "embedding", "lm_head", "norm", "bias"]

# Buffers that old exports stored beside the weights; they follow from the config.
IGNORED_BUFFERS = (
    "rotary_emb.inv_freq",
    "rotary_emb.cos_cached",
    "rotary_emb.sin_cached",
)
_LISTED = 12  # problems shown in one error


class TensorLike(Protocol):
    """What is known of a checkpoint's tensor before it is read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""


class CheckpointLike(Protocol):
    """The part of a checkpoint that mapping needs."""

    @property
    def location(self) -> str:
        """Where it lies, for messages."""

    @property
    def tensors(self) -> Mapping[str, TensorLike]:
        """Every tensor by name."""

    def read(self, name: str) -> npt.NDArray[Any]:
        """One tensor's values."""


@dataclass(frozen=True, slots=True)
class ParamRule:
    """One parameter of the model and the checkpoint tensors that it is made of.

    ``shapes`` holds the shape of each source; "concat_rows" stacks them along axis 0.
    ``duplicates`` may be stored beside the sources and must then hold the very same values (a
    tied lm_head). ``hint`` is what to do when a source is missing.
    """

    name: str
    sources: tuple[str, ...]
    combine: Combine
    kind: Kind
    shapes: tuple[tuple[int, ...], ...]
    duplicates: tuple[str, ...] = ()
    hint: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The parameter's shape."""
        rows = sum(shape[0] for shape in self.shapes)
        return (rows, *self.shapes[0][1:])


def check_consumed(rules: Sequence[ParamRule], checkpoint: CheckpointLike) -> None:
    """Refuses a checkpoint whose tensors are not each used exactly once.

    One SourceError lists every missing tensor, every left-over one and every wrong shape.
    """
    available = checkpoint.tensors
    owner: dict[str, str] = {}
    problems: list[str] = []
    hints: list[str] = []
    missing: list[str] = []
    for rule in rules:
        for source, shape in zip(rule.sources, rule.shapes, strict=True):
            if source in owner:
                raise InternalError(f"{source} is used by {owner[source]} and by {rule.name}")
            owner[source] = rule.name
            if source not in available:
                missing.append(source)
                if rule.hint is not None and rule.hint not in hints:
                    hints.append(rule.hint)
            elif tuple(available[source].shape) != shape:
                found = list(available[source].shape)
                problems.append(f"{source} has shape {found}, the config says {list(shape)}")
        for duplicate in rule.duplicates:
            owner.setdefault(duplicate, rule.name)
    leftover = [name for name in available if name not in owner and not is_ignored(name)]
    for name in missing:
        close = difflib.get_close_matches(name, leftover, n=1, cutoff=0.8)
        note = f" (is it {close[0]}?)" if close else ""
        problems.append(f"{name} is missing{note}")
    problems.extend(f"{name} is not used by this architecture" for name in leftover)
    if not problems:
        return
    shown = problems[:_LISTED]
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} more")
    raise SourceError(
        "the checkpoint does not fit the model:\n  " + "\n  ".join(shown),
        where=checkpoint.location,
        hint="; ".join(hints) if hints else None,
    )


def is_ignored(name: str) -> bool:
    """Whether a tensor is a buffer that follows from the config."""
    return any(name == buffer or name.endswith("." + buffer) for buffer in IGNORED_BUFFERS)


def read_param(rule: ParamRule, checkpoint: CheckpointLike) -> npt.NDArray[Any]:
    """The parameter's values, in the checkpoint's dtype; a view if it has one source.

    Raises SourceError for NaN and infinity, and when a duplicate holds other values.
    """
    parts = [checkpoint.read(source) for source in rule.sources]
    for source, part in zip(rule.sources, parts, strict=True):
        check_finite(part, source, checkpoint.location)
    value = parts[0] if rule.combine == "one" else np.concatenate(parts, axis=0)
    for duplicate in rule.duplicates:
        if duplicate in checkpoint.tensors and not _same(value, checkpoint.read(duplicate)):
            raise SourceError(
                f"{duplicate} differs from {rule.sources[0]}, though the config ties them",
                where=checkpoint.location,
                hint="set tie_word_embeddings = false in the recipe's [model] table to use both",
            )
    return value


def _same(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and bool((left == right).all())
