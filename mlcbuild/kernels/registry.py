"""Finds the kernel set of a device family."""

from __future__ import annotations

import importlib
from typing import Any

from mlcbuild.errors import InternalError
from mlcbuild.spec.capabilities import Capabilities


def get_kernel_set(capabilities: Capabilities) -> Any:
    """``mlcbuild.kernels.<family>.set.KERNELS(capabilities)``: the builders of one variant."""
    name = f"mlcbuild.kernels.{capabilities.family}"
    try:
        module = importlib.import_module(f"{name}.set")
    except ModuleNotFoundError as error:
        if error.name not in (name, f"{name}.set"):
            raise  # the kernels are there, something that they import is not
        raise InternalError(f"no kernels for the device family {capabilities.family!r}") from error
    return module.KERNELS(capabilities)
