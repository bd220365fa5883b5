"""What a measurement needs beside it: the machine, its load, the versions."""

from __future__ import annotations

import datetime
import os
import platform
import resource
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from mlcbuild.core.cpuinfo import cpu_name

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


def installed(name: str) -> bool:
    """Whether a distribution is there."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def busy_seconds() -> float:
    """CPU seconds that all of the machine has spent, stolen ones included, as Linux counts them."""
    first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, first[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in parts)


@dataclass
class Others:
    """How much of the machine others used since this was made."""

    def __post_init__(self) -> None:
        self._begin = (time.monotonic(), busy_seconds(), own_seconds())

    def share(self) -> float:
        """Of all CPUs, 0 to 1; children must have ended."""
        began, busy, own = self._begin
        spent = busy_seconds() - busy - (own_seconds() - own)
        elapsed = time.monotonic() - began
        return max(0.0, min(1.0, spent / (elapsed * (os.cpu_count() or 1)))) if elapsed else 0.0


def wait_until_quiet(seconds: float, most: float = 0.1) -> bool:
    """Waits until others use no more than ``most`` of the machine for two seconds; False: never."""
    end = time.monotonic() + seconds
    while True:
        others = Others()
        time.sleep(2)
        if others.share() <= most:
            return True
        if time.monotonic() > end:
            return False


def is_busy(machine: dict[str, object]) -> bool:
    """Whether others were at work: speeds measured then mean little, spinning threads least."""
    load, cpus = machine["load_average"], machine["cpus"]
    return isinstance(load, list) and isinstance(cpus, int) and load[0] > cpus / 4


def heading(machine: dict[str, object]) -> str:
    """One line that says where figures come from."""
    load = machine["load_average"]
    return f"{machine['date']} · {machine['cpu']}, {machine['cpus']} CPUs · load {load}"
