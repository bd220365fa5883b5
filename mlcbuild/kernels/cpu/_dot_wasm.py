"""int8 dot products of WebAssembly: the one of relaxed SIMD, or products in 16 bits."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.errors import InternalError
from mlcbuild.kernels.cpu._builder import Expr, i32, keep, splat
from mlcbuild.kernels.cpu._codes import STEP
from mlcbuild.kernels.cpu._int8_dot import GroupOperands, HalvedCodes, Int8Dot, SteppedDot
from mlcbuild.kernels.cpu._vector import intrinsic, lanes_of
from mlcbuild.spec.capabilities import Capabilities

_LANES = 4


class _Relaxed(SteppedDot):
    """Of what the standard leaves open, nothing shows: codes have 7 bits, and pairs fit 16."""

    def start(self, initial: Expr) -> Expr:
        return T.bind(splat(initial, self.lanes))

    def step(self, total: Expr, codes: Expr, activations: Expr) -> Expr:
        name = "llvm.wasm.relaxed.dot.i8x16.i7x16.add.signed"
        return intrinsic("int32x4", name, activations, codes, total)

    def finish(self, total: Expr, initial: Expr) -> Expr:
        return total


class _Words(Int8Dot):
    """Products of 16-bit lanes, added in 16 bits: 16 of them in a group, 16 * 15 * 127 = 30480.

    Of four bytes the even ones and the odd ones become words by a shift and a mask, which LLVM
    merges with those that take codes from their packs.
    """

    def group(self, operands: GroupOperands) -> list[list[Expr]]:
        rows = range(len(operands.rows))
        zero = T.Broadcast(T.int16(0), 2 * _LANES)
        totals: list[list[Expr]] = [[zero] * operands.vectors for _ in rows]
        for step, codes in enumerate(operands.steps()):
            words = [_words(code) for code in codes]
            for r in rows:
                eight = operands.load(r, step // 2 * 8, 8).astype("int16x8")
                for odd in range(2):
                    column = step % 2 * STEP + odd
                    factors = keep(tirx.Shuffle([eight], [column, column + 2] * _LANES))
                    for v, pair in enumerate(words):
                        totals[r][v] = T.bind(totals[r][v] + pair[odd] * factors)
        return [
            [
                intrinsic("int32x4", "llvm.wasm.extadd.pairwise.signed", total)
                + splat(initial, _LANES)
                for total in totals[r]
            ]
            for r, initial in enumerate(operands.initial)
        ]


def _words(codes: Expr) -> list[Expr]:
    """Codes 0 and 2 of every four, and 1 and 3, as int16."""
    mask = i32(0x00FF00FF, _LANES)
    words = (codes & mask, (codes >> i32(8, _LANES)) & mask)
    return [keep(T.reinterpret("int16x8", both)) for both in words]


def int8_dot(capabilities: Capabilities, bits: int) -> Int8Dot:
    """The dot product of an instruction set for codes of ``bits`` bits."""
    if lanes_of(capabilities) != _LANES:
        raise InternalError(f"{capabilities.vector_bits} bits are not a vector of WebAssembly")
    if capabilities.int8_dot:
        return HalvedCodes(_Relaxed(_LANES), _LANES) if bits > 7 else _Relaxed(_LANES)
    return HalvedCodes(_Words(), _LANES) if bits > 4 else _Words()
