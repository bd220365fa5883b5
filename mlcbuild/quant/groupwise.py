"""Symmetric group-wise integer quantization of one weight matrix, bit-identical on every CPU.

Only element-wise float32 operations are used, which IEEE 754 defines to the bit; sums over a group
are folded in a fixed order, never left to a BLAS or to a reduction whose order depends on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlcbuild.errors import InternalError, SourceError
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.weights.finite import check_finite

Float32Array = npt.NDArray[np.float32]
Uint8Array = npt.NDArray[np.uint8]

# Groups handled at once: 32 x 4096 float32 are 512 KiB, so that a few buffers stay in the cache.
_CHUNK_GROUPS = 4096

# Tried scales, as the number of levels that the group's largest magnitude is spread over, relative
# to the highest code. Below 1 the last level is only reached by rounding; above 1 the largest
# values are clipped. A grid of 120 factors lowers the squared error by less than 1 % more.
_LEVEL_FACTORS = (0.84, 0.89, 0.94, 0.98, 1.02, 1.07, 1.12)
# With many levels, clipping costs more than it gains and every scale rounds the group in another
# way: seven of nearly the same size lower the squared error by 20 %, a grid of 120 by 25 %.
_FINE_LEVEL_FACTORS = (0.97, 0.976, 0.982, 0.988, 0.994, 0.999, 1.0035)
_MANY_LEVELS = 64
_REFIT_STEPS = 2


@dataclass(frozen=True, slots=True)
class Quantized:
    """Codes uint8 [rows, padded columns] and scales [rows, padded columns / group_size].

    ``weight = (codes - zero_point) * scales`` over the first ``columns`` columns; the padding
    holds the zero point.
    """

    codes: Uint8Array
    scales: npt.NDArray[Any]
    columns: int


def quantize(
    weight: npt.NDArray[Any], scheme: QuantScheme, *, name: str = "weight", threads: int = 1
) -> Quantized:
    """Quantizes a matrix [rows, columns] of any float type; the arithmetic is float32.

    ``scale_rule`` "absmax" is MLC's rule: scale = max|w| / M with M = zero_point, codes by
    rounding into 0..2M. "search" tries scales around the one that puts the largest magnitude on
    the last level, refits each by least squares for its codes (s = sum(w c) / sum(c c)), rounds
    it to the scale dtype and keeps the one with the lowest squared error. Where there is one level
    more on one side of the zero point than on the other, scales have a sign, so that this level
    serves the end of the group that needs it. A group of zeros gets scale 0 and the zero point as
    codes.

    Raises SourceError for NaN or infinite weights and for scales beyond the scale dtype; ``name``
    is the tensor named then. The result does not depend on ``threads``.
    """
    if scheme.group_size is None or scheme.scale_dtype is None:
        raise InternalError(f"scheme {scheme.name} has no groups to quantize")
    rows, columns = weight.shape
    group = scheme.group_size
    groups = -(-columns // group)
    codes = np.empty((rows, groups * group), np.uint8)
    scales = np.empty((rows, groups), np.dtype(scheme.scale_dtype))

    def run(bounds: tuple[int, int]) -> None:
        first, last = bounds
        chunk = np.asarray(weight[first:last], dtype=np.float32)
        if not np.isfinite(chunk).all():
            check_finite(weight, name)
        chunk_codes, chunk_scales = _quantize_groups(_groups_first(chunk, group, groups), scheme)
        scales[first:last] = chunk_scales.reshape(last - first, groups)
        codes[first:last] = chunk_codes.T.reshape(last - first, groups * group)

    chunks = _row_chunks(rows, max(1, _CHUNK_GROUPS // groups))
    if threads <= 1:
        for bounds in chunks:
            run(bounds)
    else:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(run, chunks):
                pass
    _check_scales(scales, name, scheme)
    return Quantized(codes, scales, columns)


def dequantize(quantized: Quantized, scheme: QuantScheme) -> Float32Array:
    """The float32 matrix [rows, columns] that the codes stand for."""
    if scheme.group_size is None or scheme.zero_point is None:
        raise InternalError(f"scheme {scheme.name} has no groups to dequantize")
    rows, padded_columns = quantized.codes.shape
    signed = quantized.codes.astype(np.float32) - np.float32(scheme.zero_point)
    grouped = signed.reshape(rows, padded_columns // scheme.group_size, scheme.group_size)
    values = grouped * quantized.scales.astype(np.float32)[:, :, None]
    result: Float32Array = values.reshape(rows, padded_columns)[:, : quantized.columns]
    return result


def _row_chunks(rows: int, size: int) -> Iterator[tuple[int, int]]:
    for first in range(0, rows, size):
        yield first, min(first + size, rows)


def _groups_first(weight: Float32Array, group: int, groups: int) -> Float32Array:
    """[rows, columns] to [group, rows * groups], so that sums over a group run over axis 0."""
    rows, columns = weight.shape
    if columns != groups * group:
        padded = np.zeros((rows, groups * group), np.float32)
        padded[:, :columns] = weight
        weight = padded
    return np.ascontiguousarray(weight.reshape(rows * groups, group).T)


def _fold(values: Float32Array) -> Float32Array:
    """Sums axis 0 in place by halving: the order is fixed by the number of rows alone."""
    count = values.shape[0]
    while count > 1:
        half = count // 2
        top = count - half
        np.add(values[:half], values[top:count], out=values[:half])
        count = top
    total: Float32Array = values[0]
    return total


def _quantize_groups(
    weight: Float32Array, scheme: QuantScheme
) -> tuple[Uint8Array, npt.NDArray[Any]]:
    """Codes [group, n] and scales [n] for weights [group, n]."""
    if scheme.scale_rule == "absmax":
        return _quantize_absmax(weight, scheme)
    if scheme.scale_rule == "search":
        return _quantize_search(weight, scheme)
    raise InternalError(f"scheme {scheme.name} has an unknown scale rule {scheme.scale_rule!r}")


def _quantize_absmax(
    weight: Float32Array, scheme: QuantScheme
) -> tuple[Uint8Array, npt.NDArray[Any]]:
    zero_point = scheme.zero_point or 0
    peak = np.abs(weight).max(axis=0)
    scale = _round_scale(peak / np.float32(zero_point), scheme)
    codes = np.multiply(weight, 0)
    np.divide(weight, scale, out=codes, where=scale != 0)
    np.rint(codes, out=codes)
    np.clip(codes, -zero_point, zero_point, out=codes)
    return (codes + np.float32(zero_point)).astype(np.uint8), scale.astype(scheme.scale_dtype)


def _quantize_search(
    weight: Float32Array, scheme: QuantScheme
) -> tuple[Uint8Array, npt.NDArray[Any]]:
    zero_point = scheme.zero_point or 0
    low = np.float32(-zero_point)
    high = np.float32((scheme.max_code or 0) - zero_point)
    last = high if high >= -low else low
    peak = np.abs(weight).max(axis=0) if high == -low else _signed_peak(weight)
    factors = _FINE_LEVEL_FACTORS if high - low >= _MANY_LEVELS else _LEVEL_FACTORS
    inverse_peak = _reciprocal(peak)
    codes = np.empty_like(weight)
    products = np.empty_like(weight)
    best_gain = np.zeros_like(peak)
    best_scale = np.zeros_like(peak)

    def consider(inverse: Float32Array) -> None:
        np.multiply(weight, inverse, out=codes)
        np.rint(codes, out=codes)
        np.clip(codes, low, high, out=codes)
        np.multiply(weight, codes, out=products)
        cross = _fold(products).copy()
        np.multiply(codes, codes, out=products)
        energy = _fold(products)
        scale = _round_scale(cross * _reciprocal(energy), scheme)
        # sum((w - s c)^2) = sum(w w) - s (2 sum(w c) - s sum(c c)): the lowest error is the
        # highest gain over storing zeros.
        gain = scale * (np.float32(2) * cross - scale * energy)
        better = gain > best_gain
        np.copyto(best_gain, gain, where=better)
        np.copyto(best_scale, scale, where=better)

    # Scales beyond the scale dtype's range make gains that are never better than others.
    with np.errstate(over="ignore", invalid="ignore"):
        for factor in factors:
            consider(np.float32(factor) * last * inverse_peak)
        for _ in range(_REFIT_STEPS):
            consider(_reciprocal(best_scale))
    # Left without any scale though the weights are large: none is in range, which is reported.
    best_scale[(best_scale == 0) & (np.abs(peak) > 1)] = np.inf
    # For a given scale, rounding gives the nearest codes: never worse than the kept ones.
    np.multiply(weight, _reciprocal(best_scale), out=codes)
    np.rint(codes, out=codes)
    np.clip(codes, low, high, out=codes)
    codes += np.float32(zero_point)
    return codes.astype(np.uint8), best_scale.astype(scheme.scale_dtype)


def _signed_peak(weight: Float32Array) -> Float32Array:
    """The value of largest magnitude in each group, with its sign."""
    top = weight.max(axis=0)
    bottom = weight.min(axis=0)
    peak: Float32Array = np.where(top >= -bottom, top, bottom)
    return peak


def _reciprocal(values: Float32Array) -> Float32Array:
    """1 / values, and 0 for 0; tiny values whose reciprocal overflows count as 0."""
    tiny = np.abs(values) < np.float32(1e-37)
    result: Float32Array = np.float32(1) / np.where(tiny, np.float32(1), values)
    result[tiny] = 0
    return result


def _round_scale(scale: Float32Array, scheme: QuantScheme) -> Float32Array:
    """Rounded to the scale dtype, as float32; beyond its range it becomes infinite."""
    if scheme.scale_dtype == "float32":
        return scale
    with np.errstate(over="ignore"):
        rounded: Float32Array = scale.astype(scheme.scale_dtype).astype(np.float32)
    return rounded


def _check_scales(scales: npt.NDArray[Any], name: str, scheme: QuantScheme) -> None:
    bad = np.argwhere(~np.isfinite(scales))
    if len(bad):
        raise SourceError(
            f"{len(bad)} scales of tensor {name} are beyond the range of {scheme.scale_dtype}",
            where=f"{name}, row {int(bad[0][0])}, group {int(bad[0][1])}",
            why="the weights are larger than the scheme's scales can hold",
            hint="use a scheme with float32 scales, such as q4f32_1",
        )
