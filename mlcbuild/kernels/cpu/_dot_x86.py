"""int8 dot products of x86: ``vpdpbusd`` where there is one, else sums in 16 bits."""

from __future__ import annotations

from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import Expr, splat, vector_type
from mlcbuild.kernels.cpu._int8_dot import HalvedCodes, Int8Dot, SteppedDot
from mlcbuild.kernels.cpu._vector import intrinsic, lanes_of
from mlcbuild.spec.capabilities import Capabilities

# vpmaddubsw and vpmaddwd by float32 lanes.
_BYTES = {8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}
_WORDS = {8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}


class _Vnni(SteppedDot):
    def start(self, initial: Expr) -> Expr:
        return T.bind(splat(initial, self.lanes))

    def step(self, total: Expr, codes: Expr, activations: Expr) -> Expr:
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"
        return intrinsic(self.int32, name, total, codes, activations)

    def finish(self, total: Expr, initial: Expr) -> Expr:
        return total


class _MultiplyAdd(SteppedDot):
    """Sums of pairs in 16 bits, where the 8 steps of 4-bit codes fit: 8 * 2 * 15 * 127 = 30480."""

    def start(self, initial: Expr) -> Expr:
        return T.Broadcast(T.int16(0), self.lanes * 2)

    def step(self, total: Expr, codes: Expr, activations: Expr) -> Expr:
        int16 = vector_type("int16", self.lanes * 2)
        return total + intrinsic(int16, _BYTES[self.lanes], codes, activations)

    def finish(self, total: Expr, initial: Expr) -> Expr:
        ones = T.Broadcast(T.int16(1), self.lanes * 2)
        sums = intrinsic(self.int32, _WORDS[self.lanes], total, ones)
        return sums + splat(initial, self.lanes)


def int8_dot(capabilities: Capabilities, bits: int) -> Int8Dot:
    """The dot product of an instruction set for codes of ``bits`` bits."""
    lanes = lanes_of(capabilities)
    if capabilities.int8_dot:
        return _Vnni(lanes)
    dot = _MultiplyAdd(lanes)
    return HalvedCodes(dot, lanes) if bits > 4 else dot
