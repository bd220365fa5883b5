"""The page and JavaScript of bundles for browsers, the same in every one."""

from __future__ import annotations

import shutil
from pathlib import Path

import mlcbuild

WEB = Path(mlcbuild.__file__).parent / "runtime_stub" / "platform" / "web"
WEB_CODE = "mlcbuild.runtime_stub.platform.web"  # for Action.code
PAGE = "index.html"  # lies at the bundle's root, and refers to what stays in platform/web


def copy_page(out: Path) -> Path:
    """Copies them to their place in the bundle ``out``; gives its folder platform/web."""
    folder = out / "platform" / "web"
    shutil.copytree(WEB, folder, copy_function=shutil.copyfile)
    (folder / PAGE).rename(out / PAGE)
    return folder
