"""mlcbuild serve as a process: start-up lines, keys, ports, signals, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mlcbuild.cli import serve_command
from mlcbuild.errors import MlcbuildError, NetworkError, UsageError
from mlcbuild.server.run import open_sockets

ROOT = Path(__file__).parents[2]


class Process:
    """A server; ``text`` is its stderr so far."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.serve_stub", "--port", "0", *arguments],
            cwd=ROOT,
            env={**os.environ, **variables},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            self.lines.extend(iter(stderr.readline, ""))

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def wait_for(self, pattern: str, seconds: float = 20) -> re.Match[str]:
        end = time.monotonic() + seconds
        while (match := re.search(pattern, self.text)) is None:
            assert time.monotonic() < end, self.text
            assert self.process.poll() is None or re.search(pattern, self.text), self.text
            time.sleep(0.01)
        return match

    def url(self) -> str:
        return self.wait_for(r"(http://\S+)/v1")[1]

    def stop(self, number: signal.Signals = signal.SIGTERM, *, seconds: float = 10) -> int:
        self.process.send_signal(number)
        code = self.process.wait(seconds)
        self._reader.join()
        return code


@contextmanager
def serving(*arguments: str, **variables: str) -> Iterator[Process]:
    server = Process(*arguments, **variables)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()
        server._reader.join()


