"""The device that kernels are measured on, as records name it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from mlcbuild.spec.capabilities import Capabilities

_CPUINFO = Path("/proc/cpuinfo")


def _cpuinfo() -> dict[str, str]:
    """Fields of the first processor; empty where the system has no such file."""
    fields: dict[str, str] = {}
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return fields
    for line in text.split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    return fields


def host_device(threads: int) -> dict[str, str]:
    """Name, family, model and stepping of this machine's processor, and the threads used."""
    fields = _cpuinfo()
    parts = [fields.get(name, "") for name in ("vendor_id", "cpu family", "model", "stepping")]
    return {
        "name": fields.get("model name") or platform.processor() or platform.machine(),
        "cpu": "-".join(part for part in parts if part),
        "arch": platform.machine(),
        "threads": str(threads),
    }


def host_has(capabilities: Capabilities) -> bool:
    """Whether kernels for these capabilities run on this machine."""
    fields = _cpuinfo()
    flags = fields.get("flags", "") or fields.get("Features", "")
    return set(capabilities.features) <= set(flags.split())


def load_average() -> float:
    """Processes that wanted to run in the last minute, on average."""
    return os.getloadavg()[0]
