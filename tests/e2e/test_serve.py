"""mlcbuild serve over a real bundle: openai's package, disconnects, a full queue, many streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.bench import server_process
from tests.bench.server_process import ServerProcess, pages_used

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
LONG: Any = [{"role": "user", "content": "Tell me a very long story about a river."}]


class City(BaseModel):
    """What a parsed answer becomes."""

    name: str
    inhabitants: int


@pytest.fixture(scope="module")
def server(smollm2_int4: Path) -> Iterator[ServerProcess]:
    # Float activations: which words come must not depend on this machine.
    with server_process.serve(smollm2_int4, "--activations", "float") as server:
        yield server
        assert server.wait_idle().pages_used == 0
        assert server.stop() == 0


def client_of(server: ServerProcess, **options: Any) -> openai.OpenAI:
    url = f"http://127.0.0.1:{server.port}/v1"
    return openai.OpenAI(base_url=url, api_key="none", **{"max_retries": 0, **options})


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with client_of(server) as client:
        yield client


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> float:
    """Waits; returns how long it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "it did not happen in time"
        time.sleep(0.002)
    return time.monotonic() - started


def test_a_question(client: openai.OpenAI, server: ServerProcess) -> None:
    options: Any = {"model": server.model, "messages": QUESTION, "temperature": 0}
    answer = client.chat.completions.create(**options, max_tokens=30)
    text = answer.choices[0].message.content or ""
    assert "Paris" in text
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens < 30
    stream = client.chat.completions.create(**options, max_tokens=30, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
    cut = client.chat.completions.create(**options, max_tokens=2)
    assert cut.choices[0].finish_reason == "length"
    stopped = client.chat.completions.create(**options, stop=["Paris"])
    assert (stopped.choices[0].message.content or "") == text[: text.index("Paris")]


def test_choices_seeds_and_logprobs(client: openai.OpenAI, server: ServerProcess) -> None:
    options: Any = {
        "model": server.model,
        "messages": LONG,
        "max_tokens": 12,
        "n": 2,
        "seed": 5,
        "logprobs": True,
        "top_logprobs": 2,
    }
    first = client.chat.completions.create(**options)
    second = client.chat.completions.create(**options)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert len(set(texts)) == 2
    logprobs = first.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(item.token for item in logprobs.content) == texts[0]
    assert all(item.logprob <= 0 and len(item.top_logprobs) == 2 for item in logprobs.content)


def test_json_of_a_schema(client: openai.OpenAI, server: ServerProcess) -> None:
    message: Any = [{"role": "user", "content": "Name a city and its inhabitants as JSON."}]
    answer = client.chat.completions.parse(
        model=server.model, messages=message, response_format=City, max_tokens=200, temperature=0
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(answer.choices[0].message.parsed, City)
    broken: Any = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "("}},
    }
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=server.model, messages=message, response_format=broken)
    assert error.value.param == "response_format"


def test_plain_texts(client: openai.OpenAI, server: ServerProcess) -> None:
    answer = client.completions.create(
        model=server.model, prompt=["The capital of France is", "One two three"], max_tokens=4
    )
    assert [choice.index for choice in answer.choices] == [0, 1]


def test_a_prompt_that_is_too_long(client: openai.OpenAI, server: ServerProcess) -> None:
    message: Any = [{"role": "user", "content": "word " * 20_000}]
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=server.model, messages=message)
    assert error.value.code == "context_length_exceeded"
    assert server.metrics()["mlcbuild_http_requests_in_flight"] == 0


def test_a_client_that_leaves_frees_its_pages(server: ServerProcess) -> None:
    for stream in (True, False):
        with client_of(server, timeout=1.0) as client:
            body: Any = {"model": server.model, "messages": LONG, "temperature": 1}
            if stream:
                chunks = client.chat.completions.create(**body, stream=True)
                for _ in range(3):
                    next(chunks)
                assert (pages_used(server.metrics()) or 0) > 0
                chunks.close()
            else:
                with pytest.raises(openai.APITimeoutError):
                    client.chat.completions.create(**body, extra_body={"ignore_eos": True})
        steps = server.metrics()["mlcb_step_seconds_count"]
        wait_until(lambda: pages_used(server.metrics()) == 0)
        # Looking takes time too; tests/unit/test_runtime_engine.py counts exactly.
        assert server.metrics()["mlcb_step_seconds_count"] - steps <= 10


def test_many_streams_get_their_own_texts(server: ServerProcess) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        message: Any = [{"role": "user", "content": f"Story {number}: a tale of {number} rivers."}]
        stream = await client.chat.completions.create(
            model=server.model, messages=message, seed=number, max_tokens=8, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def main() -> None:
        url = f"http://127.0.0.1:{server.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            together = await asyncio.gather(*(ask(client, number) for number in range(12)))
            alone = [await ask(client, number) for number in range(12)]
        assert together == alone
        assert len(set(alone)) > 6

    asyncio.run(main())


def test_a_full_queue(smollm2_int4: Path) -> None:
    limits = ("--max-batch-size", "1", "--max-waiting", "1", "--request-timeout", "60")

    async def main(server: ServerProcess) -> None:
        async def ask(client: openai.AsyncOpenAI) -> str:
            answer = await client.chat.completions.create(
                model=server.model, messages=LONG, max_tokens=40, extra_body={"ignore_eos": True}
            )
            return answer.choices[0].finish_reason

        url = f"http://127.0.0.1:{server.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            results = await asyncio.gather(*(ask(client) for _ in range(8)), return_exceptions=True)
        full = [item for item in results if isinstance(item, openai.RateLimitError)]
        assert results.count("length") >= 1
        assert len(full) + results.count("length") == 8
        assert all(int(item.response.headers["retry-after"]) >= 1 for item in full)
        assert full
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=9) as client:
            assert await asyncio.gather(*(ask(client) for _ in range(4))) == ["length"] * 4

    with server_process.serve(smollm2_int4, *limits) as server:
        asyncio.run(main(server))
        assert server.stop() == 0
