"""A few seconds of tests/bench/fuzz_http.py against the server over a fake engine."""

from __future__ import annotations

import json

import pytest

from tests.bench import fuzz_http
from tests.unit.fake_engine import FakeEngine
from tests.unit.server_host import ServerHost, wait_until

SECONDS = 5.0


def test_nothing_breaks_it() -> None:
    engine = FakeEngine()
    with ServerHost(engine, max_tokens=8, max_n=4, max_body_bytes=4_000_000) as host:
        report = fuzz_http.fuzz("127.0.0.1", host.port, "fake", SECONDS, seed=1)
        wait_until(lambda: engine.held == 0 and host.service.in_flight == 0)
        assert host.request("GET", "/health").status == 200
        assert host.request("GET", "/v1/models").status == 200
    faults = [(kind, outcome, sent[:2000]) for kind, outcome, sent, _ in report.faults]
    assert not faults, faults
    assert not [record for record in host.records if record.details], "a bug of ours"
    result = report.to_json()
    assert result["exchanges"] > 100
    # Something of everything was sent, and valid requests got through.
    assert len(result["kinds"]) > 10
    assert result["kinds"]["valid"]["200"] > 0
    assert result["kinds"]["fields"]["400"] > 0


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n{}", None),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n{}", "status 500"),
        (b"HTTP/1.1 200 OK\r\n\r\n{", "body is no JSON"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n{}", "error without its fields"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n",
            "stream without end",
        ),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n"
            + json.dumps({"error": dict.fromkeys(("message", "type", "param", "code"))}).encode(),
            None,
        ),
    ],
)
def test_what_counts_as_a_fault(raw: bytes, fault: str | None) -> None:
    assert fuzz_http.judge(raw, whole=True) == fault


def test_answers_are_counted() -> None:
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n{}HTTP/1.1 404 Not Found\r\n\r\n"
    assert fuzz_http.statuses(raw) == [200, 404]
