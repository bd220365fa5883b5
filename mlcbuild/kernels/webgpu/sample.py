"""Softmax with a temperature, and a draw from what top-p keeps of a sorted row."""

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

SOFTMAX_TILE = 4096  # logits that one workgroup reduces
_THREADS = 256
_LOWEST = -3.402823e38

# A row is summed in two steps of 64, so that a walk to any element reads some hundred numbers.
STEP = 64


def softmax_tiles(size: int) -> int:
    """Workgroups that reduce ``size`` logits."""
    return divide_up(size, SOFTMAX_TILE)


def _tree(cells: Buffer, thread: Expr, threads: int, combine: tirx.Op | object) -> None:
    """Folds ``cells`` [threads] into its first element."""
    width = threads // 2
    while width:
        with when(thread < width):
            store(cells, combine(cells[thread], cells[thread + width]), thread)  # type: ignore[operator]
        width //= 2


def _max(left: Expr, right: Expr) -> Expr:
    return tirx.max(left, right)


def _sum(left: Expr, right: Expr) -> Expr:
    return left + right


@cache
def softmax_reduce(size: int) -> tirx.PrimFunc:
    """``(x f32[1,1,V], temperature f32[1]) -> (peaks f32[tiles], sums f32[tiles])``.

    The largest logit of each tile, and the sum of ``exp((x - peak) / temperature)`` over it.
    """
    tiles = softmax_tiles(size)
    with kernel("softmax_reduce") as writer:
        x = writer.tensor("x", (1, 1, size), "float32")
        temperature = writer.tensor("temperature", (1,), "float32")
        peaks = writer.tensor("peaks", (tiles,), "float32")
        sums = writer.tensor("sums", (tiles,), "float32")
        with launch(tiles, _THREADS) as (group, thread):
            high = shared((_THREADS,), "float32")
            total = shared((_THREADS,), "float32")
            peak = Local("float32", T.float32(_LOWEST))
            each = SOFTMAX_TILE // _THREADS
            with T.serial(0, each) as i:
                at = group * SOFTMAX_TILE + i * _THREADS + thread
                value = select(at < size, x[0, 0, at], T.float32(_LOWEST))
                peak.set(tirx.max(peak.value, value))
            store(high, peak.value, thread)
            _tree(high, thread, _THREADS, _max)
            part = Local("float32", T.float32(0))
            with T.serial(0, each) as i:
                at = group * SOFTMAX_TILE + i * _THREADS + thread
                value = tirx.exp((x[0, 0, at] - high[0]) / temperature[0])
                part.add(select(at < size, value, T.float32(0)))
            store(total, part.value, thread)
            _tree(total, thread, _THREADS, _sum)
            with when(thread == 0):
                store(peaks, high[0], group)
                store(sums, total[0], group)
    return writer.func


@cache
def softmax_combine(size: int) -> tirx.PrimFunc:
    """``(peaks, sums, temperature f32[1]) -> f32[2]``: the row's largest logit and its sum."""
    tiles = softmax_tiles(size)
    with kernel("softmax_combine") as writer:
        peaks = writer.tensor("peaks", (tiles,), "float32")
        sums = writer.tensor("sums", (tiles,), "float32")
        temperature = writer.tensor("temperature", (1,), "float32")
        row = writer.tensor("row", (2,), "float32")
        with launch(1, 1):
            peak = Local("float32", T.float32(_LOWEST))
            with T.serial(0, tiles) as tile:
                peak.set(tirx.max(peak.value, peaks[tile]))
            total = Local("float32", T.float32(0))
            with T.serial(0, tiles) as tile:
                scale = tirx.exp((peaks[tile] - peak.value) / temperature[0])
                total.add(sums[tile] * scale)
            store(row, peak.value, 0)
            store(row, total.value, 1)
    return writer.func


@cache
def softmax_apply(size: int) -> tirx.PrimFunc:
    """``(x f32[1,1,V], row f32[2], temperature f32[1]) -> f32[1,1,V]``."""
    with kernel("softmax_apply") as writer:
        x = writer.tensor("x", (1, 1, size), "float32")
        row = writer.tensor("row", (2,), "float32")
        temperature = writer.tensor("temperature", (1,), "float32")
        y = writer.tensor("y", (1, 1, size), "float32")
        with launch(divide_up(size, _THREADS), _THREADS) as (group, thread):
            at = group * _THREADS + thread
            with when(at < size):
                value = tirx.exp((x[0, 0, at] - row[0]) / temperature[0])
                store(y, value / row[1], 0, 0, at)
    return writer.func


