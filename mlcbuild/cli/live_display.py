"""A live display of a running build: one line per running stage, finished ones above."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import dataclass, field
from typing import TextIO

from mlcbuild.cli.output import done_line, format_amount, format_seconds
from mlcbuild.core.progress import Event

_TICK_SECONDS = 0.12
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BAR_CELLS = 24
_RESET = "\x1b[0m"


@dataclass
class _Count:
    label: str
    unit: str
    total: int | None
    started: float
    done: int = 0

    def text(self, now: float) -> str:
        """``[####    ] 12.0 MB / 98.4 MB, 35.1 MB/s, 3 s left``."""
        amount = format_amount(self.done, self.unit)
        elapsed = max(now - self.started, 1e-3)
        rate = self.done / elapsed
        parts = []
        bar = ""
        if self.total:
            share = min(1.0, self.done / self.total)
            filled = int(share * _BAR_CELLS)
            bar = f"[{'=' * filled}{' ' * (_BAR_CELLS - filled)}] "
            amount = f"{amount} / {format_amount(self.total, self.unit)}"
        parts.append(amount)
        if self.unit == "B" and elapsed > 0.5:
            parts.append(f"{format_amount(int(rate), 'B')}/s")
        if self.total and self.done and elapsed > 1:
            parts.append(f"{format_seconds((self.total - self.done) / rate)} left")
        return f"{self.label} {bar}{', '.join(parts)}"


@dataclass
class _State:
    stages: dict[str, float] = field(default_factory=dict)  # label -> start
    counts: dict[object, _Count] = field(default_factory=dict)
    cached: int = 0


class LiveSink:
    """Draws on a terminal with plain ANSI codes; a thread keeps the clock moving."""

    def __init__(self, stream: TextIO, *, color: bool = True, verbose: bool = False) -> None:
        self._stream = stream
        self._color = color
        self._verbose = verbose
        self._state = _State()
        self._shown = 0  # lines of the moving part now on screen
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._ticker: threading.Thread | None = None

    def emit(self, event: Event) -> None:
        """Take in one event and redraw."""
        with self._lock:
            self._take(event)
            if self._state.stages and self._ticker is None and not self._stop.is_set():
                self._ticker = threading.Thread(target=self._tick, daemon=True)
                self._ticker.start()

    def close(self) -> None:
        """Clear the moving part and stop the thread."""
        self._stop.set()
        with self._lock:
            self._state.stages.clear()
            self._state.counts.clear()
            self._draw([])
        if self._ticker is not None:
            self._ticker.join(timeout=1)

    def _take(self, event: Event) -> None:
        kind, state = event["event"], self._state
        label = f"{event.get('stage')} {event.get('subject')}"
        if kind == "note":
            self._draw([str(event["text"])])
        elif kind == "stage_run":
            state.stages[label] = time.monotonic()
            self._draw([])
        elif kind == "stage_done":
            state.stages.pop(label, None)
            self._draw([self._paint("32", "done ") + done_line(event)])
        elif kind == "stage_failed":
            state.stages.pop(label, None)
            self._draw([self._paint("31", "failed ") + label])
        elif kind == "stage_cached":
            state.cached += 1
            if self._verbose:
                self._draw([f"up to date {label}"])
        elif kind == "task":
            total = event["total"]
            state.counts[event["task"]] = _Count(
                str(event["label"]),
                str(event["unit"]),
                total if isinstance(total, int) else None,
                time.monotonic(),
            )
        elif kind == "advance":
            count, done = state.counts.get(event["task"]), event["done"]
            if count is not None and isinstance(done, int):
                count.done = done
        elif kind == "task_done":
            state.counts.pop(event["task"], None)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}{_RESET}" if self._color else text

    def _tick(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            with self._lock:
                if not self._stop.is_set():
                    self._draw([])

    def _draw(self, above: list[str]) -> None:
        """Print lines that stay, then the moving part below them."""
        now = time.monotonic()
        columns = shutil.get_terminal_size().columns - 1
        mark = _SPINNER[int(now / _TICK_SECONDS) % len(_SPINNER)]
        moving = [
            f"{mark} {label}  {format_seconds(now - start)}"
            for label, start in self._state.stages.items()
        ]
        if self._state.stages:
            moving += [f"  {count.text(now)}" for count in self._state.counts.values()]
        output = f"\x1b[{self._shown}A" if self._shown else ""
        output += "\r\x1b[J"
        output += "".join(f"{line}\n" for line in above)
        output += "".join(f"{line[:columns]}\n" for line in moving)
        self._shown = len(moving)
        self._stream.write(output)
        self._stream.flush()
