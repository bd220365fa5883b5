"""Talks to the C++ test drivers: a JSON command on a line, an answer on a line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest


class DriverError(Exception):
    """What the runtime refused; status is the mlcb_status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Driver:
    """One process of the driver; call it with an op and its arguments."""

    def __init__(self, path: Path, stack_kib: int | None = None) -> None:
        """``stack_kib``: how much stack it may use; None: as usual, 8 MiB."""
        limit = [] if stack_kib is None else ["prlimit", f"--stack={stack_kib << 10}"]
        self._process = subprocess.Popen(
            [*limit, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def __call__(self, op: str, **arguments: Any) -> Any:
        """Return the answer; bytes arguments go in as hex. Raises DriverError."""
        for key, value in arguments.items():
            if isinstance(value, bytes):
                arguments[key] = value.hex()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            pytest.fail(f"the driver died at {op}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "status" in answer and "error" in answer:
            raise DriverError(answer["error"], answer["status"])
        return answer
