"""The two faces of a chat: a terminal with line editing, or plain text in and out."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlcbuild.cli._streaming import text_output, write_now

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent, Completion
    from prompt_toolkit.document import Document

PROMPT = "> "
# What a terminal would take for commands; a model's text is not to be trusted with it.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DIM, _RESET = "\x1b[2m", "\x1b[0m"

# Asks for the next line, with a draft to begin from; None: the user leaves.
Reader = Callable[[str], "str | None"]


class TerminalScreen:
    """Answers on stdout, the rest on stderr; control characters of the model are not passed on."""

    def __init__(self, *, color: bool) -> None:
        self._output = text_output()
        self._safe = self._output.isatty()
        self._color = color and self._safe
        self._thinking = False
        self._at_line_start = True

    def answer(self, text: str) -> None:
        """A piece of the model's answer."""
        if self._thinking:
            self._end_thought()
        self._write(text)

    def thought(self, text: str) -> None:
        """A piece of what the model thinks before it answers: dim, and only on a terminal."""
        if not self._safe:
            return
        if not self._thinking:
            self._thinking = True
            write_now(self._output, _DIM if self._color else "[thinking] ")
        self._write(text)

    def _end_thought(self) -> None:
        self._thinking = False
        write_now(self._output, f"{_RESET if self._color else ''}\n")

    def end_answer(self) -> None:
        """The answer is over: the line ends."""
        if self._thinking:
            self._end_thought()
        if not self._at_line_start:
            write_now(self._output, "\n")
        self._at_line_start = True

    def say(self, text: str) -> None:
        """A line that is not the model's."""
        click.echo(text, err=True)

    def _write(self, text: str) -> None:
        if self._safe:
            text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))
        if text:
            self._at_line_start = text.endswith("\n")
            write_now(self._output, text)


def can_edit(environment_term: str | None) -> bool:
    """Whether a person sits at a terminal that can edit lines."""
    return sys.stdin.isatty() and sys.stderr.isatty() and environment_term not in (None, "dumb")


def plain_reader() -> Reader:
    """Lines of stdin, one message each; a prompt is shown if it is a terminal."""

    def read(draft: str) -> str | None:
        del draft
        if sys.stdin.isatty():
            click.echo(PROMPT, nl=False, err=True)
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            click.echo(err=True)
            return None
        return clean(line.rstrip("\r\n")) if line else None

    return read


def clean(text: str) -> str:
    """``text`` without what UTF-8 cannot hold."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def editing_reader(
    history: Path | None, commands: Sequence[str], settings: Sequence[str]
) -> Reader:
    """Lines with editing, history and completion of commands.

    Alt-Enter starts a new line, pasted text may have many. Ctrl-C empties a line with text; on an
    empty one the second in a row leaves.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.output import create_output

    bindings = KeyBindings()
    interrupted = False

    @bindings.add("enter")
    def _accept(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c")
    def _interrupt(event: KeyPressEvent) -> None:
        nonlocal interrupted
        if event.current_buffer.text:
            interrupted = False
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    if history is not None:
        history.parent.mkdir(parents=True, exist_ok=True)
        history.touch(mode=0o600)
    session: PromptSession[str] = PromptSession(
        history=FileHistory(str(history)) if history is not None else InMemoryHistory(),
        key_bindings=bindings,
        multiline=True,
        prompt_continuation="  ",
        completer=_make_completer(commands, settings),
        complete_while_typing=False,
        enable_open_in_editor=True,
        output=create_output(sys.stdout if sys.stdout.isatty() else sys.stderr),
    )

    def read(draft: str) -> str | None:
        nonlocal interrupted
        while True:
            try:
                line = session.prompt(PROMPT, default=draft)
            except KeyboardInterrupt:
                if interrupted:
                    return None
                interrupted, draft = True, ""
                click.echo("(Ctrl-C again, Ctrl-D or /exit leaves)", err=True)
            except EOFError:
                return None
            else:
                interrupted = False
                return clean(line)

    return read


def _make_completer(commands: Sequence[str], settings: Sequence[str]) -> Any:
    """Completes /commands, and names after /set."""
    from prompt_toolkit.completion import Completer, Completion

    class CommandCompleter(Completer):
        def get_completions(
            self, document: Document, complete_event: CompleteEvent
        ) -> Iterable[Completion]:
            words = document.text_before_cursor.split(" ")
            if not words[0].startswith("/"):
                return
            if len(words) == 1:
                known, word = [f"/{name}" for name in commands], words[0]
            elif len(words) == 2 and words[0] == "/set":
                known, word = [*settings, "system"], words[1]
            else:
                return
            for name in known:
                if name.startswith(word):
                    yield Completion(name, start_position=-len(word))

    return CommandCompleter()
