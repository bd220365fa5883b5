"""The unmodified client of MLC in headless Chromium, on a software GPU, over a tiny bundle."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.bench.bench_quality import log_softmax
from tests.parity import tiny_llama
from tests.unit.kernel_runner import Array
from tests.web.client import Client
from tests.web.conftest import SYSTEM
from tests.web.reference import Reference

GREETING = "The sea is calm and the wind is of the north."
GREEDY = {"temperature": 0, "max_tokens": 32}


class Case:
    """A bundle in the browser, and what it must compute."""

    def __init__(self, bundle: Path, client: Client) -> None:
        self.client = client
        self.reference = Reference(bundle, tiny_llama.VARIANTS["tied"])
        self._tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))

    def prompt(self, *contents: str) -> list[int]:
        """The tokens of a conversation, its text encoded as a whole."""
        roles = ("user", "assistant")
        text = SYSTEM + "".join(
            f"<|im_start|>{roles[number % 2]}\n{content}<|im_end|>\n"
            for number, content in enumerate(contents)
        )
        return self.encode(text + "<|im_start|>assistant\n")

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids


@pytest.fixture(scope="module", params=["q0f32", "q4f32_1"])
def case(
    request: pytest.FixtureRequest,
    tiny_web_bundle: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Case]:
    bundle = tiny_web_bundle(request.param)
    with Client(bundle, tmp_path_factory.mktemp("chromium") / "profile") as client:
        yield Case(bundle, client)
        assert client.problems == []


only_codes = pytest.mark.parametrize("case", ["q4f32_1"], indirect=True)


def test_greedy_tokens_and_their_logits(case: Case) -> None:
    answer = case.client.chat(GREETING, **GREEDY)
    prompt = case.prompt(GREETING)
    # The last token that is drawn is not fed any more.
    assert answer["fed"] == prompt + answer["drawn"][:-1]
    expected = case.reference.logits(answer["fed"], len(prompt))
    assert answer["drawn"] == expected.argmax(axis=1).tolist()
    found = case.client.logits(answer["fed"][: len(prompt) + 4], len(prompt))
    np.testing.assert_allclose(found, expected[:5], atol=2e-4)


@only_codes
def test_a_prompt_of_several_chunks(case: Case) -> None:
    tokens = case.prompt(" ".join(f"number {i}" for i in range(30)))
    assert 2 * 64 < len(tokens) < 512
    found = case.client.logits(tokens, len(tokens))
    np.testing.assert_allclose(found, case.reference.logits(tokens, len(tokens)), atol=2e-4)


@only_codes
def test_turns_are_fed_as_the_whole_text_is_encoded(case: Case) -> None:
    turns = ("One, two.", "Three is the number of the sea.", "And then?")
    answer = case.client.chat(*turns, temperature=0, max_tokens=1)
    assert answer["fed"] == case.prompt(*turns)


@only_codes
def test_a_turn_goes_on_in_the_cache(case: Case) -> None:
    """The client feeds only what is new, and the model sees the whole conversation all the same."""
    reply = case.encode("The<|im_end|>")
    first = case.client.chat(GREETING, force=reply, ignore_eos=False)
    assert (first["message"]["content"], first["finish_reason"]) == ("The", "stop")
    second = case.client.chat(
        GREETING, "The", "And then?", temperature=0, max_tokens=2, fresh=False
    )
    prompt = case.prompt(GREETING, "The", "And then?")
    assert prompt[: len(first["fed"])] == first["fed"]
    assert second["fed"][:-1] == prompt
    expected = case.reference.logits(second["fed"], len(prompt))
    assert second["drawn"] == expected.argmax(axis=1).tolist()


@only_codes
def test_chances_are_those_of_the_logits(case: Case) -> None:
    answer = case.client.chat(
        GREETING, temperature=1, top_p=1, seed=3, max_tokens=4, logprobs=True, top_logprobs=3
    )
    start = len(case.prompt(GREETING))
    chances = log_softmax(case.reference.logits(answer["fed"], start))
    for row, token, told in zip(
        chances, answer["drawn"], answer["logprobs"]["content"], strict=True
    ):
        best = [item["logprob"] for item in told["top_logprobs"]]
        np.testing.assert_allclose(best, np.sort(row)[:-4:-1], atol=1e-3)
        np.testing.assert_allclose(told["logprob"], row[token], atol=1e-3)


@only_codes
def test_seeds(case: Case) -> None:
    def drawn(seed: int) -> Any:
        return case.client.chat(GREETING, temperature=1.2, seed=seed, max_tokens=4)["drawn"]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


@only_codes
def test_a_narrow_top_p_leaves_only_the_best(case: Case) -> None:
    answer = case.client.chat(GREETING, temperature=1, top_p=0.001, seed=1, max_tokens=4)
    greedy = case.client.chat(GREETING, temperature=0, max_tokens=4)
    assert answer["drawn"] == greedy["drawn"]


@only_codes
def test_penalties(case: Case) -> None:
    # Below zero: what was drawn becomes likelier, and the more often, the less so.
    settings = {"presence_penalty": -2.0, "frequency_penalty": 0.75, "repetition_penalty": 1.1}
    answer = case.client.chat(GREETING, temperature=0, max_tokens=8, **settings)
    start = len(case.prompt(GREETING))
    rows = case.reference.logits(answer["fed"], start)
    assert answer["drawn"] == penalized(rows, **settings)
    assert answer["drawn"] != rows.argmax(axis=1).tolist()


def penalized(
    rows: Array,
    *,
    presence_penalty: float,
    frequency_penalty: float,
    repetition_penalty: float,
) -> list[int]:
    """The best tokens when those drawn before are less welcome."""
    drawn: list[int] = []
    for row in rows.copy():
        for token in set(drawn):
            row[token] -= presence_penalty + frequency_penalty * drawn.count(token)
            row[token] *= repetition_penalty if row[token] < 0 else 1 / repetition_penalty
        drawn.append(int(row.argmax()))
    return drawn


@only_codes
def test_biases(case: Case) -> None:
    best = case.client.chat(GREETING, temperature=0, max_tokens=1)["drawn"]
    other = case.client.chat(
        GREETING, temperature=0, max_tokens=1, logit_bias={str(best[0]): -100}
    )["drawn"]
    row = case.reference.logits(case.prompt(GREETING), len(case.prompt(GREETING)))[0]
    assert [best[0], other[0]] == np.argsort(-row)[:2].tolist()


@only_codes
def test_answers_of_a_json_schema(case: Case) -> None:
    schema = {
        "type": "object",
        "properties": {"calm": {"type": "boolean"}},
        "required": ["calm"],
        "additionalProperties": False,
    }
    # JSON may have any space between its parts, and a random model has no reason to end it.
    spaces = [case.encode(text)[0] for text in (" ", "\t", "\n", "\r")]
    answer = case.client.chat(
        GREETING,
        temperature=0,
        max_tokens=30,
        ignore_eos=False,
        logit_bias={str(token): -100 for token in spaces},
        response_format={"type": "json_object", "schema": json.dumps(schema)},
    )
    assert answer["finish_reason"] == "stop"
    assert json.loads(answer["message"]["content"]) in ({"calm": True}, {"calm": False})


@only_codes
def test_streams(case: Case) -> None:
    letter = {str(case.encode("J")[0]): 100}
    stream = case.client.chat(GREETING, temperature=0, max_tokens=3, stream=True, logit_bias=letter)
    assert stream["text"] == "JJJ"
    assert stream["chunks"] > 1
