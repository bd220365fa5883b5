"""Versions of the packages that a stage's output depends on."""

from __future__ import annotations

from collections.abc import Mapping

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
