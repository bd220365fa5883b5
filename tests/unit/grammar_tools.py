"""Builds the C++ test driver of the runtime's grammars and asks it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.text_driver import Driver, DriverError

GRAMMAR = 8  # MLCB_ERROR_GRAMMAR
WHOLE, PREFIX, REFUSED = 2, 1, 0


def small_vocabulary() -> list[bytes]:
    """All single bytes, and tokens that cross the borders of characters and of grammar rules."""
    tokens = [bytes([byte]) for byte in range(256)]
    pieces = (
        '{" ": ", "} ", " ": " "\n}',
        'true false null a" 12 1, ], [[ ]] }} \\n \\" \\u 00 -1 .5 e+ ab abc {{ ()',
    )
    tokens += [piece.encode() for text in pieces for piece in text.split(" ")]
    tokens += [b"  ", b"\n\n", b"    ", b", ", b'": "', b'",\n  "', b"hello world", b"name", b"ab"]
    tokens += ["é".encode(), "日本".encode(), b"\xe6\x97", b"\xa5x", "😀".encode(), b"\xf0\x9f"]
    return tokens


STOP = len(small_vocabulary()) + 1


def write_vocabulary(tokens: Iterable[bytes], path: Path) -> None:
    """A vocabulary file for the driver: ``tokens``, a special token, and one without text."""
    lines = [token.hex() for token in tokens]
    path.write_text("\n".join([*lines, f"{b'<|special|>'.hex()} special", "-"]) + "\n")


class Grammars:
    """The driver, with a vocabulary of which STOP is the stop token."""

    def __init__(self, driver: Driver, vocabulary: Path) -> None:
        self.driver = driver
        driver("load", file=str(vocabulary), stop=[STOP])

    def compile(self, kind: str, text: str | dict[str, Any] | bool = "") -> None:
        """Make this the grammar of the calls that follow. Raises DriverError."""
        self.driver("compile", kind=kind, text=text if isinstance(text, str) else json.dumps(text))

    def match(self, *texts: str | bytes) -> list[int]:
        """WHOLE, PREFIX or REFUSED for each text."""
        answers: list[int] = self.driver("match", texts=[to_hex(text) for text in texts])
        return answers

    def accepts(self, text: str | bytes) -> bool:
        """Whether the text is whole."""
        return self.match(text) == [WHOLE]

    def allowed(self, prefix: str | bytes = "") -> list[int]:
        """The ids of the tokens that may follow."""
        ids: list[int] = self.driver("allowed", prefix=to_hex(prefix))
        return ids

    def forced(self, prefix: str | bytes = "") -> bytes:
        """The bytes that must follow."""
        return bytes.fromhex(self.driver("forced", prefix=to_hex(prefix)))

    def brute_force(self, prefix: str | bytes = "") -> list[int]:
        """Tokens that the mask and accept() do not agree on."""
        ids: list[int] = self.driver("brute_force", prefix=to_hex(prefix))
        return ids

    def generate(self, seed: int, steps: int, check: bool = False) -> tuple[bytes, bool, int]:
        """A random text, whether it ended, and tokens that mask and accept() did not agree on."""
        text, ended, different = self.driver("generate", seed=seed, steps=steps, check=check)
        return bytes.fromhex(text), ended, different

    def error(self, kind: str, text: str | dict[str, Any] | bool) -> str:
        """The message with which a grammar is refused."""
        with pytest.raises(DriverError) as caught:
            self.compile(kind, text)
        assert caught.value.status == GRAMMAR
        return str(caught.value)


def to_hex(text: str | bytes) -> str:
    """Bytes as the driver takes them."""
    return (text.encode() if isinstance(text, str) else text).hex()
