"""Tuning records made up for tests; run as a script it is a writer that can be killed."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlcbuild.spec.schedule_space import Workload
from mlcbuild.tuning.database import Database
from mlcbuild.tuning.record import CONFIRMED, RecordKey, TuningRecord


def workload(out_features: int = 64, form: str = "one", rows: int = 1) -> Workload:
    """A small linear layer's."""
    args: dict[str, int | float | str | bool] = {
        "group_size": 32,
        "in_features": 64,
        "out_features": out_features,
        "scale_dtype": "float16",
        "zero_point": 7,
    }
    return Workload("linear_int4", tuple(sorted(args.items())), form, rows)


def record(number: int = 0, **changes: Any) -> TuningRecord:
    """A confirmed record; ``number`` makes others of it."""
    about = changes.pop("workload", workload())
    base = TuningRecord(
        kind=CONFIRMED,
        workload=about,
        isa="avx2",
        key=RecordKey(about.digest(), "c" * 24, "0.27.0.post1", 1),
        decisions=(("ahead", 8), ("blocks", 2), ("grain", 1), ("unroll", 1)),
        seconds=(1e-6 * (number + 1), 1.0),
        speedup=1.25,
        rounds=7,
        trace="[[],[]]",
        device=(("name", "A processor"),),
        date="2026-11-30T12:00:00Z",
        tools=(("apache-tvm", "0.27.0.post1"),),
    )
    return replace(base, **changes)


def write_forever(folder: Path, first: int) -> None:
    """Append records until somebody ends this; the id of each is printed once it is written."""
    with Database(folder).writer() as segment:
        for number in itertools.count(first):
            # Long traces make it likely that a kill meets a write.
            item = record(number, trace="t" * 50_000)
            segment.append(item)
            print(item.id, flush=True)


if __name__ == "__main__":
    write_forever(Path(sys.argv[1]), int(sys.argv[2]))
