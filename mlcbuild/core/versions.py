"""Versions of installed packages, read from folder names (importlib.metadata is slow)."""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache
from types import MappingProxyType


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


@lru_cache(maxsize=4)
def _scan(folders: tuple[str, ...]) -> MappingProxyType[str, str]:
    found: dict[str, str] = {}
    for folder in folders:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            stem, extension = os.path.splitext(name)
            if extension in (".dist-info", ".egg-info") and "-" in stem:
                package, version = stem.split("-")[:2]
                found.setdefault(_normalized(package), version)
    return MappingProxyType(found)


def installed_version(package: str) -> str | None:
    """The version of an installed distribution as on PyPI, or None if it is not there."""
    return _scan(tuple(sys.path)).get(_normalized(package))


def python_version() -> str:
    """``3.11.7``."""
    return ".".join(str(part) for part in sys.version_info[:3])
