"""Bundles against the committed logits of transformers in float32; needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mlcbuild.engine import Engine
from tests.conftest import Arrays
from tests.parity import tiny_llama

TOLERANCE = 1e-3  # largest difference of a logit, absolute
TEXTS = ("prose", "code", "multilingual")


@pytest.fixture(scope="module")
def engine(smollm2_float: Path) -> Iterator[Engine]:
    with Engine(smollm2_float) as opened:
        yield opened


@pytest.mark.parametrize("variant", tiny_llama.VARIANTS)
def test_tiny_logits(
    variant: str, tiny_bundle: Callable[[str, str], Path], tiny_reference: Arrays
) -> None:
    with Engine(tiny_bundle(variant, "q0f32")) as engine:
        logits = engine.logits(tiny_reference["ids"].tolist())
    difference = np.abs(logits - tiny_reference[f"logits_{variant}"]).max()
    assert difference < 1e-4


@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_logits(text: str, engine: Engine, smollm2_reference: Arrays) -> None:
    reference = smollm2_reference
    logits = engine.logits(reference[f"ids_{text}"].tolist())
    top_ids = reference[f"top_ids_{text}"]
    top = np.take_along_axis(logits, top_ids, axis=1)
    assert np.abs(top - reference[f"top_logits_{text}"]).max() < TOLERANCE
    probes = logits[:, reference["probe_ids"]]
    assert np.abs(probes - reference[f"probe_logits_{text}"]).max() < TOLERANCE
    # A logit out of the 32 that are kept shows in the sum over all of them.
    peak = logits.max(axis=1)
    logsumexp = peak + np.log(np.exp(logits.astype(np.float64) - peak[:, None]).sum(axis=1))
    assert np.abs(logsumexp - reference[f"logsumexp_{text}"]).max() < TOLERANCE


@pytest.mark.parametrize("index", range(3))
def test_smollm2_greedy_text(index: int, engine: Engine, smollm2_reference: Arrays) -> None:
    expected = smollm2_reference[f"greedy_{index}"].tolist()
    prompt = smollm2_reference[f"greedy_prompt_{index}"].tolist()
    found = engine.generate(prompt, max_tokens=len(expected), ignore_eos=True)
    assert list(found.token_ids) == expected


def test_smollm2_answers_like_the_reference(engine: Engine, smollm2_reference: Arrays) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    assert engine.prompt_token_ids(question) == smollm2_reference["chat_prompt_ids"].tolist()
    answer = engine.generate(question, max_tokens=64)
    expected = smollm2_reference["chat_answer_ids"].tolist()
    assert list(answer.token_ids)[: len(expected)] == expected
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == "stop"
