"""How packed weights lie in memory: one layout per target family and weight kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """A packed layout of a weight matrix [rows, columns].

    ``i3x16`` / ``i4x16`` / ``i8x16``: codes int32 [rows/16, columns * bits / 32, 16]; the lane is
    the row inside its block of 16; scales [rows/16, columns/group, 16]. 32 columns take ``bits``
    words. Byte j of the words holds the columns 4t+j of the 32, t being their step 0..7:

    - ``i8x16``: word t is step t.
    - ``i4x16``: word w holds step 2w in its low nibbles and step 2w+1 in its high ones.
    - ``i3x16``: word w holds step 2w in bits 0-2 and step 2w+1 in bits 3-5 of its bytes. Steps 6
      and 7 lie in what is left: their two low bits in bits 6-7 of words 0 and 1, their high bits
      in bit 6 (step 6) and bit 7 (step 7) of word 2.

    ``f16x16`` / ``bf16x16`` / ``f32x16``: values [rows/16, columns, 16]. Rows are padded to
    ``lanes`` (scale 0, code = zero point), columns to the group size.
    """

    id: str
    lanes: int
    weight_dtype: str  # scheme weight_dtype it packs


I3X16 = Layout("i3x16", 16, "int3")
I4X16 = Layout("i4x16", 16, "int4")
I8X16 = Layout("i8x16", 16, "int8")
F16X16 = Layout("f16x16", 16, "float16")
BF16X16 = Layout("bf16x16", 16, "bfloat16")
F32X16 = Layout("f32x16", 16, "float32")

LAYOUTS: dict[str, Layout] = {
    layout.id: layout for layout in (I3X16, I4X16, I8X16, F16X16, BF16X16, F32X16)
}


def padded(size: int, multiple: int) -> int:
    """``size`` rounded up to a multiple."""
    return (size + multiple - 1) // multiple * multiple
