"""Finds the kernel set of a device family."""

from __future__ import annotations

import importlib
from typing import Any

from mlcbuild.errors import InternalError
from mlcbuild.spec.capabilities import Capabilities


def get_kernel_set(capabilities: Capabilities) -> Any:
    """``mlcbuild.kernels.<family>.set.KERNELS``: makes the builders of one variant.

    It takes the capabilities and, optionally, the tiles of templates.
    """
    return _module(capabilities, "set").KERNELS


def get_spaces(capabilities: Capabilities) -> Any:
    """``mlcbuild.kernels.<family>.space``, which imports no TVM.

    It has TEMPLATE_VERSION, ``is_template``, ``template_args``, ``spaces``, ``default_decisions``
    and ``tiles_from``.
    """
    return _module(capabilities, "space")


def _module(capabilities: Capabilities, part: str) -> Any:
    name = f"mlcbuild.kernels.{capabilities.family}"
    try:
        return importlib.import_module(f"{name}.{part}")
    except ModuleNotFoundError as error:
        if error.name not in (name, f"{name}.{part}"):
            raise  # the kernels are there, something that they import is not
        raise InternalError(f"no kernels for the device family {capabilities.family!r}") from error
