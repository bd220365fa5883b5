"""``mlcbuild serve`` over a fake engine, as a process of its own.

FAKE_PAUSE: seconds before each word; FAKE_LOAD: seconds that loading takes; FAKE_LOAD_ERROR: what
is wrong with the bundle.
"""

from __future__ import annotations

import asyncio
import os
import sys
from types import SimpleNamespace
from typing import Any

import mlcbuild.bundle.manifest
import mlcbuild.engine
from mlcbuild.cli.main import run
from mlcbuild.errors import VerificationError
from tests.unit.fake_engine import FakeEngine

INFO: dict[str, Any] = {
    "activations": "int8",
    "kv": {"dtype": "float16", "page_size": 16, "pages": 100},
    "limits": {"context_window_size": 100, "max_batch_size": 4, "max_waiting": 128},
    "memory": {"weights_bytes": 98_000_000, "kv_bytes": 36_000_000},
    "mode": "server",
    "threads": 2,
    "variant": "avx2",
}


class OpenedEngine(FakeEngine):
    """A fake engine that is opened as ``AsyncEngine`` is."""

    manifest = SimpleNamespace(name="fake", scheme={"name": "q4f16_1"})

    @classmethod
    async def open(cls, bundle: object, **options: Any) -> OpenedEngine:
        await asyncio.sleep(float(os.environ.get("FAKE_LOAD", "0")))
        if os.environ.get("FAKE_LOAD_ERROR"):
            raise VerificationError(os.environ["FAKE_LOAD_ERROR"], where=str(bundle))
        engine = cls(pause=float(os.environ.get("FAKE_PAUSE", "0")))
        engine.info = {**INFO, "mode": options["mode"]}
        print("options:", options, file=sys.stderr)
        return engine

    info: dict[str, Any]

    async def close(self) -> None:
        print(f"closed with {self.held} held, {self.cancelled} cancelled", file=sys.stderr)


if __name__ == "__main__":
    mlcbuild.engine.AsyncEngine = OpenedEngine  # type: ignore[misc, assignment]
    mlcbuild.bundle.manifest.read_manifest = lambda path: OpenedEngine.manifest  # type: ignore
    sys.exit(run(["serve", "bundle", *sys.argv[1:]]))
