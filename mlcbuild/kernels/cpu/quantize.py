"""Activations to int8, one scale per group of 32 columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import (
    Buffer,
    Expr,
    KernelWriter,
    dynamic,
    f32,
    for_rows,
    index,
    keep,
    kernel,
    load,
    local,
    segments,
    splat,
    store,
    vector_type,
)
from mlcbuild.kernels.cpu._vector import horizontal_max, horizontal_sum, lanes_of, tree
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.layout import padded

# Columns that share an activation scale.
GROUP = 32

# Groups whose largest value is below this are stored as zeros: 127 / absmax would overflow.
TINY = 1e-30

# Gives ``width`` float32 values of a row from a column on.
ValueAt = Callable[[Expr, int], Expr]


class QuantizedRows:
    """The three tensors of quantized activations ``[n, columns]``, as kernel arguments."""

    def __init__(self, writer: KernelWriter, rows: Expr, columns: int) -> None:
        groups = padded(columns, GROUP) // GROUP
        self.rows = rows
        self.columns = columns
        self.codes = writer.arg("xq", (rows, groups * GROUP), "int8")
        self.scales = writer.arg("xs", (rows, groups), "float32")
        self.sums = writer.arg("xz", (rows, groups), "int32")

    def write_row(self, row: Expr, lanes: int, value_at: ValueAt) -> None:
        """Quantize one row, whose values ``value_at(column, width)`` computes."""
        full = self.columns // GROUP
        if full:
            with T.serial(index(full)) as group:
                starts = [group * index(GROUP) + index(c) for c in range(0, GROUP, lanes)]
                self._write_group(row, group, [value_at(s, lanes) for s in starts], lanes)
        if self.columns % GROUP:
            tail = local((GROUP,))
            for offset in range(0, GROUP, lanes):
                store(tail, f32(0.0, lanes), index(offset), lanes=lanes)
            start = full * GROUP
            for column, width in segments(start, self.columns, lanes):
                store(tail, value_at(index(column), width), index(column - start), lanes=width)
            values = [load(tail, index(c), lanes=lanes) for c in range(0, GROUP, lanes)]
            self._write_group(row, index(full), values, lanes)

    def _write_group(self, row: Expr, group: Expr, values: list[Expr], lanes: int) -> None:
        largest = tree([keep(T.fabs(value)) for value in values], T.max)
        absmax = horizontal_max(largest, lanes)
        usable = absmax > f32(TINY)
        inverse = keep(T.Select(usable, f32(127.0) / absmax, f32(0.0)))
        store(self.scales, T.Select(usable, absmax / f32(127.0), f32(0.0)), row, group)
        codes = [
            keep(T.nearbyint(value * splat(inverse, lanes)).astype(vector_type("int32", lanes)))
            for value in values
        ]
        for i, code in enumerate(codes):
            column = group * index(GROUP) + index(i * lanes)
            store(self.codes, code.astype(vector_type("int8", lanes)), row, column, lanes=lanes)
        total = tree(codes, lambda a, b: a + b)
        store(self.sums, horizontal_sum(total, lanes, "int32"), row, group)


@cache
def quantize_rows(capabilities: Capabilities, in_features: int) -> tirx.PrimFunc:
    """``(x f32[n,K]) -> (xq i8[n,Kp], xs f32[n,G], xz i32[n,G])``.

    Per group of 32 columns: ``xs = absmax / 127``, ``xq = round(x / xs)`` (half to even), ``xz``
    the sum of the group's codes. Padding columns and groups of zeros have code and scale 0.
    """
    lanes = lanes_of(capabilities)
    with kernel("quantize_rows") as writer:
        rows = dynamic("n")
        x: Buffer = writer.arg("x", (rows, in_features), "float32")
        out = QuantizedRows(writer, rows, in_features)

        def quantize_row(row: Expr) -> None:
            out.write_row(row, lanes, lambda column, width: load(x, row, column, lanes=width))

        for_rows(rows, quantize_row)
    return writer.func
