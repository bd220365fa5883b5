"""mlcbuild tune: search faster schedules for a recipe's kernels on a device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from mlcbuild.cli._recipes import load_specs, make_environment, recipe_options
from mlcbuild.cli.context import get_settings, usable_cpus
from mlcbuild.errors import UsageError
from mlcbuild.tuning.job import RpcDevice

_MINUTES = 10.0
_LOAD = 0.5


@click.command("tune")
@recipe_options
@click.option("--trials", type=click.IntRange(min=1), help="Most candidates to measure.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help=f"Most time to spend on a variant. Default: {_MINUTES:g}, or the recipe's budget.",
)
@click.option(
    "--variant",
    multiple=True,
    metavar="NAME",
    help="Tune this kernel variant (may be repeated). Default: the one that runs here.",
)
@click.option(
    "--kernel",
    multiple=True,
    metavar="TEXT",
    help='Only workloads with this in their name, "linear_int4 960x576, 1 row" (may be repeated).',
)
@click.option("--again", is_flag=True, help="Also go on with workloads that have a record.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads. Default: all CPUs.")
@click.option(
    "--rpc",
    metavar="HOST:PORT",
    help="Measure on a device behind this TVM RPC tracker; needs --variant and --rpc-key.",
)
@click.option("--rpc-key", metavar="KEY", help="The key that the device is registered with.")
@click.option("--device", metavar="NAME", help="How records name that device. Default: its key.")
def command(
    recipes: tuple[Path, ...],
    quantization: tuple[str, ...],
    target: tuple[str, ...],
    offline: bool,
    as_json: bool,
    trials: int | None,
    minutes: float | None,
    variant: tuple[str, ...],
    kernel: tuple[str, ...],
    again: bool,
    threads: int | None,
    rpc: str | None,
    rpc_key: str | None,
    device: str | None,
) -> None:
    """Measure candidates for the kernels of the RECIPEs and keep what is faster than the default.

    Every measurement goes into the tuning database as it is made; later builds use the best
    records. Ctrl-C keeps what was measured. Results never change: only their speed does.
    """
    from mlcbuild.cli._tuning import record_rows, run_tuning
    from mlcbuild.pipeline.tune import TuningRequest
    from mlcbuild.tuning.device import load_average

    if trials is not None and minutes is not None:
        raise UsageError("give either --trials or --minutes", where="--trials")
    settings = get_settings()
    settings = replace(settings, as_json=settings.as_json or as_json)
    store = settings.open_store()
    progress = settings.progress()
    count = threads or usable_cpus()
    behind = _rpc_device(rpc, rpc_key, variant)
    if behind is None and load_average() > _LOAD * count:
        progress.note(
            f"this machine is busy (load {load_average():.1f}): comparisons are made in turns and "
            "survive that, but the search finds less"
        )
    rows = []
    for recipe in recipes:
        specs = load_specs(store, recipe, quantization, target)
        env = make_environment(settings, store, recipe, progress, offline=offline)
        budget = specs[0].tuning
        request = TuningRequest(
            trials=trials if minutes is None else None,
            minutes=minutes,
            threads=count,
            variants=variant,
            kernels=kernel,
            again=again,
            rpc=behind,
            device=None if behind is None else {"name": device or behind.key, "rpc": behind.key},
            asked=bool(target or variant),
        )
        if trials is None and minutes is None:
            own = budget.minutes or (None if budget.trials else _MINUTES)
            request = replace(request, trials=budget.trials, minutes=own)
        results = run_tuning(env, specs, request, progress)
        rows += record_rows(results)
    if settings.as_json:
        click.echo(json.dumps(rows, ensure_ascii=False))


def _rpc_device(rpc: str | None, key: str | None, variants: tuple[str, ...]) -> RpcDevice | None:
    """The device behind ``--rpc``; UsageError for what is missing or no address."""
    if rpc is None:
        if key is not None:
            raise UsageError("--rpc-key needs --rpc HOST:PORT", where="--rpc-key")
        return None
    host, _, port = rpc.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{rpc!r} is not HOST:PORT", where="--rpc")
    if key is None:
        raise UsageError(
            "--rpc needs --rpc-key",
            where="--rpc",
            hint="python -m tvm.exec.query_rpc_tracker shows the keys that a tracker knows",
        )
    if not variants:
        raise UsageError(
            "--rpc needs --variant",
            where="--rpc",
            why="only you know what the device's processor has",
        )
    return RpcDevice(host.strip("[]"), int(port), key)
