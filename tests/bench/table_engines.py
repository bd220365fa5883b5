"""The engines of the table of goals: the bundle, llama.cpp, onnxruntime-genai."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.bench.bench_speed import run_json
from tests.bench.peers import fetch

OURS = "mlcbuild"
ORT = "ort-genai int4"
MEMORY, FIRST_TOKEN = "rss_peak_bytes", "first_token_s"


@dataclass(frozen=True)
class Group:
    """Rows that one process of an engine measures; ``busy``: while a loop keeps one CPU."""

    name: str
    threads: int
    prefill: tuple[int, ...] = ()
    decode: int = 0
    depth: tuple[int, ...] = ()
    busy: bool = False

    def specs(self) -> list[str]:
        """The measurements as the peers' drivers take them."""
        decodes = [f"decode:1:{depth}:{self.decode}" for depth in self.depth]
        return [f"prefill:{tokens}" for tokens in self.prefill] + decodes


class Engine(Protocol):
    """What measures a group of rows."""

    @property
    def name(self) -> str:
        """How the table calls it."""
        ...

    def measure(self, group: Group) -> dict[str, Any]:
        """One round: ``results`` as those of ``mlcbuild bench --json``, memory, first token."""
        ...


class Ours:
    """The bundle, through `mlcbuild bench`; its memory is that of its own program."""

    name = OURS

    def __init__(self, bundle: Path) -> None:
        self.bundle = bundle.resolve()

    def measure(self, group: Group) -> dict[str, Any]:
        """One round."""
        command = [sys.executable, "-m", "mlcbuild", "bench", str(self.bundle), "--json"]
        command += ["--prefill", ",".join(map(str, group.prefill)), "--repeat", "1"]
        command += ["--decode", str(group.decode), "--batch", "1"]
        command += ["--depth", ",".join(map(str, group.depth)), "--threads", str(group.threads)]
        record = run_json(command)
        if group.name == "small":
            record[MEMORY] = self.program_memory(group.threads)
        return record

    def program_memory(self, threads: int) -> int:
        """Peak memory of bin/mlcb that answers 16 tokens with 16.

        Linux counts from before the program replaces this process' copy, so it is never less than
        this process has: some 40 MiB.
        """
        command = [str(self.bundle / "bin" / "mlcb"), "--raw", "--prompt", "0123456789abcdef"]
        command += ["--max-tokens", "16", "--threads", str(threads)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{command[0]} failed")
        return usage.ru_maxrss * 1024


@dataclass(frozen=True)
class Driver:
    """A peer behind a driver program that takes MODEL THREADS REPEATS SPEC... at its end."""

    name: str
    command: tuple[str, ...]

    def measure(self, group: Group) -> dict[str, Any]:
        """One round."""
        return run_json([*self.command, str(group.threads), "1", *group.specs()])


def llama(name: str, model: Path, peers: Path) -> Driver:
    """llama.cpp with the model in a GGUF file."""
    folder = peers.resolve()
    command = (str(fetch.driver_path(folder)), "bench", str(fetch.library_folder(folder)))
    return Driver(f"llama.cpp {name}", (*command, str(model.resolve())))


def ort(python: Path, model: Path) -> Driver:
    """onnxruntime-genai with the model that its builder made."""
    script = Path(__file__).resolve().parent / "peers" / "ort_peer.py"
    return Driver(ORT, (str(python.absolute()), str(script), "bench", str(model.resolve())))


@contextmanager
def one_cpu_busy() -> Iterator[None]:
    """A loop on the last CPU that this process may use, in a session of its own.

    Linux shares a CPU between sessions first, then between the processes of one: a loop of our own
    session would take less than what another program of the user takes.
    """
    cpu = max(os.sched_getaffinity(0))
    code = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as loop:
        try:
            yield
        finally:
            loop.kill()
