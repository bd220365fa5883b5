"""Row-wise kernels: silu(gate) * up, addition, gathering rows."""

from __future__ import annotations

from functools import cache

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import (
    Buffer,
    Expr,
    dynamic,
    for_columns,
    for_rows,
    index,
    keep,
    kernel,
    load,
    store,
)
from mlcbuild.kernels.cpu._vector import lanes_of, silu
from mlcbuild.kernels.cpu.quantize import QuantizedRows, ValueAt
from mlcbuild.spec.capabilities import Capabilities


def _gated(gate_up: Buffer, row: Expr, size: int) -> ValueAt:
    """``silu(gate) * up`` of a row, the gate being the first half of the columns."""

    def value_at(column: Expr, width: int) -> Expr:
        gate = load(gate_up, row, column, lanes=width)
        up = load(gate_up, row, column + index(size), lanes=width)
        return keep(silu(gate, width) * up)

    return value_at


@cache
def silu_mul(capabilities: Capabilities, intermediate_size: int) -> tirx.PrimFunc:
    """``(gate_up f32[n,2F]) -> f32[n,F]``: ``silu(gate) * up``, the gate first."""
    lanes = lanes_of(capabilities)
    with kernel("silu_mul") as writer:
        rows = dynamic("n")
        gate_up = writer.arg("gate_up", (rows, 2 * intermediate_size), "float32")
        y = writer.arg("y", (rows, intermediate_size), "float32")

        def gate_row(row: Expr) -> None:
            value_at = _gated(gate_up, row, intermediate_size)
            for_columns(
                intermediate_size,
                lanes,
                lambda column, width: store(y, value_at(column, width), row, column, lanes=width),
            )

        for_rows(rows, gate_row)
    return writer.func


@cache
def silu_mul_quantize(capabilities: Capabilities, intermediate_size: int) -> tirx.PrimFunc:
    """``(gate_up f32[n,2F]) -> (xq, xs, xz)``: silu_mul, then quantize_rows, bit for bit."""
    lanes = lanes_of(capabilities)
    with kernel("silu_mul_quantize") as writer:
        rows = dynamic("n")
        gate_up = writer.arg("gate_up", (rows, 2 * intermediate_size), "float32")
        out = QuantizedRows(writer, rows, intermediate_size)

        def gate_row(row: Expr) -> None:
            out.write_row(row, lanes, _gated(gate_up, row, intermediate_size))

        for_rows(rows, gate_row)
    return writer.func


@cache
def add(capabilities: Capabilities, width: int) -> tirx.PrimFunc:
    """``(a f32[n,K], b f32[n,K]) -> f32[n,K]``."""
    lanes = lanes_of(capabilities)
    with kernel("add") as writer:
        rows = dynamic("n")
        a = writer.arg("a", (rows, width), "float32")
        b = writer.arg("b", (rows, width), "float32")
        y = writer.arg("y", (rows, width), "float32")

        def add_row(row: Expr) -> None:
            def add_columns(column: Expr, size: int) -> None:
                total = load(a, row, column, lanes=size) + load(b, row, column, lanes=size)
                store(y, total, row, column, lanes=size)

            for_columns(width, lanes, add_columns)

        for_rows(rows, add_row)
    return writer.func


@cache
def take_rows(capabilities: Capabilities, width: int) -> tirx.PrimFunc:
    """``(x f32[n,K], index i32[r]) -> f32[r,K]``: row ``index[i]`` of ``x`` becomes row i."""
    lanes = lanes_of(capabilities)
    with kernel("take_rows") as writer:
        rows, taken = dynamic("n"), dynamic("r")
        x = writer.arg("x", (rows, width), "float32")
        rows_of = writer.arg("index", (taken,), "int32")
        y = writer.arg("y", (taken, width), "float32")

        def take_row(row: Expr) -> None:
            source = T.bind(rows_of[row].astype("int64"))

            def copy(column: Expr, size: int) -> None:
                store(y, load(x, source, column, lanes=size), row, column, lanes=size)

            for_columns(width, lanes, copy)

        for_rows(taken, take_row)
    return writer.func
