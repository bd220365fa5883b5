"""``mlcbuild serve`` as a process, for benches: its address, its figures, its memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_START_SECONDS = 120.0


@dataclass(frozen=True)
class EndState:
    """A server that should be idle."""

    healthy: bool
    pages_used: float | None


class ServerProcess:
    """A running server. ``model`` is the name of its model, ``log`` what it said on stderr."""

    def __init__(self, bundle: Path, arguments: tuple[str, ...]) -> None:
        command = [sys.executable, "-m", "mlcbuild", "serve", str(bundle), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--log-format", "json", *arguments],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        if not self._ready.wait(_START_SECONDS) or self.process.poll() is not None:
            self.kill()
            raise RuntimeError(f"the server did not start:\n{self.log}")
        started = json.loads(next(line for line in self.lines if '"event": "ready"' in line))
        self.model: str = started["models"][0]
        self.info = started["engine"]
        self.port = int(started["url"].rsplit(":", 1)[1].partition("/")[0])

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                self.lines.append(line)
                if '"event": "ready"' in line:
                    self._ready.set()
        self._ready.set()

    @property
    def log(self) -> str:
        """Everything so far."""
        return "".join(self.lines)

    def get(self, path: str) -> tuple[int, str]:
        """GET: status and text."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """Prometheus' samples by name and labels."""
        _, text = self.get("/metrics")
        return parse_metrics(text)

    def wait_idle(self, seconds: float = 60.0) -> EndState:
        """Waits until no request holds pages; what there is at the end of the time."""
        end = time.monotonic() + seconds
        used: float | None = None
        while time.monotonic() < end:
            metrics = self.metrics()
            used = pages_used(metrics)
            if used == 0 and metrics.get("mlcbuild_http_requests_in_flight") == 0:
                break
            time.sleep(0.1)
        return EndState(self.get("/health")[0] == 200, used)

    def rss_bytes(self) -> int:
        """Resident memory."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise RuntimeError("the server is gone")

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends it, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join()


def parse_metrics(text: str) -> dict[str, float]:
    """``{"name{labels}": value}``."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def pages_used(metrics: dict[str, float]) -> float | None:
    """Pages that requests hold."""
    return metrics.get('mlcb_kv_pages{state="used"}')


@contextmanager
def serve(bundle: Path, *arguments: str) -> Iterator[ServerProcess]:
    """A server on a free port of the loopback."""
    server = ServerProcess(bundle, arguments)
    try:
        yield server
    finally:
        server.kill()