@cache
def step_sums(rank: int, size: int) -> tirx.PrimFunc:
    """``x f32[size] (rank 1) or f32[1,size] (rank 2) -> f32[size / 64]``: sums of 64 in order."""
    count = divide_up(size, STEP)
    with kernel("step_sums") as writer:
        x = writer.tensor("x", (size,) if rank == 1 else (1, size), "float32")
        sums = writer.tensor("sums", (count,), "float32")
        with launch(divide_up(count, _THREADS), _THREADS) as (group, thread):
            at = group * _THREADS + thread
            with when(at < count):
                total = Local("float32", T.float32(0))
                with T.serial(0, STEP) as i, when(at * STEP + i < size):
                    total.add(x[at * STEP + i] if rank == 1 else x[0, at * STEP + i])
                store(sums, total.value, at)
    return writer.func


class _Walk:
    """Finds the first element at which the running sum passes a limit.

    The running sum is ``coarse + (middle + fine)``, each part summed in order: at the end of a
    step it is what the step's sum makes it, to the bit.
    """

    def __init__(self, levels: tuple[Buffer, Buffer, Buffer], size: int) -> None:
        self._coarse, self._middle, self._probs = levels
        self._size = size
        self._prefix = [Local("float32") for _ in range(3)]
        self._step = [Local("int32") for _ in range(3)]
        self._found = Local("int32")

    @property
    def index(self) -> Expr:
        """The element found; the last one if the sum never passes the limit."""
        return self._step[2].value

    @property
    def sum(self) -> Expr:
        """The running sum with the element found."""
        coarse, middle, fine = (part.value for part in self._prefix)
        return coarse + (middle + (fine + self._probs[0, self.index]))

    def run(self, limit: Expr, *, reach: bool) -> None:
        """Stops where the sum is above ``limit``, or equal to it if ``reach``."""
        size = self._size
        middle_count = divide_up(size, STEP)
        sizes = (divide_up(middle_count, STEP), middle_count, size)
        values = (
            lambda at: self._coarse[at],
            lambda at: self._middle[at],
            lambda at: self._probs[0, at],
        )
        for level, count in enumerate(sizes):
            prefix, step = self._prefix[level], self._step[level]
            prefix.set(T.float32(0))
            step.set(0 if level == 0 else self._step[level - 1].value * STEP)
            self._found.set(0)
            steps = count if level == 0 else STEP
            with T.serial(0, steps), when(self._found.value == 0):
                total = Local("float32", self._sum_to(level, values[level](step.value)))
                passed = total.value >= limit if reach else total.value > limit
                last = step.value + 1 >= count
                with T.If(tirx.any(passed, last)):
                    with T.Then():
                        self._found.set(1)
                    with T.Else():
                        prefix.add(values[level](step.value))
                        step.add(1)

    def _sum_to(self, level: int, value: Expr) -> Expr:
        total = self._prefix[level].value + value
        for above in reversed(self._prefix[:level]):
            total = above.value + total
        return total


@cache
def draw_top_p(size: int) -> tirx.PrimFunc:
    """A token drawn from the shortest head of a sorted row that holds ``top_p`` of its sum.

    ``(sorted f32[1,V], order i32[1,V], uniform f32[1], row i32[1], top_p f32[1], middle, coarse)
    -> i32[1]``; ``middle`` are the sums of 64 elements, ``coarse`` of 64 of these. One thread
    walks: it reads a few hundred numbers.
    """
    middle_count = divide_up(size, STEP)
    with kernel("draw_top_p") as writer:
        probs = writer.tensor("probs", (1, size), "float32")
        order = writer.tensor("order", (1, size), "int32")
        uniform = writer.tensor("uniform", (1,), "float32")
        writer.tensor("row", (1,), "int32")  # of several rows; the client has one
        top_p = writer.tensor("top_p", (1,), "float32")
        middle = writer.tensor("middle", (middle_count,), "float32")
        coarse = writer.tensor("coarse", (divide_up(middle_count, STEP),), "float32")
        token = writer.tensor("token", (1,), "int32")
        with launch(1, 1):
            total = Local("float32", T.float32(0))
            with T.serial(0, divide_up(middle_count, STEP)) as step:
                total.add(coarse[step])
            walk = _Walk((coarse, middle, probs), size)
            # The share of the sum, which rounding keeps from being exactly one.
            walk.run(tirx.min(top_p[0], T.float32(1)) * total.value, reach=True)
            last = Local("int32", walk.index)
            kept = Local("float32", walk.sum)
            walk.run(uniform[0] * kept.value, reach=False)
            store(token, order[0, tirx.min(walk.index, last.value)], 0)
    return writer.func
