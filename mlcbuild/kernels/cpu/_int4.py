"""The ``i4x16`` weight layout (mlcbuild.spec.layout) as the kernels read it."""

from __future__ import annotations

from mlcbuild.errors import InternalError
from mlcbuild.kernels.cpu._builder import Buffer, KernelWriter
from mlcbuild.spec.layout import I4X16, padded

# Rows of a block: the lanes of the layout.
BLOCK = I4X16.lanes

# Codes in an int32.
PACK = 8

# Every second code of an int32, as a mask.
LOW_NIBBLES = 0x0F0F0F0F


def nibble_shift(column: int) -> int:
    """Where column ``column`` of the 8 in an int32 lies: its lowest bit."""
    return 8 * (column % 4) + 4 * (column // 4)


def int4_weight(
    writer: KernelWriter, out_features: int, in_features: int, group_size: int, scale_dtype: str
) -> tuple[Buffer, Buffer]:
    """The next two arguments: codes int32 ``[NB, Kw/8, 16]`` and scales ``[NB, Kw/group, 16]``."""
    if group_size % 32:
        raise InternalError(
            f"a group of {group_size} columns", why="the CPU kernels need a multiple of 32"
        )
    blocks = padded(out_features, BLOCK) // BLOCK
    columns = padded(in_features, group_size)
    w = writer.arg("w", (blocks, columns // PACK, BLOCK), "int32")
    s = writer.arg("s", (blocks, columns // group_size, BLOCK), scale_dtype)
    return w, s
