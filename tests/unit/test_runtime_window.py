"""The bundle's runtime behind a sliding window: numbers, dropped pages, memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit import fake_bundle
from tests.unit.fake_bundle import TOKENIZER_VOCAB, VOCAB, FakeLimits
from tests.unit.fake_runtime import Bundle, Runtime

# The window alone, sinks in a part of a page, sinks over two pages; pages hold 4 tokens.
WINDOWS = [(5, 0), (8, 0), (6, 3), (9, 6)]


@pytest.fixture(scope="module")
def binaries(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return fake_bundle.build_binaries(pytestconfig.cache)


@pytest.fixture(scope="module", params=WINDOWS, ids=lambda pair: f"{pair[0]}+{pair[1]}")
def limits(request: pytest.FixtureRequest) -> FakeLimits:
    window, sinks = request.param
    return FakeLimits(chunk=7, window=window, sinks=sinks)


@pytest.fixture(scope="module")
def bundle(
    limits: FakeLimits, binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bundle]:
    folder = tmp_path_factory.mktemp("window") / "bundle"
    fake_bundle.make_bundle(folder, binaries, limits)
    with Runtime(folder / "lib" / "libmlcb.so").open(folder) as opened:
        yield opened


def tokens(count: int, seed: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB - 1, count)]


@pytest.mark.parametrize("length", [1, 4, 9, 33, 96])
def test_logits_match_the_reference(bundle: Bundle, limits: FakeLimits, length: int) -> None:
    prompt = tokens(length, length)
    expected = fake_bundle.reference_logits(prompt, limits.window, limits.sinks)
    with bundle.engine() as engine:
        assert np.abs(engine.logits(prompt) - expected).max() < 2e-3


def test_texts_match_the_reference_alone_and_together(bundle: Bundle, limits: FakeLimits) -> None:
    """Each decodes far beyond its window, in a pool that whole texts would not fit into."""
    assert limits.pages < limits.batch * -(-limits.context // fake_bundle.PAGE)
    prompts = [tokens(count, count) for count in (3, 30, 11, 18)]
    expected = []
    for prompt in prompts:
        text = list(prompt)
        for _ in range(50):
            logits = fake_bundle.reference_logits(text, limits.window, limits.sinks)
            text.append(int(logits[-1, :TOKENIZER_VOCAB].argmax()))
        expected.append(text[len(prompt) :])
    with bundle.engine() as engine:
        assert engine.info["kv"]["pages"] == limits.pages
        assert engine.info["kv"]["window"] == limits.window
        assert engine.info["kv"]["sinks"] == limits.sinks
        ids = [engine.submit(prompt, max_tokens=50, ignore_eos=1) for prompt in prompts]
        outcomes = engine.run()
        assert [outcomes[i].tokens for i in ids] == expected
