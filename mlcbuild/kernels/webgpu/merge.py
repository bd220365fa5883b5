"""Puts two parts of an attention together, each over some of the keys."""

from __future__ import annotations

from functools import cache

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.webgpu.builder import (
    Local,
    divide_up,
    dynamic,
    kernel,
    launch,
    shared,
    store,
    when,
)

_LANES = 32  # threads for one row and head
_PAIRS = 8  # rows and heads of a workgroup


@cache
def merge_state(heads: int, head_dim: int, dtype: str) -> tirx.PrimFunc:
    """``(V [n, heads, d], S f32[n, heads], V_other, S_other)``: the first two are changed in place.

    ``S`` is the base-2 logarithm of the sum of the exponentials that ``V`` is divided by, so that
    ``V = (V 2^S + V_other 2^S_other) / (2^S + 2^S_other)``. One thread alone reads and writes an
    element of S: threads of a workgroup do not run in step on every device.
    """
    with kernel("merge_state") as writer:
        rows = dynamic("N")
        values = writer.tensor("V", (rows, heads, head_dim), dtype)
        sums = writer.tensor("S", (rows, heads), "float32")
        other_values = writer.tensor("V_other", (rows, heads, head_dim), dtype)
        other_sums = writer.tensor("S_other", (rows, heads), "float32")
        groups = (rows * heads + _PAIRS - 1) // _PAIRS
        with launch(groups, _LANES * _PAIRS) as (group, thread):
            held = shared((2 * _PAIRS,), "float32")
            pair, lane = thread // _LANES, thread % _LANES
            at = group * _PAIRS + pair
            row, head = at // heads, at % heads
            with when(tirx.all(lane == 0, row < rows)):
                store(held, sums[row, head], 2 * pair)
                store(held, other_sums[row, head], 2 * pair + 1)
            peak = Local("float32", tirx.max(held[2 * pair], held[2 * pair + 1]))
            own = Local("float32", tirx.exp2(held[2 * pair] - peak.value))
            other = Local("float32", tirx.exp2(held[2 * pair + 1] - peak.value))
            total = own.value + other.value
            with when(row < rows):
                with T.serial(0, divide_up(head_dim, _LANES)) as step:
                    column = step * _LANES + lane
                    with when(column < head_dim):
                        value = values[row, head, column].astype("float32") * own.value
                        added = other_values[row, head, column].astype("float32") * other.value
                        merged = (value + added) / total
                        store(values, merged.astype(dtype), row, head, column)
                with when(lane == 0):
                    store(sums, tirx.log2(total) + peak.value, row, head)
    return writer.func
