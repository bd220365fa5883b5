"""Talk on stderr: plain lines, JSON events, and errors."""

from __future__ import annotations

import json
from typing import TextIO

from mlcbuild.core.atomic import format_bytes
from mlcbuild.core.progress import Event
from mlcbuild.errors import MlcbuildError


def format_seconds(seconds: float) -> str:
    """0.4 s, 12 s, 3 min 05 s."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def format_amount(count: int, unit: str) -> str:
    """A count with its unit; bytes are scaled."""
    return format_bytes(count) if unit == "B" else f"{count} {unit}".rstrip()


def done_line(event: Event) -> str:
    """``quantize smollm2/q4f16_1: 12 s, 98.4 MB``."""
    seconds, size = event["seconds"], event["bytes"]
    parts = [format_seconds(seconds)] if isinstance(seconds, float) else []
    if isinstance(size, int):
        parts.append(format_bytes(size))
    return f"{event['stage']} {event['subject']}: {', '.join(parts)}"


class PlainSink:
    """One line for each thing that happened."""

    def __init__(self, stream: TextIO, *, verbose: bool = False, notes_only: bool = False) -> None:
        self._stream = stream
        self._verbose = verbose
        self._notes_only = notes_only

    def emit(self, event: Event) -> None:
        """Print what a person wants to know; single counts are left out."""
        kind = event["event"]
        if kind == "note":
            self._print(str(event["text"]))
        elif self._notes_only:
            return
        elif kind == "stage_run":
            self._print(f"{event['stage']} {event['subject']} ...")
        elif kind == "stage_done":
            self._print(done_line(event))
        elif kind == "stage_cached" and self._verbose:
            self._print(f"{event['stage']} {event['subject']}: up to date")
        elif kind == "stage_failed":
            self._print(f"{event['stage']} {event['subject']}: failed")

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to undo."""


class JsonSink:
    """Every event as a line of JSON."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def emit(self, event: Event) -> None:
        """Write the event."""
        print(json.dumps(event, ensure_ascii=False, default=str), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to undo."""


def error_text(error: MlcbuildError) -> str:
    """An error as people see it; hints stand alone after a blank line."""
    head = f"{error.where}: {error.message}" if error.where else error.message
    lines = [f"error: {head}"]
    if error.why:
        lines.append(f"why: {error.why}")
    if error.hint:
        lines += ["", f"hint: {error.hint}"]
    return "\n".join(lines)
