"""Text on stdout as it is made."""

from __future__ import annotations

import io
import sys
from typing import TextIO


def text_output() -> TextIO:
    """stdout, always in UTF-8: an answer may hold any character, whatever the locale."""
    output = sys.stdout
    if isinstance(output, io.TextIOWrapper):
        output.reconfigure(encoding="utf-8")
    return output


def write_now(output: TextIO, text: str) -> None:
    """Writes ``text`` so that it is seen at once."""
    output.write(text)
    output.flush()
