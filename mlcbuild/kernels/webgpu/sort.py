"""Sorting of a row of float32, largest first: a stable radix sort, four bits a pass.

The passes are those of Satish, Harris and Garland, "Designing efficient sorting algorithms for
manycore GPUs" (2009): each workgroup counts its tile's digits, a scan over all counts gives every
tile its places, and the tile is written out in order. No atomics: what a thread counts lies in its
own column of shared memory, so that equal values keep the order of their indices, and the same
row is sorted the same way on every device.
"""

from __future__ import annotations

from functools import cache

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.webgpu.builder import (
    Buffer,
    Expr,
    Local,
    divide_up,
    kernel,
    launch,
    select,
    shared,
    store,
    when,
)

DIGIT_BITS = 4
DIGITS = 1 << DIGIT_BITS
PASSES = 32 // DIGIT_BITS
THREADS = 128
PER_THREAD = 16
TILE = THREADS * PER_THREAD  # elements of a workgroup
_SCAN_THREADS = 256


def tiles(size: int) -> int:
    """Workgroups that sort ``size`` elements."""
    return divide_up(size, TILE)


def _sort_key(value: Expr) -> Expr:
    """A uint32 that is the smaller the larger the float32 ``value`` is."""
    bits = T.reinterpret("uint32", value)
    sign = tirx.const(0x80000000, "uint32")
    # Ascending order of floats is that of their bits, the sign flipped for positive ones and all
    # bits for negative ones; the complement turns it round.
    positive = tirx.bitwise_xor(bits, tirx.const(0x7FFFFFFF, "uint32"))
    return select(tirx.bitwise_and(bits, sign) == tirx.const(0, "uint32"), positive, bits)


def _digit(key: Expr, shift: Expr) -> Expr:
    moved = tirx.shift_right(key, shift.astype("uint32"))
    return tirx.bitwise_and(moved, tirx.const(DIGITS - 1, "uint32")).astype("int32")


@cache
def sort_keys(size: int) -> tirx.PrimFunc:
    """``(values f32[1,V]) -> (keys u32[V], indices i32[V])``: what the passes work on."""
    with kernel("sort_keys") as writer:
        values = writer.tensor("values", (1, size), "float32")
        keys = writer.tensor("keys", (size,), "uint32")
        indices = writer.tensor("indices", (size,), "int32")
        with launch(divide_up(size, 256), 256) as (group, thread):
            at = group * 256 + thread
            with when(at < size):
                store(keys, _sort_key(values[0, at]), at)
                store(indices, at, at)
    return writer.func


def _count(keys: Buffer, counts: Buffer, size: int, first: Expr, thread: Expr, by: Expr) -> None:
    """Counts the digits of a thread's elements into its column of ``counts``."""
    with T.serial(0, DIGITS) as digit:
        store(counts, 0, digit, thread)
    with T.serial(0, PER_THREAD) as i, when(first + i < size):
        digit = Local("int32", _digit(keys[first + i], by))
        store(counts, counts[digit.value, thread] + 1, digit.value, thread)


@cache
def sort_count(size: int) -> tirx.PrimFunc:
    """``(keys u32[V], shift) -> i32[16 * tiles]``: how often each digit is in each tile.

    The counts of a digit lie side by side.
    """
    count = tiles(size)
    with kernel("sort_count") as writer:
        keys = writer.tensor("keys", (size,), "uint32")
        by = writer.scalar("shift")
        totals = writer.tensor("totals", (DIGITS * count,), "int32")
        with launch(count, THREADS) as (group, thread):
            counts = shared((DIGITS, THREADS), "int32")
            _count(keys, counts, size, group * TILE + thread * PER_THREAD, thread, by)
            with when(thread < DIGITS):
                total = Local("int32", 0)
                with T.serial(0, THREADS) as other:
                    total.add(counts[thread, other])
                store(totals, total.value, thread * count + group)
    return writer.func


@cache
def exclusive_scan(length: int) -> tirx.PrimFunc:
    """``(x i32[n]) -> y i32[n]``: the sum of what stands before each element, by one workgroup."""
    share = divide_up(length, _SCAN_THREADS)
    with kernel("exclusive_scan") as writer:
        x = writer.tensor("x", (length,), "int32")
        y = writer.tensor("y", (length,), "int32")
        with launch(1, _SCAN_THREADS) as (_, thread):
            sums = shared((_SCAN_THREADS,), "int32")
            starts = shared((_SCAN_THREADS,), "int32")
            first = thread * share
            total = Local("int32", 0)
            with T.serial(0, share) as i, when(first + i < length):
                total.add(x[first + i])
            store(sums, total.value, thread)
            with when(thread == 0):
                before = Local("int32", 0)
                with T.serial(0, _SCAN_THREADS) as other:
                    store(starts, before.value, other)
                    before.add(sums[other])
            running = Local("int32", starts[thread])
            with T.serial(0, share) as i, when(first + i < length):
                store(y, running.value, first + i)
                running.add(x[first + i])
    return writer.func


@cache
def sort_scatter(size: int) -> tirx.PrimFunc:
    """``(keys, indices, places i32[16 * tiles], shift) -> (keys, indices)``: one pass's order."""
    count = tiles(size)
    with kernel("sort_scatter") as writer:
        keys = writer.tensor("keys", (size,), "uint32")
        indices = writer.tensor("indices", (size,), "int32")
        places = writer.tensor("places", (DIGITS * count,), "int32")
        by = writer.scalar("shift")
        new_keys = writer.tensor("new_keys", (size,), "uint32")
        new_indices = writer.tensor("new_indices", (size,), "int32")
        with launch(count, THREADS) as (group, thread):
            counts = shared((DIGITS, THREADS), "int32")
            starts = shared((DIGITS, THREADS), "int32")
            first = group * TILE + thread * PER_THREAD
            _count(keys, counts, size, first, thread, by)
            with when(thread < DIGITS):
                place = Local("int32", places[thread * count + group])
                with T.serial(0, THREADS) as other:
                    store(starts, place.value, thread, other)
                    place.add(counts[thread, other])
            with T.serial(0, PER_THREAD) as i, when(first + i < size):
                digit = Local("int32", _digit(keys[first + i], by))
                place = Local("int32", starts[digit.value, thread])
                store(starts, place.value + 1, digit.value, thread)
                store(new_keys, keys[first + i], place.value)
                store(new_indices, indices[first + i], place.value)
    return writer.func


@cache
def gather_row(size: int) -> tirx.PrimFunc:
    """``(values f32[1,V], indices i32[V]) -> (sorted f32[1,V], order i32[1,V])``."""
    with kernel("gather_row") as writer:
        values = writer.tensor("values", (1, size), "float32")
        indices = writer.tensor("indices", (size,), "int32")
        ordered = writer.tensor("ordered", (1, size), "float32")
        order = writer.tensor("order", (1, size), "int32")
        with launch(divide_up(size, 256), 256) as (group, thread):
            at = group * 256 + thread
            with when(at < size):
                source = Local("int32", indices[at])
                store(ordered, values[0, source.value], 0, at)
                store(order, source.value, 0, at)
    return writer.func
