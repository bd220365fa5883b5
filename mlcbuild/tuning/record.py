"""A tuning record: what was chosen for a workload on a device, and how fast it was there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlcbuild.core import canonical_json
from mlcbuild.core.canonical_json import Json
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.schedule_space import Workload

# Of the format of a line; a reader leaves out what it does not know.
RECORD_VERSION = 1

# A search's measurement of one candidate, or the outcome of the paired comparison with the default.
TRIAL, CONFIRMED = "trial", "confirmed"


class RecordError(ValueError):
    """A line is no record of this version, or not the one that was written."""


@dataclass(frozen=True, slots=True)
class RecordKey:
    """What a record applies to: it is used for nothing else."""

    workload: str  # digest
    capabilities: str  # digest
    tvm: str
    template: int

    def to_json(self) -> dict[str, Json]:
        """As plain JSON values."""
        return {
            "workload": self.workload,
            "capabilities": self.capabilities,
            "tvm": self.tvm,
            "template": self.template,
        }


def capabilities_digest(capabilities: Capabilities) -> str:
    """24 hex digits that name what the kernels are generated for."""
    return canonical_json.digest_of(
        {
            "family": capabilities.family,
            "isa": capabilities.isa,
            "llvm_cpu": capabilities.llvm_cpu,
            "llvm_features": sorted(capabilities.llvm_features),
            "vector_bits": capabilities.vector_bits,
        }
    )[:24]


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """One measurement, as it is stored.

    ``seconds`` are single runs of the kernel. ``speedup`` is the default's time over the time of
    ``decisions``, both measured in turns: the median over those rounds, for a confirmed record.
    It, not the seconds, compares records of different days and machines. ``trace`` is
    MetaSchedule's. ``device``, ``date`` (ISO 8601, UTC) and ``tools`` say where it comes from.
    """

    kind: str
    workload: Workload
    isa: str
    key: RecordKey
    decisions: tuple[tuple[str, int], ...]
    seconds: tuple[float, ...]
    speedup: float | None
    rounds: int
    trace: str | None
    device: tuple[tuple[str, str], ...]
    date: str
    tools: tuple[tuple[str, str], ...]

    def content(self) -> dict[str, Json]:
        """Everything but the id."""
        return {
            "v": RECORD_VERSION,
            "kind": self.kind,
            "workload": self.workload.to_json(),
            "isa": self.isa,
            "key": self.key.to_json(),
            "decisions": dict(self.decisions),
            "seconds": list(self.seconds),
            "speedup": self.speedup,
            "rounds": self.rounds,
            "trace": self.trace,
            "device": dict(self.device),
            "date": self.date,
            "tools": dict(self.tools),
        }

    @property
    def id(self) -> str:
        """16 hex digits of the digest of the content: equal records have equal ids."""
        return canonical_json.digest_of(self.content())[:16]

    def to_json(self) -> dict[str, Json]:
        """As it is written: the content and its id."""
        return {"id": self.id, **self.content()}

    def line(self) -> bytes:
        """The line of a segment, with its end."""
        return canonical_json.encode(self.to_json()) + b"\n"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TuningRecord:
        """The inverse of ``to_json``; RecordError for anything that was not written by it."""
        if data.get("v") != RECORD_VERSION:
            raise RecordError(f"a record of version {data.get('v')!r}, not {RECORD_VERSION}")
        try:
            key = data["key"]
            record = cls(
                kind=str(data["kind"]),
                workload=Workload.from_json(data["workload"]),
                isa=str(data["isa"]),
                key=RecordKey(
                    str(key["workload"]),
                    str(key["capabilities"]),
                    str(key["tvm"]),
                    int(key["template"]),
                ),
                decisions=tuple(sorted((str(k), int(v)) for k, v in data["decisions"].items())),
                seconds=tuple(float(value) for value in data["seconds"]),
                speedup=None if data["speedup"] is None else float(data["speedup"]),
                rounds=int(data["rounds"]),
                trace=None if data["trace"] is None else str(data["trace"]),
                device=tuple(sorted((str(k), str(v)) for k, v in data["device"].items())),
                date=str(data["date"]),
                tools=tuple(sorted((str(k), str(v)) for k, v in data["tools"].items())),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordError(f"not a record: {error}") from error
        if record.id != data.get("id"):
            raise RecordError("a record whose content is not what its id names")
        if record.key.workload != record.workload.digest():
            raise RecordError("a record whose key is not its workload's")
        return record
