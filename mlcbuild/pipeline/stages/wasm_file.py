"""Reads what a WebAssembly module imports and exports (core specification 2.0, chapter 5.5)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlcbuild.errors import StageError

_MAGIC = b"\0asm\1\0\0\0"
_IMPORT_SECTION, _EXPORT_SECTION = 2, 7
_FUNCTION, _TABLE, _MEMORY, _GLOBAL = range(4)


@dataclass(frozen=True, slots=True)
class WasmModule:
    """``imports`` are pairs (module, name), ``exports`` names."""

    imports: frozenset[tuple[str, str]]
    exports: frozenset[str]


def read_wasm(path: Path) -> WasmModule:
    """The module in the file; StageError if it is none."""
    try:
        return parse_wasm(path.read_bytes())
    except (ValueError, IndexError) as error:
        raise StageError(
            "the linker's output is not a WebAssembly module", where=str(path), why=str(error)
        ) from error


def parse_wasm(data: bytes) -> WasmModule:
    """ValueError or IndexError if ``data`` is no module."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it does not begin as one")
    imports: set[tuple[str, str]] = set()
    exports: set[str] = set()
    at = len(_MAGIC)
    while at < len(data):
        section = data[at]
        reader = _Reader(data, at + 1)
        end = reader.number() + reader.at
        if end > len(data):
            raise ValueError("it ends within a section")
        if section == _IMPORT_SECTION:
            imports.update(reader.imported() for _ in range(reader.number()))
        elif section == _EXPORT_SECTION:
            exports.update(reader.exported() for _ in range(reader.number()))
        at = end
    return WasmModule(frozenset(imports), frozenset(exports))


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self.at = at

    def number(self) -> int:
        """An unsigned number, 7 bits a byte."""
        value = shift = 0
        while True:
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def text(self) -> str:
        size = self.number()
        self.at += size
        return self._data[self.at - size : self.at].decode("utf-8")

    def imported(self) -> tuple[str, str]:
        owner, name = self.text(), self.text()
        kind = self._kind()
        if kind == _FUNCTION:
            self.number()
        elif kind == _TABLE:
            self.at += 1
            self._limits()
        elif kind == _MEMORY:
            self._limits()
        elif kind == _GLOBAL:
            self.at += 2
        else:
            raise ValueError(f"it imports {owner}.{name}, which is of kind {kind}")
        return owner, name

    def exported(self) -> str:
        name = self.text()
        self._kind()
        self.number()
        return name

    def _kind(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _limits(self) -> None:
        has_maximum = self._kind() & 1
        self.number()
        if has_maximum:
            self.number()
