"""The device that kernels are measured on, as records name it."""

from __future__ import annotations

import os
import platform

from mlcbuild.core.cpuinfo import cpu_fields, cpu_name, host_features
from mlcbuild.spec.capabilities import Capabilities


def host_device(threads: int) -> dict[str, str]:
    """Name, family, model and stepping of this machine's processor, and the threads used."""
    fields = cpu_fields()
    parts = [fields.get(name, "") for name in ("vendor_id", "cpu family", "model", "stepping")]
    return {
        "name": cpu_name(),
        "cpu": "-".join(part for part in parts if part),
        "arch": platform.machine(),
        "threads": str(threads),
    }


def host_has(capabilities: Capabilities) -> bool:
    """Whether kernels for these capabilities run on this machine."""
    return host_features().issuperset(capabilities.features)


def load_average() -> float:
    """Processes that wanted to run in the last minute, on average."""
    return os.getloadavg()[0]
