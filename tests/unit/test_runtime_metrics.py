"""The runtime's metrics, as JSON and for Prometheus, and the profile of its kernels."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.cpp_driver import build_cpp
from tests.unit.text_driver import Driver

STOP, LENGTH, CANCEL, DEADLINE = 1, 2, 3, 4
TOO_LONG, BUSY, KERNEL = 3, 6, 60


@pytest.fixture(scope="module")
def driver(pytestconfig: pytest.Config) -> Iterator[Driver]:
    with Driver(build_cpp(pytestconfig, "metrics_driver")) as driver:
        yield driver


@pytest.fixture
def used(driver: Driver) -> Driver:
    """Metrics of an engine that has done one of everything."""
    driver("new", limit=4)
    driver("submitted", texts=1)
    driver("submitted", texts=3)
    driver("rejected", status=BUSY)
    driver("rejected", status=BUSY)
    driver("rejected", status=TOO_LONG)
    driver("started", seconds=0.25, prompt=100, cached=64)
    driver("started", seconds=0.5, prompt=20, cached=0)
    driver("step", seconds=0.2, prefill=100, decode=0, sequences=1)
    driver("step", seconds=0.1, prefill=20, decode=1, sequences=2)
    driver("step", seconds=0.04, prefill=0, decode=5, sequences=3)
    driver("first_token", seconds=0.5, tokens=1)
    driver("first_token", seconds=0.7, tokens=2)
    driver("next_token", seconds=0.03, tokens=1)
    driver("next_token", seconds=0.12, tokens=3)
    driver("speculated", proposed=8, accepted=2)
    driver("grammar_mask", seconds=0.001)
    driver("grammar_mask", seconds=0.0005)
    driver("jumped_ahead", tokens=7)
    driver("evicted", pages=5)
    driver("preempted")
    driver("finished", reason=STOP, seconds=2)
    driver("finished", reason=LENGTH, seconds=3)
    driver("finished", reason=CANCEL, seconds=0.1)
    driver("failed", status=KERNEL, texts=1)
    driver("load", running=2, waiting=1, pages=100, used=30, cached=50)
    driver("wait", seconds=5)
    return driver


def test_json(used: Driver) -> None:
    found = used("json")
    latency = found.pop("latency")
    assert found == {
        "batch": {
            "decode_rows": 6,
            "limit": 4,
            "occupancy": 0.5,
            "preemptions": 1,
            "prefill_rows": 120,
            "rows_per_step": 42,
            "steps": 3,
        },
        "functions": None,
        "grammar": {"jump_ahead_tokens": 7, "mask_seconds": 0.0015},
        "kernels": None,
        "kv": {
            "cached_pages": 50,
            "evictions": 5,
            "free_pages": 20,
            "page_bytes": 4096,
            "total_pages": 100,
            "used_pages": 30,
        },
        "requests": {
            "failed": 1,
            "failed_by_status": {"kernel": 1},
            "finished": 3,
            "finished_by_reason": {"cancel": 1, "deadline": 0, "length": 1, "stop": 1},
            "rejected": 3,
            "rejected_by_status": {"busy": 2, "too_long": 1},
            "running": 2,
            "submitted": 4,
            "waiting": 1,
        },
        "speculation": {"acceptance_rate": 0.25, "accepted": 2, "proposed": 8},
        "tokens": {"cached_prompt": 64, "generated": 7, "per_second": 1.4, "prompt": 120},
        "uptime_seconds": 5,
    }
    assert {key: (value["count"], value["sum"]) for key, value in latency.items()} == {
        "e2e": (3, 5.1),
        "inter_token": (4, 0.15),
        "queue": (2, 0.75),
        "step": (3, 0.34),
        "ttft": (2, 1.2),
    }
    for value in latency.values():
        assert 0 < value["p50"] <= value["p90"] <= value["p99"]


def test_json_is_canonical(used: Driver) -> None:
    def keys_in_order(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        assert keys == sorted(keys)
        assert len(keys) == len(set(keys))
        return dict(pairs)

    assert used._process.stdin is not None
    assert used._process.stdout is not None
    used._process.stdin.write(b'{"op":"json"}\n')
    used._process.stdin.flush()
    line = used._process.stdout.readline()
    assert b" " not in line
    json.loads(line, object_pairs_hook=keys_in_order)


def test_fresh_engine(driver: Driver) -> None:
    driver("new", limit=0)
    found = driver("json")
    assert found["latency"]["ttft"] == {"count": 0, "p50": None, "p90": None, "p99": None, "sum": 0}
    assert found["batch"]["occupancy"] == 0
    assert found["tokens"]["per_second"] == 0
    assert found["speculation"]["acceptance_rate"] == 0
    families = list(text_string_to_metric_families(driver("prometheus")))
    samples = [sample for family in families for sample in family.samples]
    assert {sample.name for sample in samples if sample.value} == {"mlcb_kv_page_bytes"}


def test_prometheus(used: Driver) -> None:
    text = used("prometheus")
    assert text.endswith("\n")
    lines = text.splitlines()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) == text.count("# TYPE ") == text.count("# HELP ")
    for name, family in families.items():
        assert name.startswith("mlcb_")
        assert family.type in ("counter", "gauge", "histogram")
        assert family.documentation
        if family.type == "counter":
            assert f"# TYPE {name}_total counter" in lines
    value = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    for key, expected in {
        ("mlcb_requests_submitted_total",): 4,
        ("mlcb_requests_finished_total", "stop"): 1,
        ("mlcb_requests_finished_total", "deadline"): 0,
        ("mlcb_requests_failed_total", "kernel"): 1,
        ("mlcb_requests_rejected_total", "busy"): 2,
        ("mlcb_requests_running",): 2,
        ("mlcb_requests_waiting",): 1,
        ("mlcb_prompt_tokens_total",): 120,
        ("mlcb_cached_prompt_tokens_total",): 64,
        ("mlcb_generated_tokens_total",): 7,
        ("mlcb_generated_tokens_per_second",): 1.4,
        ("mlcb_step_rows_total", "prefill"): 120,
        ("mlcb_step_rows_total", "decode"): 6,
        ("mlcb_step_sequences_total",): 6,
        ("mlcb_batch_limit",): 4,
        ("mlcb_preemptions_total",): 1,
        ("mlcb_kv_pages", "used"): 30,
        ("mlcb_kv_pages", "cached"): 50,
        ("mlcb_kv_pages", "free"): 20,
        ("mlcb_kv_page_bytes",): 4096,
        ("mlcb_kv_evicted_pages_total",): 5,
        ("mlcb_speculation_proposed_tokens_total",): 8,
        ("mlcb_speculation_accepted_tokens_total",): 2,
        ("mlcb_grammar_mask_seconds_total",): 0.0015,
        ("mlcb_grammar_jump_ahead_tokens_total",): 7,
        ("mlcb_uptime_seconds",): 5,
        ("mlcb_time_to_first_token_seconds_sum",): 1.2,
        ("mlcb_time_to_first_token_seconds_bucket", "0.5"): 1,
        ("mlcb_time_to_first_token_seconds_bucket", "0.25"): 0,
        ("mlcb_time_to_first_token_seconds_bucket", "1"): 2,
        ("mlcb_inter_token_seconds_count",): 4,
        ("mlcb_request_seconds_count",): 3,
        ("mlcb_queue_seconds_count",): 2,
        ("mlcb_step_seconds_count",): 3,
    }.items():
        assert value[key] == expected, key
    for family in families.values():
        if family.type == "histogram":
            check_buckets(family.samples)


def check_buckets(samples: list[Any]) -> None:
    buckets = [
        (float(sample.labels["le"]), sample.value)
        for sample in samples
        if sample.name.endswith("_bucket")
    ]
    bounds = [bound for bound, _ in buckets]
    counts = [count for _, count in buckets]
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == math.inf
    assert bounds[0] == 1e-4
    assert counts == sorted(counts)
    assert counts[-1] == next(s.value for s in samples if s.name.endswith("_count"))


def test_quantiles(driver: Driver) -> None:
    rng = random.Random(3)
    shares = [0.01, 0.5, 0.9, 0.99, 1]
    for spread in (0.01, 1, 3):
        values = sorted(math.exp(rng.gauss(-3, spread)) for _ in range(2000))
        found = driver("histogram", values=values, shares=shares)
        for share, quantile in zip(shares, found, strict=True):
            exact = values[math.ceil(share * len(values)) - 1]
            if 1e-4 < exact < 1000:
                assert quantile == pytest.approx(exact, rel=0.26)
        assert values[0] - 1e-9 <= found[0] <= found[-1] == pytest.approx(values[-1], abs=1e-9)
    assert driver("histogram", values=[0.123], shares=shares) == [0.123] * 5
    assert driver("histogram", values=[5000, 7000], shares=[1]) == [7000]
    assert driver("histogram", values=[0, -1, 1e-7], shares=[0.5, 1]) == [
        pytest.approx(0.5e-7, abs=2e-8),
        1e-7,
    ]
    bounds = [m * 10.0**e for e in range(-4, 3) for m in (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8)]
    for bound in bounds:  # a value at a bound belongs below it
        assert driver("histogram", values=[bound], shares=[0.5]) == [pytest.approx(bound, rel=1e-6)]


def test_tokens_per_second(driver: Driver) -> None:
    driver("new", limit=4)

    def rate() -> float:
        value: float = driver("json")["tokens"]["per_second"]
        return value

    for _ in range(40):  # 20 tokens a second for 20 seconds
        driver("next_token", seconds=0.05, tokens=10)
        driver("wait", seconds=0.5)
    assert rate() == pytest.approx(20, rel=0.06)
    driver("wait", seconds=5)  # half of the ten seconds
    assert rate() == pytest.approx(10, rel=0.12)
    driver("wait", seconds=6)
    assert rate() == 0
    driver("wait", seconds=1e6)
    driver("next_token", seconds=0.05, tokens=30)
    assert rate() == pytest.approx(3, rel=0.06)


def test_odd_numbers(driver: Driver) -> None:
    for value, expected in {
        "0": "0",
        "-0.0": "0",
        "0.1": "0.1",
        "-2.5": "-2.5",
        "3": "3",
        "1e-9": "0.000000001",
        "1e-10": "0",
        "-1e-10": "0",
        "123456.789": "123456.789",
        "0.9999999999": "1",
        "1e300": "9000000000",
        "inf": "9000000000",
        "-inf": "-9000000000",
        "nan": "0",
    }.items():
        assert driver("decimal", value=value) == expected
    driver("new", limit=4)
    driver("finished", reason=99, seconds=-1)  # counted nowhere it does not belong
    driver("next_token", seconds=1, tokens=0)
    driver("evicted", pages=-3)
    found = driver("json")
    assert found["requests"]["finished"] == 0
    assert found["latency"]["e2e"]["sum"] == 0
    assert found["latency"]["inter_token"]["count"] == 0
    assert found["kv"]["evictions"] == 0


def test_many_threads(driver: Driver) -> None:
    driver("new", limit=4)
    driver("threads")
    found = driver("json")
    assert found["requests"]["submitted"] == 20_000
    assert found["requests"]["failed_by_status"] == {"kernel": 20_000}
    assert found["tokens"]["generated"] == 20_000
    assert found["batch"]["decode_rows"] == 40_000
    assert found["latency"]["step"]["sum"] == pytest.approx(200)


def test_profile(driver: Driver) -> None:
    """How functions are timed is for exec_test.cc; this is what becomes of the times."""
    runs = [
        [["matmul", 0.25], ["norm", 0.5], ["matmul", 0.5]],
        [["matmul", 0.125], ["norm", 0.25], ["add", 0.75]],
    ]
    metrics, kernels, functions = driver("profile", runs=runs)
    assert metrics["kernels"] == [  # what took longest first; equal times by name
        {"calls": 3, "name": "matmul", "seconds": 0.875},
        {"calls": 1, "name": "add", "seconds": 0.75},
        {"calls": 2, "name": "norm", "seconds": 0.75},
    ]
    assert metrics["functions"] == [
        {"last_seconds": 1.125, "name": "batch_prefill", "runs": 2, "seconds": 2.375}
    ]
    assert (kernels, functions) == ([], [])  # after a reset
