"""Progress as events: stages report, a sink shows them (live, plain lines, JSON or nothing)."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

Event = Mapping[str, object]  # always has "event"; see ``Progress`` for the kinds


class ProgressSink(Protocol):
    """Where events go. ``emit`` is called under a lock, from any thread."""

    def emit(self, event: Event) -> None:
        """Show or write one event."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class NullSink:
    """Shows nothing."""

    def emit(self, event: Event) -> None:
        """Drop the event."""

    def close(self) -> None:
        """Nothing to undo."""


class Task:
    """One running count inside a stage; ``advance`` may be called from several threads."""

    def __init__(self, progress: Progress, task_id: int, label: str, total: int | None) -> None:
        self._progress = progress
        self._id = task_id
        self._label = label
        self._total = total
        self._done = 0
        self._last = 0.0
        self._lock = threading.Lock()

    def advance(self, amount: int = 1) -> None:
        """Count ``amount`` more units as done; events are sent at most ten times a second."""
        with self._lock:
            self._done += amount
            done = self._done
            now = time.monotonic()
            if now - self._last < 0.1 and done != self._total:
                return
            self._last = now
        self._progress.emit(
            "advance", task=self._id, label=self._label, done=done, total=self._total
        )


class Progress:
    """The reporting side, handed to stages and to whoever else takes long.

    Events: ``note`` {text}; ``task`` {task, label, total, unit}, ``advance`` {task, label, done,
    total}, ``task_done`` {task}; from the scheduler ``stage_run``, ``stage_done``,
    ``stage_cached``, ``stage_failed`` {stage, subject, ...}. Units: ``B`` for bytes, else a word.
    """

    def __init__(self, sink: ProgressSink | None = None) -> None:
        self._sink: ProgressSink = sink if sink is not None else NullSink()
        self._lock = threading.RLock()
        self._ids = itertools.count(1)

    def emit(self, event: str, **fields: object) -> None:
        """Send one event to the sink."""
        with self._lock:
            self._sink.emit({"event": event, **fields})

    def note(self, text: str) -> None:
        """A line that a person should read, such as a warning or what is waited for."""
        self.emit("note", text=text)

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: str = "") -> Iterator[Task]:
        """A count that is shown while the block runs: ``total`` units, bytes if unit is ``B``."""
        with self._lock:
            task_id = next(self._ids)
        self.emit("task", task=task_id, label=label, total=total, unit=unit)
        try:
            yield Task(self, task_id, label, total)
        finally:
            self.emit("task_done", task=task_id)

    def close(self) -> None:
        """Close the sink."""
        with self._lock:
            self._sink.close()
