"""mlcbuild chat: a conversation in the terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mlcbuild.cli._bundle_options import bundle_argument, engine_options
from mlcbuild.cli.chat_session import ChatSession
from mlcbuild.cli.chat_settings import ChatSettings, setting_names
from mlcbuild.cli.chat_terminal import TerminalScreen, can_edit, editing_reader, plain_reader
from mlcbuild.cli.chat_transcript import Transcript, load_transcript
from mlcbuild.cli.context import get_settings
from mlcbuild.errors import UsageError

# For models that come without a word about sampling; OpenAI's 1.0 is too hot for small ones.
_TEMPERATURE = 0.7


@click.command("chat")
@bundle_argument
@click.option("--system", default=None, help="System message. Default: the model's own, if any.")
@click.option("--resume", is_flag=True, help="Go on with the last conversation with this model.")
@click.option(
    "--no-history",
    is_flag=True,
    help="Keep neither the lines that are typed nor the conversation.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, 2),
    default=None,
    help="0 always takes the likeliest token.",
)
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1),
    default=None,
    help="Sample from the likeliest tokens that together have this probability.",
)
@click.option(
    "--top-k",
    type=click.IntRange(min=0),
    default=None,
    help="Sample from this many of the likeliest tokens; 0 is off.",
)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=None, help="Longest answer, in tokens."
)
@click.option(
    "--seed",
    type=click.IntRange(0, (1 << 64) - 1),
    default=None,
    help="Same seed, same answers.",
)
@engine_options
def command(
    bundle: Path,
    system: str | None,
    resume: bool,
    no_history: bool,
    threads: int,
    activations: str | None,
    variant: str | None,
    **sampling: Any,
) -> None:
    """Talk with BUNDLE.

    /help lists the commands. Ctrl-C stops an answer, Ctrl-D or /exit leaves. Answers are sampled as
    the model's makers say (a temperature of 0.7 if they say none) unless an option or /set says
    otherwise. The conversation is kept for --resume in the user's state folder.
    """
    from mlcbuild.engine import Engine

    if sampling["temperature"] is None and not has_own_temperature(bundle):
        sampling["temperature"] = _TEMPERATURE
    settings = ChatSettings(sampling)
    with Engine(
        bundle, threads=threads, activations=activations, variant=variant, mode="interactive"
    ) as engine:
        state = state_folder(os.environ)
        autosave = state / "chats" / f"{_file_name(engine.model_name)}.json"
        transcript = _opening(autosave, system, resume=resume)
        screen = TerminalScreen(color=get_settings().color)
        session = ChatSession(
            engine, screen, settings, transcript, None if no_history else autosave
        )
        if can_edit(os.environ.get("TERM")):
            history = None if no_history else state / "chat_history"
            read = editing_reader(history, session.command_names, setting_names())
        else:
            read = plain_reader()
        if sys.stdin.isatty() and not get_settings().quiet:
            turns = len(transcript.turns) // 2
            before = f", going on after {turns} exchange{'s' * (turns != 1)}" if turns else ""
            screen.say(f"{engine.model_name}{before}; /help lists commands, Ctrl-D leaves")
        while (line := read(session.draft)) is not None:
            session.draft = ""
            if not session.take(line):
                break


def has_own_temperature(bundle: Path) -> bool:
    """Whether the bundle says at which temperature its model is to be sampled."""
    from mlcbuild.bundle.reader import open_bundle

    opened = open_bundle(bundle)
    sampling = opened.read_json(opened.manifest.chat).get("sampling")
    return isinstance(sampling, dict) and sampling.get("temperature") is not None


def _opening(autosave: Path, system: str | None, *, resume: bool) -> Transcript:
    """The conversation to begin with."""
    if not resume:
        return Transcript(system)
    if not autosave.exists():
        raise UsageError(
            "there is no conversation with this model to go on with",
            where=str(autosave),
            hint="leave --resume out",
        )
    transcript = load_transcript(autosave)
    if system is not None:
        transcript.system = system
    return transcript


def state_folder(environment: Mapping[str, str]) -> Path:
    """``$XDG_STATE_HOME/mlcbuild``, else ``.local/state/mlcbuild`` in the user's home."""
    state = environment.get("XDG_STATE_HOME")
    base = Path(state) if state else Path.home() / ".local" / "state"
    return base / "mlcbuild"


def _file_name(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", model).lstrip(".") or "model"
