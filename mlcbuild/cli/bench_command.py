"""mlcbuild bench: how fast a bundle runs here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from mlcbuild.cli._bundle_options import (
    bundle_argument,
    engine_options,
    integer_list,
    json_option,
)
from mlcbuild.cli.context import get_settings
from mlcbuild.core.atomic import format_bytes, write_atomic
from mlcbuild.errors import UsageError


@click.command("bench")
@bundle_argument
@click.option(
    "--prefill",
    default="128,512",
    show_default=True,
    callback=integer_list,
    help="Prompt lengths, in tokens.",
)
@click.option(
    "--decode",
    type=click.IntRange(min=0),
    default=64,
    show_default=True,
    help="Steps to decode; 0 leaves decoding out.",
)
@click.option(
    "--batch",
    default="1,4",
    show_default=True,
    callback=integer_list,
    help="Sequences that decode at once.",
)
@click.option(
    "--depth",
    default="0",
    show_default=True,
    callback=integer_list,
    help="Tokens in the cache before decoding starts.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Runs; the median counts.",
)
@click.option(
    "--profile", is_flag=True, help="Time every kernel, and tell how far it is from the limits."
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the profile as a page with a roofline; implies --profile.",
)
@engine_options
@json_option
def command(
    bundle: Path,
    prefill: tuple[int, ...],
    decode: int,
    batch: tuple[int, ...],
    depth: tuple[int, ...],
    repeat: int,
    profile: bool,
    html: Path | None,
    threads: int,
    activations: str | None,
    variant: str | None,
    as_json: bool,
) -> None:
    """Measure prefill and decode of BUNDLE in tokens per second."""
    from mlcbuild.engine.bench import BenchPlan, run_bench
    from mlcbuild.engine.roofline import report, text_tables

    profile = profile or html is not None
    if html is not None:
        _check_writable(html)
    plan = BenchPlan(prefill, decode, batch, depth, repeat, threads, activations, variant, profile)
    say = None if get_settings().quiet else (lambda text: click.echo(text, err=True))
    record = run_bench(bundle, plan, progress=say)
    if html is not None:
        write_atomic(html, report(record).encode())
    if as_json:
        click.echo(json.dumps(record, ensure_ascii=False))
        return
    for line in _table(record):
        click.echo(line)
    if profile:
        for line in text_tables(record):
            click.echo(line)


def _check_writable(path: Path) -> None:
    """Before minutes of measuring: whether a file can be written at ``path``."""
    folder = path.absolute().parent
    why = None
    if path.is_dir():
        why = "it is a folder"
    elif not folder.is_dir():
        why = f"there is no folder {folder}"
    elif not os.access(folder, os.W_OK):
        why = f"the folder {folder} is not writable"
    if why is not None:
        raise UsageError("cannot write the report", where=str(path), why=why)


def _table(record: dict[str, Any]) -> list[str]:
    from mlcbuild.engine.roofline import phase_title

    lines = [
        (
            f"{record['bundle']} {record['scheme']} on {record['variant']} "
            f"({record['activations']} activations), {record['threads']} threads"
        )
    ]
    for result in record["results"]:
        spread = f"({result['tok_s_min']:.1f} .. {result['tok_s_max']:.1f})"
        lines.append(f"  {phase_title(result):<34}{result['tok_s']:>10.1f} tok/s  {spread}")
    lines.append(
        f"  load {record['load_s']:.3f} s, first token {record['first_token_s']:.3f} s, "
        f"peak memory {format_bytes(record['rss_peak_bytes'])}"
    )
    return lines
