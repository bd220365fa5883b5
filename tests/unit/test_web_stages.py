"""The WebGPU library: what its module may import, and sources of its runtime."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from mlcbuild.errors import StageError
from mlcbuild.pipeline.stages import web_runtime
from mlcbuild.pipeline.stages.wasm_file import WasmModule, parse_wasm, read_wasm
from mlcbuild.pipeline.stages.web_library import EXPORTS, IMPORTS, check_library


def module(imports: bytes, exports: bytes) -> bytes:
    """A WebAssembly module of these two sections."""
    sections = b"".join(
        bytes([number, len(data)]) + data for number, data in ((2, imports), (7, exports))
    )
    return b"\0asm" + struct.pack("<I", 1) + sections


def name(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def test_imports_and_exports_are_read(tmp_path: Path) -> None:
    imports = b"".join(
        (
            b"\x04",
            name("env") + name("call") + b"\0\x80\x01",
            name("env") + name("table") + b"\x01\x70\0\x05",
            name("env") + name("memory") + b"\x02\x01\x02\x80\x02",
            name("env") + name("stack") + b"\x03\x7f\x01",
        )
    )
    exports = b"\x02" + name("memory") + b"\x02\0" + name("main") + b"\0\x05"
    found = parse_wasm(module(imports, exports))
    assert found.imports == {("env", n) for n in ("call", "table", "memory", "stack")}
    assert found.exports == {"memory", "main"}
    broken = tmp_path / "model.wasm"
    broken.write_bytes(module(imports, exports)[:40])
    with pytest.raises(StageError, match="not a WebAssembly module"):
        read_wasm(broken)


def test_a_library_that_the_client_cannot_load_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.wasm"
    path.touch()
    check_library(WasmModule(IMPORTS, frozenset(EXPORTS)), path)
    odd = WasmModule(IMPORTS | {("env", "pthread_create")}, frozenset(EXPORTS[1:]))
    with pytest.raises(StageError, match=rf"imports env\.pthread_create; it lacks {EXPORTS[0]}"):
        check_library(odd, path)


def test_the_runtime_s_sources_are_in_the_packages(tmp_path: Path) -> None:
    web_runtime._lay_out(tmp_path)
    units = web_runtime.read_units(web_runtime.ROOT)
    missing = [path for paths in units.values() for path in paths if not (tmp_path / path).exists()]
    assert missing == []
