"""Finds the line of a key in TOML text; tomli gives values without positions."""

from __future__ import annotations

import re

KeyPath = tuple[str, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"^\s*\[\[?\s*({_DOTTED})\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(rf"^\s*({_DOTTED})\s*=(.*)$", re.DOTALL)
_OPENERS = {"[": 1, "{": 1, "]": -1, "}": -1}


def _split(dotted: str) -> KeyPath:
    parts = re.findall(_PART, dotted)
    return tuple(part[1:-1] if part[0] in "\"'" else part for part in parts)


def find_lines(text: str) -> dict[KeyPath, int]:
    """Key path -> line (from 1) for every table header and every key of a table.

    Keys inside inline tables are left out: their line cannot be told without parsing values.
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    pending = _Value()
    for number, line in enumerate(text.splitlines(), 1):
        if pending.is_open:
            pending.feed(line)
            continue
        header = _HEADER.match(line)
        if header:
            table = _split(header.group(1))
            lines.setdefault(table, number)
            continue
        key = _KEY.match(line)
        if key:
            path = (*table, *_split(key.group(1)))
            lines.setdefault(path, number)
            for end in range(len(table) + 1, len(path)):
                lines.setdefault(path[:end], number)  # a.b = 1 also makes the table a
            pending = _Value()
            pending.feed(key.group(2))
    return lines


class _Value:
    """Follows a value over lines: strings, arrays and inline tables may span several."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""  # the closing quotes of an open multi-line string

    @property
    def is_open(self) -> bool:
        return bool(self._quote) or self._depth > 0

    def feed(self, text: str) -> None:
        position = 0
        while position < len(text):
            if self._quote:
                position = self._skip_string(text, position)
                continue
            char = text[position]
            if char == "#":
                return
            if char in "\"'":
                triple = text.startswith(char * 3, position)
                self._quote = char * 3 if triple else char
                position += len(self._quote)
                continue
            self._depth += _OPENERS.get(char, 0)
            position += 1
        if len(self._quote) == 1:
            self._quote = ""  # a one-line string cannot go on; tomli has refused it

    def _skip_string(self, text: str, position: int) -> int:
        while position < len(text):
            if text[position] == "\\" and self._quote[0] == '"':
                position += 2
                continue
            if text.startswith(self._quote, position):
                position += len(self._quote)
                self._quote = ""
                return position
            position += 1
        return position
