"""Refuses weights that are not numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlcbuild.errors import SourceError


def check_finite(values: npt.NDArray[Any], name: str, location: str | None = None) -> None:
    """Refuses NaN and infinity with the tensor, the first place and the count.

    ``location`` is the file or folder that holds the tensor.
    """
    finite = np.isfinite(values)
    if finite.all():
        return
    bad = np.argwhere(~finite)
    place = ", ".join(str(int(index)) for index in bad[0])
    nan_count = int(np.isnan(values).sum())
    raise SourceError(
        f"tensor {name} holds {nan_count} NaN and {len(bad) - nan_count} infinite values, "
        f"the first at [{place}]",
        where=location,
        why="the checkpoint is damaged, or training diverged",
        hint="fetch the model again; if it is the same everywhere, the model cannot be used",
    )
