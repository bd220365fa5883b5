"""One row times a matrix of rows: the products of a decode step.

A workgroup has ``lanes`` x ``sets`` threads. The lanes of a set share some rows of the matrix and
take turns in their columns, 16 bytes each, so that neighbours read neighbouring memory; a thread
uses what it has of x for all of its rows. x comes in by way of the workgroup's memory, turned so
that lanes read neighbouring vectors. The sums of the lanes are added in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.webgpu.builder import (
    Buffer,
    Expr,
    Local,
    Vectors,
    divide_up,
    kernel,
    lanes_sum,
    launch,
    quad,
    select,
    shared,
    store,
    vec4,
    when,
)
from mlcbuild.kernels.webgpu.linear import CODES, LinearProblem, RowMatrix

_THREADS = 64
# No fewer lanes than a thread has rows, so that there is a thread for each output.
_MIN_LANES, _MAX_LANES = 4, 16
_MANY_OUTPUTS = 2048
_MAX_COLUMNS = 2048  # of x in the workgroup's memory: half of what there is
_FLOATS = {"float16": 8, "float32": 4}  # 16 bytes
_MASKS = tuple(15 << 4 * place for place in range(4))


@dataclass(frozen=True)
class RowTiles:
    """How threads share the work: units are what a lane takes of a row at a time."""

    unit: int  # columns
    lanes: int
    sets: int
    rows: int  # of the matrix that a thread sums, for each start of the problem
    chunk: int  # units of x in the workgroup's memory at a time

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.lanes * self.sets

    @property
    def outputs(self) -> int:
        """Output columns of a workgroup."""
        return self.sets * self.rows


def row_tiles(problem: LinearProblem) -> RowTiles:
    """Tiles that leave few threads idle."""
    matrix = problem.matrix
    unit = matrix.group or _FLOATS[matrix.dtype]
    units = divide_up(matrix.columns, unit)

    def busy(lanes: int) -> float:
        return units / (divide_up(units, lanes) * lanes) * (_THREADS // lanes * lanes) / _THREADS

    # The most lanes of those that are nearly as busy as the best.
    choices = range(_MIN_LANES, _MAX_LANES + 1)
    best = max(map(busy, choices))
    lanes = max(lanes for lanes in choices if busy(lanes) >= 0.95 * best)
    # Few outputs make few workgroups, which leave a GPU's units idle; more rows use x more often.
    per_thread = (4 if problem.outputs >= _MANY_OUTPUTS else 2) // len(problem.starts)
    chunks = divide_up(units * unit, _MAX_COLUMNS)
    chunk = divide_up(divide_up(units, chunks), lanes) * lanes
    return RowTiles(unit, lanes, _THREADS // lanes, per_thread, min(chunk, units))


def linear_row(problem: LinearProblem) -> tirx.PrimFunc:
    """The kernel of a problem with one row."""
    tiles = row_tiles(problem)
    matrix, starts = problem.matrix, problem.starts
    unit, lanes = tiles.unit, tiles.lanes
    units = divide_up(matrix.columns, unit)
    sums = len(starts) * tiles.rows
    partial_width = lanes + 1  # so that threads that add up rows meet in no memory bank
    quads = unit // 4
    with kernel("linear_row") as writer:
        buffers = problem.declare(writer)
        x = buffers[problem.x]
        weights = [buffers[place] for place in problem.weights]
        groups = divide_up(problem.outputs, tiles.outputs)
        with launch(groups, tiles.threads) as (group, thread):
            staged = shared((tiles.chunk * unit,), "float32")
            partial = shared((4 * len(starts) * tiles.outputs * partial_width,), "float32")
            of_set, in_set = thread // lanes, thread % lanes
            first = group * tiles.outputs + of_set * tiles.rows
            row_numbers = _row_numbers(problem, tiles, first)
            inputs, total = Vectors(quads), Vectors(sums)
            for number in range(sums):
                total.set(number, vec4("f32", T.float32(0)))
            with T.serial(0, divide_up(units, tiles.chunk)) as chunk:
                _stage(problem, tiles, x, staged, chunk, thread)
                with T.serial(0, divide_up(tiles.chunk, lanes)) as step:
                    place = step * lanes + in_set
                    at = chunk * tiles.chunk + place
                    with (
                        _inside(tiles.chunk % lanes == 0, place < tiles.chunk),
                        _inside(units % tiles.chunk == 0, at < units),
                    ):
                        for one in range(quads):
                            here = (one * tiles.chunk + place) * 4
                            inputs.set(one, staged[quad(here)])
                        if matrix.group:
                            _codes(matrix, weights, row_numbers, at, inputs, total)
                        else:
                            _floats(matrix, weights[0], row_numbers, at, inputs, total)
            for number in range(sums):
                start, row = divmod(number, tiles.rows)
                cell = start * tiles.outputs + of_set * tiles.rows + row
                store(partial, total[number], quad((cell * partial_width + in_set) * 4))
            output = group * tiles.outputs + thread
            with when(tirx.all(thread < tiles.outputs, output < problem.outputs)):
                result = Vectors(len(starts))
                for start in range(len(starts)):
                    result.set(start, vec4("f32", T.float32(0)))
                    with T.serial(0, lanes) as one:
                        cell = start * tiles.outputs + thread
                        result.add(start, partial[quad((cell * partial_width + one) * 4)])
                values = [lanes_sum(result[start]) for start in range(len(starts))]
                problem.finish(buffers, 0, output, values)
    return writer.func


@contextmanager
def _inside(always: bool, condition: Expr) -> Iterator[None]:
    """What only threads with ``condition`` do, if not all of them have it by construction."""
    if always:
        yield
        return
    with when(condition):
        yield


def _row_numbers(problem: LinearProblem, tiles: RowTiles, first: Expr) -> list[Expr]:
    """The rows of the matrix that a thread sums; behind the last one, the last one."""
    columns = [
        Local("int32", tirx.min(first + row, problem.outputs - 1)) for row in range(tiles.rows)
    ]
    return [column.value + start for start in problem.starts for column in columns]


def _stage(
    problem: LinearProblem, tiles: RowTiles, x: Buffer, staged: Buffer, chunk: Expr, thread: Expr
) -> None:
    """Brings a chunk of x in: vector j of each unit beside vector j of the next unit.

    For codes, x is divided by what is left of a code's place in its word (exactly: powers of two).
    """
    columns, quads = problem.matrix.columns, tiles.unit // 4
    count = tiles.chunk * quads
    places = tuple(1.0 / 16**place for place in range(4))
    with (
        T.serial(0, divide_up(count, tiles.threads)) as step,
        _inside(count % tiles.threads == 0, step * tiles.threads + thread < count),
    ):
        number = step * tiles.threads + thread
        column = chunk * (tiles.chunk * tiles.unit) + number * 4

        def value(place: int) -> Expr:
            read = x[0, 0, column + place].astype("float32")
            if columns % (tiles.chunk * tiles.unit) == 0:
                return read
            return select(column + place < columns, read, T.float32(0))

        values = vec4("f32", *(value(place) for place in range(4)))
        if problem.matrix.group:
            values = values * vec4("f32", *(T.float32(share) for share in places))
        here = (number % quads * tiles.chunk + number // quads) * 4
        store(staged, values, quad(here))


def _codes(
    matrix: RowMatrix,
    weights: Sequence[Buffer],
    rows: Sequence[Expr],
    group: Expr,
    inputs: Vectors,
    total: Vectors,
) -> None:
    """Adds a group of columns of 4-bit codes: ``(sum(code * x) - zero * sum(x)) * scale``.

    A code is masked, not shifted: what it is too large by, x was divided by.
    """
    words, scales = weights
    count = (matrix.group or 0) // CODES
    dot, offset = Vectors(1), Vectors(1)
    shares = vec4("f32", *(T.float32(-matrix.zero_point * 16**place) for place in range(4)))
    everything = inputs[0]
    for number in range(1, 2 * count):
        everything = everything + inputs[number]
    offset.set(0, everything * shares)
    word = Local("int32")
    for number, row in enumerate(rows):
        dot.set(0, offset[0])
        for place in range(count):
            word.set(words[row, group * count + place].astype("int32"))
            for half, bits in enumerate((word.value, tirx.shift_right(word.value, 16))):
                masked = tirx.bitwise_and(vec4("i32", bits), vec4("i32", *_MASKS))
                dot.add(0, vec4("f32", masked) * inputs[2 * place + half])
        scale = scales[row, group].astype("float32")
        total.add(number, dot[0] * vec4("f32", scale))


def _floats(
    matrix: RowMatrix,
    weights: Buffer,
    rows: Sequence[Expr],
    unit: Expr,
    inputs: Vectors,
    total: Vectors,
) -> None:
    """Adds a unit of columns of floats."""
    quads = _FLOATS[matrix.dtype] // 4
    for number, row in enumerate(rows):
        for one in range(quads):
            column = (unit * quads + one) * 4
            values = [_float(matrix, weights, row, column + place) for place in range(4)]
            total.add(number, vec4("f32", *values) * inputs[one])


def _float(matrix: RowMatrix, weights: Buffer, row: Expr, column: Expr) -> Expr:
    value = weights[row, column].astype("float32")
    if matrix.columns % _FLOATS[matrix.dtype] == 0:
        return value
    return select(column < matrix.columns, value, T.float32(0))
