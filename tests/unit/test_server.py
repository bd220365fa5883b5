"""The server over a fake engine: routes, errors, limits, keys, streams, disconnects."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mlcbuild.bundle.abi import BusyError, DeadlineError, GrammarError, PromptTooLongError
from mlcbuild.errors import InternalError, UsageError
from mlcbuild.server.request_log import json_line, text_line
from mlcbuild.server.service import Status
from tests.unit.fake_engine import FakeEngine
from tests.unit.server_host import Reply, ServerHost, wait_until

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = {"model": "fake", "messages": [{"role": "user", "content": "hello big world"}]}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def shared_host() -> Iterator[ServerHost]:
    with ServerHost(FakeEngine()) as server:
        yield server


@pytest.fixture
def host(shared_host: ServerHost, engine: FakeEngine) -> ServerHost:
    """A server with the usual options and a new engine."""
    shared_host.start_afresh(engine)
    return shared_host


def events(body: bytes) -> list[str]:
    """The data of every event; that nothing else is between them is checked."""
    parts = body.decode().split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    return [part[6:] for part in parts]


# -- routes -----------------------------------------------------------------------------------


def test_models_health_metrics(host: ServerHost) -> None:
    models = host.request("GET", "/v1/models").json()
    assert models["object"] == "list"
    assert [item["id"] for item in models["data"]] == ["fake", "alias"]
    assert models["data"][0]["object"] == "model"
    assert host.request("GET", "/v1/models/alias").json() == models["data"][1]
    assert host.request("GET", "/health").json() == {"status": "ready"}
    host.request("POST", CHAT, HELLO)
    metrics = host.request("GET", "/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = metrics.body.decode()
    assert "fake_pages_used 0\n" in text
    line = 'mlcbuild_http_requests_total{endpoint="/v1/chat/completions",status="200"} 1\n'
    assert line in text


def test_chat(host: ServerHost) -> None:
    answer = host.request("POST", CHAT, HELLO)
    record = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    assert record["object"] == "chat.completion"
    (choice,) = record["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "hello big world",
        "refusal": None,
    }
    assert choice["finish_reason"] == "stop"
    assert record["usage"]["total_tokens"] == 6


def test_the_answer_bears_the_name_that_was_asked_for(host: ServerHost) -> None:
    for stream in (False, True):
        body = host.request("POST", CHAT, {**HELLO, "model": "alias", "stream": stream}).body
        assert b'"model":"alias"' in body
        assert b'"model":"fake"' not in body
    assert host.engine.requests[0]["model"] == "fake"


def test_stream(host: ServerHost) -> None:
    answer = host.request("POST", CHAT, {**HELLO, "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    *chunks, done = events(answer.body)
    assert done == "[DONE]"
    records = [json.loads(chunk) for chunk in chunks]
    assert [record["choices"][0]["delta"].get("content") for record in records] == [
        "hello",
        " big",
        " world",
        None,
    ]
    assert records[0]["choices"][0]["delta"]["role"] == "assistant"
    assert records[-1]["choices"][0]["finish_reason"] == "stop"
    assert all("usage" not in record for record in records)


def test_usage_comes_in_a_chunk_of_its_own(host: ServerHost) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last, done = events(host.request("POST", CHAT, {**HELLO, **options}).body)
    assert json.loads(last)["choices"] == []
    assert json.loads(last)["usage"]["completion_tokens"] == 3
    assert done == "[DONE]"


def test_completions(host: ServerHost) -> None:
    body = {"model": "fake", "prompt": "a b c", "max_tokens": 2}
    record = host.request("POST", TEXT, body).json()
    assert record["object"] == "text_completion"
    assert record["choices"][0]["text"] == "a b"
    assert record["choices"][0]["finish_reason"] == "length"
    chunks = events(host.request("POST", TEXT, {**body, "stream": True}).body)
    assert json.loads(chunks[1])["choices"][0]["text"] == " b"


def test_every_request_is_logged(host: ServerHost) -> None:
    host.request("POST", CHAT, {**HELLO, "stream": True})
    host.request("POST", CHAT, {**HELLO, "model": "none"})
    host.request("GET", "/a%0Ab?secret=1")
    wait_until(lambda: len(host.records) == 3)
    streamed, refused, lost = host.records
    assert (streamed.prompt_tokens, streamed.completion_tokens) == (3, 3)
    line = text_line(streamed)
    assert " POST /v1/chat/completions 200  3 + 3 tokens  " in line
    assert line.endswith(" ms")
    assert text_line(refused).endswith(" ms  model_not_found")
    assert " GET /a%0Ab 404 " in text_line(lost)
    assert "secret" not in text_line(lost) + json_line(lost)
    record = json.loads(json_line(streamed))
    assert record["event"] == "request"
    assert (record["status"], record["stream"], record["completion_tokens"]) == (200, True, 3)
    assert {item.endpoint for item in host.records} == {CHAT, "other"}


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"messages": []}, "messages", "is empty"),
        ({"messages": None}, "messages", ""),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "'system'"),
        ({"temprature": 1}, "temprature", "did you mean temperature?"),
        ({"n": 33}, "n", "at most 32"),
        ({"n": True}, "n", "integer"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"stream": True, "stream_options": 5}, "stream_options", ""),
        ({"model": None}, "model", "model is missing; there is fake"),
        ({"model": 5}, "model", "not a string"),
    ],
)
def test_bad_fields(host: ServerHost, change: dict[str, Any], param: str, words: str) -> None:
    answer = host.request("POST", CHAT, {**HELLO, **change})
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] == param
    assert words in answer.error["message"]
    assert host.engine.started == 0


def test_an_unknown_model(host: ServerHost) -> None:
    for answer in (
        host.request("POST", CHAT, {**HELLO, "model": "gpt-4"}),
        host.request("GET", "/v1/models/gpt-4"),
    ):
        assert answer.status == 404
        assert answer.error["code"] == "model_not_found"
        assert answer.error["message"] == "there is no model 'gpt-4'; there is fake, alias"


def test_what_is_not_there(host: ServerHost) -> None:
    lost = host.request("GET", "/v1/chat")
    assert (lost.status, lost.error["code"]) == (404, "unknown_url")
    assert host.request("POST", CHAT + "/", HELLO).status == 404
    wrong = host.request("GET", CHAT)
    assert (wrong.status, wrong.error["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"
    assert host.request("DELETE", "/v1/models").status == 405


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"  ", "empty"),
        (b"{", "line 1 column 1"),
        (b'{"model": fake}', "not valid JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b'{"model": "\xff"}', "not UTF-8: byte 11"),
        (b'{"model": "\\ud800"}', "not valid JSON"),
        (b'{"n": NaN}', "not valid JSON"),
        (b'{"a": ' + b"[" * 150 + b"]" * 150 + b"}", "deeper than 128"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"n": ' + b"9" * 5000 + b"}", ""),
        (b'{"temperature": 1e999, "model": "fake", "messages": []}', ""),
    ],
)
def test_bad_json(host: ServerHost, body: bytes, words: str) -> None:
    answer = host.request("POST", CHAT, body)
    assert answer.status == 400
    assert words in answer.error["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": ""},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Encoding": "gzip"},
    ],
)
def test_other_content(host: ServerHost, headers: dict[str, str]) -> None:
    answer = host.request("POST", CHAT, HELLO, headers)
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
    charset = {"Content-Type": "application/json; charset=UTF-8"}
    assert host.request("POST", CHAT, HELLO, charset).status == 200


def test_the_engines_errors(host: ServerHost) -> None:
    for failure, status, code, param in (
        (PromptTooLongError("the prompt is long"), 400, "context_length_exceeded", "messages"),
        (GrammarError("bad", why="line 3"), 400, "invalid_grammar", "response_format"),
        (UsageError("out of range"), 400, "invalid_value", None),
        (BusyError("full"), 429, "server_busy", None),
        (DeadlineError("late"), 504, "request_timeout", None),
        (InternalError("secret path"), 500, None, None),
        (RuntimeError("secret path"), 500, None, None),
    ):
        for stream in (False, True):
            host.engine.failure = failure
            answer = host.request("POST", CHAT, {**HELLO, "stream": stream})
            assert answer.status == status
            assert (answer.error["code"], answer.error["param"]) == (code, param)
            assert "secret" not in answer.body.decode()
            assert ("retry-after" in answer.headers) == (status == 429)
            if status == 429:
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.error["type"] == "rate_limit_error"
    wait_until(lambda: len(host.records) == 14)
    assert "RuntimeError: secret path" in text_line(host.records[-1])
    assert "Traceback" in text_line(host.records[-1])


def test_an_error_in_mid_stream_is_an_event(host: ServerHost) -> None:
    host.engine.late_failure = InternalError("broken")
    *_, error, done = events(host.request("POST", CHAT, {**HELLO, "stream": True}).body)
    assert json.loads(error)["error"]["type"] == "server_error"
    assert done == "[DONE]"
    assert host.request("GET", "/health").status == 200
    assert host.engine.held == 0


# -- limits -----------------------------------------------------------------------------------


def test_large_bodies(engine: FakeEngine) -> None:
    with ServerHost(engine, max_body_bytes=1000) as host:
        for size in (2000, 100_000):
            body = json.dumps({**HELLO, "user": "x" * size}).encode()
            answer = host.request("POST", CHAT, body)
            assert (answer.status, answer.error["code"]) == (413, "request_too_large")
            assert answer.headers["connection"] == "close"
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json"
            chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
            raw = f"{head}\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunked
            assert Reply(host.exchange(raw)).status == 413
        asks_first = {"Expect": "100-continue", "Content-Length": "5000"}
        assert host.request("POST", CHAT, b"", asks_first).status == 413
        assert host.request("POST", CHAT, HELLO).status == 200


def test_slow_bodies_and_headers(engine: FakeEngine) -> None:
    with ServerHost(engine, body_seconds=0.1) as host:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json"
        answer = Reply(host.exchange(f"{head}\r\nContent-Length: 50\r\n\r\n{{".encode()))
        assert (answer.status, answer.error["code"]) == (408, "body_timeout")
        assert host.exchange(b"GET /health HTT") == b""
        later = host.exchange(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET /health HTT")
        assert later.count(b"HTTP/1.1") == later.count(b"200 OK") == 1


def test_what_is_not_http(host: ServerHost) -> None:
    answer = Reply(host.exchange(b"hello\r\n\r\n"))
    assert (answer.status, answer.error["code"]) == (400, "invalid_http")
    long = Reply(host.exchange(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20_000))
    assert long.status == 400


def test_a_broken_body_of_a_request_that_is_refused(engine: FakeEngine) -> None:
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json"
    raw = f"{head}\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".encode()
    for keys in ((), ("key",)):
        with ServerHost(engine, api_keys=keys) as host:
            answer = Reply(host.exchange(raw))
            assert (answer.status, answer.error["code"]) == (400, "invalid_http")
            wait_until(lambda host=host: len(host.records) == 1)  # type: ignore[misc]
            assert host.records[0].details is None


def test_many_texts_and_tokens(engine: FakeEngine) -> None:
    with ServerHost(engine, max_n=2, max_tokens=2, request_seconds=50) as host:
        answer = host.request("POST", TEXT, {"model": "fake", "prompt": ["a", "b", "c"]})
        assert (answer.status, answer.error["param"]) == (400, "prompt")
        assert host.request("POST", TEXT, {"model": "fake", "prompt": [1, 2, 3]}).status == 200
        for name in ("max_tokens", "max_completion_tokens"):
            answer = host.request("POST", CHAT, {**HELLO, name: 3})
            assert (answer.status, answer.error["param"]) == (400, name)
        cut = host.request("POST", CHAT, HELLO).json()["choices"][0]
        assert (cut["message"]["content"], cut["finish_reason"]) == ("hello big", "length")
        host.request("POST", TEXT, {"model": "fake", "prompt": "a"})
        assert engine.requests[-1]["max_tokens"] == 2
        host.request("POST", CHAT, {**HELLO, "timeout": 7})
        host.request("POST", CHAT, {**HELLO, "timeout": 70})
        assert [item["timeout"] for item in engine.requests[-3:]] == [50, 7, 50]


def test_a_request_that_takes_too_long(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlcbuild.server.answers._DEADLINE_SLACK_SECONDS", 0.0)
    engine.pause = 0.2
    with ServerHost(engine, request_seconds=0.3) as host:
        answer = host.request("POST", CHAT, HELLO)
        assert (answer.status, answer.error["code"]) == (504, "request_timeout")
        *_, error, _ = events(host.request("POST", CHAT, {**HELLO, "stream": True}).body)
        assert json.loads(error)["error"]["code"] == "request_timeout"
        assert (engine.cancelled, engine.held) == (2, 0)


# -- who may ask ------------------------------------------------------------------------------


def test_api_keys(engine: FakeEngine) -> None:
    with ServerHost(engine, api_keys=("one", "two"), allowed_hosts=("localhost",)) as host:
        for value in ("", "Bearer", "Bearer three", "Basic one", "Bearer one two", "Bearer \xff"):
            answer = host.request("GET", "/v1/models", None, {"Authorization": value})
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            assert answer.error["type"] == "authentication_error"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert host.request("POST", CHAT, HELLO).status == 401
        assert host.request("GET", "/metrics").status == 401
        assert host.request("GET", "/health").status == 200
        for key in ("one", "two"):
            allowed = {"Authorization": f"Bearer {key}", "Host": "any.name"}
            assert host.request("POST", CHAT, HELLO, allowed).status == 200


def test_foreign_host_names(engine: FakeEngine) -> None:
    with ServerHost(engine, allowed_hosts=("localhost", "127.0.0.1", "::1")) as host:
        for name in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8000"):
            assert host.request("GET", "/v1/models", None, {"Host": name}).status == 200
        for name in ("evil.example", "localhost.evil.example:80", "", "[::1", "127.0.0.1@evil"):
            answer = host.request("GET", "/v1/models", None, {"Host": name})
            assert answer.status == 403


def test_cors(engine: FakeEngine) -> None:
    preflight = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    with ServerHost(engine) as host:
        answer = host.request("OPTIONS", CHAT, None, preflight)
        assert answer.status == 405
        assert not any(name.startswith("access-control") for name in answer.headers)
    options: dict[str, Any] = {"cors_origins": ("https://app.example",), "api_keys": ("key",)}
    with ServerHost(engine, **options) as host:
        answer = host.request("OPTIONS", CHAT, None, preflight)
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "authorization" in answer.headers["access-control-allow-headers"]
        other = host.request("OPTIONS", CHAT, None, {**preflight, "Origin": "https://evil"})
        assert other.status == 400
        refused = host.request("GET", "/v1/models", None, {"Origin": "https://app.example"})
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"


# -- life and death ---------------------------------------------------------------------------


def test_before_and_after_the_engine(host: ServerHost) -> None:
    for status in (Status.LOADING, Status.CLOSING):
        host.service.status = status
        health = host.request("GET", "/health")
        assert (health.status, health.json()) == (503, {"status": status.value})
        for answer in (
            host.request("POST", CHAT, HELLO),
            host.request("GET", "/v1/models"),
            host.request("GET", "/metrics"),
        ):
            assert (answer.status, answer.error["code"]) == (503, f"server_{status.value}")
            assert answer.headers["retry-after"] == "1"
    host.service.status = Status.READY


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_request(
    host: ServerHost, engine: FakeEngine, stream: bool
) -> None:
    engine.pause = 0.02
    for path in (CHAT, TEXT):
        text = "word " * 500
        connection = open_request(host, path, text, stream)
        wait_until(lambda: engine.held == 1)
        while stream and b"data: " not in connection.recv(65536):
            pass
        left = time.monotonic()
        connection.close()
        wait_until(lambda: engine.held == 0)
        assert time.monotonic() - left < 0.5
    assert (engine.cancelled, engine.finished) == (2, 0)
    wait_until(lambda: len(host.records) == 2)
    assert [record.error for record in host.records] == ["client left"] * 2
    assert host.records[0].status == (200 if stream else 499)


def open_request(
    host: ServerHost, path: str, text: str, stream: bool, receive_buffer: int = 0
) -> socket.socket:
    """A request whose connection stays open."""
    messages = [{"role": "user", "content": text}]
    body: dict[str, Any] = {"model": "fake", "messages": messages, "stream": stream}
    if path == TEXT:
        body = {"model": "fake", "prompt": text, "stream": stream, "max_tokens": 1000}
    data = json.dumps(body).encode()
    connection = socket.socket()
    connection.settimeout(5)
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect(("127.0.0.1", host.port))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def test_a_client_that_does_not_read_loses_its_request(engine: FakeEngine) -> None:
    limits = {"stall_seconds": 0.2, "comment_seconds": 0.05}
    with ServerHost(engine, send_buffer=4096, **limits) as host:
        connection = open_request(host, CHAT, ("x" * 1000 + " ") * 3000, True, 4096)
        wait_until(lambda: engine.cancelled == 1)
        connection.close()


def test_comments_while_nothing_comes(engine: FakeEngine) -> None:
    engine.pause = 0.3
    with ServerHost(engine, comment_seconds=0.1) as host:
        body = host.request("POST", CHAT, {**HELLO, "stream": True}).body
        assert body.count(b": keep-alive\n\n") >= 4
        assert events(body.replace(b": keep-alive\n\n", b""))[-1] == "[DONE]"


def test_pipelined_requests(host: ServerHost) -> None:
    data = json.dumps(HELLO).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    one = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
    last = b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    raw = host.exchange(one * 3 + last)
    assert raw.count(b"HTTP/1.1 200 OK") == 4
    assert raw.count(b"hello big world") == 3
