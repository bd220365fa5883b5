"""What a tuning process is asked to do, as JSON: what to measure, on what, and for how long."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.schedule_space import Workload


@dataclass(frozen=True)
class RpcDevice:
    """A device behind TVM's RPC tracker."""

    host: str
    port: int
    key: str


@dataclass(frozen=True)
class KnownTrial:
    """A candidate that was measured before: it is not measured again, but learned from."""

    decisions: Mapping[str, int]
    seconds: float


@dataclass(frozen=True)
class TuningTask:
    """One workload, and what the database knows of it."""

    workload: Workload
    known: tuple[KnownTrial, ...] = ()


@dataclass(frozen=True)
class TuningJob:
    """Tasks for one set of capabilities.

    ``triple`` and ``link`` (a command that makes a shared library of an object file) belong to
    the target. ``trials`` is the most candidates to measure, of all tasks together, ``seconds``
    the most time; one of them may be None. ``rounds`` is how often the best candidates and the
    default are measured in turns at the end of a task.
    """

    capabilities: Capabilities
    triple: str
    link: tuple[str, ...]
    tasks: tuple[TuningTask, ...]
    trials: int | None
    seconds: float | None
    threads: int
    seed: int = 1
    rounds: int = 7
    batch: int = 8
    build_timeout: float = 60.0
    run_timeout: float = 20.0
    rpc: RpcDevice | None = None

    def to_json(self) -> str:
        """As the process reads it from its standard input."""
        plain = asdict(self)
        plain["tasks"] = [
            {
                "workload": task.workload.to_json(),
                "known": [asdict(trial) for trial in task.known],
            }
            for task in self.tasks
        ]
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> TuningJob:
        """The inverse of ``to_json``."""
        plain: dict[str, Any] = json.loads(text)
        features: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in plain["capabilities"].items()
        }
        plain["capabilities"] = Capabilities(**features)
        plain["link"] = tuple(plain["link"])
        plain["rpc"] = RpcDevice(**plain["rpc"]) if plain["rpc"] is not None else None
        plain["tasks"] = tuple(
            TuningTask(
                Workload.from_json(task["workload"]),
                tuple(KnownTrial(**trial) for trial in task["known"]),
            )
            for task in plain["tasks"]
        )
        return cls(**plain)
