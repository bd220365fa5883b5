"""mlcbuild serve-web: what browsers get, and what nobody gets."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from starlette.datastructures import Headers
from uvicorn import Server

from mlcbuild.bundle.web_bundles import open_web_bundles
from mlcbuild.cli import inspect_command, serve_web_command
from mlcbuild.errors import NetworkError, UsageError, VerificationError
from mlcbuild.server.byte_range import is_known, wanted_range
from mlcbuild.server.file_tree import FileServer
from mlcbuild.server.files import serve_files
from mlcbuild.server.http_protocol import make_config
from mlcbuild.server.run import open_sockets
from tests.unit.web_bundles import (
    CPU_TARGET,
    GPU_TARGET,
    SHARD_BYTES,
    write_cpu_bundle,
    write_gpu_bundle,
)

ROOT = Path(__file__).parents[2]
PAGE = {
    "index.html": b"<!doctype html><title>page</title>",
    "platform/web/page/main.js": b"export {};\n",
    "platform/web/page/style.css": b"body {}\n",
    "platform/web/module.mjs": b"export {};\n",
    "licenses/LICENSE.txt": b"text\n",
}


@dataclass(frozen=True)
class Answer:
    """What a request got; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Client:
    """Requests to a server on this machine; paths go over the wire as they are given."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers=named)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()


def make_bundles(parent: Path) -> tuple[Path, Path]:
    gpu, cpu = parent / GPU_TARGET, parent / CPU_TARGET
    write_gpu_bundle(gpu, PAGE)
    write_cpu_bundle(cpu, {})
    return gpu, cpu


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Path]]:
    parent = tmp_path_factory.mktemp("bundles")
    gpu, _ = make_bundles(parent)
    (parent / "secret.txt").write_text("secret")
    (gpu / "unlisted.txt").write_text("secret")
    (gpu / ".hidden").write_text("secret")
    bundles, _ = open_web_bundles(gpu)
    app = FileServer([serve_web_command._tree(bundle) for bundle in bundles])
    sockets = open_sockets("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    async def serve() -> None:
        # Signals belong to the main thread: not serve_files, whose end is one.
        server = Server(make_config(app, 10, 0))
        task = asyncio.ensure_future(server.serve(sockets))
        while not server.started:
            await asyncio.sleep(0.005)
        ready.set()
        while not stop.is_set():
            await asyncio.sleep(0.02)
        server.should_exit = True
        await task

    stop = threading.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield Client(port), gpu
    finally:
        stop.set()
        thread.join()
        loop.close()


TYPES = {
    "index.html": "text/html; charset=utf-8",
    "platform/web/page/main.js": "text/javascript; charset=utf-8",
    "platform/web/module.mjs": "text/javascript; charset=utf-8",
    "platform/web/page/style.css": "text/css; charset=utf-8",
    "lib/model.wasm": "application/wasm",
    "bundle.json": "application/json",
    "tensor-cache.json": "application/json",
    "params_shard_0.bin": "application/octet-stream",
    "licenses/LICENSE.txt": "text/plain; charset=utf-8",
}


def test_files_and_headers(served: tuple[Client, Path]) -> None:
    client, gpu = served
    manifest = json.loads((gpu / "bundle.json").read_bytes())
    digests = {entry["path"]: entry["sha256"] for entry in manifest["files"]}
    for path, media_type in TYPES.items():
        expected = (gpu / path).read_bytes()
        for prefix in ("", "resolve/main/"):
            answer = client.ask(f"/{GPU_TARGET}/{prefix}{path}", Origin="http://localhost:3000")
            assert (answer.status, answer.body) == (200, expected), path
            headers = answer.headers
            assert headers["content-type"] == media_type
            assert headers["content-length"] == str(len(expected))
            assert headers["accept-ranges"] == "bytes"
            assert headers["cache-control"] == "no-cache"
            assert headers["access-control-allow-origin"] == "*"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert headers["cross-origin-embedder-policy"] == "require-corp"
            assert headers["cross-origin-resource-policy"] == "cross-origin"
            if path in digests:
                assert headers["etag"] == f'"{digests[path]}"'
        head = client.ask(f"/{GPU_TARGET}/{path}", "HEAD")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == str(len(expected))
    # The neighbour is served too, and the ways in lead to the page.
    assert client.ask(f"/{CPU_TARGET}/lib/mlcb.wasm").headers["content-type"] == "application/wasm"
    for path in ("/", f"/{GPU_TARGET}"):
        answer = client.ask(path)
        assert (answer.status, answer.headers["location"]) == (307, f"/{GPU_TARGET}/")
    assert client.ask(f"/{GPU_TARGET}/").body == PAGE["index.html"]
    assert client.ask(f"/{GPU_TARGET}/?x=1").status == 200
    assert client.ask(f"/{CPU_TARGET}/").status == 404  # this one has no page


def test_ranges(served: tuple[Client, Path]) -> None:
    client, gpu = served
    path = f"/{GPU_TARGET}/params_shard_1.bin"
    whole = (gpu / "params_shard_1.bin").read_bytes()
    etag = client.ask(path, "HEAD").headers["etag"]
    for value, first, end in (
        ("bytes=0-0", 0, 1),
        ("bytes=100-", 100, SHARD_BYTES),
        ("bytes=-7", SHARD_BYTES - 7, SHARD_BYTES),
        (f"bytes=-{SHARD_BYTES * 2}", 0, SHARD_BYTES),
        (f"bytes=5-{SHARD_BYTES * 9}", 5, SHARD_BYTES),
    ):
        answer = client.ask(path, Range=value, If_Range=etag)
        assert (answer.status, answer.body) == (206, whole[first:end]), value
        assert answer.headers["content-range"] == f"bytes {first}-{end - 1}/{SHARD_BYTES}"
        assert answer.headers["content-length"] == str(end - first)
        assert answer.headers["etag"] == etag
    for value in (f"bytes={SHARD_BYTES}-", "bytes=-0"):
        answer = client.ask(path, Range=value)
        assert answer.status == 416
        assert answer.headers["content-range"] == f"bytes */{SHARD_BYTES}"
    # What is no single range of bytes, or of another version, gets everything.
    for headers in (
        {"Range": "bytes=5-2"},
        {"Range": "lines=1-2"},
        {"Range": "bytes=0-1,5-6"},
        {"Range": "bytes=-"},
        {"Range": "bytes=0-9", "If_Range": '"other"'},
        {"Range": "bytes=0-9", "If_Range": f"W/{etag}"},
    ):
        answer = client.ask(path, **headers)
        assert (answer.status, answer.body) == (200, whole), headers
    part = client.ask(f"/{GPU_TARGET}/bundle.json", Range="bytes=2-5")
    assert (part.status, part.body) == (206, (gpu / "bundle.json").read_bytes()[2:6])


def test_conditional_requests(served: tuple[Client, Path]) -> None:
    client, _ = served
    for name in ("bundle.json", "lib/model.wasm"):
        path = f"/{GPU_TARGET}/{name}"
        etag = client.ask(path).headers["etag"]
        for value in (etag, f'"a", W/{etag}', "*"):
            answer = client.ask(path, If_None_Match=value, Range="bytes=0-1")
            assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", etag)
            assert client.ask(path, "HEAD", If_None_Match=value).status == 304
        assert client.ask(path, If_None_Match='"other"').status == 200


@pytest.mark.parametrize(
    "path",
    [
        "unlisted.txt",
        ".hidden",
        "../secret.txt",
        "..%2fsecret.txt",
        "%2e%2e/secret.txt",
        "resolve/main/../../../secret.txt",
        "platform/web/",
        "platform/web/page/../../../index.html",
        "/etc/passwd",
        "index.html/",
        "index.html%00",
        "resolve/other/index.html",
    ],
)
def test_nothing_else_is_served(served: tuple[Client, Path], path: str) -> None:
    client, _ = served
    answer = client.ask(f"/{GPU_TARGET}/{path}")
    assert answer.status == 404
    assert b"secret" not in answer.body.replace(b"secret.txt", b"")


def test_methods(served: tuple[Client, Path]) -> None:
    client, _ = served
    preflight = client.ask(
        f"/{GPU_TARGET}/bundle.json",
        "OPTIONS",
        Origin="http://localhost:3000",
        Access_Control_Request_Method="GET",
        Access_Control_Request_Headers="range,if-range",
    )
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == "*"
    assert {"range", "if-range"} <= set(
        preflight.headers["access-control-allow-headers"].split(", ")
    )
    for method in ("POST", "PUT", "DELETE"):
        answer = client.ask(f"/{GPU_TARGET}/bundle.json", method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert client.ask("/elsewhere/bundle.json").status == 404


def test_files_that_changed_since_the_start(tmp_path: Path) -> None:
    gpu, _ = make_bundles(tmp_path / "m")
    tree = serve_web_command._tree(open_web_bundles(gpu)[0][0])
    (gpu / "tokenizer.json").write_bytes(b"longer than it was by far")
    (gpu / "params_shard_0.bin").rename(tmp_path / "elsewhere.bin")
    (gpu / "params_shard_0.bin").symlink_to(tmp_path / "elsewhere.bin")
    (gpu / "lib").rename(tmp_path / "lib")
    (gpu / "lib").symlink_to(tmp_path / "lib")
    (gpu / "params_shard_1.bin").unlink()
    app = FileServer([tree])
    for path in ("tokenizer.json", "params_shard_0.bin", "lib/model.wasm", "params_shard_1.bin"):
        answer = app._answer("GET", f"/{GPU_TARGET}/{path}", Headers())
        assert answer.status_code == 500, path


def test_which_bundles_are_served(tmp_path: Path) -> None:
    parent = tmp_path / "m" / "q4f32_1"
    gpu, cpu = make_bundles(parent)
    write_cpu_bundle(parent / "web-other", {}, name="another model", target="web-other")
    write_cpu_bundle(parent / "linux-x86_64-cpu", {}, target="linux-x86_64-cpu")
    write_cpu_bundle(parent / "web-damaged", {}, target="web-damaged")
    (parent / "web-damaged" / "chat.json").unlink()
    (parent / "web-linked").symlink_to(cpu)
    bundles, notes = open_web_bundles(gpu)
    assert [bundle.manifest.target for bundle in bundles] == [GPU_TARGET, CPU_TARGET]
    assert [bundle.folder for bundle in bundles] == [gpu.resolve(), cpu.resolve()]
    assert len(notes) == 1
    assert notes[0].startswith("web-damaged is left out: ")
    assert "chat.json: missing" in notes[0]
    assert [item.manifest.target for item in open_web_bundles(cpu)[0]] == [CPU_TARGET, GPU_TARGET]
    with pytest.raises(UsageError) as caught:
        open_web_bundles(parent / "linux-x86_64-cpu")
    assert "its target is linux-x86_64-cpu" in str(caught.value)
    assert "mlcbuild run, chat and serve" in str(caught.value)
    with pytest.raises(VerificationError):
        open_web_bundles(parent / "web-damaged")
    (gpu / "params_shard_2.bin").write_bytes(b"short")
    with pytest.raises(VerificationError, match=r"params_shard_2\.bin: 5 bytes"):
        open_web_bundles(gpu)


def test_a_port_in_use(tmp_path: Path) -> None:
    gpu, _ = make_bundles(tmp_path)
    sockets = open_sockets("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    try:
        result = CliRunner().invoke(serve_web_command.command, [str(gpu), "--port", str(port)])
    finally:
        sockets[0].close()
    assert isinstance(result.exception, NetworkError)
    assert f"127.0.0.1:{port}: the port is in use" in str(result.exception)


@pytest.mark.parametrize("arguments", [("--json",), ()])
def test_the_command(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    gpu, cpu = make_bundles(tmp_path)
    told = CliRunner().invoke(inspect_command.command, [str(cpu)]).stdout
    assert "runs in browsers and node" in told
    assert "does not run here" not in told
    process = subprocess.Popen(
        [sys.executable, "-m", "mlcbuild", "serve-web", str(gpu), "--port", "0", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if arguments:
            record = json.loads(line)
            url = record["url"]
            assert [item["path"] for item in record["bundles"]] == [str(gpu), str(cpu)]
        else:
            url = line.strip()
        match = re.fullmatch(rf"http://127\.0\.0\.1:([0-9]+)/{GPU_TARGET}/", url)
        assert match is not None
        client = Client(int(match[1]))
        assert client.ask(f"/{CPU_TARGET}/bundle.json").status == 200
        assert client.ask("/%1B%5B31mred").status == 404
        assert client.ask("/missing").status == 404
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
        assert process.returncode == 0, errors
        assert time.monotonic() - started < 5
        # What could colour a terminal, or worse, is shown as it came.
        assert errors.endswith("404 GET /%1B%5B31mred\n404 GET /missing\nstopped\n")
        if not arguments:
            assert f"smollm2-135m-instruct (q4f32_1), {CPU_TARGET}: 7 files, " in errors
    finally:
        process.kill()
        process.wait()


def test_a_browser_that_runs_in_the_terminal_gets_its_page(tmp_path: Path) -> None:
    """It is waited for, and waits for the server."""
    gpu, _ = make_bundles(tmp_path)
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(
        f"#!{sys.executable}\nimport sys, urllib.request\n"
        "page = urllib.request.urlopen(sys.argv[1], timeout=20)\n"
        f"print(page.status, file=open({str(seen)!r}, 'w'))\n",
        encoding="utf-8",
    )
    browser.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "mlcbuild", "serve-web", str(gpu), "--port", "0", "--open"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "BROWSER": f"{browser} %s"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 10
        while not seen.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert seen.exists(), errors
        assert seen.read_text(encoding="utf-8") == "200\n"
    finally:
        process.kill()
        process.wait()


def test_a_client_that_stays_does_not_hold_the_end_up(tmp_path: Path) -> None:
    """serve_files ends within its grace although a download is only half taken."""
    gpu, _ = make_bundles(tmp_path)
    app = FileServer([serve_web_command._tree(open_web_bundles(gpu)[0][0])])
    sockets = open_sockets("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]

    async def scenario() -> float:
        ready = asyncio.Event()
        serving = asyncio.ensure_future(serve_files(app, sockets, ready.set))
        await ready.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(f"GET /{GPU_TARGET}/params_shard_0.bin HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        await reader.read(100)
        started = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
        await serving
        writer.close()
        return time.monotonic() - started

    assert asyncio.run(scenario()) < 4


def test_range_rules() -> None:
    tag = '"a"'
    assert wanted_range(None, None, 10, tag) == "whole"
    assert wanted_range("bytes=0-", None, 0, tag) == "unsatisfiable"
    assert wanted_range("BYTES= 3-4 ", None, 10, tag) == (3, 5)
    assert wanted_range("bytes=9-9", None, 10, tag) == (9, 10)
    assert wanted_range("bytes=10-", None, 10, tag) == "unsatisfiable"
    assert wanted_range(f"bytes={'9' * 40}-", None, 10, tag) == "whole"
    assert not is_known(None, tag)
    assert not is_known("a", tag)
