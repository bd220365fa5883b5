"""mlcbuild doctor: what is installed, and what each target needs."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from mlcbuild.cli.context import Settings, get_settings, usable_cpus
from mlcbuild.core.atomic import format_bytes, free_bytes
from mlcbuild.core.versions import installed_version, python_version
from mlcbuild.errors import ToolchainError

_PACKAGES = {  # distribution -> what it is for
    "apache-tvm": "compiles kernels",
    "apache-tvm-ffi": "compiles kernels",
    "ziglang": "compiles the runtime, links kernels",
    "numpy": "weights",
    "ml_dtypes": "weights",
    "safetensors": "weights",
    "gguf": "GGUF sources",
    "huggingface_hub": "hf: sources",
    "tokenizers": "tokenizer checks",
    "jinja2": "chat templates",
    "zstandard": "archives",
    "pydantic": "recipes",
    "tomli": "recipes",
    "click": "the command line",
}
_LOW_DISK = 10 * 10**9


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def command(as_json: bool) -> None:
    """Show versions, disk space, CPU features and what each target needs.

    Exit code 4 when something is missing.
    """
    settings = get_settings()
    report = examine(settings)
    if as_json or settings.as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        for line in _lines(report):
            click.echo(line)
    if report["problems"]:
        raise click.exceptions.Exit(ToolchainError.exit_code)


def examine(settings: Settings) -> dict[str, Any]:
    """Everything that the command shows."""
    packages = {name: installed_version(name) for name in _PACKAGES}
    problems = [
        f"{name} is not installed ({_PACKAGES[name]})"
        for name, version in packages.items()
        if version is None
    ]
    features = cpu_features()
    free = free_bytes(settings.store_path)
    zig = _zig_version() if packages["ziglang"] is not None else None
    if packages["ziglang"] is not None and zig is None:
        problems.append("ziglang is installed but does not run")
    targets = _targets(features)
    problems += [
        f"{target['name']} needs {name}"
        for target in targets
        for name in target["missing"]
        if name not in _PACKAGES
    ]
    warnings = [f"only {format_bytes(free)} are free for the store"] if free < _LOW_DISK else []
    return {
        "python": python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpus": usable_cpus(),
        "cpu_features": sorted(features & _interesting(targets)),
        "packages": packages,
        "zig": zig,
        "store": str(settings.store_path),
        "store_free_bytes": free,
        "targets": targets,
        "problems": problems,
        "warnings": warnings,
    }


def cpu_features() -> frozenset[str]:
    """Flags of the first CPU, as in /proc/cpuinfo; empty where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _zig_version() -> str | None:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ziglang", "version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _targets(features: frozenset[str]) -> list[dict[str, Any]]:
    """Each target's tools, and which of its kernel variants this machine's CPU could run."""
    from mlcbuild.targets.registry import get_target, target_names

    rows: list[dict[str, Any]] = []
    for name in target_names():
        target = get_target(name)
        variants: dict[str, list[str]] = {}
        for variant, capabilities in target.capabilities():
            variants[variant] = [flag for flag in capabilities.features if flag not in features]
        programs = {item.command: shutil.which(item.command) for item in target.programs}
        rows.append(
            {
                "name": name,
                "needs": {tool: installed_version(tool) for tool in target.tools},
                "programs": programs,
                "missing": [tool for tool in target.tools if installed_version(tool) is None]
                + [
                    f"{item.command} ({item.install})"
                    for item in target.programs
                    if programs[item.command] is None
                ],
                "runs_here": [variant for variant, needed in variants.items() if not needed],
                "variants": {
                    variant: {"cpu_lacks": needed} for variant, needed in variants.items()
                },
            }
        )
    return rows


def _interesting(targets: list[dict[str, Any]]) -> frozenset[str]:
    """CPU flags that some kernel variant asks for."""
    from mlcbuild.targets.registry import get_target

    return frozenset(
        flag
        for row in targets
        for _, capabilities in get_target(row["name"]).capabilities()
        for flag in capabilities.features
    )


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [
        f"python     {report['python']} ({report['executable']})",
        f"system     {report['platform']}, {report['cpus']} CPUs",
        f"cpu        {' '.join(report['cpu_features']) or 'no known features'}",
        f"store      {report['store']}, {format_bytes(report['store_free_bytes'])} free",
        f"zig        {report['zig'] or 'missing'}",
    ]
    lines += [
        f"package    {name} {version or 'missing'} ({_PACKAGES[name]})"
        for name, version in report["packages"].items()
    ]
    for row in report["targets"]:
        state = f"missing {', '.join(row['missing'])}" if row["missing"] else "can be built"
        lines.append(f"target     {row['name']}: {state}")
        for variant, record in row["variants"].items():
            lacks = record["cpu_lacks"]
            note = f"this CPU lacks {' '.join(lacks)}" if lacks else "runs on this CPU"
            lines.append(f"             {variant}: {note}")
    lines += [f"warning: {text}" for text in report["warnings"]]
    lines += [f"problem: {text}" for text in report["problems"]]
    if not report["problems"]:
        lines.append("all there")
    return lines