def fetch(url: str, body: Any = None, key: str | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    if body is not None:
        request.add_header("Content-Type", "application/json")
    if key is not None:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": text}], **more}


def test_what_it_says_and_how_it_ends(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("from-file\n\n")
    arguments = ("--api-key-file", str(keys), "--model-name", "fake", "--mode", "local")
    with serving(*arguments, MLCBUILD_API_KEY="from-variable") as server:
        url = server.url()
        assert url.startswith("http://127.0.0.1:")
        server.wait_for("Ctrl-C stops")
        for part in (
            f"fake (q4f16_1) at {url}/v1\n",
            "mode local: 4 requests at once, 128 may wait; avx2, int8 activations, 2 threads\n",
            "memory: 98.0 MB weights + up to 36.0 MB KV cache (1600 tokens)\n",
            "-H 'Authorization: Bearer KEY' -H 'Content-Type: application/json' -d '{",
        ):
            assert part in server.text
        assert "from-" not in server.text
        assert "warning" not in server.text
        assert fetch(f"{url}/v1/models", key="wrong")[0] == 401
        for key in ("from-file", "from-variable"):
            assert fetch(f"{url}/v1/chat/completions", chat("a b"), key)[0] == 200
        server.wait_for(r"POST /v1/chat/completions 200  2 \+ 2 tokens  \d+ ms")
        assert server.stop(signal.SIGINT) == 0
        assert server.lines[-2:] == ["closed with 0 held, 0 cancelled\n", "stopped\n"]


def test_the_curl_example_works() -> None:
    with serving() as server:
        line = server.wait_for(r"try: (curl .*)\n")[1]
        answer = subprocess.run(
            ["sh", "-c", line.replace("curl", "curl -s", 1)], capture_output=True, check=False
        )
        if answer.returncode == 127:
            pytest.skip("there is no curl")
        assert json.loads(answer.stdout)["choices"][0]["message"]["content"] == "Hello!"


def test_json_lines_and_quiet() -> None:
    with serving("--log-format", "json", "--model-name", "m1", "--model-name", "m2") as server:
        url = server.url()
        assert fetch(f"{url}/v1/chat/completions", chat("x") | {"model": "m2"})[0] == 200
        server.wait_for('"event": "request"')
        assert server.stop() == 0
        records = [json.loads(line) for line in server.lines if line.startswith("{")]
        assert [item["event"] for item in records] == ["ready", "request", "stopped"]
        assert records[0]["models"] == ["m1", "m2"]
        assert records[0]["engine"]["memory"]["weights_bytes"] == 98_000_000
        assert records[1]["completion_tokens"] == 1


def test_quiet_leaves_the_warning() -> None:
    with serving("--host", "0.0.0.0", "--quiet") as server:
        server.wait_for("options")
        assert server.stop() == 0
        warning, hint, *engine = server.lines
        assert re.match(r"warning: whoever reaches http://0.0.0.0:\d+ may use the model", warning)
        assert hint.startswith("hint: give --api-key or $MLCBUILD_API_KEY")
        assert len(engine) == 2  # the fake engine's own


def test_while_it_loads() -> None:
    with serving("--host", "127.0.0.1", "--log-format", "json", FAKE_LOAD="1000") as server:
        # The port is not told before it is ready, so it is looked up.
        port = listening_port(server.process.pid)
        assert fetch(f"http://127.0.0.1:{port}/health") == (503, b'{"status":"loading"}')
        status, body = fetch(f"http://127.0.0.1:{port}/v1/chat/completions", chat("x"))
        assert (status, json.loads(body)["error"]["code"]) == (503, "server_loading")
        assert server.stop() == 0


def listening_port(pid: int) -> int:
    """The port that a process listens on, by /proc."""
    for _ in range(2000):
        inodes = set()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                return int(fields[1].split(":")[1], 16)
        time.sleep(0.01)
    raise AssertionError("it does not listen")


def test_a_bundle_that_does_not_load() -> None:
    with serving(FAKE_LOAD_ERROR="a shard is missing") as server:
        assert server.process.wait(20) == 6
        server._reader.join()
        assert server.text == "error: bundle: a shard is missing\n"


def test_the_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving("--port", str(port)) as server:
            assert server.process.wait(20) == NetworkError.exit_code
            server._reader.join()
            assert server.text.startswith(f"error: 127.0.0.1:{port}: the port is in use\n")
            assert "hint: stop it, or choose another with --port" in server.text


def test_running_answers_are_finished() -> None:
    with serving(FAKE_PAUSE="0.1") as server:
        url = server.url()
        answers: list[tuple[int, bytes]] = []
        body = chat("a b c d e f", stream=True)
        thread = threading.Thread(
            target=lambda: answers.append(fetch(f"{url}/v1/chat/completions", body))
        )
        thread.start()
        wait_in_flight(url)
        assert server.stop() == 0
        thread.join()
        assert answers[0][1].endswith(b"data: [DONE]\n\n")
        assert b" f" in answers[0][1]
        assert "closed with 0 held, 0 cancelled" in server.text


@pytest.mark.parametrize("twice", [False, True])
def test_answers_that_take_too_long_are_cut_off(twice: bool) -> None:
    with serving("--grace", "100" if twice else "0.2", FAKE_PAUSE="0.1") as server:
        url = server.url()
        answers: list[tuple[int, bytes]] = []
        threads = [
            threading.Thread(
                target=lambda body: answers.append(fetch(f"{url}/v1/chat/completions", body)),
                args=(chat("word " * 10_000, stream=stream),),
            )
            for stream in (False, True)
        ]
        for thread in threads:
            thread.start()
        wait_in_flight(url, 2)
        if twice:
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        assert server.stop(signal.SIGINT) == 0
        for thread in threads:
            thread.join()
        whole, streamed = sorted(answers, key=lambda item: -item[0])
        assert (whole[0], json.loads(whole[1])["error"]["code"]) == (503, "server_closing")
        assert streamed[0] == 200
        assert b'"code":"server_closing"' in streamed[1]
        assert streamed[1].endswith(b"data: [DONE]\n\n")
        assert "closed with 0 held, 2 cancelled" in server.text


def wait_in_flight(url: str, count: int = 1) -> None:
    for _ in range(500):
        if f"requests_in_flight {count}\n".encode() in fetch(f"{url}/metrics")[1]:
            return
        time.sleep(0.01)
    raise AssertionError("nothing runs")


# -- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--api-key", " "], "API key is empty"),
        (["--api-key", "schlüssel"], "API key is empty, or holds"),
        (["--api-key-file", "/dev/null"], "file of API keys is empty"),
        (["--api-key-file", "/nowhere"], "does not read"),
        (["--cors", "app.example"], "no page has this origin"),
        (["--cors", "https://app.example/"], "no page has this origin"),
        (["--allowed-host", "http://llm.example"], "never says this"),
        (["--model-name", ""], "--model-name is empty"),
        (["--host", "no such host"], "no host name or address"),
        (["--host", "203.0.113.1"], "does not have the address"),
        (["--kv-bytes", "1G", "--kv-tokens", "5"], "say the same thing"),
        (["--speculation", "draft"], "needs --draft"),
        (["--speculation", "ngram", "--draft", "x"], "goes with"),
        (["--speculation-tokens", "3"], "needs --speculation"),
    ],
)
def test_bad_options(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlcbuild.bundle.manifest.read_manifest", lambda path: FakeManifest)
    result = CliRunner().invoke(serve_command.command, ["bundle", "--port", "0", *arguments])
    assert isinstance(result.exception, MlcbuildError)
    assert message in str(result.exception)


class FakeManifest:
    """A name is all that is asked for."""

    name = "fake"


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("512M", 512_000_000), ("1.5 GB", 1_500_000_000), ("2GiB", 2 << 30)],
)
def test_sizes(text: str, size: int) -> None:
    assert serve_command._Size().convert(text, None, None) == size
    assert CliRunner().invoke(serve_command.command, ["b", "--kv-bytes", "-1"]).exit_code == 2
    assert CliRunner().invoke(serve_command.command, ["b", "--kv-bytes", "big"]).exit_code == 2


def test_sockets() -> None:
    for opened in open_sockets("localhost", 0):
        with opened:
            assert opened.getsockname()[1] > 0
    with pytest.raises(UsageError):
        open_sockets("256.0.0.1", 0)


def test_addresses_that_the_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = (
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))
        for address in ("127.0.0.1", "203.0.113.1")
    )
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [there, here])
    (opened,) = open_sockets("both", 0)
    with opened:
        assert opened.getsockname()[0] == "127.0.0.1"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [there])
    with pytest.raises(UsageError, match="does not have the address"):
        open_sockets("there", 0)


def test_the_web_stack_is_loaded_by_serve_only() -> None:
    code = (
        "import sys; from mlcbuild.cli.main import run; run(['serve', '--help']); "
        "print([n for n in ('starlette', 'uvicorn', 'prompt_toolkit', 'pydantic', 'asyncio')"
        " if n in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"
