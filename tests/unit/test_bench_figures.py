"""The arithmetic of the benches, on numbers that can be checked by hand."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from tests.bench.bench_quality import Figures, divergence, log_softmax, measure
from tests.bench.bench_speed import compare


def test_log_softmax_of_large_logits() -> None:
    rows = log_softmax(np.array([[1000.0, 1000.0], [0.0, math.log(3)]], np.float32))
    assert np.allclose(np.exp(rows), [[0.5, 0.5], [0.25, 0.75]])


def test_divergence_of_two_coins() -> None:
    fair, bent = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert divergence(fair, bent) == pytest.approx([expected])
    assert divergence(fair, fair) == pytest.approx([0.0])


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary() -> None:
    figures = Figures()
    uniform = np.full((3, 8), -math.log(8))
    figures.add(uniform, uniform, np.array([1, 5]))
    assert figures.summary()["ppl"] == pytest.approx(8)
    assert figures.summary()["top1"] == 1


def test_chunks_are_fresh_sequences() -> None:
    seen: list[tuple[int, int]] = []

    def model(begin: int, part: object) -> npt.NDArray[np.float32]:
        assert isinstance(part, list)
        seen.append((begin, len(part)))
        return np.eye(10, dtype=np.float32)[part]

    figures = measure({"a": model, "b": model}, list(range(10)), 4)
    assert seen == [(0, 4), (0, 4), (4, 4), (4, 4), (8, 2), (8, 2)]
    assert figures["b"]["mean_kld"] == 0
    # Every row prefers its own token, so the next one is one of nine equal others.
    assert figures["a"]["ppl"] == pytest.approx(math.e + 9)


def test_ratios_are_of_medians() -> None:
    def record(rate: float) -> dict[str, object]:
        return {"results": [{"kind": "prefill", "tokens": 128, "tok_s": rate}]}

    rounds = {
        "mlcbuild": [record(rate) for rate in (10, 30, 20)],
        "llama.cpp": [record(rate) for rate in (40, 1, 50)],
    }
    (row,) = compare(rounds)
    assert row["ratio"] == pytest.approx(0.5)


def test_different_measurements_are_not_compared() -> None:
    ours = {"results": [{"kind": "prefill", "tokens": 128, "tok_s": 1.0}]}
    peer = {"results": [{"kind": "prefill", "tokens": 512, "tok_s": 1.0}]}
    with pytest.raises(SystemExit, match="different"):
        compare({"mlcbuild": [ours], "llama.cpp": [peer]})
