"""Where the time of a phase goes, kernel by kernel, and how far that is from what the CPU can."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlcbuild.bundle.native import NativeEngine
from mlcbuild.engine.work import PlanWork, Step, Work
from mlcbuild.errors import InternalError


@dataclass(slots=True)
class KernelTime:
    """Calls of a kernel and the seconds that they took."""

    calls: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Phase:
    """What was measured of a phase: its steps, its kernels, seconds on the clock."""

    steps: list[Step] = field(default_factory=list)
    kernels: dict[str, KernelTime] = field(default_factory=dict)
    seconds: float = 0.0


class KernelMeter:
    """Adds up what an engine with ``profile`` spends between ``start`` and ``stop``."""

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine
        self._before: dict[str, Any] = {}
        self._phase = Phase()

    def start(self) -> None:
        """From now on kernels count."""
        self._before = json.loads(self._engine.metrics())

    def stop(self, steps: list[Step], seconds: float) -> None:
        """Until here they did, in ``steps`` and ``seconds``.

        Raises ``InternalError`` if the runtime ran other rows than those of ``steps``.
        """
        after = json.loads(self._engine.metrics())
        rows = sum(_rows(figures) * sign for figures, sign in ((after, 1), (self._before, -1)))
        if rows != sum(step.rows for step in steps):
            raise InternalError(
                f"the runtime ran {rows} rows where {sum(step.rows for step in steps)} were due"
            )
        before = {kernel["name"]: kernel for kernel in self._before["kernels"]}
        for kernel in after["kernels"]:
            old = before.get(kernel["name"], {"calls": 0, "seconds": 0.0})
            found = self._phase.kernels.setdefault(kernel["name"], KernelTime())
            found.calls += kernel["calls"] - old["calls"]
            found.seconds += kernel["seconds"] - old["seconds"]
        self._phase.steps += steps
        self._phase.seconds += seconds

    def take(self) -> Phase:
        """What has been added up; the meter starts again from nothing."""
        phase, self._phase = self._phase, Phase()
        return phase


def _rows(figures: Mapping[str, Any]) -> int:
    return int(figures["batch"]["prefill_rows"]) + int(figures["batch"]["decode_rows"])


def phase_record(phase: Phase, work: PlanWork, limits: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a phase as JSON.

    ``limits``: those of ``NativeEngine.limits``. ``kernels``: one item each, what took longest
    first, with ``calls``, ``seconds``, ``share`` of the phase's seconds, ``bytes`` and ``ops``,
    ``gbytes_per_s`` and ``gops_per_s`` (1e9), ``bound`` ("memory", "int8" or "float": which limit
    its work reaches first) and ``of_bound`` (1: as fast as that limit lets it be). ``total`` has
    the same of all kernels. Raises ``InternalError`` if a kernel was called more or less often
    than the plan says.
    """
    due = work.steps(phase.steps)
    ran = {name: kernel for name, kernel in phase.kernels.items() if kernel.calls}
    if {name: kernel.calls for name, kernel in ran.items()} != {
        name: item.calls for name, item in due.items() if item.calls
    }:
        raise InternalError(
            "the runtime called other kernels than the plan says",
            why=f"calls: { ({name: kernel.calls for name, kernel in ran.items()}) }, "
            f"due: { ({name: item.calls for name, item in due.items()}) }",
        )
    rows = []
    total, kernel_seconds, least_seconds = Work(), 0.0, 0.0
    for name, kernel in sorted(ran.items(), key=lambda item: (-item[1].seconds, item[0])):
        bound, least = _least_seconds(due[name], limits)
        total += due[name]
        kernel_seconds += kernel.seconds
        least_seconds += least
        figures = _figures(due[name], kernel.seconds, least, phase.seconds)
        rows.append({"name": name, "weights": work.weights[name], "bound": bound, **figures})
    return {
        "steps": len(phase.steps),
        "rows": sum(step.rows for step in phase.steps),
        "seconds": round(phase.seconds, 6),
        "outside_seconds": round(phase.seconds - kernel_seconds, 6),
        "kernels": rows,
        "total": _figures(total, kernel_seconds, least_seconds, phase.seconds),
    }


def _least_seconds(work: Work, limits: Mapping[str, Any]) -> tuple[str, float]:
    """Which limit the work reaches first, and the seconds that it needs at that limit."""
    needed = {"memory": work.bytes / (limits["read_gbytes"] * 1e9)}
    for name, ops in (("int8", work.int8_ops), ("float", work.float_ops)):
        if limits[name] is not None:
            needed[name] = ops / (limits[name]["gops"] * 1e9)
    bound = max(needed, key=lambda name: needed[name])
    return bound, needed[bound]


def _figures(work: Work, seconds: float, least: float, phase_seconds: float) -> dict[str, Any]:
    ops = work.int8_ops + work.float_ops
    return {
        "calls": work.calls,
        "seconds": round(seconds, 6),
        "share": _ratio(seconds, phase_seconds),
        "bytes": work.bytes,
        "ops": ops,
        "gbytes_per_s": _ratio(work.bytes * 1e-9, seconds),
        "gops_per_s": _ratio(ops * 1e-9, seconds),
        "of_bound": _ratio(least, seconds),
    }


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole else 0.0
