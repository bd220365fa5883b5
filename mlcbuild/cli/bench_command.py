"""mlcbuild bench: how fast a bundle runs here."""

from __future__ import annotations

import json
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
@engine_options
@json_option
def command(
    bundle: Path,
    prefill: tuple[int, ...],
    decode: int,
    batch: tuple[int, ...],
    depth: tuple[int, ...],
    repeat: int,
    threads: int,
    activations: str | None,
    variant: str | None,
    as_json: bool,
) -> None:
    """Measure prefill and decode of BUNDLE in tokens per second."""
    from mlcbuild.engine.bench import BenchPlan, run_bench

    plan = BenchPlan(prefill, decode, batch, depth, repeat, threads, activations, variant)
    say = None if get_settings().quiet else (lambda text: click.echo(text, err=True))
    record = run_bench(bundle, plan, progress=say)
    if as_json:
        click.echo(json.dumps(record, ensure_ascii=False))
        return
    for line in _table(record):
        click.echo(line)


def _table(record: dict[str, Any]) -> list[str]:
    from mlcbuild.core.atomic import format_bytes

    lines = [
        (
            f"{record['bundle']} {record['scheme']} on {record['variant']} "
            f"({record['activations']} activations), {record['threads']} threads"
        )
    ]
    for result in record["results"]:
        if result["kind"] == "prefill":
            what = f"prefill {result['tokens']}"
        else:
            what = f"decode {result['tokens']}, batch {result['batch']}, depth {result['depth']}"
        spread = f"({result['tok_s_min']:.1f} .. {result['tok_s_max']:.1f})"
        lines.append(f"  {what:<34}{result['tok_s']:>10.1f} tok/s  {spread}")
    lines.append(
        f"  load {record['load_s']:.3f} s, first token {record['first_token_s']:.3f} s, "
        f"peak memory {format_bytes(record['rss_peak_bytes'])}"
    )
    return lines
