"""What a browser's client does with logits, on a software GPU, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from mlcbuild.kernels.webgpu import logits
from mlcbuild.kernels.webgpu.sample import STEP
from mlcbuild.passes.sampling_functions import add_sampling
from tests.unit.kernel_runner import Array
from tests.unit.wgsl_runner import run_function, run_kernel

SIZES = (7, 5000, 262_147)  # less than a tile of anything, several tiles, Gemma's and more


@pytest.fixture(scope="module", params=SIZES)
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def module(size: int) -> Any:
    return add_sampling(tvm.IRModule(), size)


def floats(values: Any) -> Array:
    return np.array(values, np.float32)


def ints(values: Any) -> Array:
    return np.array(values, np.int32)


def random_logits(size: int, seed: int = 0) -> Array:
    values: Array = np.random.default_rng(seed).standard_normal(size, np.float32) * np.float32(4)
    return values


def softmax(x: Array, temperature: float) -> Array:
    exact = np.exp((x.astype(np.float64) - x.max()) / temperature)
    probs: Array = exact / exact.sum()
    return probs


@pytest.mark.parametrize("temperature", [0.7, 1e-6])
def test_softmax(module: Any, size: int, temperature: float) -> None:
    x = random_logits(size)
    args = [x[None, None], np.array([temperature], np.float32)]
    found = run_function(module, "softmax_with_temperature", args)
    expected = softmax(x, float(args[1][0]))
    np.testing.assert_allclose(found[0, 0], expected, rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize("kind", ["random", "equal", "signs"])
def test_sorting_is_stable_and_complete(module: Any, size: int, kind: str) -> None:
    values = {
        "random": softmax(random_logits(size), 1.0).astype(np.float32),
        "equal": np.repeat(floats([0.5, 0.25]), [size // 2, size - size // 2]),
        "signs": random_logits(size).round(1),  # many ties, both zeros
    }[kind]
    ordered, order = run_function(module, "argsort_probs", [values[None]])
    # -0.0 sorts behind 0.0 here, where numpy has them equal.
    key = np.where(np.signbit(values) & (values == 0), np.float32(-1e-30), values)
    expected = np.argsort(-key, kind="stable")
    np.testing.assert_array_equal(order[0], expected)
    np.testing.assert_array_equal(ordered[0], values[expected])


def draw(ordered: Array, uniform: float, top_p: float) -> int:
    """The place that ``sample_with_top_p`` takes, by the same float32 sums."""

    def sums(x: Array) -> Array:
        padded = np.zeros(-(-len(x) // STEP) * STEP, np.float32)
        padded[: len(x)] = x
        total = np.zeros(len(padded) // STEP, np.float32)
        for column in padded.reshape(-1, STEP).T:
            total = total + column
        return total

    middle = sums(ordered)
    coarse = sums(middle)

    def before(x: Array) -> Array:
        """The sum in front of each element, afresh in each step of 64."""
        result = np.zeros(len(x), np.float32)
        for start in range(0, len(x), STEP):
            running = np.float32(0)
            for at in range(start, min(start + STEP, len(x))):
                result[at] = running
                running += x[at]
        return result

    first = np.zeros(len(coarse), np.float32)
    for at in range(1, len(coarse)):
        first[at] = first[at - 1] + coarse[at - 1]
    places = np.arange(len(ordered))
    inner = before(ordered) + ordered
    running = first[places // STEP // STEP] + (before(middle)[places // STEP] + inner)
    total = np.float32(0)
    for value in coarse:
        total += value
    last = int(np.argmax(running >= np.float32(min(top_p, 1)) * total))
    target = np.float32(uniform) * running[last]
    return min(int(np.argmax(running > target)), last)


@pytest.mark.parametrize("top_p", [1e-5, 0.5, 0.9, 1.0])
def test_draws_are_those_of_the_sums(module: Any, size: int, top_p: float) -> None:
    ordered = np.sort(softmax(random_logits(size), 1.0).astype(np.float32))[::-1].copy()
    order = np.random.default_rng(1).permutation(size).astype(np.int32)
    row = np.zeros(1, np.int32)
    for uniform in (0.0, 0.3, 0.77, 0.9999999):
        args = [
            ordered[None],
            order[None],
            np.array([uniform], np.float32),
            row,
            np.array([top_p], np.float32),
        ]
        (token,) = run_function(module, "sample_with_top_p", args)
        assert token == order[draw(ordered, uniform, top_p)]


def test_draws_follow_the_probabilities() -> None:
    module = add_sampling(tvm.IRModule(), 4)
    probs = floats([[0.5, 0.3, 0.15, 0.05]])
    order = ints([[3, 1, 0, 2]])
    kept = floats([0.5, 0.3, 0.15]) / np.float32(0.95)
    counts = np.zeros(4, np.int64)
    uniforms = (np.arange(200, dtype=np.float32) + 0.5) / 200
    for uniform in uniforms:
        args = [probs, order, np.array([uniform]), np.zeros(1, np.int32), floats([0.9])]
        counts[run_function(module, "sample_with_top_p", args)[0]] += 1
    assert counts[2] == 0, "what top_p leaves out is never drawn"
    np.testing.assert_allclose(counts[[3, 1, 0]] / 200, kept, atol=0.006)


def test_a_masked_row_gives_the_only_token_left(module: Any, size: int) -> None:
    x = random_logits(size)[None]
    mask = np.zeros((1, -(-size // 32)), np.int32)
    allowed = size - 2
    mask[0, allowed // 32] = np.uint32(1 << (allowed % 32)).astype(np.int32)
    run_kernel(logits.apply_bitmask(size), [x, np.zeros(1, np.int32), mask])
    assert np.argmax(x) == allowed
    assert (x == np.float32(logits.MASKED)).sum() == size - 1
    probs = run_function(module, "softmax_with_temperature", [x[None], floats([1])])[0]
    ordered, order = run_function(module, "argsort_probs", [probs])
    args = [ordered, order, floats([0.999]), np.zeros(1, np.int32), floats([1])]
    assert run_function(module, "sample_with_top_p", args)[0] == allowed


def test_biases_and_penalties() -> None:
    size = 100
    x = np.stack([random_logits(size, 2), random_logits(size, 3)])
    before = x.copy()
    tokens, bias = ints([99, 0, 5]), floats([-1.5, 2.0, 0.25])
    run_kernel(logits.apply_logit_bias(size), [x, ints([0, 1, 1]), tokens, bias])
    expected = before.copy()
    expected[0, 99] -= 1.5
    expected[1, 0] += 2.0
    expected[1, 5] += 0.25
    np.testing.assert_allclose(x, expected, rtol=1e-6)

    x = before.copy()
    sequences, positions = ints([1]), np.zeros(80, np.int32)
    tokens = np.random.default_rng(4).permutation(size)[:80].astype(np.int32)
    counts = np.arange(80, dtype=np.int32) % 5 + 1
    penalties = floats([[0.5, 0.25, 1.3]])
    run_kernel(logits.apply_penalty(size), [x, sequences, positions, tokens, counts, penalties])
    lowered = before[1, tokens] - (0.5 + 0.25 * counts)
    expected = before.copy()
    expected[1, tokens] = np.where(lowered > 0, lowered / 1.3, lowered * 1.3)
    np.testing.assert_allclose(x, expected, rtol=1e-5)
