"""What a stage's output depends on besides its inputs: packages, and code found by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from mlcbuild.arch.registry import architectures
from mlcbuild.core.versions import installed_version
from mlcbuild.errors import ToolchainError


def tool_versions(*packages: str) -> Mapping[str, str]:
    """Package -> installed version; ToolchainError naming what is missing."""
    versions: dict[str, str] = {}
    for package in packages:
        version = installed_version(package)
        if version is None:
            raise ToolchainError(
                f"the package {package} is not installed",
                hint="install mlcbuild with its dependencies: pip install mlcbuild",
            )
        versions[package] = version
    return versions


def architecture_code(*modules: str) -> tuple[str, ...]:
    """These modules of every architecture, for ``Action.code``: they are imported by name.

    Only those that a stage loads, so that a change of a model's computation does not quantize its
    weights again.
    """
    return tuple(f"mlcbuild.arch.{name}.{module}" for name in architectures() for module in modules)


def package_folder(module: str, distribution: str) -> Path:
    """The folder of a package, which is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ToolchainError(f"the package {distribution} is not installed")
    return Path(spec.origin).parent
