"""A chat apart from the terminal: answers, commands, figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mlcbuild.cli.chat_settings import ChatSettings, setting_names
from mlcbuild.cli.chat_transcript import Transcript, load_transcript, save_transcript
from mlcbuild.cli.output import error_text
from mlcbuild.core.suggest import suggestion_or_list
from mlcbuild.errors import MlcbuildError, UsageError


class ChatEngine(Protocol):
    """What a chat needs of an engine; ``mlcbuild.engine.Engine`` has it."""

    @property
    def chat(self) -> Any:
        """``chat.completions.create(**parameters)``, with ``stream=True`` an iterator of chunks."""

    @property
    def model_name(self) -> str:
        """The model's name."""

    @property
    def context_window_size(self) -> int:
        """Tokens that a conversation may have."""

    def metrics(self) -> dict[str, Any]:
        """The engine's figures."""


class Screen(Protocol):
    """Where a chat is seen."""

    def answer(self, text: str) -> None:
        """A piece of the model's answer."""

    def thought(self, text: str) -> None:
        """A piece of what the model thinks before it answers."""

    def end_answer(self) -> None:
        """The answer is over."""

    def say(self, text: str) -> None:
        """A line that is not the model's."""


@dataclass(frozen=True)
class AnswerFigures:
    """What an answer took; times in seconds, 0 where they are not known."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_token_seconds: float = 0.0
    total_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed, without the time to the first token."""
        seconds = self.total_seconds - self.first_token_seconds
        if self.completion_tokens < 2 or seconds <= 0:
            return None
        return (self.completion_tokens - 1) / seconds


