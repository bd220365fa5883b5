"""The runtime's sampler against a numpy implementation, its statistics, and what it refuses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.unit.cpp_driver import build_cpp
from tests.unit.sampling_reference import (
    Floats,
    Settings,
    acceptable,
    adjusted,
    greedy,
    kept,
    log_probabilities,
    pick,
    uniform,
)
from tests.unit.text_driver import Driver, DriverError

ARGUMENT, GRAMMAR, KERNEL = 1, 8, 60
Words = npt.NDArray[np.uint32]


@pytest.fixture(scope="module")
def driver(pytestconfig: pytest.Config) -> Iterator[Driver]:
    program = build_cpp(pytestconfig, "sampler_driver")
    with Driver(program) as driver:
        yield driver


def load(driver: Driver, folder: Path, logits: Floats, masks: Words | None = None) -> None:
    """Give the driver the rows that later commands name by their offset."""
    logits.astype(np.float32).tofile(folder / "logits")
    (np.zeros(0, np.uint32) if masks is None else masks).tofile(folder / "masks")
    driver("load", logits=str(folder / "logits"), masks=str(folder / "masks"))


def as_json(settings: Settings) -> dict[str, Any]:
    biases = [
        {"token": token, "bias": bias if math.isfinite(bias) else str(bias)}
        for token, bias in settings.logit_bias.items()
    ]
    return {**asdict(settings), "logit_bias": biases}


def mask_words(allowed: npt.NDArray[np.bool_]) -> Words:
    padded = np.zeros(-(-len(allowed) // 32) * 32, np.uint8)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.uint32)


# ---- against numpy ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One row, what is asked of it and what came before."""

    logits: Floats
    valid: int
    allowed: npt.NDArray[np.bool_] | None
    settings: Settings
    prompt: list[int]
    text: list[int]
    top_logprobs: int


def random_logits(rng: np.random.Generator, count: int) -> Floats:
    logits = rng.normal(rng.uniform(-20, 20), rng.choice([0.1, 1, 3, 12]), count)
    if rng.random() < 0.5:  # a few that stand out
        logits[rng.integers(0, count, 5)] += rng.uniform(0, 15, 5)
    if rng.random() < 0.3:  # ties
        logits = np.round(logits)
    row: Floats = logits.astype(np.float32)
    if rng.random() < 0.2:
        for odd in (np.nan, np.inf, -np.inf):
            row[rng.integers(0, count, 2)] = odd
    row[rng.integers(0, count)] = np.float32(rng.normal(0, 3))
    return row


def random_settings(rng: np.random.Generator, count: int) -> Settings:
    def maybe(chance: float, value: float, otherwise: float) -> float:
        return float(value if rng.random() < chance else otherwise)

    biases: dict[int, float] = {}
    if rng.random() < 0.3:
        for token in rng.integers(0, count, 4):
            biases[int(token)] = maybe(0.2, -math.inf, rng.uniform(-20, 20))
    return Settings(
        temperature=maybe(0.85, rng.choice([0.01, 0.3, 0.7, 1, 1.5, 5, 100]), 0),
        top_p=maybe(0.5, rng.choice([1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, rng.random()]), 1),
        top_k=int(maybe(0.4, rng.choice([1, 2, 5, 40, 300, 5000]), 0)),
        min_p=maybe(0.3, rng.choice([1e-4, 0.02, 0.1, 0.9, 1]), 0),
        repetition_penalty=maybe(0.3, rng.choice([0.5, 1.1, 1.3, 3]), 1),
        presence_penalty=maybe(0.3, rng.uniform(-2, 2), 0),
        frequency_penalty=maybe(0.3, rng.uniform(-2, 2), 0),
        seed=int(rng.integers(0, 1 << 53)),
        stream=int(rng.integers(0, 4)),
        logit_bias=biases,
    )


def random_case(rng: np.random.Generator, count: int) -> Case:
    valid = count if rng.random() < 0.7 else int(rng.integers(max(1, count - 40), count + 40))
    allowed = None
    if rng.random() < 0.5:
        allowed = rng.random(min(valid, count)) < rng.choice([0.002, 0.5, 0.999])
    return Case(
        logits=random_logits(rng, count),
        valid=valid,
        allowed=allowed,
        settings=random_settings(rng, count),
        prompt=rng.integers(0, count, rng.integers(0, 30)).tolist(),
        text=rng.integers(0, min(count, 50), rng.integers(0, 30)).tolist(),
        top_logprobs=int(rng.choice([-1, 0, 3, 20])),
    )


