"""Runs a tuning process and writes what it measures into the database as it comes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from mlcbuild.core.process import minimal_environment
from mlcbuild.errors import StageError
from mlcbuild.kernels.registry import get_spaces
from mlcbuild.spec.schedule_space import Workload
from mlcbuild.tuning.child import MODULE
from mlcbuild.tuning.database import Segment
from mlcbuild.tuning.job import TuningJob
from mlcbuild.tuning.record import (
    CONFIRMED,
    TRIAL,
    RecordKey,
    TuningRecord,
    capabilities_digest,
)

_TAIL = 15


@dataclass
class Outcome:
    """What became of one workload: measured and failed candidates, and the comparison's result.

    ``record`` is None until the comparison with the default is done, or if it failed (``error``).
    """

    workload: Workload
    trials: int = 0
    failed: int = 0
    record: TuningRecord | None = None
    error: str | None = None


@dataclass
class JobResult:
    """Outcomes of the tasks that were begun, in order."""

    outcomes: list[Outcome] = field(default_factory=list)


# Told about every outcome that changed: its number and the outcome.
Watch = Callable[[int, Outcome], None]


def run_job(
    job: TuningJob,
    segment: Segment,
    device: Mapping[str, str],
    tools: Mapping[str, str],
    watch: Watch | None = None,
) -> JobResult:
    """Run ``job`` in a process of its own; each measurement is in ``segment`` once it is made.

    On an interrupt the process and all its workers are killed at once, and what was measured is
    kept. StageError, with the end of its output, if it breaks.
    """
    result = JobResult()
    recorder = _Recorder(job, segment, device, tools)
    with tempfile.TemporaryDirectory(prefix="mlcbuild-tune-") as scratch:
        env = minimal_environment(Path(scratch))
        env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        env["TMPDIR"] = scratch  # for candidates that a killed worker leaves behind
        log = Path(scratch) / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env=env,
                start_new_session=True,
            )
            try:
                done = _follow(process, job, recorder, result, watch)
            finally:
                _kill_group(process)
        if not done:
            text = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
            tail = "\n".join(f"  {line}" for line in text[-_TAIL:])
            raise StageError(
                "the tuning process broke down",
                why=f"exit code {process.returncode}; its last output was\n{tail or '  (nothing)'}",
                hint="what was measured until then is in the database; the same command goes on",
            )
    return result


def _follow(
    process: subprocess.Popen[str],
    job: TuningJob,
    recorder: _Recorder,
    result: JobResult,
    watch: Watch | None,
) -> bool:
    """Read events until the end; whether the last one said that all is done."""
    stdin, stdout = _pipe(process.stdin), _pipe(process.stdout)
    with contextlib.suppress(BrokenPipeError):
        stdin.write(job.to_json())
        stdin.close()
    for line in stdout:
        event = json.loads(line)
        kind, number = event["event"], event.get("number")
        if kind == "done":
            return True
        if kind == "task":
            result.outcomes.append(Outcome(job.tasks[number].workload))
        outcome = result.outcomes[number]
        if kind == "trial":
            outcome.trials += 1
            if event["error"] is None:
                recorder.add(TRIAL, outcome.workload, event)
            else:
                outcome.failed += 1
        elif kind == "confirmed":
            outcome.record = recorder.add(CONFIRMED, outcome.workload, event)
        elif kind == "failed":
            outcome.error = event["error"]
        if watch is not None:
            watch(number, outcome)
    process.wait()
    return False


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise StageError("the tuning process has no pipes")
    return stream


def _kill_group(process: subprocess.Popen[str]) -> None:
    """End the process and its workers, whatever they are doing."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


class _Recorder:
    """Makes records of events and appends them."""

    def __init__(
        self,
        job: TuningJob,
        segment: Segment,
        device: Mapping[str, str],
        tools: Mapping[str, str],
    ) -> None:
        self._job = job
        self._segment = segment
        self._device = tuple(sorted(device.items()))
        self._tools = tuple(sorted(tools.items()))

    def add(self, kind: str, workload: Workload, event: Mapping[str, Any]) -> TuningRecord:
        """Write one measurement; the record."""
        capabilities = self._job.capabilities
        record = TuningRecord(
            kind=kind,
            workload=workload,
            isa=capabilities.isa,
            key=RecordKey(
                workload.digest(),
                capabilities_digest(capabilities),
                dict(self._tools)["apache-tvm"],
                get_spaces(capabilities).TEMPLATE_VERSION,
            ),
            decisions=tuple(sorted(event["decisions"].items())),
            seconds=tuple(event["seconds"]),
            speedup=event.get("speedup"),
            rounds=event.get("rounds", 1),
            trace=event["trace"],
            device=self._device,
            date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            tools=self._tools,
        )
        self._segment.append(record)
        return record
