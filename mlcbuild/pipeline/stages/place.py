"""Puts files at their place in a bundle."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from mlcbuild.pipeline.stages.files import LICENSES


def place(source: Path, target: Path, *, copy: bool = False) -> None:
    """A hard link where the file system allows it: a bundle's weights are not copied twice.

    ``copy``: a file from outside the store, which a link would let the store change.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if copy:
        shutil.copyfile(source, target)
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def place_licenses(model: Path, out: Path) -> None:
    """The model's own licence texts."""
    for path in sorted((model / LICENSES).glob("*")) if (model / LICENSES).is_dir() else ():
        place(path, out / f"model-{path.name}")
