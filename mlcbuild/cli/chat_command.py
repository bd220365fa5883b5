"""mlcbuild chat: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlcbuild.cli._bundle_options import bundle_argument, engine_options, sampling_options
from mlcbuild.cli._streaming import text_output, write_now

if TYPE_CHECKING:
    from mlcbuild.engine import Engine


@click.command("chat")
@bundle_argument
@click.option("--system", default=None, help="System message. Default: the model's own, if any.")
@sampling_options
@engine_options
def command(
    bundle: Path,
    system: str | None,
    threads: int,
    activations: str | None,
    variant: str | None,
    **options: Any,
) -> None:
    """Talk with BUNDLE. /reset starts anew, /quit (or end of input) leaves.

    Ctrl-C stops an answer; what was said stays in the conversation.
    """
    from mlcbuild.bundle.abi import PromptTooLongError
    from mlcbuild.engine import Engine

    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (input() then edits lines and keeps a history)
    opening = [] if system is None else [{"role": "system", "content": system}]
    with Engine(bundle, threads=threads, activations=activations, variant=variant) as engine:
        click.echo(f"{engine.manifest.name}; /reset, /quit; Ctrl-C stops an answer", err=True)
        messages = list(opening)
        while (line := _read_line()) is not None:
            text = line.strip()
            if text == "/quit":
                break
            if text == "/reset":
                messages = list(opening)
                click.echo("a new conversation", err=True)
            elif text.startswith("/"):
                click.echo(f"unknown command {text}; there are /reset and /quit", err=True)
            elif text:
                messages.append({"role": "user", "content": line})
                try:
                    answer = _answer(engine, messages, options)
                except PromptTooLongError as error:
                    messages.pop()
                    click.echo(f"{error.message}; /reset starts a new conversation", err=True)
                    continue
                messages.append({"role": "assistant", "content": answer})


def _read_line() -> str | None:
    """The next line of the user; None at the end of input or on Ctrl-C."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None
    try:
        return input("> ")  # to stdout on a terminal, else to stderr
    except (EOFError, KeyboardInterrupt):
        click.echo(err=True)
        return None


def _answer(engine: Engine, messages: list[dict[str, str]], options: dict[str, Any]) -> str:
    """Streams an answer to stdout and returns it, as far as it got."""
    pieces: list[str] = []
    output = text_output()
    try:
        for event in engine.stream_events(messages, **options):
            pieces.append(event.text)
            write_now(output, event.text)
    except KeyboardInterrupt:
        click.echo(" [stopped]", nl=False, err=True)
    write_now(output, "\n")
    return "".join(pieces)
