"""int8 dot products of WebAssembly: the one of relaxed SIMD, or products in 16 bits."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.errors import InternalError
from mlcbuild.kernels.cpu._builder import Expr, keep, splat
from mlcbuild.kernels.cpu._int4 import PACK
from mlcbuild.kernels.cpu._int8_dot import GroupOperands, Int8Dot, SteppedDot
from mlcbuild.kernels.cpu._vector import intrinsic, lanes_of
from mlcbuild.kernels.cpu.quantize import GROUP
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

    The 8 nibbles of an int32 are twice 4 of an int16, so codes become words by shifts and masks
    alone, where widening bytes would take a second instruction for every vector.
    """

    def group(self, operands: GroupOperands) -> list[list[Expr]]:
        rows = range(len(operands.rows))
        zero = T.Broadcast(T.int16(0), 2 * _LANES)
        totals: list[list[Expr]] = [[zero] * operands.vectors for _ in rows]
        for number in range(GROUP // PACK):
            words = [_words(packed) for packed in operands.packed(number)]
            for r in rows:
                eight = keep(operands.load(r, number * PACK, PACK).astype("int16x8"))
                for nibble in range(4):
                    # Nibble k of the two words of an int32: columns c and c + 2.
                    column = (0, 4, 1, 5)[nibble]
                    factors = keep(tirx.Shuffle([eight], [column, column + 2] * _LANES))
                    for v, nibbles in enumerate(words):
                        totals[r][v] = T.bind(totals[r][v] + nibbles[nibble] * factors)
        return [
            [
                intrinsic("int32x4", "llvm.wasm.extadd.pairwise.signed", total)
                + splat(initial, _LANES)
                for total in totals[r]
            ]
            for r, initial in enumerate(operands.initial)
        ]


def _words(packed: Expr) -> list[Expr]:
    """The four nibbles of every 16 bits, lowest first."""
    words = T.reinterpret("int16x8", packed)
    mask = T.Broadcast(T.int16(15), 2 * _LANES)
    return [keep((words >> T.Broadcast(T.int16(4 * k), 2 * _LANES)) & mask) for k in range(4)]


def int8_dot(capabilities: Capabilities) -> Int8Dot:
    """The dot product of an instruction set."""
    if lanes_of(capabilities) != _LANES:
        raise InternalError(f"{capabilities.vector_bits} bits are not a vector of WebAssembly")
    return _Relaxed(_LANES) if capabilities.int8_dot else _Words()
