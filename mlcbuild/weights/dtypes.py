"""Names of the element types that params files hold, and their numpy types."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from mlcbuild.errors import InternalError

_BY_NAME: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int32": np.dtype("<i4"),
    "uint32": np.dtype("<u4"),
    "int8": np.dtype("i1"),
    "uint8": np.dtype("u1"),
}
_BY_DTYPE = {dtype: name for name, dtype in _BY_NAME.items()}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The little-endian numpy type called ``name``."""
    dtype = _BY_NAME.get(name)
    if dtype is None:
        raise InternalError(f"params cannot hold elements of type {name!r}")
    return dtype


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name of a numpy type in params files."""
    name = _BY_DTYPE.get(np.dtype(dtype))
    if name is None:
        raise InternalError(f"params cannot hold elements of numpy type {dtype}")
    return name
