"""Packs weights: the target-independent NK form, and the layouts that kernels read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlcbuild.errors import InternalError
from mlcbuild.spec.layout import Layout, padded
from mlcbuild.spec.scheme import QuantScheme

NK = "nk"  # id of the target-independent layout
RAW = "raw"  # id of the layout of norms and biases: row major as they are
_CODES_PER_WORD = 8


def pack_nk(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """4-bit codes [rows, columns] to words [rows, columns / 8], the first code in the low bits."""
    rows, columns = codes.shape
    pairs = codes.reshape(rows, columns // 2, 2)
    packed = np.ascontiguousarray(pairs[:, :, 0] | (pairs[:, :, 1] << np.uint8(4)))
    return packed.view("<u4").reshape(rows, columns // _CODES_PER_WORD)


def unpack_nk(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Words [rows, words] to 4-bit codes uint8 [rows, 8 * words]."""
    rows, count = words.shape
    octets = np.ascontiguousarray(words, dtype="<u4").view(np.uint8).reshape(rows, 4 * count)
    codes = np.empty((rows, 4 * count, 2), np.uint8)
    np.bitwise_and(octets, 15, out=codes[:, :, 0])
    np.right_shift(octets, 4, out=codes[:, :, 1])
    return codes.reshape(rows, _CODES_PER_WORD * count)


def pack_codes(
    codes: npt.NDArray[np.uint8], layout: Layout, scheme: QuantScheme
) -> npt.NDArray[np.int32]:
    """4-bit codes [rows, columns] to int32 [padded rows / 16, columns / 8, 16].

    Byte j of a word holds column 8c+j in its low nibble and 8c+4+j in its high nibble. Rows of
    padding hold the zero point.
    """
    _require(layout, "i4x16")
    rows, columns = codes.shape
    lanes = layout.lanes
    if rows % lanes:
        full = np.full((padded(rows, lanes), columns), scheme.zero_point or 0, np.uint8)
        full[:rows] = codes
        codes = full
    halves = codes.reshape(-1, lanes, columns // 8, 2, 4)
    octets = halves[:, :, :, 0, :] | (halves[:, :, :, 1, :] << np.uint8(4))
    words = np.ascontiguousarray(octets).view("<i4")[..., 0]
    return np.ascontiguousarray(words.transpose(0, 2, 1))


def unpack_codes(words: npt.NDArray[np.int32], rows: int) -> npt.NDArray[np.uint8]:
    """The inverse of ``pack_codes``: uint8 [rows, columns]."""
    blocks, groups, lanes = words.shape
    by_row = np.ascontiguousarray(words.transpose(0, 2, 1), dtype="<i4")
    octets = by_row.view(np.uint8).reshape(blocks * lanes, groups, 4)
    codes = np.concatenate((octets & 15, octets >> 4), axis=2)
    return codes.reshape(blocks * lanes, groups * 8)[:rows]


def pack_lanes(values: npt.NDArray[Any], layout: Layout) -> npt.NDArray[Any]:
    """Values (scales or dense weights) [rows, columns] to [padded rows / lanes, columns, lanes].

    Rows of padding hold zeros.
    """
    rows, columns = values.shape
    lanes = layout.lanes
    if rows % lanes:
        full = np.zeros((padded(rows, lanes), columns), values.dtype)
        full[:rows] = values
        values = full
    return np.ascontiguousarray(values.reshape(-1, lanes, columns).transpose(0, 2, 1))


def unpack_lanes(blocks: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    """The inverse of ``pack_lanes``: [rows, columns]."""
    count, columns, lanes = blocks.shape
    return np.ascontiguousarray(blocks.transpose(0, 2, 1)).reshape(count * lanes, columns)[:rows]


def _require(layout: Layout, layout_id: str) -> None:
    if layout.id != layout_id:
        raise InternalError(f"4-bit codes cannot be packed as {layout.id}")
