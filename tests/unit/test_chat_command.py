"""mlcbuild chat: the session over a stub, and the whole command in a pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mlcbuild.bundle.writer import write_bundle
from mlcbuild.cli.chat_command import has_own_temperature, state_folder
from mlcbuild.cli.chat_session import ChatSession
from mlcbuild.cli.chat_settings import ChatSettings
from mlcbuild.cli.chat_transcript import Transcript, load_transcript, save_transcript
from mlcbuild.errors import UsageError
from tests.unit import stub_bundle
from tests.unit.chat_stub import WINDOW, StubEngine

ROOT = Path(__file__).parents[2]
PROMPT = "\x1b[?2004h"  # a line editor that is ready for pasted text
GONE = "\x1b[?2004l"  # and that has taken a line


class ListScreen:
    """Keeps what was shown: answers, thoughts, other lines."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.thoughts: list[str] = []
        self.lines: list[str] = []
        self.current = ""
        self.interrupt_after = -1  # pieces until Ctrl-C; -1: never

    def answer(self, text: str) -> None:
        if self.interrupt_after == 0:
            self.interrupt_after = -1
            raise KeyboardInterrupt
        self.interrupt_after -= 1
        self.current += text

    def thought(self, text: str) -> None:
        self.thoughts.append(text)

    def end_answer(self) -> None:
        self.answers.append(self.current)
        self.current = ""

    def say(self, text: str) -> None:
        self.lines.append(text)

    @property
    def last(self) -> str:
        return self.lines[-1]


class Talk:
    """A session over a stub and what it showed."""

    def __init__(self, folder: Path) -> None:
        self.engine = StubEngine()
        self.screen = ListScreen()
        self.settings = ChatSettings()
        self.autosave = folder / "state" / "stub.json"
        self.session = ChatSession(
            self.engine, self.screen, self.settings, Transcript(), self.autosave
        )

    def take(self, *lines: str) -> bool:
        return [self.session.take(line) for line in lines][-1]

    @property
    def turns(self) -> list[str]:
        return [turn["content"] for turn in self.session.transcript.turns]


@pytest.fixture
def talk(tmp_path: Path) -> Talk:
    return Talk(tmp_path)


# -- the session ------------------------------------------------------------------------------


def test_questions_and_answers(talk: Talk) -> None:
    talk.take("one two", "", "three\nfour")
    assert talk.screen.answers == ["one two", "three four"]
    assert talk.turns == ["one two", "one two", "three\nfour", "three four"]
    assert talk.engine.requests[1]["messages"] == [
        {"role": "user", "content": "one two"},
        {"role": "assistant", "content": "one two"},
        {"role": "user", "content": "three\nfour"},
    ]
    assert all(stream.closed for stream in talk.engine.streams)


def test_settings_go_into_requests(talk: Talk) -> None:
    talk.take("/set temperature 0.5", "/set max_tokens 1", "/set seed 7", "/set stop END")
    assert talk.screen.last == "  stop is END"
    talk.take("/system Be brief.", "one two")
    request = talk.engine.requests[0]
    assert (request["temperature"], request["seed"], request["stop"]) == (0.5, 7, "END")
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    assert talk.screen.answers == ["one"]
    assert talk.screen.last == "[ended by max_tokens; /set max_tokens changes it]"
    talk.take("/set temperature default", "/set system default", "x")
    assert "temperature" not in talk.engine.requests[1]
    assert talk.engine.requests[1]["messages"][0]["role"] == "user"
    talk.take("/set")
    assert "  seed                7 " in talk.screen.last
    talk.take("/set seed")
    assert talk.screen.last == "  seed is 7; /set seed VALUE changes it"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("/set temprature 1", 'there is no setting "temprature"\n\nhint: did you mean "temper'),
        ("/set temp 1", 'there is no setting "temp"\n\nhint: did you mean "temperature"?'),
        ("/set temprature", 'there is no setting "temprature"'),
        ("/set temperature hot", "temperature is a number, not 'hot'"),
        ("/set temperature 5", "temperature: input should be less than or equal to 2"),
        ("/set temperature nan", "temperature"),
        ("/set max_tokens 0", "max_tokens: input should be greater than or equal to 1"),
        ("/set max_tokens 1.5", "max_tokens is a whole number, not '1.5'"),
        ("/rest", 'there is no command /rest\n\nhint: did you mean "reset"?'),
        ("/drop x", "/drop takes a number"),
        ("/drop \N{SUPERSCRIPT TWO}", "/drop takes a number"),
        ("/save /nowhere/at/all", "there is no such folder"),
        ("/save", "/save needs a file name"),
        ("/load /nowhere/at/all", "the chat cannot be read"),
        ("/regenerate", "there is no question to answer again"),
    ],
)
def test_what_is_refused(talk: Talk, command: str, message: str) -> None:
    talk.take("one", "/set temperature 1") if command != "/regenerate" else None
    turns = list(talk.turns)
    assert talk.take(command)
    assert message in talk.screen.last
    assert talk.turns == turns
    assert talk.settings.values() == ({} if command == "/regenerate" else {"temperature": 1.0})


