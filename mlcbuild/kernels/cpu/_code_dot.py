"""Dot products of weight codes with int8 activations, for codes of any number of bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import Expr, i32
from mlcbuild.kernels.cpu._vector import Int8Dot, int8_dot
from mlcbuild.spec.capabilities import Capabilities

_LOW_NIBBLES = 0x0F0F0F0F


class CodeDot(Protocol):
    """As ``Int8Dot``; what ``start`` and ``step`` give is the object's own business."""

    def start(self, initial: Expr) -> Any:
        """An accumulator of zero products."""

    def step(self, total: Any, codes: Expr, activations: Expr) -> Any:
        """Adds the products of 4 columns; at most 8 steps may follow a start."""

    def finish(self, total: Any, initial: Expr) -> Expr:
        """The int32 sums plus ``initial``."""


@dataclass(frozen=True, slots=True)
class WholeCodes:
    """Codes that the dot product takes as they are."""

    dot: Int8Dot

    def start(self, initial: Expr) -> Expr:
        """An accumulator of zero products."""
        return self.dot.start(initial)

    def step(self, total: Expr, codes: Expr, activations: Expr) -> Expr:
        """Adds the products of 4 columns."""
        return T.bind(self.dot.step(total, codes, activations))

    def finish(self, total: Expr, initial: Expr) -> Expr:
        """The int32 sums plus ``initial``."""
        return self.dot.finish(total, initial)


@dataclass(frozen=True, slots=True)
class HalvedCodes:
    """8-bit codes as ``low + 16 * high``, where the dot product takes 4 bits at most.

    Exact, for twice the multiplications and additions, and three instructions to take a vector of
    codes apart, which all rows of a tile share. Widening to 16 bits would cost as much, and more
    registers for activations.
    """

    dot: Int8Dot

    def start(self, initial: Expr) -> tuple[Expr, Expr]:
        """An accumulator of zero products."""
        return self.dot.start(initial), self.dot.start(i32(0))

    def step(self, total: tuple[Expr, Expr], codes: Expr, activations: Expr) -> tuple[Expr, Expr]:
        """Adds the products of 4 columns."""
        lanes = self.dot.lanes
        low = codes & i32(_LOW_NIBBLES, lanes)
        high = (codes >> i32(4, lanes)) & i32(_LOW_NIBBLES, lanes)
        return (
            T.bind(self.dot.step(total[0], low, activations)),
            T.bind(self.dot.step(total[1], high, activations)),
        )

    def finish(self, total: tuple[Expr, Expr], initial: Expr) -> Expr:
        """The int32 sums plus ``initial``."""
        high = self.dot.finish(total[1], i32(0))
        return self.dot.finish(total[0], initial) + (high << i32(4, self.dot.lanes))


def code_dot(capabilities: Capabilities, bits: int) -> CodeDot:
    """The dot product of an instruction set for codes of ``bits`` bits."""
    dot = int8_dot(capabilities)
    return HalvedCodes(dot) if bits > 4 and not capabilities.int8_dot else WholeCodes(dot)
