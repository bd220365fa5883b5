"""What a tuner may choose of a kernel template, and what it was chosen for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlcbuild.core import canonical_json
from mlcbuild.core.canonical_json import Json

# Template parameters by name.
Decisions = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Choice:
    """Parameters that are chosen together: one of ``values``, each a value for every name.

    Parameters that limit each other (rows and vectors share the registers) are one choice, so
    that whatever is sampled can be compiled.
    """

    names: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Space:
    """The choices of one form of a template, and at how many rows they are measured.

    ``cold``: weights are not in a cache when a call begins, as in a decode step.
    """

    form: str
    rows: int
    cold: bool
    choices: tuple[Choice, ...]

    def index_of(self, decisions: Decisions) -> tuple[int, ...] | None:
        """The index of the value taken in each choice; None if a decision is not in the space."""
        found = []
        for choice in self.choices:
            if not set(choice.names) <= set(decisions):
                return None
            value = tuple(decisions[name] for name in choice.names)
            if value not in choice.values:
                return None
            found.append(choice.values.index(value))
        return tuple(found)

    def decisions_at(self, index: tuple[int, ...]) -> dict[str, int]:
        """The parameters at ``index``, the inverse of ``index_of``."""
        return {
            name: part
            for choice, i in zip(self.choices, index, strict=True)
            for name, part in zip(choice.names, choice.values[i], strict=True)
        }

    def size(self) -> int:
        """How many points the space has."""
        count = 1
        for choice in self.choices:
            count *= len(choice.values)
        return count


@dataclass(frozen=True, slots=True)
class Workload:
    """One form of one kernel: what a tuning record is about.

    ``builder`` and ``args`` (sorted) are a kernel tag without what changes no schedule (bias,
    residual); ``form`` and ``rows`` are those of the space.
    """

    builder: str
    args: tuple[tuple[str, int | float | str | bool], ...]
    form: str
    rows: int

    def to_json(self) -> dict[str, Json]:
        """As plain JSON values."""
        return {
            "builder": self.builder,
            "args": dict(self.args),
            "form": self.form,
            "rows": self.rows,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, object]) -> Workload:
        """The inverse of ``to_json``. KeyError, TypeError or ValueError for anything else."""
        args = record["args"]
        builder, form, rows = record["builder"], record["form"], record["rows"]
        if not isinstance(args, Mapping) or not isinstance(rows, int):
            raise TypeError("not a workload")
        if not isinstance(builder, str) or not isinstance(form, str):
            raise TypeError("not a workload")
        return cls(builder, tuple(sorted(args.items())), form, rows)

    def digest(self) -> str:
        """24 hex digits that name the workload on every machine."""
        return canonical_json.digest_of(self.to_json())[:24]

    def __str__(self) -> str:
        """``linear_int4 3072x576, one row``."""
        args = dict(self.args)
        shape = f"{args.get('out_features', '?')}x{args.get('in_features', '?')}"
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        return f"{self.builder} {shape}, {rows}"
