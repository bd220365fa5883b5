"""Options that the commands over a bundle share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import click

from mlcbuild.cli.context import get_settings
from mlcbuild.errors import UsageError


class SpeculationArguments(TypedDict):
    """A part of ``EngineOptions``."""

    speculation: str | None
    speculation_tokens: int
    draft: Path | None


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


def speculation_options(function: Command) -> Command:
    """Adds --speculation, --speculation-tokens and --draft."""
    for option in reversed(
        (
            click.option(
                "--speculation",
                type=click.Choice(["ngram", "draft"]),
                default=None,
                help="Guess tokens ahead, from the text itself or with the bundle of --draft; the "
                "text stays the same.",
            ),
            click.option(
                "--speculation-tokens",
                type=click.IntRange(min=0),
                default=0,
                help="Tokens to guess in a step; 0 leaves it to the runtime.",
            ),
            click.option(
                "--draft",
                type=click.Path(path_type=Path, file_okay=False),
                default=None,
                metavar="BUNDLE",
                help="A small bundle with the same tokenizer; implies --speculation draft.",
            ),
        )
    ):
        function = option(function)
    return function


def speculation_arguments(
    speculation: str | None, speculation_tokens: int, draft: Path | None
) -> SpeculationArguments:
    """The engine's options for those of ``speculation_options``."""
    if draft is not None:
        if speculation == "ngram":
            raise UsageError("--draft goes with --speculation draft, not with ngram")
        speculation = "draft"
    elif speculation == "draft":
        raise UsageError("--speculation draft needs --draft BUNDLE")
    if speculation is None and speculation_tokens:
        raise UsageError("--speculation-tokens needs --speculation or --draft")
    return {"speculation": speculation, "speculation_tokens": speculation_tokens, "draft": draft}


def sampling_options(function: Command) -> Command:
    """Adds --temperature, --top-p, --top-k, --min-p, the penalties, --max-tokens, --seed."""
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
                "--min-p",
                type=click.FloatRange(min=0, max=1),
                default=0.0,
                help="Leave out tokens less likely than this times the likeliest; 0 is off.",
            ),
            click.option(
                "--repetition-penalty",
                type=click.FloatRange(min=0, min_open=True),
                default=1.0,
                help="Above 1, tokens of the prompt and the text become less likely.",
            ),
            click.option(
                "--presence-penalty",
                type=float,
                default=0.0,
                help="Taken off the logit of each token that the text has.",
            ),
            click.option(
                "--frequency-penalty",
                type=float,
                default=0.0,
                help="The same for each time that it has it.",
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
