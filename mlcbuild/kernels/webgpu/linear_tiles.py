"""Many rows times a matrix of rows: the products of a prefill.

A workgroup makes a tile of the output; it brings 32 columns of x and of the weights, taken apart
once, into its memory at a time. A thread sums 4 rows times 8 outputs, in the order of the columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.webgpu.builder import (
    Buffer,
    Expr,
    Local,
    Vectors,
    divide_up,
    kernel,
    lane,
    launch,
    quad,
    select,
    shared,
    store,
    vec4,
    when,
)
from mlcbuild.kernels.webgpu.linear import CODES, LinearProblem

_DEPTH = 32  # columns of x and of the weights at a time
_TILE_ROWS = 32  # of x
_TILE_WEIGHTS = 64  # rows of weights
_THREADS = 64
_ROW_QUADS, _WEIGHT_QUADS = _TILE_ROWS // 4, _TILE_WEIGHTS // 4


def linear_tiles(problem: LinearProblem) -> tirx.PrimFunc:
    """The kernel of a problem with any number of rows."""
    matrix, starts = problem.matrix, problem.starts
    width = _TILE_WEIGHTS // len(starts)  # output columns of a tile
    tiles = divide_up(problem.outputs, width)
    with kernel("linear_tiles") as writer:
        buffers = problem.declare(writer)
        weights = [buffers[place] for place in problem.weights]
        row_tiles = (problem.rows + _TILE_ROWS - 1) // _TILE_ROWS
        with launch(row_tiles * tiles, _THREADS) as (group, thread):
            # Neighbours share the rows of x.
            first_row, first_column = group // tiles * _TILE_ROWS, group % tiles * width
            x = shared((_DEPTH * _TILE_ROWS,), "float32")
            w = shared((_DEPTH * _TILE_WEIGHTS,), "float32")
            total = Vectors(8)
            for number in range(8):
                total.set(number, vec4("f32", T.float32(0)))
            row_quad, weight_quad = thread // 8, thread % 8
            with T.serial(0, divide_up(matrix.columns, _DEPTH)) as step:
                _stage_x(problem, buffers[problem.x], x, first_row, step, thread)
                if matrix.group:
                    _stage_codes(problem, weights, w, first_column, step, thread)
                else:
                    _stage_floats(problem, weights[0], w, first_column, step, thread)
                with T.serial(0, _DEPTH) as column:
                    _multiply(x, w, column, row_quad, weight_quad, total)
            _finish(problem, buffers, (first_row, first_column), thread, total)
    return writer.func


def _multiply(
    x: Buffer, w: Buffer, column: Expr, row_quad: Expr, weight_quad: Expr, total: Vectors
) -> None:
    """Adds one column: 4 rows times two vectors of outputs."""
    rows, left, right = Vectors(1), Vectors(1), Vectors(1)
    rows.set(0, x[quad((column * _ROW_QUADS + row_quad) * 4)])
    left.set(0, w[quad((column * _WEIGHT_QUADS + weight_quad) * 4)])
    right.set(0, w[quad((column * _WEIGHT_QUADS + weight_quad + 8) * 4)])
    for number in range(4):
        value = vec4("f32", lane(rows[0], number))
        total.add(2 * number, value * left[0])
        total.add(2 * number + 1, value * right[0])


def _finish(
    problem: LinearProblem,
    buffers: Sequence[Buffer],
    first: tuple[Expr, Expr],
    thread: Expr,
    total: Vectors,
) -> None:
    """Stores the tile, by way of the workgroup's memory: one text for all of its elements."""
    tile = shared((_TILE_ROWS * _TILE_WEIGHTS,), "float32")
    row, number = thread // 8 * 4, thread % 8
    for place in range(8):
        here = (row + place // 2) * _WEIGHT_QUADS + number + place % 2 * 8
        store(tile, total[place], quad(here * 4))
    paired = len(problem.starts) == 2
    width = _WEIGHT_QUADS // len(problem.starts)
    with T.serial(0, _TILE_ROWS * width // _THREADS) as turn:
        at = turn * _THREADS + thread
        own, column = Local("int32", first[0] + at // width), Local("int32")
        values = Vectors(len(problem.starts))
        for start in range(len(problem.starts)):
            here = at // width * _WEIGHT_QUADS + at % width + start * 8
            values.set(start, tile[quad(here * 4)])
        for place in range(4):
            column.set(first[1] + at % width * 4 + place)
            sums = [lane(values[start], place) for start in range(2 if paired else 1)]
            with when(tirx.all(own.value < problem.rows, column.value < problem.outputs)):
                problem.finish(buffers, own.value, column.value, sums)


def _weight_row(problem: LinearProblem, first_column: Expr, number: Expr, place: int) -> Expr:
    """The row of weights of element ``place`` of vector ``number`` of the tile.

    With two starts, the second half of the tile belongs to the second. Behind the last row, the
    last one.
    """
    if len(problem.starts) == 1:
        return tirx.min(first_column + number * 4 + place, problem.outputs - 1)
    first, second = problem.starts
    column = tirx.min(first_column + number % 8 * 4 + place, problem.outputs - 1)
    return column + tirx.Select(number < 8, first, second)


def _stage_x(
    problem: LinearProblem, x: Buffer, staged: Buffer, first_row: Expr, step: Expr, thread: Expr
) -> None:
    """Vectors of four rows, for each column."""
    columns = problem.matrix.columns
    with T.serial(0, _DEPTH * _ROW_QUADS // _THREADS) as turn:
        column = step * _DEPTH + thread % _DEPTH
        number = turn * (_THREADS // _DEPTH) + thread // _DEPTH

        def value(place: int) -> Expr:
            row = first_row + number * 4 + place
            read = x[0, row, column].astype("float32")
            there = row < problem.rows
            if columns % _DEPTH:
                there = tirx.all(there, column < columns)
            return select(there, read, T.float32(0))

        values = vec4("f32", *(value(place) for place in range(4)))
        store(staged, values, quad((thread % _DEPTH * _ROW_QUADS + number) * 4))


def _stage_codes(
    problem: LinearProblem,
    weights: Sequence[Buffer],
    staged: Buffer,
    first_column: Expr,
    step: Expr,
    thread: Expr,
) -> None:
    """Vectors of four rows of weights, for each column: a thread takes a word of each row."""
    words, scales = weights
    matrix = problem.matrix
    count = divide_up(matrix.columns, matrix.group or 1) * (matrix.group or 1) // CODES
    word_place, number = thread % 4, thread // 4
    word = step * (_DEPTH // CODES) + word_place
    rows = [_weight_row(problem, first_column, number, place) for place in range(4)]
    codes = T.sblock_alloc_buffer((4,), "int32", scope="local", layout=None)
    scale = Vectors(1)
    group = word // ((matrix.group or 1) // CODES)

    def inside(value: Expr, other: Expr) -> Expr:
        return value if count % (_DEPTH // CODES) == 0 else select(word < count, value, other)

    values = [inside(words[row, word].astype("int32"), T.int32(0)) for row in rows]
    T.buffer_store(codes, vec4("i32", *values), [quad(0)])
    values = [inside(scales[row, group].astype("float32"), T.float32(0)) for row in rows]
    scale.set(0, vec4("f32", *values))
    for place in range(CODES):
        moved = tirx.shift_right(codes[quad(0)], _all(4 * place))
        code = tirx.bitwise_and(moved, _all(15)) - _all(matrix.zero_point)
        value = vec4("f32", code) * scale[0]
        store(staged, value, quad(((word_place * CODES + place) * _WEIGHT_QUADS + number) * 4))


def _all(value: int) -> Expr:
    return tirx.Broadcast(tirx.const(value, "int32"), 4)


def _stage_floats(
    problem: LinearProblem,
    weights: Buffer,
    staged: Buffer,
    first_column: Expr,
    step: Expr,
    thread: Expr,
) -> None:
    """Vectors of four rows of weights, for each column."""
    columns = problem.matrix.columns
    with T.serial(0, _DEPTH * _WEIGHT_QUADS // _THREADS) as turn:
        column = step * _DEPTH + thread % _DEPTH
        number = turn * (_THREADS // _DEPTH) + thread // _DEPTH

        def value(place: int) -> Expr:
            row = _weight_row(problem, first_column, number, place)
            read = weights[row, column].astype("float32")
            return select(column < columns, read, T.float32(0)) if columns % _DEPTH else read

        values = vec4("f32", *(value(place) for place in range(4)))
        store(staged, values, quad((thread % _DEPTH * _WEIGHT_QUADS + number) * 4))
