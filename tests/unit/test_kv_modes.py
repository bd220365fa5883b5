"""Tiny models end to end in every form of the KV cache: int8, sliding windows, both."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from mlcbuild.arch.registry import get_architecture
from mlcbuild.bundle.manifest import LimitsInfo
from mlcbuild.bundle.memory_plan import kv_of, plan_memory
from mlcbuild.errors import StageError
from mlcbuild.passes.lower_model import lower_model, plan_bounds
from mlcbuild.spec.kv import KvPageShape, Window
from mlcbuild.spec.limits import Limits
from mlcbuild.weights.mapping import read_param
from tests.contract.memory_checkpoint import MemoryCheckpoint
from tests.parity import tiny_llama
from tests.unit.kernel_runner import Array
from tests.unit.plan_runner import (
    ModelRunner,
    lowering_input,
    packed_float,
)

LIMITS = Limits(context_window_size=128, prefill_chunk_size=64, max_batch_size=4)
REFERENCE = Path(__file__).parents[1] / "data" / "reference" / "tiny_llama.npz"
MODES: dict[str, tuple[str, Window]] = {
    "float32": ("float32", Window()),
    "float16": ("float16", Window()),
    "int8": ("int8", Window()),
    "window": ("float32", Window(11)),
    "window and sinks": ("float32", Window(20, 5)),
    "int8 window": ("int8", Window(11, 20)),
}


@cache
def tiny_model(mode: str) -> ModelRunner:
    """The tiny Llama in a mode, compiled once."""
    kv_dtype, window = MODES[mode]
    architecture = get_architecture("llama")
    config = architecture.config.read_config(tiny_llama.VARIANTS["tied"])
    lowered = lower_model(
        lowering_input(
            architecture.model.Model(config),
            replace(architecture.model.attention_spec(config), window=window),
            limits=replace(LIMITS, kv_dtype=kv_dtype),
            vocab_size=config.vocab_size,
        )
    )
    checkpoint = MemoryCheckpoint(tiny_llama.weights("tied"))
    rules = architecture.weights.param_rules(config)
    values = {rule.name: read_param(rule, checkpoint) for rule in rules}
    return ModelRunner(lowered, packed_float(values, lowered.plan))


def runner(mode: str, pages: int | None = None) -> ModelRunner:
    """The model with an empty cache."""
    return tiny_model(mode).reset(pages)


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return [int(token) for token in tiny_llama.token_ids()]


def reference(variant: str) -> Array:
    with np.load(REFERENCE) as arrays:
        found: Array = arrays[f"logits_{variant}"]
    return found


def tokens(count: int, seed: int = 3) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 512, count)]


def divergence(expected: Array, found: Array) -> float:
    """The mean KLD in nats."""

    def log_softmax(logits: Array) -> Array:
        wide = logits.astype(np.float64)
        wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
        return wide

    p, q = log_softmax(expected), log_softmax(found)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("chunk", [1, 7, 48])
def test_a_window_is_that_of_transformers(chunk: int, ids: list[int]) -> None:
    """The same weights with window 11 are the variant "mistral" of the references."""
    assert tiny_llama.VARIANTS["mistral"]["sliding_window"] == MODES["window"][1].size
    expected = reference("mistral")
    assert np.abs(runner("window").prefill("a", ids, chunk) - expected).max() < 1e-4
    assert np.abs(runner("float32").prefill("a", ids, chunk) - expected).max() > 0.1
    assert np.abs(runner("float32").prefill("a", ids, chunk) - reference("tied")).max() < 1e-4


def test_int8_pages_are_close_to_float_ones(ids: list[int]) -> None:
    exact = runner("float32").prefill("a", ids, 16)
    coded = runner("int8").prefill("a", ids, 16)
    assert 1e-9 < divergence(exact, coded) < 1e-4
    assert (exact.argmax(-1) == coded.argmax(-1)).mean() > 0.95


@pytest.mark.parametrize("mode", MODES)
def test_a_row_depends_on_its_own_sequence_alone(mode: str) -> None:
    """Neither chunks, nor neighbours, nor which pages are used, nor dropped pages change a bit."""
    prompts = {
        name: tokens(count, seed)
        for seed, (name, count) in enumerate({"a": 61, "b": 17, "c": 33}.items())
    }
    alone = {name: runner(mode).prefill(name, prompt, 64) for name, prompt in prompts.items()}
    together = runner(mode)
    found: dict[str, list[Array]] = {name: [] for name in prompts}
    done = dict.fromkeys(prompts, 0)
    rng = np.random.default_rng(1)
    while any(done[name] < len(prompts[name]) for name in prompts):
        counts = {name: int(rng.integers(0, 9)) for name in prompts}
        work = {
            name: prompts[name][done[name] : done[name] + count]
            for name, count in counts.items()
            if count and done[name] < len(prompts[name])
        }
        if not work:
            continue
        for name, logits in together.step(work).items():
            found[name].append(logits)
            done[name] += len(logits)
    for name, logits in alone.items():
        assert np.concatenate(found[name]).tobytes() == logits.tobytes(), name


@pytest.mark.parametrize("mode", ["window", "window and sinks", "int8 window"])
def test_dropped_pages_change_no_text_and_bound_the_memory(mode: str) -> None:
    window = MODES[mode][1]
    prompt = tokens(128)
    kept = runner(mode).prefill("a", prompt, 5, drop=False)
    most = window.pages(16, 128, batch=1, rows=5)
    assert most < 128 // 16
    short = runner(mode, pages=most)
    assert short.prefill("a", prompt, 5).tobytes() == kept.tobytes()
    assert short.sequences["a"].dropped > 0


def test_a_plan_tells_its_cache() -> None:
    plain, coded, both = (tiny_model(m).plan for m in ("float16", "int8", "int8 window"))
    assert plain["kv"]["layout"] == "kt"
    assert plain["kv"]["page_bytes"] == 2 * 2 * 16 * 16 * 2
    assert (plain["kv"]["window"], plain["kv"]["sinks"]) == (0, 0)
    assert coded["kv"]["layout"] == "kt8"
    assert coded["kv"]["dtype"] == "int8"
    assert coded["kv"]["page_bytes"] == 2 * 2 * 16 * (16 + 4)
    assert (both["kv"]["window"], both["kv"]["sinks"]) == (11, 20)
    assert both["bounds"]["kv_pages"] == both["bounds"]["kv_nnz"]
    assert both["bounds"]["kv_pages"] < plain["bounds"]["kv_pages"] == 4 * 8

    def tables(plan: dict[str, Any]) -> set[str]:
        return {t[1] for f in plan["functions"] for t in f["tensors"] if t[0] == "meta"}

    assert tables(both) - tables(plain) == {"page_skip"}
    assert tables(plain) == tables(coded)
    kv = {(t[1], t[3]) for f in coded["functions"] for t in f["tensors"] if t[0] == "kv"}
    assert kv == {(layer, dtype) for layer in (0, 1) for dtype in ("int8", "float32")}


@pytest.mark.parametrize(("heads", "head_dim"), [(3, 64), (1, 20), (8, 128)])
def test_int8_pages_take_about_half(heads: int, head_dim: int) -> None:
    coded, plain = (KvPageShape(heads, head_dim, 16, dtype) for dtype in ("int8", "float16"))
    assert coded.page_bytes % 64 == 0
    assert coded.page_bytes == (plain.page_bytes * (head_dim + 4)) // (2 * head_dim)


def brute_force_pages(window: Window, page: int, context: int, rows: list[int]) -> int:
    """The most pages that sequences hold in one step of so many rows each, over all positions."""
    total = 0
    for count in rows:
        most = 0
        for start in range(context - count + 1):
            seen = range(max(start - window.size + 1, 0) // page, (start + count - 1) // page + 1)
            sinks = range(min(window.sink_pages(page), (start + count - 1) // page + 1))
            most = max(most, len(set(seen) | set(sinks)))
        total += most
    return total


@pytest.mark.parametrize("window", [Window(1), Window(11), Window(16, 1), Window(17, 33)])
def test_the_bound_of_pages_is_enough_and_not_much_more(window: Window) -> None:
    for rows in ([1, 1, 1], [5, 1, 1], [18, 3, 3], [22, 1, 1], [8, 8, 8]):
        bound = window.pages(16, 160, batch=3, rows=sum(rows))
        needed = brute_force_pages(window, 16, 160, rows)
        assert needed <= bound <= needed + 3 * 3, rows


KV = {"layers": 3, "kv_heads": 2, "head_dim": 16, "page_size": 16}


def planned(kv: dict[str, Any], kv_dtype: str = "int8") -> Any:
    """The memory plan of a bundle with this KV cache and no weights."""
    limits = LimitsInfo(
        context_window_size=1000,
        prefill_chunk_size=64,
        max_batch_size=2,
        page_size=16,
        kv_dtype=kv_dtype,
    )
    plan = {"kv": kv, "functions": [{"arena_bytes": 100}]}
    return plan_memory({"shards": []}, [plan], limits)


def test_the_memory_plan_counts_scales_and_the_window() -> None:
    page = 3 * 2 * 2 * 16 * (16 + 4)
    whole = planned({**KV, "dtype": "int8", "window": 0, "sinks": 0})
    assert whole.kv_bytes == 2 * 63 * page
    assert whole.kv_bytes_per_token == page // 16
    windowed = planned({**KV, "dtype": "int8", "window": 100, "sinks": 4})
    assert windowed.kv_bytes == Window(100, 4).pages(16, 1000, 2, 64) * page
    assert windowed.kv_bytes < whole.kv_bytes / 4
    assert windowed.total_bytes == windowed.kv_bytes + 100


def test_plans_and_limits_must_agree_about_the_cache() -> None:
    with pytest.raises(StageError, match="dtype int8, the limits say float16"):
        planned({**KV, "dtype": "int8"}, "float16")
    plans = [{"kv": {**KV, "dtype": "int8", "window": size}} for size in (0, 8)]
    with pytest.raises(StageError, match="disagree about the KV cache"):
        kv_of(plans)


def test_a_window_beyond_the_context_saves_nothing() -> None:
    assert Window(500).pages(16, 100, batch=3, rows=64) == 3 * 7
    assert Window().pages(16, 100, batch=3, rows=64) == 3 * 7


@pytest.mark.parametrize(
    ("limits", "rows"),
    [
        ((4096, 512, 1), 64),
        ((4096, 512, 8), 64),  # 7 guessed tokens for each of 8 sequences
        ((4096, 512, 12), 96),
        ((4096, 512, 64), 128),
        ((4096, 512, 200), 200),
        ((4096, 16, 8), 16),  # no more than a step has rows
        ((4096, 1, 4), 4),
    ],
)
def test_rows_of_logits(limits: tuple[int, int, int], rows: int) -> None:
    assert plan_bounds(Limits(*limits), Window())["logit_rows"] == rows
