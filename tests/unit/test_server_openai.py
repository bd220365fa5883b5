"""The unmodified ``openai`` package against the server, over a fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from mlcbuild.bundle.abi import BusyError
from tests.unit.fake_engine import FakeEngine
from tests.unit.server_host import ServerHost, wait_until

KEY = "secret"
QUESTION: Any = [{"role": "user", "content": "where is Paris today"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Place(BaseModel):
    """What a parsed answer becomes."""

    city: str


@pytest.fixture(scope="module")
def shared_host() -> Iterator[ServerHost]:
    with ServerHost(FakeEngine(), api_keys=(KEY,)) as server:
        yield server


@pytest.fixture
def host(shared_host: ServerHost) -> ServerHost:
    shared_host.start_afresh(FakeEngine())
    return shared_host


@pytest.fixture
def client(host: ServerHost) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{host.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=QUESTION, seed=7, stop=["x"], temperature=0.5, top_p=0.9, n=2
    )
    assert [choice.message.content for choice in answer.choices] == ["where is Paris today"] * 2
    assert answer.choices[1].index == 1
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert (answer._request_id or "").startswith("req_")


def test_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="fake", messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "where is Paris today"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 8


def test_the_clients_own_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="fake", messages=QUESTION) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == "where is Paris today"


def test_plain_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="one two three", max_tokens=2)
    assert answer.choices[0].text == "one two"
    assert answer.choices[0].finish_reason == "length"
    pieces = client.completions.create(model="fake", prompt="one two", stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == "one two"


def test_tools(client: openai.OpenAI) -> None:
    options: Any = {"tools": [WEATHER], "tool_choice": "required"}
    choice = client.chat.completions.create(model="fake", messages=QUESTION, **options).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    call: Any = choice.message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "weather",
        {"city": "Paris"},
    )
    follow_up = [
        *QUESTION,
        choice.message,
        {"role": "tool", "tool_call_id": call.id, "content": "sunny and warm"},
    ]
    answer = client.chat.completions.create(model="fake", messages=follow_up)
    assert answer.choices[0].message.content == "sunny and warm"
    with client.chat.completions.stream(model="fake", messages=QUESTION, **options) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.message.tool_calls is not None
    assert json.loads(final.message.tool_calls[0].function.arguments) == {"city": "Paris"}


def test_parse_into_a_model(client: openai.OpenAI, host: ServerHost) -> None:
    answer = client.chat.completions.parse(model="fake", messages=QUESTION, response_format=Place)
    assert answer.choices[0].message.parsed == Place(city="Paris")
    sent = host.engine.requests[0]["response_format"]
    assert sent["json_schema"]["schema"]["required"] == ["city"]


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=QUESTION, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [item.token for item in logprobs.content] == ["where", " is", " Paris", " today"]


def test_extensions_go_through(client: openai.OpenAI, host: ServerHost) -> None:
    client.chat.completions.create(
        model="fake", messages=QUESTION, extra_body={"top_k": 5, "min_p": 0.1}
    )
    assert host.engine.requests[0]["top_k"] == 5


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake", "alias"]
    assert client.models.retrieve("alias").owned_by == "mlcbuild"


def test_error_classes(client: openai.OpenAI, host: ServerHost) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        client.chat.completions.create(model="fake", messages=QUESTION, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'") as lost:
        client.chat.completions.create(model="gpt", messages=QUESTION)
    assert lost.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")
    with pytest.raises(openai.AuthenticationError, match="not known"):
        client.with_options(api_key="wrong").models.list()
    host.engine.failure = RuntimeError("secret")
    with pytest.raises(openai.InternalServerError, match="internal error"):
        client.chat.completions.create(model="fake", messages=QUESTION)
    host.engine.failure = BusyError("full")
    with pytest.raises(openai.RateLimitError) as full:
        client.chat.completions.create(model="fake", messages=QUESTION)
    assert full.value.response.headers["retry-after"] == "1"
    host.engine.late_failure = RuntimeError("secret")
    with pytest.raises(openai.APIError, match="internal error"):
        list(client.chat.completions.create(model="fake", messages=QUESTION, stream=True))


def test_a_full_server_is_tried_again(client: openai.OpenAI, host: ServerHost) -> None:
    host.engine.failure = BusyError("full")
    patient = client.with_options(max_retries=1)
    answer = patient.chat.completions.create(model="fake", messages=QUESTION)
    assert answer.choices[0].message.content == "where is Paris today"
    wait_until(lambda: len(host.records) == 2)
    assert [record.status for record in host.records] == [429, 200]


def test_leaving_a_stream_ends_the_request(client: openai.OpenAI, host: ServerHost) -> None:
    host.engine.pause = 0.02
    content: Any = [{"role": "user", "content": "word " * 500}]
    with client.chat.completions.create(model="fake", messages=content, stream=True) as stream:
        next(iter(stream))
        assert host.engine.held == 1
    wait_until(lambda: host.engine.held == 0)
    assert host.engine.cancelled == 1


def test_many_streams_at_once(host: ServerHost) -> None:
    host.engine.pause = 0.001

    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        words = " ".join(f"{number}-{position}" for position in range(12))
        message: Any = [{"role": "user", "content": words}]
        stream = await client.chat.completions.create(model="fake", messages=message, stream=True)
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        assert text == words
        return text

    async def main() -> int:
        async with openai.AsyncOpenAI(base_url=f"{host.url}/v1", api_key=KEY) as client:
            return len(set(await asyncio.gather(*(ask(client, number) for number in range(32)))))

    assert asyncio.run(main()) == 32
    assert host.engine.finished == 32