class ChatSession:
    """A conversation with an engine. ``draft`` is a question that could not be answered."""

    def __init__(
        self,
        engine: ChatEngine,
        screen: Screen,
        settings: ChatSettings,
        transcript: Transcript,
        autosave: Path | None = None,
    ) -> None:
        """``autosave``: the file that always holds the conversation; None: none does."""
        self.transcript = transcript
        self.draft = ""
        self._engine = engine
        self._screen = screen
        self._settings = settings
        self._autosave = autosave
        self._figures: list[AnswerFigures] = []
        self._commands: dict[str, tuple[Callable[[str], bool], str, str]] = {
            "help": (self._help, "", "this list"),
            "set": (self._set, "[NAME VALUE]", "show or change how answers are sampled"),
            "system": (self._system, "[TEXT]", "show or change the system message"),
            "stats": (self._stats, "", "speed, cache and memory"),
            "regenerate": (self._regenerate, "", "answer the last question again"),
            "drop": (self._drop, "[N]", "forget the oldest exchange, or N of them"),
            "reset": (self._reset, "", "start a new conversation"),
            "save": (self._save, "FILE", "write the conversation to a file"),
            "load": (self._load, "FILE", "go on with a saved conversation"),
            "exit": (self._exit, "", "leave, as Ctrl-D does"),
        }

    @property
    def command_names(self) -> tuple[str, ...]:
        """The commands, without their slash."""
        return tuple(self._commands)

    def take(self, line: str) -> bool:
        """Answers a question or runs a command; False: the user wants to leave.

        Errors are shown; the conversation survives them.
        """
        text = line.strip()
        try:
            if text.startswith("/") and "\n" not in text:
                return self._run(text)
            if text:
                self._ask(line)
        except MlcbuildError as error:
            self._screen.say(error_text(error))
        except OSError as error:  # a disk that is full, a folder that may not be written
            self._screen.say(f"error: {error.filename or 'file'}: {error.strerror or error}")
        return True

    # ---- answers -------------------------------------------------------------------------------

    def _ask(self, question: str) -> None:
        from mlcbuild.bundle.abi import PromptTooLongError

        self.transcript.ask(question)
        pieces: list[str] = []
        finish, stopped = None, False
        try:
            finish = self._stream(pieces)
        except KeyboardInterrupt:
            stopped = True
        except PromptTooLongError as error:
            self._take_back()
            raise PromptTooLongError(
                "the conversation does not fit the model's context window of "
                f"{self._engine.context_window_size} tokens any more",
                why=error.message,
                hint=self._room_hint(),
            ) from None
        except BaseException:
            self._keep(pieces)
            raise
        self._keep(pieces)
        if stopped:
            self._screen.say("[stopped]")
        elif finish == "length":
            self._screen.say(self._why_it_ended())

    def _stream(self, pieces: list[str]) -> str | None:
        """Shows the answer as it comes and puts it into ``pieces``; returns why it ended."""
        started = time.perf_counter()
        first = 0.0
        usage = finish = None
        screen = self._screen
        request: dict[str, Any] = {
            **self._settings.values(),
            "messages": self.transcript.messages(),
        }
        try:
            stream = self._engine.chat.completions.create(
                **request, stream=True, stream_options={"include_usage": True}
            )
            with stream:
                for chunk in stream:
                    first = first or time.perf_counter() - started
                    usage = chunk.usage or usage
                    for choice in chunk.choices:
                        if getattr(choice.delta, "reasoning_content", None):
                            screen.thought(choice.delta.reasoning_content)
                        if choice.delta.content:
                            pieces.append(choice.delta.content)
                            screen.answer(choice.delta.content)
                        finish = choice.finish_reason or finish
        finally:
            screen.end_answer()
            if first:
                self._take_figures(usage, len(pieces), first, time.perf_counter() - started)
        return finish

    def _take_figures(self, usage: Any, pieces: int, first: float, total: float) -> None:
        """Notes what an answer took; one that was stopped has no usage, its pieces are counted."""
        details = getattr(usage, "prompt_tokens_details", None)
        self._figures.append(
            AnswerFigures(
                prompt_tokens=getattr(usage, "prompt_tokens", 0),
                cached_tokens=getattr(details, "cached_tokens", 0) or 0,
                completion_tokens=getattr(usage, "completion_tokens", pieces),
                first_token_seconds=first,
                total_seconds=total,
            )
        )

    def _keep(self, pieces: list[str]) -> None:
        """Ends the exchange with what has come of the answer, or undoes it if nothing has."""
        if pieces:
            self.transcript.answer("".join(pieces))
            self._write_autosave()
        else:
            self._take_back()

    def _take_back(self) -> None:
        self.draft = self.transcript.take_back_question() or ""

    def _why_it_ended(self) -> str:
        figures = self._figures[-1]
        window = self._engine.context_window_size
        if figures.prompt_tokens + figures.completion_tokens < window:
            return "[ended by max_tokens; /set max_tokens changes it]"
        return f"[the context window of {window} tokens is full: {self._room_hint()}]"

    def _room_hint(self) -> str:
        if len(self.transcript.turns) < 2:
            return "shorten the question, or build the bundle with a larger context_window_size"
        return "/drop forgets the oldest exchange, /reset all of them"

    def _write_autosave(self) -> None:
        if self._autosave is not None:
            save_transcript(self._autosave, self.transcript, self._engine.model_name)

    # ---- commands ------------------------------------------------------------------------------

    def _run(self, text: str) -> bool:
        name, _, rest = text[1:].partition(" ")
        name = {"quit": "exit", "?": "help", "": "help"}.get(name, name)
        entry = self._commands.get(name)
        if entry is None:
            hint = suggestion_or_list(name, self._commands)
            raise UsageError(f"there is no command /{name}", hint=hint)
        return entry[0](rest.strip())

    def _help(self, rest: str) -> bool:
        lines = [
            f"  /{f'{name} {arguments}':<20}{text}"
            for name, (_, arguments, text) in self._commands.items()
        ]
        lines += ["", "  Ctrl-C stops an answer, Alt-Enter starts a new line, Ctrl-D leaves"]
        self._screen.say("\n".join(lines))
        return True

    def _set(self, rest: str) -> bool:
        name, _, value = rest.partition(" ")
        value = value.strip()
        if not name:
            system = self.transcript.system
            shown = "the model's own" if system is None else system
            self._screen.say("\n".join([*self._settings.lines(), f"  {'system':<20}{shown}"]))
        elif name == "system":
            return self._system(value)
        elif not value:
            current = self._settings.values().get(name, "default")
            if name not in setting_names():
                self._settings.set(name, "")  # says what there is
            self._screen.say(f"  {name} is {current}; /set {name} VALUE changes it")
        else:
            self._settings.set(name, value)
            self._screen.say(f"  {name} is {self._settings.values().get(name, 'default')}")
        return True

    def _system(self, rest: str) -> bool:
        if rest:
            self.transcript.system = None if rest == "default" else rest
        system = self.transcript.system
        self._screen.say("  the model's own" if system is None else f"  {system}")
        return True

    def _stats(self, rest: str) -> bool:
        lines: list[str] = []
        if self._figures:
            last = self._figures[-1]
            speed = last.tokens_per_second
            lines.append(
                f"  last answer: {last.completion_tokens} tokens"
                + (f", {speed:.1f} tok/s" if speed is not None else "")
                + f", first token after {last.first_token_seconds * 1000:.0f} ms"
            )
            used = last.prompt_tokens + last.completion_tokens
            if last.prompt_tokens:
                window = self._engine.context_window_size
                lines += [
                    f"  its prompt: {last.prompt_tokens} tokens, {last.cached_tokens} cached",
                    f"  conversation: {used} of {window} tokens",
                ]
        else:
            lines.append("  nothing has been asked yet")
        kv = self._engine.metrics().get("kv", {})
        with suppress(KeyError):
            pages, size = kv["total_pages"], kv["page_bytes"]
            taken = kv["used_pages"] + kv["cached_pages"]
            lines.append(
                f"  KV cache: {taken} of {pages} pages taken "
                f"({_megabytes(taken * size)} of {_megabytes(pages * size)})"
            )
        self._screen.say("\n".join(lines))
        return True

    def _regenerate(self, rest: str) -> bool:
        before = list(self.transcript.turns)
        question = self.transcript.take_back_question()
        if question is None:
            raise UsageError("there is no question to answer again")
        try:
            self._ask(question)
        finally:
            if len(self.transcript.turns) < len(before):  # no new answer: the old one stays
                self.transcript.turns[:] = before
                self.draft = ""
        return True

    def _drop(self, rest: str) -> bool:
        if rest and not (rest.isascii() and rest.isdigit()):
            raise UsageError(f"/drop takes a number of exchanges, not {rest!r}")
        dropped = self.transcript.drop_oldest(int(rest) if rest else 1)
        left = len(self.transcript.turns) // 2
        self._screen.say(f"  forgot {_exchanges(dropped)}, {left} left")
        return True

    def _reset(self, rest: str) -> bool:
        self.transcript.turns.clear()
        self._figures.clear()
        self._screen.say("  a new conversation")
        return True

    def _save(self, rest: str) -> bool:
        path = _path(rest, "/save")
        if not path.parent.is_dir():
            raise UsageError("there is no such folder", where=str(path.parent))
        save_transcript(path, self.transcript, self._engine.model_name)
        self._screen.say(f"  saved {_exchanges(len(self.transcript.turns) // 2)} to {path}")
        return True

    def _load(self, rest: str) -> bool:
        path = _path(rest, "/load")
        self.transcript = load_transcript(path)
        self._figures.clear()
        self._screen.say(f"  going on after {_exchanges(len(self.transcript.turns) // 2)}")
        return True

    def _exit(self, rest: str) -> bool:
        return False


def _path(text: str, command: str) -> Path:
    if not text:
        raise UsageError(f"{command} needs a file name")
    return Path(text).expanduser()


def _exchanges(count: int) -> str:
    return f"{count} exchange{'' if count == 1 else 's'}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
