"""Writing a GPU kernel with TVM's IR builder: workgroups, shared memory, local values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.kernel_writer import BaseWriter, write_kernel

# TVM's builder is untyped: an expression, and a buffer.
Expr: TypeAlias = Any
Buffer: TypeAlias = Any

WORKGROUP_BYTES = 16384  # shared memory that every WebGPU device has


class KernelWriter(BaseWriter):
    """The kernel being written; ``func`` is there once the ``with kernel(...)`` block is left."""

    def scalar(self, name: str) -> Expr:
        """The next argument: an integer, which Relax passes as int64."""
        return T.arg(name, tirx.Var(name, "int64")).astype("int32")


def kernel(name: str, *, public: bool = False) -> AbstractContextManager[KernelWriter]:
    """A PrimFunc that is scheduled and opaque to fusion; a public one is found by its name."""
    attributes = {"global_symbol": name} if public else {}
    return write_kernel(KernelWriter(), name, private=not public, attributes=attributes)


@contextmanager
def launch(groups: Expr, threads: int) -> Iterator[tuple[Expr, Expr]]:
    """``groups`` workgroups of ``threads``: (number of the group, of the thread in it)."""
    with (
        T.thread_binding(0, groups, "blockIdx.x") as group,
        T.thread_binding(0, threads, "threadIdx.x") as thread,
        T.sblock("kernel"),
    ):
        yield group, thread


def dynamic(name: str) -> Expr:
    """A dynamic dimension."""
    return tirx.Var(name, "int32")


def shared(shape: Sequence[int], dtype: str) -> Buffer:
    """Memory of the workgroup; TVM puts barriers between writing and reading it."""
    return T.sblock_alloc_buffer(tuple(shape), dtype, scope="shared", layout=None)


class Local:
    """A variable of each thread."""

    def __init__(self, dtype: str, value: Expr = None) -> None:
        self._cell = T.sblock_alloc_buffer((1,), dtype, scope="local", layout=None)
        if value is not None:
            self.set(value)

    @property
    def value(self) -> Expr:
        """What it holds where the expression is evaluated."""
        return self._cell[0]

    def set(self, value: Expr) -> None:
        """Give it a value."""
        T.buffer_store(self._cell, value, [0])

    def add(self, value: Expr) -> None:
        """Add to it."""
        self.set(self.value + value)


class Vectors:
    """Vectors of four float32 of each thread, by number; shaders keep them in registers."""

    def __init__(self, count: int) -> None:
        self._cells = T.sblock_alloc_buffer((4 * count,), "float32", scope="local", layout=None)

    def __getitem__(self, number: int) -> Expr:
        return self._cells[quad(4 * number)]

    def set(self, number: int, value: Expr) -> None:
        """Give one a value."""
        T.buffer_store(self._cells, value, [quad(4 * number)])

    def add(self, number: int, value: Expr) -> None:
        """Add to one."""
        self.set(number, self[number] + value)


def quad(first: Expr) -> Expr:
    """The index of four elements; shared and local buffers read only so are of vectors."""
    return tirx.Ramp(first, 1, 4)


def vec4(kind: str, *values: Expr) -> Expr:
    """WGSL's ``vec4<kind>`` of one value, of four, or of another vector.

    Not TVM's casts and constants of vectors: casts in casts lose their lanes in its code generator.
    """
    dtype = {"f32": "float32x4", "i32": "int32x4"}[kind]
    return tirx.call_pure_extern(dtype, f"vec4<{kind}>", *values)


def lane(vector: Expr, number: int) -> Expr:
    """One element of a vector."""
    return tirx.Shuffle([vector], [number])


def lanes_sum(vector: Expr) -> Expr:
    """The sum of a vector's elements, in a fixed order."""
    first, second, third, fourth = (lane(vector, number) for number in range(4))
    return (first + second) + (third + fourth)


@contextmanager
def when(condition: Expr) -> Iterator[None]:
    """What only the threads with ``condition`` do; nothing in it may need a barrier."""
    with T.If(condition), T.Then():
        yield


def store(buffer: Buffer, value: Expr, *where: Expr) -> None:
    """Store one element."""
    T.buffer_store(buffer, value, list(where))


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """One of two values; the other is not evaluated, so that its loads may lie outside."""
    return tirx.if_then_else(condition, yes, no)


def divide_up(size: int, by: int) -> int:
    """``size / by``, rounded up."""
    return -(-size // by)
