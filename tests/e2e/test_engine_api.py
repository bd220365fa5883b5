"""Engine and AsyncEngine over a real model: OpenAI's calls, sampling, formats, cancellation."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlcbuild.bundle.abi import BusyError, GrammarError
from mlcbuild.engine import AsyncEngine, Engine
from mlcbuild.errors import UsageError
from tests.bench.bench_quality import log_softmax

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
STORY = [{"role": "user", "content": "Write a short story about a lighthouse."}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def engine(smollm2_int4: Path) -> Iterator[Engine]:
    with Engine(smollm2_int4, threads=2) as opened:
        yield opened


def chat(engine: Engine, **parameters: Any) -> Any:
    """A chat's answer, greedy unless told otherwise."""
    return engine.chat.completions.create(
        **{"messages": QUESTION, "temperature": 0, "max_tokens": 24, **parameters}
    )


def test_the_answer_and_its_chunks(engine: Engine) -> None:
    answer = chat(engine)
    text = answer.choices[0].message.content
    assert "Paris" in text
    assert answer.choices[0].finish_reason == "stop"
    chunks = list(chat(engine, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == text
    assert chunks[-1].usage.prompt_tokens == answer.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert answer.usage.prompt_tokens == len(engine.prompt_token_ids(QUESTION))
    generated = engine.generate(QUESTION, max_tokens=24)
    assert generated.text == text
    assert len(generated.token_ids) == answer.usage.completion_tokens
    assert chat(engine, max_tokens=3).choices[0].finish_reason == "length"


def test_logprobs_are_those_of_the_logits(engine: Engine) -> None:
    """Step by step in the engine against all positions at once."""
    prompt = engine.prompt_token_ids(QUESTION)
    found = engine.generate(QUESTION, max_tokens=6, logprobs=True, top_logprobs=3)
    rows = log_softmax(engine.logits([*prompt, *found.token_ids[:-1]]))[len(prompt) - 1 :]
    for row, score in zip(rows, found.logprobs, strict=True):
        assert abs(row[score.token_id] - score.logprob) < 1e-3
        best = np.argsort(-row)[:3]
        assert [token for token, _ in score.top] == best.tolist()
        assert score.top[0] == (score.token_id, score.logprob)
    content = chat(engine, max_tokens=6, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert [item.logprob for item in content] == [score.logprob for score in found.logprobs]
    spelled = b"".join(bytes(item.bytes) for item in content)
    assert spelled.decode() == found.text


def test_choices_are_seeded_apart_and_repeat(engine: Engine) -> None:
    parameters = {"messages": STORY, "n": 3, "temperature": 0.9, "seed": 11}
    first, again = chat(engine, **parameters), chat(engine, **parameters)
    texts = [choice.message.content for choice in first.choices]
    assert [choice.message.content for choice in again.choices] == texts
    assert len(set(texts)) == 3
    assert first.seed == 11
    assert chat(engine, **{**parameters, "n": 1}).choices[0].message.content == texts[0]
    unseeded = chat(engine, messages=STORY, temperature=0.9)
    repeated = chat(engine, messages=STORY, temperature=0.9, seed=unseeded.seed)
    assert repeated.choices[0].message.content == unseeded.choices[0].message.content


def test_sampling_parameters_act(engine: Engine) -> None:
    best = engine.generate(STORY, max_tokens=1).token_ids[0]
    for options in (
        {"top_k": 1},
        {"top_p": 1e-6},
        {"min_p": 1.0},
        {"logit_bias": {best: 1000.0}},
    ):
        found = engine.generate(STORY, max_tokens=1, temperature=2.0, seed=3, **options)
        assert found.token_ids[0] == best, options
    assert engine.generate(STORY, max_tokens=1, logit_bias={best: -math.inf}).token_ids[0] != best
    plain = engine.generate(STORY, max_tokens=40, ignore_eos=True)
    fresh = engine.generate(
        STORY, max_tokens=40, ignore_eos=True, frequency_penalty=2.0, presence_penalty=2.0
    )
    assert len(set(fresh.token_ids)) > len(set(plain.token_ids))
    stopped = engine.generate(STORY, max_tokens=40, stop_token_ids=[plain.token_ids[5]])
    assert stopped.finish_reason == "stop"
    assert plain.token_ids[5] not in stopped.token_ids


def test_stop_strings_are_cut_off_and_named(engine: Engine) -> None:
    whole = chat(engine).choices[0].message.content
    cut = chat(engine, stop=["zzz", "Par"]).choices[0]
    assert cut.message.content == whole[: whole.index("Par")]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", "Par")


def test_a_second_request_finds_its_prompt_in_the_cache(engine: Engine) -> None:
    engine.clear_cache()
    messages = [{"role": "user", "content": "Repeat: " + "one two three four " * 20}]
    first = chat(engine, messages=messages, max_tokens=8)
    second = chat(engine, messages=messages, max_tokens=8)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens // 2
    assert second.choices[0].message.content == first.choices[0].message.content
    engine.clear_cache()
    third = chat(engine, messages=messages, max_tokens=8)
    assert third.usage.prompt_tokens_details.cached_tokens == 0


def test_json_schema_binds(engine: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Rome"]},
            "rivers": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "rivers"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    answer = chat(engine, response_format=wanted, max_tokens=64)
    value = json.loads(answer.choices[0].message.content)
    assert value["city"] == "Paris"
    assert 1 <= value["rivers"] <= 9
    assert answer.choices[0].finish_reason == "stop"
    grammar = {"type": "regex", "value": "[A-Z][a-z]+ (is|was) [a-z ]{4,12}\\."}
    text = chat(engine, grammar=grammar, temperature=1, seed=4).choices[0].message.content
    assert re.fullmatch(grammar["value"], text)
    with pytest.raises(GrammarError):
        chat(engine, grammar={"type": "regex", "value": "(["})


def test_deadlines_cut_the_text_off(engine: Engine) -> None:
    late = chat(engine, messages=STORY, timeout=0.3, max_tokens=400).choices[0]
    assert (late.finish_reason, late.stop_reason) == ("length", "deadline")
    assert late.message.content


def test_tools_for_a_template_without_a_place_for_them(engine: Engine) -> None:
    with pytest.raises(UsageError, match="tools"):
        chat(engine, tools=[TOOL])


def test_completions_go_on_after_a_text(engine: Engine) -> None:
    prompts = ["The capital of France is", "2, 4, 6,"]
    answer = engine.completions.create(prompt=prompts, temperature=0, max_tokens=6, echo=True)
    for choice, prompt in zip(answer.choices, prompts, strict=True):
        assert choice.text == prompt + engine.generate(prompt, raw=True, max_tokens=6).text
    assert answer.choices[1].text.startswith("2, 4, 6, 8")


def test_a_full_queue(smollm2_int4: Path) -> None:
    with Engine(smollm2_int4, mode="interactive", max_waiting=1) as small:
        assert small.info["limits"]["max_batch_size"] == 1
        with small.stream(STORY) as running:
            next(running)
            with small.stream(QUESTION), pytest.raises(BusyError):
                small.generate(QUESTION)
        assert small.drain(10)
        assert small.generate(QUESTION, max_tokens=4).finish_reason == "length"


def test_speculation_changes_nothing_but_the_speed(engine: Engine, smollm2_int4: Path) -> None:
    prompt = [{"role": "user", "content": "Count: 1, 2, 3, 4, 1, 2, 3, 4, 1, 2"}]
    plain = engine.generate(prompt, max_tokens=48, ignore_eos=True)
    with Engine(smollm2_int4, threads=2, speculation="ngram") as guessing:
        assert guessing.generate(prompt, max_tokens=48, ignore_eos=True) == plain
        assert guessing.metrics()["speculation"]["accepted"] > 0


def test_many_async_streams_are_as_one_by_one(engine: Engine, smollm2_int4: Path) -> None:
    questions = [
        [{"role": "user", "content": f"Say something about the number {number}."}]
        for number in range(12)
    ]
    alone = [engine.generate(question, max_tokens=16).text for question in questions]

    async def main() -> list[str]:
        async with await AsyncEngine.open(smollm2_int4, threads=2) as many:

            async def ask(messages: Any) -> str:
                stream = await many.chat.completions.create(
                    messages=messages, temperature=0, max_tokens=16, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return list(await asyncio.gather(*map(ask, questions)))

    assert asyncio.run(main()) == alone


def test_cancelled_requests_free_their_pages(smollm2_int4: Path) -> None:
    async def main() -> None:
        async with await AsyncEngine.open(smollm2_int4, prefix_cache=False) as engine:
            streams = [await engine.stream(STORY) for _ in range(4)]
            for stream in streams:
                await stream.__anext__()
            assert engine.metrics()["kv"]["used_pages"] > 0
            await streams[0].aclose()
            task = asyncio.ensure_future(engine.generate(STORY))
            await asyncio.sleep(0.05)
            task.cancel()
            for stream in streams[1:]:
                await stream.aclose()
            assert await engine.drain(10)
            assert engine.metrics()["requests"]["finished_by_reason"]["cancel"] == 5
            await asyncio.sleep(0.5)  # figures are those of the last step's end
            assert engine.metrics()["kv"]["used_pages"] == 0
            assert "mlcb_requests_running 0" in engine.prometheus_metrics()
            assert (await engine.generate(QUESTION, max_tokens=20)).text.count("Paris")

    asyncio.run(main())
