"""Runs kernels of other processors: ARM under qemu, WebAssembly in wasmtime."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import wasmtime

Array = npt.NDArray[Any]

_DRIVER = Path(__file__).with_name("kernel_driver.c")
_COMPILE = ("-std=c11", "-O1", "-ffreestanding", "-fno-builtin", "-fno-stack-protector", "-Wall")
_WORDS = 8  # of the header, and of a tensor in it
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}  # of DLPack


def find_qemu() -> str | None:
    """Debian's qemu for programs of ARM."""
    return shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


class Emulator(ABC):
    """A program of kernels and the driver that answers messages."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    @abstractmethod
    def exchange(self, message: bytes) -> bytes:
        """Run one call; the answer is as long as the message."""

    def call(self, name: str, arrays: Sequence[Array]) -> None:
        """Call a kernel, as it would be with these arrays; what it writes is in them after.

        Arrays over the same memory share theirs there, too.
        """
        header = np.zeros((1 + len(arrays), _WORDS), np.int64)
        places: dict[int, int] = {}
        size = header.nbytes
        for record, array in zip(header[1:], arrays, strict=True):
            if array.ctypes.data not in places:
                places[array.ctypes.data] = size
                size += -(-array.nbytes // 64) * 64
            record[:4] = (
                places[array.ctypes.data],
                _CODES[array.dtype.name.rstrip("0123456789")],
                array.dtype.itemsize * 8,
                array.ndim,
            )
            record[4 : 4 + array.ndim] = array.shape
        header[0, :3] = size, self._names.index(name), len(arrays)
        message = np.zeros(size, np.uint8)
        message[: header.nbytes] = header.reshape(-1).view(np.uint8)
        for array in arrays:
            place = places[array.ctypes.data]
            message[place : place + array.nbytes] = array.reshape(-1).view(np.uint8)
        answer = np.frombuffer(self.exchange(message.tobytes()), np.uint8)
        if answer[:8].view(np.int64)[0] != 0:
            text = answer[_WORDS * 8 : 2 * _WORDS * 8].tobytes().split(b"\0")[0].decode()
            raise RuntimeError(f"{name}: {text}")
        for array in arrays:
            place = places[array.ctypes.data]
            array.reshape(-1).view(np.uint8)[...] = answer[place : place + array.nbytes]


class _Qemu(Emulator):
    def __init__(self, program: Path, names: Sequence[str]) -> None:
        super().__init__(names)
        qemu = find_qemu()
        assert qemu is not None, "tests that need qemu are skipped without it"
        self._process = subprocess.Popen(
            [qemu, "-cpu", "max", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        atexit.register(self._process.communicate)
        assert self._process.stdout is not None
        if not self._process.stdout.read(1):
            raise RuntimeError(f"{qemu} {program} ended with {self._process.wait()}")

    def exchange(self, message: bytes) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(message)
        self._process.stdin.flush()
        answer = self._process.stdout.read(len(message))
        if len(answer) != len(message):
            raise RuntimeError(f"the emulated program ended with {self._process.wait()}")
        return answer


class _Wasmtime(Emulator):
    def __init__(self, program: Path, names: Sequence[str]) -> None:
        super().__init__(names)
        engine = wasmtime.Engine()
        self._store = wasmtime.Store(engine)
        # Before the interpreter takes apart what they need to end.
        atexit.register(engine.close)
        atexit.register(self._store.close)
        module = wasmtime.Module(engine, program.read_bytes())
        exports = wasmtime.Instance(self._store, module, []).exports(self._store)
        self._memory: Any = exports["memory"]
        self._run: Any = exports["run"]
        message: Any = exports["message"]
        capacity: Any = exports["capacity"]
        self._address = message(self._store)
        self._capacity = capacity(self._store)

    def exchange(self, message: bytes) -> bytes:
        if len(message) > self._capacity:
            raise RuntimeError(f"a message of {len(message)} bytes")
        self._memory.write(self._store, message, self._address)
        self._run(self._store)
        end = self._address + len(message)
        return bytes(self._memory.read(self._store, self._address, end))


# Architecture -> the driver's triple, the linker and its flags, what runs the program.
_SYSTEMS: dict[str, tuple[str, tuple[str, ...], type[_Qemu] | type[_Wasmtime]]] = {
    "arm": ("aarch64-linux-musl", ("ld.lld", "-static"), _Qemu),
    "wasm": ("wasm32-freestanding", ("wasm-ld", "--no-entry"), _Wasmtime),
}


def emulate(architecture: str, module: Any, names: Sequence[str]) -> Emulator:
    """An emulator of kernels that TVM compiled, ``names`` being theirs."""
    triple, linker, emulator = _SYSTEMS[architecture]
    declare = "".join(f"int __tvm_ffi_{n}(void*, const void*, int, void*);\n" for n in names)
    entries = "".join(f"  __tvm_ffi_{n},\n" for n in names)
    table = f"{declare}int (*const kernels[])(void*, const void*, int, void*) = {{\n{entries}}};\n"
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        module.write_to_file(str(base / "kernels.o"), "o")
        (base / "table.c").write_text(table, encoding="utf-8")
        for source in (_DRIVER, base / "table.c"):
            target = base / f"{source.stem}.o"
            _zig("cc", "-target", triple, *_COMPILE, "-c", source, "-o", target)
        objects = (base / f"{stem}.o" for stem in ("kernel_driver", "table", "kernels"))
        _zig(*linker, *objects, "-o", base / "program")
        return emulator(base / "program", names)


def _zig(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "ziglang", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
