"""Dot products of weight codes with int8 activations: what every architecture offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import (
    Buffer,
    Expr,
    i32,
    index,
    keep,
    load,
    span,
    splat,
    vector_type,
)
from mlcbuild.kernels.cpu._codes import STEP

_LOW_NIBBLES = 0x0F0F0F0F


@dataclass(frozen=True, slots=True)
class GroupOperands:
    """A group of 32 columns of some rows of activations and some vectors of outputs.

    ``activations`` int8 ``[n, columns]``, of which ``rows`` and the columns from ``first`` on
    count. ``steps()`` loads the codes of 4 columns after another, 8 times, as int32 vectors with
    a code in each byte, one for each of the ``vectors`` of outputs. ``sums`` are an int32
    scalar for each row, of its activations, and so is ``initial``, what its dot products begin
    with.
    """

    activations: Buffer
    rows: Sequence[Expr]
    first: Expr
    steps: Callable[[], Iterator[list[Expr]]]
    vectors: int
    sums: Sequence[Expr]
    initial: Sequence[Expr]

    def load(self, row: int, column: int, count: int) -> Expr:
        """``count`` neighbouring activations of a row, from a column of the group on."""
        return load(self.activations, self.rows[row], self.first + index(column), lanes=count)


class Int8Dot(ABC):
    """Dot products of unsigned codes with int8 activations (at least -127)."""

    @abstractmethod
    def group(self, operands: GroupOperands) -> list[list[Expr]]:
        """``initial + dot`` over the group, exact: int32 vectors of outputs, [row][vector]."""


class SteppedDot(Int8Dot):
    """A dot product of 4 columns at a time, one sum per 32-bit lane.

    ``start`` gives an accumulator, ``step`` adds the products of 4 columns, ``finish`` gives the
    int32 sums plus ``initial``, a scalar told to both.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.int32 = vector_type("int32", lanes)
        self.int8 = vector_type("int8", lanes * 4)

    @abstractmethod
    def start(self, initial: Expr) -> Expr:
        """An accumulator of zero products."""

    @abstractmethod
    def step(self, total: Expr, codes: Expr, activations: Expr) -> Expr:
        """``codes`` and ``activations``: int8 vectors of 4 columns per 32-bit lane."""

    @abstractmethod
    def finish(self, total: Expr, initial: Expr) -> Expr:
        """The int32 sums plus ``initial``."""

    def four(self, operands: GroupOperands, row: int, column: int) -> Expr:
        """Four neighbouring activations of a row as one int32."""
        at = span(operands.first + index(column), STEP)
        return T.bind(T.reinterpret("int32", operands.activations[operands.rows[row], at]))

    def group(self, operands: GroupOperands) -> list[list[Expr]]:
        """``initial + dot`` over the group."""
        rows, lanes = range(len(operands.rows)), self.lanes
        totals = [[self.start(operands.initial[r]) for _ in range(operands.vectors)] for r in rows]
        for step, codes in enumerate(operands.steps()):
            for r in rows:
                four = self.four(operands, r, step * STEP)
                for v, code in enumerate(codes):
                    u8 = T.reinterpret(self.int8, code)
                    s8 = T.reinterpret(self.int8, splat(four, lanes))
                    totals[r][v] = T.bind(self.step(totals[r][v], u8, s8))
        return [[self.finish(total, operands.initial[r]) for total in totals[r]] for r in rows]


class HalvedCodes(Int8Dot):
    """8-bit codes as ``low + 16 * high``, where the dot product takes 4 bits at most.

    Exact, for twice the multiplications and additions, and three instructions to take a vector of
    codes apart, which all rows of a tile share. Widening to 16 bits would cost as much, and more
    registers for activations.
    """

    def __init__(self, dot: Int8Dot, lanes: int) -> None:
        self._dot = dot
        self._lanes = lanes

    def group(self, operands: GroupOperands) -> list[list[Expr]]:
        """``initial + dot`` over the group."""
        lanes, vectors = self._lanes, operands.vectors

        def halves() -> Iterator[list[Expr]]:
            for codes in operands.steps():
                shifted = [codes, [code >> i32(4, lanes) for code in codes]]
                yield [keep(c & i32(_LOW_NIBBLES, lanes)) for half in shifted for c in half]

        nothing = [i32(0)] * len(operands.rows)
        both = replace(operands, steps=halves, vectors=2 * vectors, initial=nothing)
        return [
            [
                low + (high << i32(4, lanes)) + splat(initial, lanes)
                for low, high in zip(row[:vectors], row[vectors:], strict=True)
            ]
            for row, initial in zip(self._dot.group(both), operands.initial, strict=True)
        ]