def test_ctrl_c_keeps_what_has_come(talk: Talk) -> None:
    talk.screen.interrupt_after = 2
    assert talk.take("one two three")
    assert talk.turns == ["one two three", "one two three"]
    assert talk.screen.last == "[stopped]"
    assert talk.engine.streams[0].closed


def test_ctrl_c_before_the_first_word_gives_the_question_back(talk: Talk) -> None:
    def interrupted(**parameters: object) -> None:
        raise KeyboardInterrupt

    talk.engine.chat.completions.create = interrupted
    assert talk.take("one two")
    assert talk.turns == []
    assert talk.session.draft == "one two"


def test_errors_lose_nothing(talk: Talk) -> None:
    talk.take("first", "please fail")
    assert talk.screen.last == "error: the engine failed\n\nhint: try again"
    assert talk.turns == ["first", "first"]
    assert talk.session.draft == "please fail"
    talk.take("please break now")
    assert talk.screen.last == "error: the engine broke"
    assert talk.turns[2:] == ["please break now", "please"]
    assert load_transcript(talk.autosave).turns == talk.session.transcript.turns


def test_a_full_window(talk: Talk) -> None:
    assert WINDOW == 40
    talk.take("word " * 10, "word " * 10)  # 10 + 10, 30 + 10
    assert talk.screen.lines == []
    talk.take("one two")
    assert "does not fit the model's context window of 40 tokens" in talk.screen.last
    assert "/drop forgets the oldest exchange" in talk.screen.last
    assert talk.session.draft == "one two"
    talk.take("/drop", "one two")
    assert talk.turns[-1] == "one two"
    talk.take("/drop 99")
    assert talk.screen.last == "  forgot 2 exchanges, 0 left"
    talk.take("word " * 30)
    assert talk.screen.last.startswith("[the context window of 40 tokens is full: /drop")
    talk.take("/reset", "word " * 50)
    assert "shorten the question" in talk.screen.last


def test_regenerate(talk: Talk) -> None:
    talk.take("one", "two", "/regenerate")
    assert talk.screen.answers == ["one", "two", "two"]
    assert talk.turns == ["one", "one", "two", "two"]
    assert talk.engine.requests[2] == talk.engine.requests[1]
    talk.engine.chat.completions.create = None  # whatever fails: the old answer stays
    with pytest.raises(TypeError):
        talk.take("/regenerate")
    assert talk.turns == ["one", "one", "two", "two"]


def test_stats(talk: Talk) -> None:
    talk.take("/stats")
    assert "nothing has been asked yet" in talk.screen.last
    talk.take("one two three four", "/stats")
    assert re.search(r"4 tokens, [0-9.]+ tok/s, first token after \d+ ms", talk.screen.last)
    assert "its prompt: 4 tokens, 2 cached" in talk.screen.last
    assert "conversation: 8 of 40 tokens" in talk.screen.last
    assert "KV cache: 3 of 10 pages taken (3.0 MB of 10.0 MB)" in talk.screen.last
    talk.take("/reset", "/stats")
    assert "nothing has been asked yet" in talk.screen.last


def test_save_and_load(talk: Talk, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    talk.take("/system Sé breve.", "one", f"/save {file}")
    assert talk.screen.last == f"  saved 1 exchange to {file}"
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text(encoding="utf-8"))["model"] == "stub"
    talk.take("two", "/reset", f"/load {file}", "three")
    assert talk.turns == ["one", "one", "three", "three"]
    assert talk.session.transcript.system == "Sé breve."
    talk.take(f"/save {file}")  # a chat of ours may be written over
    other = tmp_path / "other.txt"
    other.write_text("precious")
    talk.take(f"/save {other}")
    assert "exists and is no saved chat" in talk.screen.last
    assert other.read_text() == "precious"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"mlcbuild_chat": 2}',
        '{"mlcbuild_chat": 1}',
        '{"mlcbuild_chat": 1, "turns": [{"role": "user", "content": "a"}]}',
        '{"mlcbuild_chat": 1, "turns": [{"role": "user"}, {"role": "assistant", "content": ""}]}',
        '{"mlcbuild_chat": 1, "turns": [1, 2]}',
        '{"mlcbuild_chat": 1, "turns": [], "system": 5}',
    ],
)
def test_files_that_are_no_chats(talk: Talk, tmp_path: Path, text: str) -> None:
    file = tmp_path / "chat.json"
    file.write_text(text)
    talk.take("one", f"/load {file}")
    assert talk.screen.last.startswith(f"error: {file}: ")
    assert talk.turns == ["one", "one"]


