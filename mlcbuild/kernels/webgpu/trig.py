"""Sine and cosine that are as good as float32 allows, on every device.

WGSL promises of its own ones an absolute error of 2^-11 within [-pi, pi] and nothing outside
(https://www.w3.org/TR/WGSL/#floating-point-accuracy), where most positions of a context are.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from mlcbuild.kernels.webgpu.builder import Expr

# pi in four parts (Cody and Waite, 1980). The first three have 5, 5 and 7 bits: their products with
# a whole number below 2^17 are exact, and so is each difference, as it needs no finer steps than
# the angle has.
_PI = (25 / 2**3, 17 / 2**10, -75 / 2**23, 3.178650954705639e-8)
# sin(r) / r and cos(r) as polynomials in r^2, the highest power first: interpolation at Chebyshev's
# nodes for |r| up to pi / 2, off by less than 3e-10.
_SINE = (
    -2.3888050648679382e-8,
    2.7525206860445905e-6,
    -1.9840859749820083e-4,
    8.333330973982811e-3,
    -1.666666716337204e-1,
    1.0,
)
_COSINE = (
    -2.6049207235701033e-7,
    2.4760031010373496e-5,
    -1.3888358371332288e-3,
    4.166663438081741e-2,
    -0.5,
    1.0,
)


def cosine_and_sine(angle: Expr) -> tuple[Expr, Expr]:
    """Of float32 radians from 0 to 262144: off by 2e-7 and by what ``angle`` itself is off."""
    turns = (angle * _float(0.3183098861837907) + _float(0.5)).astype("int32")
    count = turns.astype("float32")
    rest = angle
    for part in _PI:
        rest = rest - count * _float(part)
    square = rest * rest
    # Half a turn changes the signs of both.
    sign = (1 - 2 * tirx.bitwise_and(turns, 1)).astype("float32")
    return sign * _polynomial(_COSINE, square), sign * rest * _polynomial(_SINE, square)


def _polynomial(factors: Sequence[float], x: Expr) -> Expr:
    value = _float(factors[0])
    for factor in factors[1:]:
        value = value * x + _float(factor)
    return value


def _float(value: float) -> Expr:
    return tirx.const(value, "float32")
