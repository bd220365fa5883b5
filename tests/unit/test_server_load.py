"""What tests/bench/load_server.py makes of its measurements."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bench import load_server
from tests.bench.server_process import pages_used, parse_metrics
from tests.unit.fake_engine import FakeEngine
from tests.unit.server_host import ServerHost, wait_until


@pytest.fixture
def host() -> Iterator[ServerHost]:
    with ServerHost(FakeEngine(pause=0.001)) as server:
        yield server


def test_jobs_are_distinct_and_the_same_every_time() -> None:
    jobs = load_server.make_jobs(64, 64, 0)
    assert jobs == load_server.make_jobs(64, 64, 0)
    assert len({job.prompt for job in jobs}) == len({job.seed for job in jobs}) == 64
    assert all(32 <= job.max_tokens <= 64 for job in jobs)


def test_a_job_gets_its_text_or_is_killed(host: ServerHost) -> None:
    job = load_server.Job(0, "one two three four five six", 1, 4)
    figures = load_server.Figures()
    text = asyncio.run(load_server.run_job(host.port, "fake", job, figures))
    assert text == "one two three four"
    assert figures.tokens == 4
    assert (len(figures.first_token), len(figures.between)) == (1, 3)
    killed = asyncio.run(load_server.run_job(host.port, "fake", job, figures, 2))
    assert text.startswith(killed)
    assert figures.killed == 1
    wait_until(lambda: host.engine.held == 0)
    assert host.engine.cancelled == 1


def test_failures_are_seen(host: ServerHost) -> None:
    job = load_server.Job(0, "one two", 1, 4)
    with pytest.raises(load_server.Failure, match="404"):
        asyncio.run(load_server.run_job(host.port, "gpt", job, load_server.Figures()))
    host.engine.late_failure = RuntimeError("broken")
    with pytest.raises(load_server.Failure, match="internal error"):
        asyncio.run(load_server.run_job(host.port, "fake", job, load_server.Figures()))


def test_memory_growth() -> None:
    megabyte = 1 << 20
    growing = [(float(at), (200 + at) * megabyte) for at in range(100)]
    assert load_server.memory_growth(growing, 10)["flat"] is False
    warming = [(float(at), (200 + min(at, 9)) * megabyte) for at in range(100)]
    result = load_server.memory_growth(warming, 10)
    assert result["flat"] is True
    assert result["end"] == 209 * megabyte


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"error_count": 1}, "1 errors"),
        ({"foreign_count": 2}, "2 foreign texts"),
        ({"memory": {"flat": False}}, "memory grew"),
        ({"kill_steps": [1, 2, 9]}, None),
        ({"kill_steps": [1, 3, 3]}, "came back after"),
        ({"end_pages": 1}, "still held"),
        ({"exit_code": 1}, "ended with 1"),
    ],
)
def test_checks(change: dict[str, Any], words: str | None) -> None:
    good = {
        "error_count": 0,
        "foreign_count": 0,
        "memory": {"flat": True},
        "kill_steps": [1, 2],
        "end_pages": 0,
        "exit_code": 0,
        "healthy": True,
    }
    failed = load_server.failed_checks({**good, **change})
    assert failed == [] if words is None else words in failed[0]


def test_metrics_are_read() -> None:
    text = '# HELP a b\n# TYPE a gauge\na 5\nmlcb_kv_pages{state="used"} 7\nb_sum 1.5e-05\n'
    metrics = parse_metrics(text)
    assert metrics["a"] == 5
    assert metrics["b_sum"] == 1.5e-05
    assert pages_used(metrics) == 7