def test_thoughts_are_shown_and_not_kept(talk: Talk) -> None:
    talk.take("please think")
    assert talk.screen.thoughts == ["hmm "]
    assert talk.turns == ["please think", "please think"]


def test_help_and_leaving(talk: Talk) -> None:
    assert talk.take("/help")
    for name in talk.session.command_names:
        assert f"  /{name}" in talk.screen.last
    assert not talk.take("/exit")
    assert not talk.take("/quit")


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="top_p"):
        ChatSettings({"top_p": 2.0, "seed": None})
    assert ChatSettings({"temperature": None}).values() == {}
    settings = ChatSettings({"temperature": 0.7})
    settings.set("temperature", "1")
    settings.set("temperature", "default")
    assert settings.values() == {"temperature": 0.7}


@pytest.mark.parametrize(
    ("chat", "own"),
    [
        ({}, False),
        ({"sampling": None}, False),
        ({"sampling": {"top_p": 0.9}}, False),
        ({"sampling": {"temperature": 0}}, True),
    ],
)
def test_whose_temperature(tmp_path: Path, chat: dict[str, object], own: bool) -> None:
    root = stub_bundle.write_files(tmp_path / "bundle")
    (root / "chat.json").write_text(json.dumps({**stub_bundle.CHAT, **chat}))
    write_bundle(root, stub_bundle.parts())
    assert has_own_temperature(tmp_path / "bundle") is own


def test_state_folder() -> None:
    assert state_folder({"XDG_STATE_HOME": "/x"}) == Path("/x/mlcbuild")
    assert state_folder({}) == Path.home() / ".local/state/mlcbuild"


# -- the command ------------------------------------------------------------------------------


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "XDG_STATE_HOME": str(folder),
        "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody answers questions about the cursor here
        "TERM": "xterm",
        **more,
    }


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.unit.chat_stub", *arguments]


def test_without_a_terminal(tmp_path: Path) -> None:
    result = subprocess.run(
        command("--system", "S"),
        input="/set temperature\none two\nodd\n/wat\nlast \udcff\n".encode(
            "utf-8", "surrogateescape"
        ),
        cwd=ROOT,
        env=environment(tmp_path, PYTHONIOENCODING="utf-8:surrogateescape"),
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    # Not a terminal: what the model says is data and comes as it is.
    assert result.stdout.decode() == "one two\nodd \x1b[2J\x07\nlast \N{REPLACEMENT CHARACTER}\n"
    assert result.stderr.decode().startswith("  temperature is 0.7; /set ")
    assert "there is no command /wat" in result.stderr.decode()
    assert len(load_transcript(tmp_path / "mlcbuild/chats/stub.json").turns) == 6


class Terminal:
    """The command in a pseudo-terminal of 80 columns."""

    def __init__(self, folder: Path, *arguments: str, pause: float = 0.0) -> None:
        self.pid, self.handle = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            # A test run in the background has interrupts ignored, which children inherit.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.chdir(ROOT)
            variables = environment(folder, STUB_PAUSE=str(pause))
            os.execve(sys.executable, command(*arguments), variables)
        self.seen = ""
        self.done = 0
        self.expect(PROMPT, 20)

    def send(self, text: str) -> None:
        os.write(self.handle, text.encode())

    def expect(self, text: str, seconds: float = 10) -> str:
        """Waits for ``text`` after what was expected last; returns what came up to its end."""
        end = time.monotonic() + seconds
        while (position := self.seen.find(text, self.done)) < 0:
            left = end - time.monotonic()
            assert left > 0, f"no {text!r} in {self.seen[self.done :]!r}"
            if select.select([self.handle], [], [], left)[0]:
                try:
                    self.seen += os.read(self.handle, 65536).decode()
                except OSError:  # the other end is closed
                    assert text in self.seen[self.done :], self.seen[self.done :]
        before = self.done
        self.done = position + len(text)
        return self.seen[before : self.done]

    def exit_code(self) -> int:
        """Waits for the end."""
        with contextlib.suppress(OSError):
            while os.read(self.handle, 65536):
                pass
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.handle)


