"""int8 dot products of ARM: matrix products, ``sdot``, or products in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.errors import InternalError
from mlcbuild.kernels.cpu._builder import Expr, i32, keep, splat
from mlcbuild.kernels.cpu._int8_dot import GroupOperands, HalvedCodes, Int8Dot, SteppedDot
from mlcbuild.kernels.cpu._vector import intrinsic, lanes_of
from mlcbuild.spec.capabilities import Capabilities

_LANES = 4


class _Neon(SteppedDot):
    """Products of 4-bit codes, added in 16 bits, one for each column of four: 8 steps fit."""

    def start(self, initial: Expr) -> Expr:
        return T.Broadcast(T.int16(0), 4 * self.lanes)

    def step(self, total: Expr, codes: Expr, activations: Expr) -> Expr:
        # LLVM makes smlal and smlal2 of it.
        return total + codes.astype("int16x16") * activations.astype("int16x16")

    def finish(self, total: Expr, initial: Expr) -> Expr:
        halves = (T.vectorlow("int16x8", total), T.vectorhigh("int16x8", total))
        pairs = [intrinsic("int32x4", "llvm.aarch64.neon.saddlp", half) for half in halves]
        return intrinsic("int32x4", "llvm.aarch64.neon.addp", *pairs) + splat(initial, self.lanes)


class _DotProduct(SteppedDot):
    def start(self, initial: Expr) -> Expr:
        return T.bind(splat(initial, self.lanes))

    def step(self, total: Expr, codes: Expr, activations: Expr) -> Expr:
        return intrinsic("int32x4", "llvm.aarch64.neon.sdot", total, codes, activations)

    def finish(self, total: Expr, initial: Expr) -> Expr:
        return total

    def four(self, operands: GroupOperands, row: int, column: int) -> Expr:
        """As a lane of 16 neighbours, which the instruction takes without a broadcast."""
        sixteen = operands.load(row, column // 16 * 16, 16)
        return tirx.Shuffle([T.reinterpret("int32x4", sixteen)], [column % 16 // 4])


class _SignedCodes(Int8Dot):
    """Codes of 8 bits less 128, where the instruction takes signed ones."""

    def __init__(self, dot: Int8Dot) -> None:
        self._dot = dot

    def group(self, operands: GroupOperands) -> list[list[Expr]]:
        def signed() -> Iterator[list[Expr]]:
            for codes in operands.steps():
                yield [keep(code ^ i32(-0x7F7F7F80, _LANES)) for code in codes]

        initial = [a + b * i32(128) for a, b in zip(operands.initial, operands.sums, strict=True)]
        return self._dot.group(replace(operands, steps=signed, initial=initial))


class _MixedDotProduct(_DotProduct):
    """``usdot``, for codes of 8 bits."""

    def step(self, total: Expr, codes: Expr, activations: Expr) -> Expr:
        return intrinsic("int32x4", "llvm.aarch64.neon.usdot", total, codes, activations)


class _MatrixProduct(Int8Dot):
    """``usmmla`` for pairs of rows: [2 outputs, 8 columns] x [8 columns, 2 rows] at a time."""

    def __init__(self, single: Int8Dot) -> None:
        self._single = single

    def group(self, operands: GroupOperands) -> list[list[Expr]]:
        rows = len(operands.rows)
        if rows == 1:
            return self._single.group(operands)
        pairs = [(r, min(r + 1, rows - 1)) for r in range(0, rows, 2)]  # an odd row with itself
        totals = [[[i32(0, _LANES)] * 2 for _ in range(operands.vectors)] for _ in pairs]
        steps = operands.steps()
        # 8 columns are two steps.
        for number, (low, high) in enumerate(zip(steps, steps, strict=True)):
            left = [_output_pairs(*codes) for codes in zip(low, high, strict=True)]
            for pair, sums in zip(pairs, totals, strict=True):
                right = _row_pair(operands, pair, number)
                for v, halves in enumerate(left):
                    for half, codes in enumerate(halves):
                        args = (sums[v][half], codes, right)
                        sums[v][half] = T.bind(
                            intrinsic("int32x4", "llvm.aarch64.neon.usmmla", *args)
                        )
        results: dict[int, list[Expr]] = {}
        for pair, sums in zip(pairs, totals, strict=True):
            # Both rows of one output, then of the next: even lanes are one row, odd ones the other.
            by_vector = [[keep(total) for total in halves] for halves in sums]
            for parity, r in enumerate(pair):
                lanes = range(parity, 2 * _LANES, 2)
                initial = splat(operands.initial[r], _LANES)
                results[r] = [tirx.Shuffle(both, list(lanes)) + initial for both in by_vector]
        return [results[r] for r in range(rows)]


def _row_pair(operands: GroupOperands, pair: tuple[int, int], number: int) -> Expr:
    """Columns ``8 * number`` to ``8 * number + 7`` of two rows, one behind the other."""
    sixteen = [T.reinterpret("int64x2", operands.load(r, number // 2 * 16, 16)) for r in pair]
    half = number % 2
    return keep(T.reinterpret("int8x16", tirx.Shuffle(sixteen, [half, 2 + half])))


def _output_pairs(low: Expr, high: Expr) -> list[Expr]:
    """8 columns of outputs 0 and 1, and of 2 and 3, from two steps of four outputs."""
    zips = ([0, 4, 1, 5], [2, 6, 3, 7])
    return [keep(T.reinterpret("int8x16", tirx.Shuffle([low, high], order))) for order in zips]


def int8_dot(capabilities: Capabilities, bits: int) -> Int8Dot:
    """The dot product of an instruction set for codes of ``bits`` bits."""
    if lanes_of(capabilities) != _LANES:
        raise InternalError(f"{capabilities.vector_bits} bits are not a vector of NEON")
    if capabilities.int8_matrix:
        return _MatrixProduct(_MixedDotProduct(_LANES))
    if capabilities.int8_dot:
        return _SignedCodes(_DotProduct(_LANES)) if bits > 7 else _DotProduct(_LANES)
    return HalvedCodes(_Neon(_LANES), _LANES) if bits > 4 else _Neon(_LANES)
