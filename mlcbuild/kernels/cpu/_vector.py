"""Vector arithmetic that the kernels share: reductions, exp, silu, intrinsics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import Expr, f32, i32, keep, vector_type
from mlcbuild.spec.capabilities import Capabilities


def lanes_of(capabilities: Capabilities) -> int:
    """float32 lanes of one vector register."""
    return capabilities.vector_bits // 32


def _fold(value: Expr, dtype: str, lanes: int, combine: Callable[[Expr, Expr], Expr]) -> Expr:
    """Combine all lanes into a scalar, halving the vector each time."""
    while lanes > 2:
        lanes //= 2
        half = vector_type(dtype, lanes)
        value = keep(combine(T.vectorlow(half, value), T.vectorhigh(half, value)))
    if lanes == 2:
        value = keep(combine(tirx.Shuffle([value], [0]), tirx.Shuffle([value], [1])))
    return value


def horizontal_sum(value: Expr, lanes: int, dtype: str = "float32") -> Expr:
    """The sum of all lanes, pairwise."""
    return _fold(value, dtype, lanes, lambda a, b: a + b)


def horizontal_max(value: Expr, lanes: int) -> Expr:
    """The largest lane of a float32 vector."""
    return _fold(value, "float32", lanes, T.max)


def tree(values: Sequence[Expr], combine: Callable[[Expr, Expr], Expr]) -> Expr:
    """Combine vectors pairwise."""
    pending = list(values)
    while len(pending) > 1:
        paired = [keep(combine(a, b)) for a, b in zip(pending[::2], pending[1::2], strict=False)]
        pending = paired + pending[len(paired) * 2 :]
    return pending[0]


def exp(value: Expr, lanes: int) -> Expr:
    """E to the power of a float32 vector; results below 1.6e-38 are that.

    With k = round(x / ln 2) and r = x - k ln 2, exp(x) = 2^k exp(r) and |r| <= 0.347, where the
    Taylor polynomial of degree 7 is off by less than 6e-9. ln 2 is split in two parts, so that
    k times the first part is exact.
    """
    ln2_high = 0.693359375  # 9 significant bits
    ln2_low = math.log(2) - ln2_high
    x = keep(T.min(T.max(value, f32(-87.0, lanes)), f32(88.0, lanes)))
    k = keep(T.nearbyint(x * f32(1 / math.log(2), lanes)))
    r = keep(T.fma(k, f32(-ln2_high, lanes), x))
    r = keep(T.fma(k, f32(-ln2_low, lanes), r))
    coefficients = [1 / math.factorial(degree) for degree in range(7, -1, -1)]
    p = reduce(
        lambda p, c: keep(T.fma(p, r, f32(c, lanes))),
        coefficients[1:],
        f32(coefficients[0], lanes),
    )
    power = (k.astype(vector_type("int32", lanes)) + i32(127, lanes)) << i32(23, lanes)
    return keep(p * T.reinterpret(vector_type("float32", lanes), power))


def silu(value: Expr, lanes: int) -> Expr:
    """``x / (1 + exp(-x))``."""
    return keep(value / (f32(1.0, lanes) + exp(f32(0.0, lanes) - value, lanes)))


def intrinsic(dtype: str, name: str, *args: Expr) -> Expr:
    """A call of an LLVM intrinsic without side effects."""
    return T.call_llvm_pure_intrin(dtype, name, *args)