def rows_of(case: Case) -> tuple[Floats, Floats]:
    """The row that is sampled from, and the model's own."""
    raw = case.logits[: case.valid]
    row = adjusted(raw, case.settings, case.prompt, case.text)
    if case.allowed is not None:
        row = np.where(case.allowed, row, np.float32(-np.inf))
    return row, raw


def near(logprob: float) -> Any:
    """Within the rounding of a float32."""
    return pytest.approx(logprob, rel=1e-6, abs=3e-6)


def check_logprobs(case: Case, raw: Floats, answer: dict[str, Any]) -> None:
    if case.top_logprobs < 0:
        assert answer["top"] == [[]]
        return
    expected = log_probabilities(raw)
    assert answer["logprobs"][0] == near(expected[answer["tokens"][0]])
    finite = np.flatnonzero(np.isfinite(raw))
    ranked = finite[np.lexsort((finite, -raw[finite]))][: case.top_logprobs]
    assert [token for token, _ in answer["top"][0]] == ranked.tolist()
    for token, logprob in answer["top"][0]:
        assert logprob == near(expected[token])


def run_cases(driver: Driver, folder: Path, cases: list[Case]) -> int:
    """Check every case; returns how many came out other than without any rounding."""
    masks = [mask_words(case.allowed) for case in cases if case.allowed is not None]
    load(driver, folder, np.concatenate([case.logits for case in cases]), np.concatenate(masks))
    at = mask_at = borderline = 0
    for case in cases:
        command = {**as_json(case.settings), "vocab": len(case.logits), "valid": case.valid}
        command |= {"at": at, "prompt": case.prompt, "accepted": case.text}
        command["top_logprobs"] = case.top_logprobs
        at += len(case.logits)
        if case.allowed is not None:
            command["mask"] = mask_at
            mask_at += -(-len(case.allowed) // 32)
        row, raw = rows_of(case)
        if not np.isfinite(row).any():
            with pytest.raises(DriverError):
                driver("sample", **command)
            continue
        answer = driver("sample", **command)
        token = answer["tokens"][0]
        check_logprobs(case, raw, answer)
        if case.settings.temperature == 0:
            assert token == greedy(row), case.settings
            continue
        share = uniform(case.settings.seed, case.settings.stream, len(case.text))
        if token != pick(kept(row, case.settings), share):
            borderline += 1
            assert token in acceptable(row, case.settings, share), case.settings
    return borderline


def test_random_cases(driver: Driver, tmp_path: Path) -> None:
    rng = np.random.default_rng(20)
    sizes = [1, 2, 7, 8, 31, 32, 33, 255, 256, 257, 511, 512, 513, 1000, 3000]
    cases = [random_case(rng, int(rng.choice(sizes))) for _ in range(2500)]
    # Without rounding all would agree: ties in weight and flat rows leave a few open.
    assert run_cases(driver, tmp_path, cases) < 8


def test_long_rows(driver: Driver, tmp_path: Path) -> None:
    """Rows for which top_p looks at a thousand tokens, at all, or at ranges of logits."""
    rng = np.random.default_rng(21)
    cases = []
    for spread in (0.0, 1e-6, 0.5, 2, 5):
        for top_p in (0.05, 0.5, 0.95, 0.9999):
            for top_k in (0, 20_000):
                logits = rng.normal(0, spread, 40_000).astype(np.float32)
                settings = Settings(
                    temperature=1,
                    top_p=top_p,
                    top_k=top_k,
                    seed=int(rng.integers(1 << 40)),
                )
                allowed = rng.random(len(logits)) < 0.9
                cases.append(Case(logits, len(logits), allowed, settings, [], [], -1))
    assert run_cases(driver, tmp_path, cases) < 3


def test_a_cut_keeps_exactly_the_right_tokens(driver: Driver, tmp_path: Path) -> None:
    """Sets, not single draws: equal logits rank by id, and the token at the border stays in."""
    logits = np.array([1, 4, 4, 0, 4, 2, 4, 3], np.float32)
    load(driver, tmp_path, logits)
    chances = np.exp(logits - 4) / np.exp(logits - 4).sum()
    four = float(chances[1])
    cases: list[tuple[dict[str, float], set[int]]] = [
        ({"top_k": 1}, {1}),
        ({"top_k": 3}, {1, 2, 4}),
        ({"top_k": 5}, {1, 2, 4, 6, 7}),
        ({"top_p": four * 0.5}, {1}),
        ({"top_p": four * 2.01}, {1, 2, 4}),
        ({"top_p": four * 1.99}, {1, 2}),
        ({"top_k": 4, "top_p": 0.74}, {1, 2, 4}),  # each of the four holds a quarter
        ({"top_k": 4, "top_p": 0.76}, {1, 2, 4, 6}),
        ({"min_p": 1.0}, {1, 2, 4, 6}),
        ({"min_p": 0.36}, {1, 2, 4, 6, 7}),  # e^-1 is 0.368
        ({"min_p": 0.37}, {1, 2, 4, 6}),
        ({"top_p": 0.99, "min_p": 0.13}, {1, 2, 4, 5, 6, 7}),  # e^-2 is 0.135
        ({"top_p": 0, "top_k": 0}, set(range(8))),
    ]
    for settings, expected in cases:
        answer = driver("sample", at=0, vocab=8, temperature=1, draws=800, seed=3, **settings)
        assert set(answer["tokens"]) == expected, settings


def test_extreme_numbers(driver: Driver, tmp_path: Path) -> None:
    most = float(np.finfo(np.float32).max)
    logits = np.array([1, 5, 5, 9, -most, most, 0, -0.0], np.float32)
    load(driver, tmp_path, logits)

    def tokens(**settings: Any) -> set[int]:
        return set(driver("sample", at=0, **{"draws": 60, "vocab": 8, **settings})["tokens"])

    assert tokens() == {5}
    assert tokens(vocab=4) == {3}
    assert tokens(vocab=8, valid=3) == {1}
    for temperature in (1e-30, 1e-45):
        assert tokens(vocab=5, temperature=temperature) == {3}
    assert tokens(vocab=5, temperature=1e36) == {0, 1, 2, 3}  # the lowest is still far below
    assert tokens(vocab=4, temperature=1, top_p=1e-45) == {3}
    # Penalties and biases beyond the range of a float stay in it.
    huge = {"repetition_penalty": 1e-38, "prompt": [1]}
    assert tokens(vocab=4, **huge) == {1}
    assert tokens(vocab=4, logit_bias=[{"token": 0, "bias": most}]) == {0}
    assert tokens(vocab=4, prompt=[3], repetition_penalty=1e38, draws=1) == {1}
    # The lowest logit there is may still be picked, a forbidden one never.
    forbid = [{"token": t, "bias": "-inf"} for t in (0, 1, 2, 3)]
    assert tokens(vocab=5, logit_bias=forbid, temperature=1) == {4}


# ---- random numbers --------------------------------------------------------------------------


def critical(freedom: int) -> float:
    """What chi-square exceeds once in 10,000 times (the approximation of Wilson and Hilferty)."""
    spread = 2 / (9 * freedom)
    return freedom * float(1 - spread + 3.719 * math.sqrt(spread)) ** 3


def chi_square(counts: dict[Any, int], chances: dict[Any, float], draws: int) -> tuple[float, int]:
    likely = {key: p * draws for key, p in chances.items() if p * draws > 5}
    value = sum((counts.get(key, 0) - n) ** 2 / n for key, n in likely.items())
    return value, len(likely) - 1


@pytest.mark.parametrize(
    "settings",
    [
        Settings(temperature=1.0),
        Settings(temperature=0.5, stream=1),
        Settings(temperature=2.0, top_k=3),
        Settings(temperature=1.0, top_p=0.8),
        Settings(temperature=2.0, top_k=5, top_p=0.9),
        Settings(temperature=1.3, min_p=0.05),
        Settings(temperature=1.5, top_k=200, top_p=0.9, min_p=0.01, logit_bias={5: 2.0, 1: -3.0}),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [8, 700])
def test_draws_follow_the_distribution(
    settings: Settings, size: int, driver: Driver, tmp_path: Path
) -> None:
    logits = np.random.default_rng(size).normal(0, 2, size).astype(np.float32)
    load(driver, tmp_path, logits)
    draws = 10_000
    command = as_json(replace(settings, seed=11))
    counts = Counter(driver("sample", at=0, vocab=size, draws=draws, **command)["tokens"])
    chances = kept(adjusted(logits, settings, [], []), settings)
    assert set(counts) <= set(chances)
    value, freedom = chi_square(counts, chances, draws)
    assert value < critical(freedom)


def test_numbers_are_independent(driver: Driver, tmp_path: Path) -> None:
    """Successive tokens, and tokens of neighbouring seeds and streams, do not know each other."""
    load(driver, tmp_path, np.zeros(10, np.float32))

    def numbers(seed: int, stream: int) -> list[int]:
        command = {"at": 0, "vocab": 10, "temperature": 1, "draws": 20_000}
        found: list[int] = driver("sample", seed=seed, stream=stream, **command)["tokens"]
        return found

    one = numbers(5, 0)
    assert one[:50] == numbers(5, 0)[:50]
    pairs = {"next": (one[:-1], one[1:]), "second": (one[:-2], one[2:])}
    for name, other in {"seed": numbers(6, 0), "stream": numbers(5, 1)}.items():
        pairs[name] = (one, other)
        pairs[name + " shifted"] = (one[1:], other[:-1])
    even = {(a, b): 0.01 for a in range(10) for b in range(10)}
    for name, (first, second) in pairs.items():
        counts = Counter(zip(first, second, strict=True))
        value, freedom = chi_square(counts, even, len(first))
        assert value < critical(freedom), name


def test_a_number_depends_on_what_was_accepted_only(driver: Driver, tmp_path: Path) -> None:
    load(driver, tmp_path, np.zeros(1000, np.float32))
    command = {"at": 0, "vocab": 1000, "temperature": 1, "seed": 9}
    tokens = driver("sample", draws=40, **command)["tokens"]
    for position in (0, 1, 17, 39):
        accepted = [0] * position  # other tokens than were drawn: only their number counts
        assert driver("sample", accepted=accepted, **command)["tokens"] == [tokens[position]]


# ---- weights ---------------------------------------------------------------------------------


def float_weights(x: Floats) -> npt.NDArray[np.uint64]:
    """The exponential as the runtime computes it, step by step in float32."""
    single = np.float32
    x = np.maximum(x, single(-32))
    rounded = x * single(1.44269504) + single(12582912)
    n = rounded - single(12582912)
    r = (x - n * single(0.693359375)) - n * single(-2.12194440e-4)
    p = np.full_like(x, single(0.0013926184))
    for term in (0.008363179, 0.041666556, 0.16666576, 0.5, 1.0, 1.0):
        p = p * r + single(term)
    e = np.where(x > -32, np.ldexp(p, n.astype(np.int32)), single(0))
    weights: npt.NDArray[np.uint64] = np.rint(e.astype(np.float64) * 2.0**44).astype(np.uint64)
    return weights


def test_weights_are_the_same_everywhere(driver: Driver, tmp_path: Path) -> None:
    """Every bit follows from float32 arithmetic, and the error is that of a float."""
    x = np.linspace(-33, 0, 64 * 4096).astype(np.float32)
    x[:3] = (np.nan, -np.inf, -1e30)
    load(driver, tmp_path, x)
    driver("weights", out=str(tmp_path / "weights"))
    found = np.fromfile(tmp_path / "weights", np.uint64)
    assert (found[:3] == 0).all()
    assert found[-1] == 1 << 44
    assert np.array_equal(found[3:], float_weights(x[3:]))
    exact = np.exp(x[3:].astype(np.float64))
    exact[x[3:] <= -32] = 0
    assert np.abs(found[3:] / 2.0**44 - exact).max() < 1.2e-7
    likely = x[3:] > -14  # where the grid is finer than a float
    assert np.abs(found[3:][likely] / 2.0**44 / exact[likely] - 1).max() < 1.5e-7


# ---- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": "nan"}, "temperature is not a number"),
        ({"temperature": "inf"}, "temperature is infinite"),
        ({"top_p": 1.01}, "top_p is 1.0"),
        ({"top_p": "nan"}, "top_p is not a number"),
        ({"top_k": -1}, "top_k is -1"),
        ({"min_p": -0.5}, "min_p is -0.5, it must lie between 0 and 1"),
        ({"min_p": 2}, "min_p is 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"repetition_penalty": -1}, "repetition_penalty is -1"),
        ({"repetition_penalty": "inf"}, "repetition_penalty is infinite"),
        ({"presence_penalty": "-inf"}, "presence_penalty is minus infinite"),
        ({"frequency_penalty": "nan"}, "frequency_penalty is not a number"),
        ({"top_logprobs": 21}, "top_logprobs is 21"),
        ({"top_logprobs": -2}, "top_logprobs is -2"),
        (
            {"logit_bias": [{"token": 100, "bias": 1}]},
            "logit_bias names the token 100, not in 0..99",
        ),
        ({"logit_bias": [{"token": -1, "bias": 1}]}, "logit_bias names the token -1"),
        ({"logit_bias": [{"token": 1, "bias": "inf"}]}, "a logit_bias is infinite"),
        ({"logit_bias": [{"token": 1, "bias": "nan"}]}, "a logit_bias is not a number"),
    ],
    ids=str,
)
def test_settings_out_of_range(settings: dict[str, Any], message: str, driver: Driver) -> None:
    with pytest.raises(DriverError) as caught:
        driver("check", vocab=100, **settings)
    assert message in str(caught.value)
    assert caught.value.status == ARGUMENT


def test_settings_at_the_edge_of_their_range(driver: Driver) -> None:
    for settings in (
        {},
        {"temperature": 1e-45, "top_p": 0, "min_p": 1, "top_logprobs": 20},
        {"top_p": 1, "top_k": 2**31 - 1, "repetition_penalty": 1e-38, "top_logprobs": -1},
        {"logit_bias": [{"token": 99, "bias": "-inf"}, {"token": 0, "bias": -100}]},
    ):
        assert driver("check", vocab=100, **settings) is True


@pytest.mark.parametrize("temperature", [0, 1])
def test_rows_without_a_token(temperature: float, driver: Driver, tmp_path: Path) -> None:
    logits = np.array([np.nan, -np.inf, np.inf, 3, 50], np.float32)
    only_broken, nothing, only_three = 0b00111, 0, 0b01000
    load(driver, tmp_path, logits, np.array([only_broken, nothing, only_three], np.uint32))

    def sample(**arguments: Any) -> Any:
        return driver("sample", at=0, vocab=5, temperature=temperature, draws=20, **arguments)

    def failure(**arguments: Any) -> tuple[int, str]:
        with pytest.raises(DriverError) as caught:
            sample(**arguments)
        return caught.value.status, str(caught.value)

    assert set(sample(valid=4)["tokens"]) == {3}
    assert set(sample(valid=4, mask=2)["tokens"]) == {3}
    assert set(sample(valid=4, top_k=3, top_p=0.5)["tokens"]) == {3}
    # Log probabilities are over what is finite and below valid_size: there is one.
    assert sample(valid=4, top_logprobs=5)["top"][0] == [[3, 0]]
    status, message = failure(valid=3)
    assert (status, "no logit of 3 is a finite number" in message) == (KERNEL, True)
    status, message = failure(valid=0)
    assert (status, "no logit of 0 is a finite number" in message) == (KERNEL, True)
    status, message = failure(mask=0)
    assert (status, "no allowed token's logit of 3" in message) == (KERNEL, True)
    status, message = failure(mask=1)
    assert (status, "no token may come next" in message) == (GRAMMAR, True)
    forbidden = [{"token": 3, "bias": "-inf"}, {"token": 2, "bias": 5}]
    status, message = failure(valid=4, logit_bias=forbidden)
    assert (status, "logit_bias forbids" in message) == (ARGUMENT, True)
    status, message = failure(mask=2, logit_bias=forbidden)
    assert (status, "logit_bias forbids each of the 1 tokens" in message) == (ARGUMENT, True)
