"""What Linux tells of the processor, in /proc/cpuinfo."""

from __future__ import annotations

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def cpu_fields(cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """Fields of the first processor; empty where the system has no such file."""
    fields: dict[str, str] = {}
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return fields
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    return fields


def host_features(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """CPU flags of this machine; empty where the system has no /proc/cpuinfo."""
    fields = cpu_fields(cpuinfo)
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """The processor's name, as Linux tells it; else its family."""
    name = cpu_fields(cpuinfo).get("model name")
    return name or platform.processor() or platform.machine()
