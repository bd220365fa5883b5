"""The quantization schemes that recipes can name."""

from __future__ import annotations

import difflib
from types import MappingProxyType

from mlcbuild.errors import RecipeError
from mlcbuild.spec.scheme import QuantScheme

# 4-bit codes mean -7..8 times a signed scale: the storage and the arithmetic of MLC's schemes of
# the same names ((code - 7) * scale), but all 16 codes are used, where MLC's rule leaves one out.
# 3-bit codes mean -3..4 and 8-bit ones -128..127 in the same way. MLC's 3-bit schemes have groups
# of 40 columns, so ours has a name of its own (docs/decisions/014).
_SCHEMES = (
    QuantScheme(
        name="q0f32",
        version=1,
        summary="not quantized, float32 weights",
        weight_dtype="float32",
        kv_dtype="float32",  # the reference that everything else is measured against
    ),
    QuantScheme(
        name="q0f16",
        version=1,
        summary="not quantized, float16 weights",
        weight_dtype="float16",
        activation_dtype="float16",
    ),
    QuantScheme(
        name="q0bf16",
        version=1,
        summary="not quantized, bfloat16 weights",
        weight_dtype="bfloat16",
        activation_dtype="bfloat16",
    ),
    QuantScheme(
        name="q8f16_1",
        version=1,
        summary="8-bit weights in groups of 32, float16 scales",
        weight_dtype="int8",
        scale_dtype="float16",
        group_size=32,
        bits=8,
        zero_point=128,  # 128 below and 127 above: code - 128 is an int8
        max_code=255,
        activation_dtype="float16",
    ),
    QuantScheme(
        name="q4f16_1",
        version=1,
        summary="4-bit weights in groups of 32, float16 scales",
        weight_dtype="int4",
        scale_dtype="float16",
        group_size=32,
        bits=4,
        zero_point=7,
        max_code=15,
        activation_dtype="float16",
    ),
    QuantScheme(
        name="q4f32_1",
        version=1,
        summary="4-bit weights in groups of 32, float32 scales",
        weight_dtype="int4",
        scale_dtype="float32",
        group_size=32,
        bits=4,
        zero_point=7,
        max_code=15,
        activation_dtype="float32",
        kv_dtype="float32",
    ),
    QuantScheme(
        name="q3f16_g32",
        version=1,
        summary="3-bit weights in groups of 32, float16 scales",
        weight_dtype="int3",
        scale_dtype="float16",
        group_size=32,
        bits=3,
        zero_point=3,
        max_code=7,
        activation_dtype="float16",
    ),
)

SCHEMES = MappingProxyType({scheme.name: scheme for scheme in _SCHEMES})


def scheme_names() -> tuple[str, ...]:
    """Every scheme's name, in the order of growing compression."""
    return tuple(SCHEMES)


def get_scheme(name: str) -> QuantScheme:
    """The scheme called ``name``; a RecipeError with close names if there is none."""
    scheme = SCHEMES.get(name)
    if scheme is not None:
        return scheme
    close = difflib.get_close_matches(name, SCHEMES, n=3, cutoff=0.5)
    known = ", ".join(SCHEMES)
    raise RecipeError(
        f"there is no quantization scheme named {name!r}",
        why=f"known schemes: {known}",
        hint=f"did you mean {' or '.join(close)}?" if close else None,
    )
