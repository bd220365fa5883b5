"""Tool calls end to end: a model whose template takes tools, the server, and openai's package.

The model is random, so calls are forced; what is in them is up to the grammar of the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.bench import server_process
from tests.bench.server_process import ServerProcess
from tests.conftest import BuildBundle
from tests.parity import tiny_llama
from tests.unit.test_chat_config import HERMES, LLAMA_CALLS, MISTRAL, MISTRAL_ARGS

TEMPLATES = {
    "hermes": HERMES,
    "llama3": LLAMA_CALLS,
    "mistral": MISTRAL,
    "mistral-args": MISTRAL_ARGS,
}
LIGHTS: Any = {
    "type": "function",
    "function": {
        "name": "lights",
        "parameters": {
            "type": "object",
            "properties": {
                "room": {"enum": ["hall", "attic"]},
                "level": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["room", "level"],
            "additionalProperties": False,
        },
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
ASK: Any = [{"role": "user", "content": "Dim it."}]


@pytest.fixture(scope="module", params=TEMPLATES)
def server(
    request: pytest.FixtureRequest,
    build_bundle: BuildBundle,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("tools") / request.param
    tiny_llama.write_checkpoint(folder, "tied")
    settings = folder / "tokenizer_config.json"
    text = json.loads(settings.read_text()) | {"chat_template": TEMPLATES[request.param]}
    settings.write_text(json.dumps(text))
    bundle = build_bundle(f"tools-{request.param}", str(folder), "q0f32")
    with server_process.serve(bundle) as server:
        yield server
        assert server.wait_idle().pages_used == 0
        assert server.stop() == 0


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def check(name: str, arguments: str) -> None:
    """Fails unless a call is one that the tools take."""
    value = json.loads(arguments)
    if name == "clock":
        assert value == {}
    else:
        assert name == "lights"
        assert value["room"] in ("hall", "attic")
        assert value["level"] in range(1, 10)
        assert set(value) == {"room", "level"}


def test_a_chosen_function(client: openai.OpenAI, server: ServerProcess) -> None:
    choice: Any = {"type": "function", "function": {"name": "lights"}}
    answer = client.chat.completions.create(
        model=server.model,
        messages=ASK,
        tools=[LIGHTS, CLOCK],
        tool_choice=choice,
        parallel_tool_calls=False,
        seed=1,
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    assert not answer.choices[0].message.content
    calls: Any = answer.choices[0].message.tool_calls
    (call,) = calls
    assert call.type == "function"
    assert call.function.name == "lights"
    check(call.function.name, call.function.arguments)
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    later: Any = [*ASK, answer.choices[0].message, result]
    follow = client.chat.completions.create(
        model=server.model, messages=later, tools=[LIGHTS, CLOCK], max_tokens=4
    )
    assert follow.usage is not None
    assert answer.usage is not None
    assert follow.usage.prompt_tokens > answer.usage.prompt_tokens


def test_any_function_streamed(client: openai.OpenAI, server: ServerProcess) -> None:
    names: set[str] = set()
    for seed in range(4):
        stream = client.chat.completions.create(
            model=server.model,
            messages=ASK,
            tools=[LIGHTS, CLOCK],
            tool_choice="required",
            parallel_tool_calls=False,
            seed=seed,
            stream=True,
        )
        calls: dict[int, list[str]] = {}
        reasons: list[str | None] = []
        for chunk in stream:
            for choice in chunk.choices:
                assert not choice.delta.content
                reasons.append(choice.finish_reason)
                for delta in choice.delta.tool_calls or ():
                    call = calls.setdefault(delta.index, ["", ""])
                    assert delta.function is not None
                    call[0] += delta.function.name or ""
                    call[1] += delta.function.arguments or ""
        assert reasons[-1] == "tool_calls"
        assert list(calls) == [0]
        check(*calls[0])
        names.add(calls[0][0])
    assert names <= {"lights", "clock"}


def test_without_a_need_to_call(client: openai.OpenAI, server: ServerProcess) -> None:
    answer = client.chat.completions.create(
        model=server.model, messages=ASK, tools=[LIGHTS], max_tokens=8, temperature=0
    )
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"type": "string"}, "arguments are an object"),
        (
            {"type": "object", "properties": {"a": {"type": "nombre"}}},
            "tools[1].function.parameters: /properties/a/type",
        ),
    ],
)
def test_schemas_that_bind_nothing(
    client: openai.OpenAI, server: ServerProcess, parameters: Any, message: str
) -> None:
    bad: Any = {"type": "function", "function": {"name": "bad", "parameters": parameters}}
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(
            model=server.model, messages=ASK, tools=[CLOCK, bad], tool_choice="required"
        )
    assert message in error.value.message
    assert (error.value.param or "").startswith("tools")
