"""Running tools: output captured, the whole process group killed on interrupt, errors readable."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlcbuild.errors import StageError, ToolchainError

TAIL_LINES = 20
GRACE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished process; ``stdout`` and ``stderr`` are its text (undecodable bytes replaced)."""

    command: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str


def minimal_environment(home: Path) -> dict[str, str]:
    """An environment that is the same for every user: default tool path, C locale, own home."""
    return {
        "PATH": os.defpath,
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "SOURCE_DATE_EPOCH": "0",
    }


def _tail(text: str) -> str:
    lines = text.rstrip().splitlines()
    shown = lines[-TAIL_LINES:]
    if len(lines) > len(shown):
        shown.insert(0, f"... ({len(lines) - TAIL_LINES} lines before)")
    return "\n".join(f"  {line}" for line in shown)


class ProcessRunner:
    """Starts processes in their own groups and can kill all that still run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inherited: tuple[int, ...] = ()
        self._running: set[subprocess.Popen[str]] = set()
        self._cancelled = False

    def inherit(self, descriptors: tuple[int, ...]) -> None:
        """Let every process started from now on hold these open, such as a lock it relies on."""
        self._inherited = descriptors

    def cancel(self) -> None:
        """Kill every running process group and refuse new ones (after an interrupt)."""
        with self._lock:
            self._cancelled = True
            running = list(self._running)
        for process in running:
            _kill_group(process)

    def run(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        check: bool = True,
        input_text: str | None = None,
        own_settings: bool = False,
    ) -> Completed:
        """Run ``command`` to its end. ``log`` gets the command and all output, appended.

        ``own_settings``: with the user's whole environment, for tools that fetch something and are
        told in it from where; their output must be checked against what was pinned.

        Raises ``ToolchainError`` when the program is not there and, with ``check``,
        ``StageError`` with the command, exit code and the end of its output.
        """
        args = tuple(str(part) for part in command)
        full_env = None if own_settings else dict(env or minimal_environment(cwd or Path.cwd()))
        with self._lock:
            if self._cancelled:
                raise KeyboardInterrupt
            try:
                process = subprocess.Popen(
                    args,
                    cwd=cwd,
                    env=full_env,
                    stdin=subprocess.PIPE if input_text is not None else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    encoding="utf-8",
                    errors="replace",
                    start_new_session=True,
                    pass_fds=self._inherited,
                )
            except (FileNotFoundError, PermissionError) as error:
                raise ToolchainError(
                    f"cannot start {args[0]}",
                    why=str(error),
                    hint="mlcbuild doctor shows what is installed",
                ) from error
            self._running.add(process)
        try:
            stdout, stderr = process.communicate(input_text)
        except BaseException:
            _kill_group(process)
            raise
        finally:
            with self._lock:
                self._running.discard(process)
        if log is not None:
            with log.open("a", encoding="utf-8") as file:
                file.write(f"$ {shlex.join(args)}\n{stdout}{stderr}[exit {process.returncode}]\n")
        if self._cancelled:
            raise KeyboardInterrupt
        if check and process.returncode != 0:
            raise StageError(
                _exit_text(args, process.returncode),
                where=str(log) if log is not None else None,
                why=f"its last output was\n{_tail(stderr or stdout) or '  (nothing)'}",
                hint=f"the command was: {shlex.join(args)}",
            )
        return Completed(args, process.returncode, stdout, stderr)


def _exit_text(args: tuple[str, ...], exit_code: int) -> str:
    name = Path(args[0]).name
    if exit_code >= 0:
        return f"{name} failed with exit code {exit_code}"
    try:
        return f"{name} was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"{name} was killed by signal {-exit_code}"


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Ask the group to stop, then kill it after a short grace."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        try:
            process.wait(timeout=GRACE_SECONDS)
            if number == signal.SIGTERM:
                continue  # the leader is gone; make sure that its children are too
        except subprocess.TimeoutExpired:
            continue
