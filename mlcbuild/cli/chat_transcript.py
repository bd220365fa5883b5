"""The messages of a chat, and files that hold them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlcbuild.core.atomic import write_atomic
from mlcbuild.errors import UsageError

_VERSION = 1
_ROLES = ("user", "assistant")


@dataclass
class Transcript:
    """A conversation: an optional system message, then turns that alternate.

    ``system`` is None for the model's own.
    """

    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    def messages(self) -> list[dict[str, str]]:
        """The conversation as a request has it."""
        head = [] if self.system is None else [{"role": "system", "content": self.system}]
        return head + self.turns

    def ask(self, text: str) -> None:
        """Adds what the user says."""
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """Adds what the model says."""
        self.turns.append({"role": "assistant", "content": text})

    def take_back_question(self) -> str | None:
        """Removes the last question and its answer, if any; returns the question."""
        if self.turns and self.turns[-1]["role"] == "assistant":
            self.turns.pop()
        if self.turns and self.turns[-1]["role"] == "user":
            return self.turns.pop()["content"]
        return None

    def drop_oldest(self, count: int) -> int:
        """Removes the oldest ``count`` exchanges; returns how many there were to remove."""
        dropped = 0
        while self.turns and dropped < count:
            del self.turns[:2]
            dropped += 1
        return dropped


def save_transcript(path: Path, transcript: Transcript, model: str) -> None:
    """Writes the conversation whole or not at all, readable by this user only.

    Raises ``UsageError`` if ``path`` is a file of something else.
    """
    if path.exists():
        try:
            load_transcript(path)
        except UsageError:
            raise UsageError(
                "the file exists and is no saved chat", where=str(path), hint="choose another name"
            ) from None
    record = {
        "mlcbuild_chat": _VERSION,
        "model": model,
        "system": transcript.system,
        "turns": transcript.turns,
    }
    data = (json.dumps(record, ensure_ascii=False, indent=1) + "\n").encode("utf-8")
    write_atomic(path, data, mode=0o600)


def load_transcript(path: Path) -> Transcript:
    """Reads a saved conversation; ``UsageError`` says what is wrong with the file."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            "the chat cannot be read", where=str(path), why=error.strerror or str(error)
        ) from None
    except (ValueError, RecursionError) as error:
        raise UsageError("this is no saved chat", where=str(path), why=str(error)) from None
    if not isinstance(record, dict) or "mlcbuild_chat" not in record:
        raise UsageError("this is no saved chat", where=str(path))
    if record["mlcbuild_chat"] != _VERSION:
        raise UsageError(
            f"the chat has version {record['mlcbuild_chat']!r}, this mlcbuild reads {_VERSION}",
            where=str(path),
        )
    return Transcript(_system(record, path), _turns(record, path))


def _system(record: dict[str, Any], path: Path) -> str | None:
    system = record.get("system")
    if system is not None and not isinstance(system, str):
        raise UsageError("the chat's system message is no text", where=str(path))
    return system


def _turns(record: dict[str, Any], path: Path) -> list[dict[str, str]]:
    turns = record.get("turns")
    if not isinstance(turns, list) or len(turns) % 2:
        raise UsageError("the chat's turns are no list of questions and answers", where=str(path))
    found: list[dict[str, str]] = []
    for number, turn in enumerate(turns):
        role = _ROLES[number % 2]
        content = turn.get("content") if isinstance(turn, dict) else None
        if not isinstance(content, str) or turn.get("role") != role:
            raise UsageError(f"turn {number + 1} of the chat is no {role}'s text", where=str(path))
        found.append({"role": role, "content": content})
    return found
