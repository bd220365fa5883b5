"""What this machine is, in the terms of a bundle's manifest."""

from __future__ import annotations

import datetime
import os
import platform
from typing import Any

from mlcbuild import __version__
from mlcbuild.bundle.manifest import BundleManifest, ManifestBase, VariantInfo
from mlcbuild.core.cpuinfo import cpu_name

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def host_platform() -> str:
    """``<os>-<arch>`` of this machine, as target names begin (e.g. ``linux-x86_64``)."""
    system = {"Darwin": "macos"}.get(platform.system(), platform.system().lower())
    machine = platform.machine().lower()
    if system == "macos":
        return f"{system}-{machine}"
    return f"{system}-{_MACHINES.get(machine, machine)}"


def runs_here(manifest: ManifestBase) -> bool:
    """Whether the bundle's target has this machine's system and processor family."""
    return manifest.target.startswith(host_platform() + "-")


def describe_machine() -> dict[str, Any]:
    """What a measurement needs beside it, as JSON.

    Date in UTC, processor, CPUs that this process may use, load averages over 1, 5 and 15 minutes
    (None where the system tells none), versions.
    """
    try:
        load = [round(value, 2) for value in os.getloadavg()]
    except OSError:
        load = None
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_name(),
        "cpus": len(affinity(0)) if affinity is not None else os.cpu_count() or 1,
        "load_average": load,
        "python": platform.python_version(),
        "mlcbuild": __version__,
    }


def variant_for(manifest: BundleManifest, features: frozenset[str]) -> VariantInfo | None:
    """The variant that a loader takes with these CPU flags: the first that has all it needs."""
    return next(
        (variant for variant in manifest.variants if features.issuperset(variant.capability)), None
    )