@contextlib.contextmanager
def terminal(folder: Path, *arguments: str, pause: float = 0.0) -> Iterator[Terminal]:
    opened = Terminal(folder, *arguments, pause=pause)
    try:
        yield opened
    finally:
        opened.close()


def test_in_a_terminal(tmp_path: Path) -> None:
    with terminal(tmp_path) as screen:
        assert "/help lists commands" in screen.seen
        screen.send("hello there\r")
        screen.expect(GONE + "hello there")
        screen.expect(PROMPT)
        screen.send("\x1b[200~pasted one\npasted two\x1b[201~")  # as terminals paste
        screen.expect("pasted two")
        screen.send("\r")
        screen.expect(GONE + "pasted one pasted two")
        screen.expect(PROMPT)
        screen.send("typed one\x1b\rtyped two\r")  # Alt-Enter
        screen.expect(GONE + "typed one typed two")
        screen.expect(PROMPT)
        screen.send("please be odd\r")
        assert "\x1b[2J" not in screen.expect(GONE + "please be odd \N{REPLACEMENT CHARACTER}[2J")
        screen.expect(PROMPT)
        screen.send("/set temp\t")  # Tab completes
        screen.expect("erature")
        screen.send(" 0\r")
        screen.expect("temperature is 0.0")
        screen.expect(PROMPT)
        screen.send("\x04")  # Ctrl-D
        assert screen.exit_code() == 0
    history = tmp_path / "mlcbuild" / "chat_history"
    assert "+hello there" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600
    with terminal(tmp_path, "--resume") as screen:
        assert "going on after 4 exchanges" in screen.seen
        screen.send("\x1b[A")  # the last line of before
        screen.expect("/set temperature 0")
        screen.send("\x03")  # empties the line
        screen.send("/exit\r")
        assert screen.exit_code() == 0


def test_ctrl_c_in_a_terminal(tmp_path: Path) -> None:
    with terminal(tmp_path, "--no-history", pause=0.1) as screen:
        screen.send("one two three four five six seven\r")
        screen.expect(GONE + "one two")
        screen.send("\x03")  # stops the answer only
        screen.expect("[stopped]")
        screen.expect(PROMPT)
        assert "seven" not in screen.seen[screen.seen.index(GONE) :]
        screen.send("still there\r")
        screen.expect(GONE + "still there")
        screen.expect(PROMPT)
        screen.send("\x03")
        screen.expect("(Ctrl-C again")
        screen.expect(PROMPT)
        screen.send("half a question\x03")  # empties the line and does not count
        screen.send("\x03")
        screen.expect("(Ctrl-C again")
        screen.expect(PROMPT)
        screen.send("\x03")
        assert screen.exit_code() == 0
    assert not (tmp_path / "mlcbuild").exists()


def test_a_failed_question_comes_back_to_be_edited(tmp_path: Path) -> None:
    with terminal(tmp_path) as screen:
        screen.send("please fail\r")
        screen.expect("the engine failed")
        screen.expect("please fail")  # in the prompt again
        screen.send("\x7f" * 4 + "work\r")
        screen.expect(GONE + "please work")
        screen.expect(PROMPT)
        screen.send("/exit\r")
        assert screen.exit_code() == 0


def test_a_terminal_that_cannot_edit(tmp_path: Path) -> None:
    def run(arguments: Sequence[str]) -> str:
        pid, handle = pty.fork()
        if pid == 0:
            os.chdir(ROOT)
            os.execve(sys.executable, command(*arguments), environment(tmp_path, TERM="dumb"))
        seen = b""
        os.write(handle, b"hello\n\x04")
        with contextlib.suppress(OSError):
            while piece := os.read(handle, 65536):
                seen += piece
        _, status = os.waitpid(pid, 0)
        os.close(handle)
        assert os.waitstatus_to_exitcode(status) == 0
        return seen.decode()

    seen = run([])
    assert "\x1b" not in seen
    assert seen.endswith("> hello\r\n> ")


def test_nothing_to_resume(tmp_path: Path) -> None:
    result = subprocess.run(
        command("--resume"),
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert result.returncode == 2
    assert "there is no conversation with this model" in result.stderr
    save_transcript(tmp_path / "mlcbuild/chats/stub.json", Transcript("S", []), "stub")
