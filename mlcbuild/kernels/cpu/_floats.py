"""float16 in memory, float32 in registers: conversions, also where no instruction does them."""

from __future__ import annotations

from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import (
    Buffer,
    Expr,
    f32,
    i32,
    keep,
    load,
    load_f32,
    vector_type,
)
from mlcbuild.spec.capabilities import Capabilities

_SIGN = -0x80000000  # of a float32, as an int32
_INFINITY = 0x7F800000

# float32 bits where float16 stops being normal, and from where on it is infinite.
_LEAST_NORMAL = 113 << 23  # 2^-14
_BEYOND = 143 << 23  # 2^16


class Floats:
    """Loads and conversions of float elements on one device."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._float16 = capabilities.float16

    def load(self, buffer: Buffer, *where: Expr, lanes: int = 1) -> Expr:
        """``lanes`` neighbours along the last axis as float32."""
        if self._float16 or str(buffer.dtype) != "float16":
            return load_f32(buffer, *where, lanes=lanes)
        return widened(load(buffer, *where, lanes=lanes), lanes)

    def narrow(self, value: Expr, dtype: str, lanes: int) -> Expr:
        """A float32 vector as ``dtype``, rounded half to even."""
        if self._float16 or dtype != "float16":
            return value.astype(vector_type(dtype, lanes))
        return narrowed(value, lanes)


def widened(value: Expr, lanes: int) -> Expr:
    """float16 to float32 by integer arithmetic, exact.

    The bits of a float16 moved to their places in a float32 are its value times 2^-112, its
    subnormals included. What overflows then was an infinity or not a number.
    """
    float32 = vector_type("float32", lanes)
    int32 = vector_type("int32", lanes)
    half = T.reinterpret(vector_type("int16", lanes), value).astype(int32)
    bits = (half << i32(13, lanes)) & i32(-0x70002000, lanes)  # sign, exponent, fraction
    scaled = keep(T.reinterpret(float32, bits) * f32(2.0**112, lanes))
    special = T.Select(T.fabs(scaled) >= f32(65536.0, lanes), i32(_INFINITY, lanes), i32(0, lanes))
    return keep(T.reinterpret(float32, T.reinterpret(int32, scaled) | special))


def narrowed(value: Expr, lanes: int) -> Expr:
    """float32 to float16 by integer arithmetic, half to even, as hardware does it.

    Normal results: adding just below half of the last place, and one more if that is odd, carries
    where it must. Subnormal ones: adding 0.5 lets the float32 addition round at 2^-24, their last
    place.
    """
    int32 = vector_type("int32", lanes)
    float32 = vector_type("float32", lanes)
    bits = keep(T.reinterpret(int32, value))
    sign = keep(bits & i32(_SIGN, lanes))
    absolute = keep(bits ^ sign)
    odd = (absolute >> i32(13, lanes)) & i32(1, lanes)
    rebias = (127 - 15) << 23
    normal = (absolute + i32(0xFFF - rebias, lanes) + odd) >> i32(13, lanes)
    shifted = keep(T.reinterpret(float32, absolute) + f32(0.5, lanes))
    subnormal = T.reinterpret(int32, shifted) - i32(126 << 23, lanes)
    finite = keep(T.Select(absolute < i32(_LEAST_NORMAL, lanes), subnormal, normal))
    quiet = T.Select(absolute > i32(_INFINITY, lanes), i32(0x7E00, lanes), i32(0x7C00, lanes))
    result = T.Select(absolute >= i32(_BEYOND, lanes), quiet, finite)
    both = keep(result | ((sign >> i32(16, lanes)) & i32(0x8000, lanes)))
    half = both.astype(vector_type("int16", lanes))
    return T.reinterpret(vector_type("float16", lanes), half)
