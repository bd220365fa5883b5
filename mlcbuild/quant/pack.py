"""Packs weights: the target-independent NK form, and the layouts that kernels read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mlcbuild.errors import InternalError
from mlcbuild.spec.layout import Layout, padded
from mlcbuild.spec.scheme import QuantScheme

NK = "nk"  # id of the target-independent layout
RAW = "raw"  # id of the layout of norms and biases: row major as they are

Bytes = npt.NDArray[np.uint8]


def pack_nk(codes: Bytes, bits: int) -> npt.NDArray[np.uint32]:
    """Codes of ``bits`` bits [rows, columns] to words [rows, columns * bits / 32].

    A row is one stream of bits, the first code in the lowest bits of the first word; its columns
    are a multiple of 32.
    """
    rows, columns = codes.shape
    if bits == 8:
        octets = np.ascontiguousarray(codes)
    elif bits == 4:
        pairs = codes.reshape(rows, columns // 2, 2)
        octets = np.ascontiguousarray(pairs[:, :, 0] | (pairs[:, :, 1] << np.uint8(4)))
    elif bits == 3:
        octets = _pack_threes(codes)
    else:
        raise _unknown_bits(bits)
    return octets.view("<u4").reshape(rows, columns * bits // 32)


def unpack_nk(words: npt.NDArray[np.uint32], bits: int) -> Bytes:
    """The inverse of ``pack_nk``: uint8 [rows, 32 * words / bits]."""
    rows, count = words.shape
    octets = np.ascontiguousarray(words, dtype="<u4").view(np.uint8).reshape(rows, 4 * count)
    if bits == 8:
        return octets
    if bits == 4:
        codes = np.empty((rows, 4 * count, 2), np.uint8)
        np.bitwise_and(octets, 15, out=codes[:, :, 0])
        np.right_shift(octets, 4, out=codes[:, :, 1])
        return codes.reshape(rows, 8 * count)
    if bits == 3:
        return _unpack_threes(octets)
    raise _unknown_bits(bits)


def _pack_threes(codes: Bytes) -> Bytes:
    """3-bit codes [rows, columns] to bytes [rows, columns * 3 / 8], 8 codes to 3 bytes."""
    rows, columns = codes.shape
    eights = codes.reshape(rows, columns // 8, 8)
    words = np.zeros((rows, columns // 8), "<u4")
    for k in range(8):
        words |= eights[:, :, k].astype("<u4") << np.uint32(3 * k)
    octets = words.view(np.uint8).reshape(rows, columns // 8, 4)[:, :, :3]
    return np.ascontiguousarray(octets).reshape(rows, columns * 3 // 8)


def _unpack_threes(octets: Bytes) -> Bytes:
    rows, count = octets.shape
    wide = np.zeros((rows, count // 3, 4), np.uint8)
    wide[:, :, :3] = octets.reshape(rows, count // 3, 3)
    words = wide.view("<u4")[:, :, 0]
    codes = np.empty((rows, count // 3, 8), np.uint8)
    for k in range(8):
        codes[:, :, k] = (words >> np.uint32(3 * k)) & np.uint32(7)
    return codes.reshape(rows, count // 3 * 8)


def pack_codes(codes: Bytes, layout: Layout, scheme: QuantScheme) -> npt.NDArray[np.int32]:
    """Codes [rows, columns] to int32 [padded rows / lanes, columns * bits / 32, lanes].

    See ``Layout`` for where a column lies. Rows of padding hold the zero point; the columns are
    a multiple of 32.
    """
    to_octets, _ = _arrangement(layout)
    rows, columns = codes.shape
    lanes = layout.lanes
    if rows % lanes:
        full = np.full((padded(rows, lanes), columns), scheme.zero_point or 0, np.uint8)
        full[:rows] = codes
        codes = full
    octets = to_octets(codes.reshape(-1, lanes, columns // 32, 8, 4))
    words = np.ascontiguousarray(octets).view("<i4").reshape(len(octets), lanes, -1)
    return np.ascontiguousarray(words.transpose(0, 2, 1))


def unpack_codes(words: npt.NDArray[np.int32], rows: int, layout: Layout) -> Bytes:
    """The inverse of ``pack_codes``: uint8 [rows, columns]."""
    _, from_octets = _arrangement(layout)
    blocks, count, lanes = words.shape
    by_row = np.ascontiguousarray(words.transpose(0, 2, 1), dtype="<i4")
    codes = from_octets(by_row.view(np.uint8).reshape(blocks, lanes, count, 4))
    return codes.reshape(blocks * lanes, -1)[:rows]


# Between the 8 steps of 4 columns in every 32 (codes [blocks, lanes, columns / 32, 8, 4]) and the
# bytes of their words [blocks, lanes, words, 4].


def _nibbles(codes: Bytes) -> Bytes:
    octets: Bytes = codes[..., 0::2, :] | (codes[..., 1::2, :] << np.uint8(4))
    return octets


def _from_nibbles(octets: Bytes) -> Bytes:
    return np.stack((octets & 15, octets >> 4), axis=3)


def _threes(codes: Bytes) -> Bytes:
    step = [codes[..., t, :] for t in range(8)]
    octets = [step[2 * w] | (step[2 * w + 1] << np.uint8(3)) for w in range(3)]
    octets[0] |= step[6] << np.uint8(6)  # the high bit falls off
    octets[1] |= step[7] << np.uint8(6)
    octets[2] |= ((step[6] >> np.uint8(2)) << np.uint8(6)) | (
        (step[7] >> np.uint8(2)) << np.uint8(7)
    )
    return np.stack(octets, axis=3)


def _from_threes(octets: Bytes) -> Bytes:
    word = [octets[..., w::3, :] for w in range(3)]
    step = [(word[t // 2] >> np.uint8(3 * (t % 2))) & np.uint8(7) for t in range(6)]
    step.append((word[0] >> np.uint8(6)) | ((word[2] >> np.uint8(4)) & np.uint8(4)))
    step.append((word[1] >> np.uint8(6)) | ((word[2] >> np.uint8(5)) & np.uint8(4)))
    return np.stack(step, axis=3)


def _same(octets: Bytes) -> Bytes:
    return octets


_Arrange = Callable[[Bytes], Bytes]
_ARRANGEMENTS: dict[str, tuple[_Arrange, _Arrange]] = {
    "i8x16": (_same, _same),
    "i4x16": (_nibbles, _from_nibbles),
    "i3x16": (_threes, _from_threes),
}


def _arrangement(layout: Layout) -> tuple[_Arrange, _Arrange]:
    if layout.id not in _ARRANGEMENTS:
        raise InternalError(f"codes cannot be packed as {layout.id}")
    return _ARRANGEMENTS[layout.id]


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


def _unknown_bits(bits: int) -> InternalError:
    return InternalError(f"codes of {bits} bits cannot be packed")
