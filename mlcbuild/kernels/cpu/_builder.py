"""Writing a kernel with TVM's IR builder: arguments, loops over rows, loads and stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.kernel_writer import BaseWriter, write_kernel

# TVM's builder is untyped: a scalar or vector expression, and a buffer.
Expr: TypeAlias = Any
Buffer: TypeAlias = Any

# Below this many rows a launch of the thread pool costs more than the row-wise kernels' work.
SERIAL_ROWS = 4


class KernelWriter(BaseWriter):
    """The kernel being written; ``func`` is there once the ``with kernel(...)`` block is left."""

    def arg(self, name: str, shape: Sequence[Expr], dtype: str) -> Buffer:
        """The next argument: a tensor of ``shape`` and ``dtype``."""
        return self.tensor(name, shape, dtype)


def kernel(name: str) -> AbstractContextManager[KernelWriter]:
    """A private PrimFunc that is already scheduled and opaque to operator fusion."""
    return write_kernel(KernelWriter(), name, private=True)


def dynamic(name: str) -> Expr:
    """A dynamic dimension."""
    return tirx.Var(name, "int64")


def index(value: int) -> Expr:
    """An int64 constant, so that index arithmetic is 64 bits wide."""
    return tirx.IntImm("int64", value)


def vector_type(dtype: str, lanes: int) -> str:
    """``float32`` and 16 -> ``float32x16``; one lane is the scalar type."""
    return f"{dtype}x{lanes}" if lanes > 1 else dtype


def splat(value: Expr, lanes: int) -> Expr:
    """A scalar in every lane."""
    return T.Broadcast(value, lanes) if lanes > 1 else value


def f32(value: float, lanes: int = 1) -> Expr:
    """A float32 constant in every lane."""
    return splat(T.float32(value), lanes)


def i32(value: int, lanes: int = 1) -> Expr:
    """An int32 constant in every lane."""
    return splat(T.int32(value), lanes)


def span(last: Expr, lanes: int) -> Expr:
    """The index of ``lanes`` neighbours that start at ``last``."""
    return T.Ramp(last, 1, lanes) if lanes > 1 else last


def load(buffer: Buffer, *where: Expr, lanes: int = 1) -> Expr:
    """``lanes`` neighbours along the last axis, bound once."""
    at = (*where[:-1], span(where[-1], lanes))
    return T.bind(buffer[at])


def load_f32(buffer: Buffer, *where: Expr, lanes: int = 1) -> Expr:
    """As load, converted to float32.

    bfloat16 is the upper half of a float32, and converted as that: TVM's own cast of a loaded
    vector takes the bits for an integer.
    """
    at = (*where[:-1], span(where[-1], lanes))
    value = buffer[at]
    if str(buffer.dtype) == "bfloat16":
        halves = T.reinterpret(vector_type("uint16", lanes), value)
        wide = halves.astype(vector_type("uint32", lanes)) << splat(T.uint32(16), lanes)
        return T.bind(T.reinterpret(vector_type("float32", lanes), wide))
    return T.bind(value.astype(vector_type("float32", lanes)))


def store(buffer: Buffer, value: Expr, *where: Expr, lanes: int = 1) -> None:
    """Store ``lanes`` neighbours along the last axis."""
    T.buffer_store(buffer, value, [*where[:-1], span(where[-1], lanes)])


def prefetch(buffer: Buffer, *where: Expr) -> None:
    """Ask for the cache line of an element, which may lie beyond the buffer's end."""
    address = T.address_of(buffer[where])
    read, keep_all, data = T.int32(0), T.int32(3), T.int32(1)
    T.evaluate(T.call_llvm_intrin("void", "llvm.prefetch", address, read, keep_all, data))


def local(shape: Sequence[int], dtype: str = "float32") -> Buffer:
    """A small scratch of the current block: registers if indexed by constants, else stack."""
    return T.sblock_alloc_buffer(tuple(shape), dtype, layout=None)


class Registers:
    """``count`` float32 vectors that live in registers: index them by constants only."""

    def __init__(self, count: int, lanes: int) -> None:
        self._buffer = local((count, lanes))
        self._count = count
        self._lanes = lanes

    def get(self, number: int) -> Expr:
        """The value of one register."""
        return load(self._buffer, index(number), index(0), lanes=self._lanes)

    def set(self, number: int, value: Expr) -> None:
        """Give one register a value."""
        store(self._buffer, value, index(number), index(0), lanes=self._lanes)

    def clear(self) -> None:
        """Set all registers to zero."""
        for number in range(self._count):
            self.set(number, f32(0.0, self._lanes))


def keep(value: Expr) -> Expr:
    """Compute a value once, for several uses.

    TVM's simplifier substitutes whatever ``T.bind`` binds, unless it reads memory, and so makes
    a chain of values used twice exponentially large. A local buffer stops it, and LLVM turns the
    buffer into a register.
    """
    dtype = value.ty.dtype
    lanes = dtype.lanes
    cell = local((lanes,), str(dtype.with_lanes(1)))
    store(cell, value, index(0), lanes=lanes)
    return load(cell, index(0), lanes=lanes)


def for_rows(rows: Expr, body: Callable[[Expr], None], serial_below: int = SERIAL_ROWS) -> None:
    """Run ``body(row)`` for every row, on the thread pool unless the rows are few."""
    with T.If(rows < index(serial_below)):
        with T.Then(), T.serial(rows) as row, T.sblock("few_rows"):
            body(row)
        with T.Else(), T.parallel(rows) as row, T.sblock("rows"):
            body(row)


def segments(start: int, stop: int, lanes: int) -> list[tuple[int, int]]:
    """``(column, width)`` pieces of start..stop, widths powers of two, at most ``lanes``."""
    pieces = []
    width = lanes
    while start < stop:
        while width > stop - start:
            width //= 2
        pieces.append((start, width))
        start += width
    return pieces


def for_columns(columns: int, lanes: int, body: Callable[[Expr, int], None]) -> None:
    """Run ``body(column, width)`` over a row: a loop of full vectors, then a narrower tail."""
    full = columns // lanes
    if full:
        with T.serial(index(full)) as chunk:
            body(chunk * index(lanes), lanes)
    for column, width in segments(full * lanes, columns, lanes):
        body(index(column), width)
