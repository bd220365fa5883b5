"""Options that the commands over a bundle share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from mlcbuild.cli.context import get_settings

Command = TypeVar("Command", bound=Callable[..., Any])

bundle_argument = click.argument("bundle", type=click.Path(path_type=Path))


def _or_global(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    """``mlcbuild --json run B`` means ``mlcbuild run B --json``."""
    del context, parameter
    return value or get_settings().as_json


json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    callback=_or_global,
    help="Print one JSON record.",
)


def engine_options(function: Command) -> Command:
    """Adds --threads, --activations and --variant."""
    for option in reversed(
        (
            click.option(
                "--threads",
                type=click.IntRange(min=0),
                default=0,
                help="Threads; 0 takes one for each CPU that this process may use.",
            ),
            click.option(
                "--activations",
                type=click.Choice(["int8", "float"]),
                default=None,
                help="How activations enter quantized matmuls: int8 is fast, float the reference. "
                "Default: the bundle's best.",
            ),
            click.option(
                "--variant",
                default=None,
                help="A kernel library by name. Default: the best that this CPU runs.",
            ),
        )
    ):
        function = option(function)
    return function


def sampling_options(function: Command) -> Command:
    """Adds --temperature, --top-p, --top-k, --max-tokens, --seed."""
    for option in reversed(
        (
            click.option(
                "--temperature",
                type=click.FloatRange(min=0),
                default=0.0,
                help="0 (the default) always takes the likeliest token.",
            ),
            click.option(
                "--top-p",
                type=click.FloatRange(min=0, max=1, min_open=True),
                default=1.0,
                help="Sample from the likeliest tokens that together have this probability.",
            ),
            click.option(
                "--top-k",
                type=click.IntRange(min=0),
                default=0,
                help="Sample from this many of the likeliest tokens; 0 is off.",
            ),
            click.option(
                "--max-tokens",
                type=click.IntRange(min=0),
                default=512,
                show_default=True,
                help="Stop after this many tokens; 0: at the end of the context window.",
            ),
            click.option(
                "--seed",
                type=click.IntRange(min=0, max=(1 << 64) - 1),
                default=0,
                help="Same seed, same text.",
            ),
        )
    ):
        function = option(function)
    return function


def integer_list(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """A click callback for comma-separated integers."""
    del context, parameter
    try:
        return tuple(int(item) for item in value.split(",") if item.strip())
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a comma-separated list of numbers") from None
