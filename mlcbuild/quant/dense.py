"""Unquantized weights: conversion to the scheme's float type, refusing what it cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlcbuild.errors import SourceError
from mlcbuild.weights.dtypes import numpy_dtype
from mlcbuild.weights.finite import check_finite


def to_float32(values: npt.NDArray[Any], name: str) -> npt.NDArray[np.float32]:
    """As contiguous float32 (exact for float16 and bfloat16); SourceError for NaN or infinity."""
    result = np.ascontiguousarray(values, dtype=np.float32)
    check_finite(result, name)
    return result


def convert(values: npt.NDArray[Any], dtype: str, name: str) -> npt.NDArray[Any]:
    """As ``dtype`` ("float32", "float16" or "bfloat16"), rounded to the nearest.

    Raises SourceError for NaN or infinity and for values that would become infinite.
    """
    exact = to_float32(values, name)
    if dtype == "float32":
        return exact
    with np.errstate(over="ignore"):
        result = exact.astype(numpy_dtype(dtype))
    overflow = np.argwhere(np.isinf(result))
    if len(overflow):
        first = tuple(int(index) for index in overflow[0])
        raise SourceError(
            f"{len(overflow)} values of tensor {name} are beyond the range of {dtype}",
            where=f"{name}[{', '.join(map(str, first))}] = {exact[first]:g}",
            hint="use q0f32 or a scheme with float32 scales",
        )
    return result
