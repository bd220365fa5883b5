"""RMS normalization, alone and fused with the quantization of its result."""

from __future__ import annotations

from functools import cache

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import (
    Buffer,
    Expr,
    Registers,
    dynamic,
    f32,
    for_columns,
    for_rows,
    index,
    keep,
    kernel,
    load,
    segments,
    splat,
    store,
)
from mlcbuild.kernels.cpu._vector import horizontal_sum, lanes_of, tree
from mlcbuild.kernels.cpu.quantize import QuantizedRows
from mlcbuild.spec.capabilities import Capabilities

# Independent sums of squares, so that the additions' latency does not bound the loop.
_CHAINS = 4


def _inverse_rms(x: Buffer, row: Expr, size: int, eps: float, lanes: int) -> Expr:
    """``1 / sqrt(mean(x^2) + eps)`` of a row."""
    sums = Registers(_CHAINS, lanes)
    sums.clear()

    def add_square(chain: int, column: Expr) -> None:
        value = load(x, row, column, lanes=lanes)
        sums.set(chain, T.fma(value, value, sums.get(chain)))

    step = _CHAINS * lanes
    if size >= step:
        with T.serial(index(size // step)) as chunk:
            for chain in range(_CHAINS):
                add_square(chain, chunk * index(step) + index(chain * lanes))
    rest: Expr = f32(0.0)
    for i, (column, width) in enumerate(segments(size // step * step, size, lanes)):
        if width == lanes:
            add_square(i, index(column))
        else:
            value = load(x, row, index(column), lanes=width)
            rest = keep(rest + horizontal_sum(keep(value * value), width))
    total = tree([sums.get(chain) for chain in range(_CHAINS)], lambda a, b: a + b)
    total = horizontal_sum(total, lanes) + rest
    return keep(f32(1.0) / T.sqrt(total / f32(float(size)) + f32(eps)))


@cache
def rms_norm(capabilities: Capabilities, hidden_size: int, eps: float) -> tirx.PrimFunc:
    """``(x f32[n,H], w f32[H]) -> y f32[n,H]``: ``x / sqrt(mean(x^2) + eps) * w``."""
    lanes = lanes_of(capabilities)
    with kernel("rms_norm") as writer:
        rows = dynamic("n")
        x = writer.arg("x", (rows, hidden_size), "float32")
        w = writer.arg("w", (hidden_size,), "float32")
        y = writer.arg("y", (rows, hidden_size), "float32")

        def normalize_row(row: Expr) -> None:
            inverse = _inverse_rms(x, row, hidden_size, eps, lanes)

            def scale(column: Expr, width: int) -> None:
                value = load(x, row, column, lanes=width) * splat(inverse, width)
                store(y, value * load(w, column, lanes=width), row, column, lanes=width)

            for_columns(hidden_size, lanes, scale)

        for_rows(rows, normalize_row)
    return writer.func


@cache
def rms_norm_quantize(capabilities: Capabilities, hidden_size: int, eps: float) -> tirx.PrimFunc:
    """``(x f32[n,H], w f32[H]) -> (xq, xs, xz)``: rms_norm, then quantize_rows, bit for bit."""
    lanes = lanes_of(capabilities)
    with kernel("rms_norm_quantize") as writer:
        rows = dynamic("n")
        x = writer.arg("x", (rows, hidden_size), "float32")
        w = writer.arg("w", (hidden_size,), "float32")
        out = QuantizedRows(writer, rows, hidden_size)

        def normalize_row(row: Expr) -> None:
            inverse = _inverse_rms(x, row, hidden_size, eps, lanes)

            def value_at(column: Expr, width: int) -> Expr:
                value = load(x, row, column, lanes=width) * splat(inverse, width)
                return keep(value * load(w, column, lanes=width))

            out.write_row(row, lanes, value_at)

        for_rows(rows, normalize_row)
    return writer.func
