"""How packed weights lie in memory: one layout per target family and weight kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """A packed layout of a weight matrix [rows, columns].

    ``i4x16``: codes int32 [rows/16, columns/8, 16]; the lane is the row inside its block of 16;
    byte j of an int32 holds column 8c+j in its low nibble and 8c+4+j in its high nibble; scales
    [rows/16, columns/group, 16]. ``f16x16`` / ``f32x16``: values [rows/16, columns, 16].
    Rows are padded to ``lanes`` (scale 0, code = zero point), columns to the group size.
    """

    id: str
    lanes: int
    weight_dtype: str  # scheme weight_dtype it packs


I4X16 = Layout("i4x16", 16, "int4")
F16X16 = Layout("f16x16", 16, "float16")
F32X16 = Layout("f32x16", 16, "float32")

LAYOUTS: dict[str, Layout] = {layout.id: layout for layout in (I4X16, F16X16, F32X16)}


def padded(size: int, multiple: int) -> int:
    """``size`` rounded up to a multiple."""
    return (size + multiple - 1) // multiple * multiple
