"""mlcbuild gc: drop results that no last build uses."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import click

from mlcbuild.cli.context import get_settings
from mlcbuild.core.atomic import format_bytes

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def _size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """A click callback: ``20G`` -> bytes (powers of 1000)."""
    del context, parameter
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", value.strip(), re.IGNORECASE)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a size such as 500M or 20G")
    return int(float(match.group(1)) * _UNITS[match.group(2).upper()])


@click.command("gc")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=None,
    metavar="DAYS",
    help="Keep results that were used since then; last builds older than that count no more.",
)
@click.option(
    "--max-size",
    callback=_size,
    default=None,
    metavar="SIZE",
    help="Drop results, oldest first and last builds after all others, until SIZE (20G) is kept.",
)
@click.option("--tool-caches", is_flag=True, help="Drop the caches of tools too.")
@click.option("--dry-run", "-n", is_flag=True, help="Only say what would go.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def command(
    older_than: float | None,
    max_size: int | None,
    tool_caches: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove results from the store that no last build uses. Bundles are not touched."""
    from mlcbuild.store.gc import collect

    settings = get_settings()
    store = settings.open_store()

    def announce(holder: str) -> None:
        click.echo(f"waiting for a running build ({holder or 'another process'})", err=True)

    report = collect(
        store,
        older_than=older_than * 86400 if older_than is not None else None,
        max_bytes=max_size,
        tool_caches=tool_caches,
        dry_run=dry_run,
        on_wait=announce,
    )
    if as_json or settings.as_json:
        click.echo(json.dumps(asdict(report)))
        return
    verb = "would free" if dry_run else "freed"
    click.echo(
        f"{verb} {format_bytes(report.bytes_freed)} ({report.actions} results, {report.blobs} "
        f"files); {format_bytes(report.bytes_kept)} kept, "
        f"{format_bytes(report.tool_cache_bytes)} in caches of tools"
    )
