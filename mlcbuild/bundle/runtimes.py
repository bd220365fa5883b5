"""Opens a bundle with whatever runs it here: its library in this process, its module in node."""

from __future__ import annotations

from pathlib import Path

from mlcbuild.bundle.native import NativeBundle
from mlcbuild.bundle.node import NodeBundle
from mlcbuild.bundle.reader import open_bundle


def open_runtime(path: Path, *, verify_full: bool = False) -> NativeBundle | NodeBundle:
    """Reads the manifest of the folder ``path`` and opens it; see the two kinds' own."""
    bundle = open_bundle(path)
    if bundle.manifest.is_wasm:
        return NodeBundle(bundle, verify_full=verify_full)
    return NativeBundle(bundle, verify_full=verify_full)
