"""What a measurement needs beside it: the machine, its load, the versions."""

from __future__ import annotations

import datetime
import os
import platform
from importlib import metadata
from pathlib import Path

DISTRIBUTIONS = ("mlcbuild", "apache-tvm", "apache-tvm-ffi", "ziglang", "numpy")


def describe() -> dict[str, object]:
    """Date, processor, CPUs, load averages over 1, 5 and 15 minutes, and versions."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in DISTRIBUTIONS if installed(name)},
    }


def cpu_name() -> str:
    """The processor's name, as Linux tells it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def installed(name: str) -> bool:
    """Whether a distribution is there."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def is_busy(machine: dict[str, object]) -> bool:
    """Whether others were at work: speeds measured then mean little, spinning threads least."""
    load, cpus = machine["load_average"], machine["cpus"]
    return isinstance(load, list) and isinstance(cpus, int) and load[0] > cpus / 4


def heading(machine: dict[str, object]) -> str:
    """One line that says where figures come from."""
    load = machine["load_average"]
    return f"{machine['date']} · {machine['cpu']}, {machine['cpus']} CPUs · load {load}"
