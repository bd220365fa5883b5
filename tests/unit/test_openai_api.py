"""OpenAI's calls on Engine and AsyncEngine, with a stub of the runtime and openai's own types."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import openai.types as openai_types
import openai.types.chat as openai_chat
import pytest
from pydantic import BaseModel

from mlcbuild.bundle.abi import BusyError, DeadlineError, GrammarError, PromptTooLongError
from mlcbuild.bundle.writer import write_bundle
from mlcbuild.engine import AsyncEngine, AsyncStream, Engine, Stream
from mlcbuild.engine.answers import ChatAssembler
from mlcbuild.engine.hub import Flight
from mlcbuild.engine.prepare import RequestBuilder
from mlcbuild.engine.protocol import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    InvalidRequestError,
    ModelNotFoundError,
    parse_request,
)
from mlcbuild.errors import InternalError, UsageError, VerificationError
from tests.unit import stub_bundle

TOOLS = [
    {
        "type": "function",
        "function": {
            "strict": True,
            "parameters": {"type": "object", "properties": {"z": {}, "a": {}}},
            "name": "f",
            "description": "d",
        },
    },
    {"type": "function", "function": {"name": "g"}},
]


def say(text: str) -> list[dict[str, Any]]:
    """A conversation that the stub answers with ``text``, over and over."""
    return [{"role": "user", "content": f"ECHO:{text}"}]


def once(text: str) -> dict[str, Any]:
    """Parameters of a chat that the stub answers with ``text``, once, as if it stopped there."""
    return {"messages": say(f"{text}!"), "stop": "!"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("openai")
    library = stub_bundle.compile_stub(folder)
    stub_bundle.make_bundle(folder / "bundle", library.read_bytes())
    return folder / "bundle"


@pytest.fixture(scope="module")
def engine(bundle: Path) -> Iterator[Engine]:
    with Engine(bundle) as opened:
        yield opened


def submitted(engine: Engine) -> dict[str, Any]:
    """What the runtime was given last."""
    request: dict[str, Any] = engine.metrics()["last_request"]
    return request


def check_shape(ours: BaseModel, theirs: type[BaseModel]) -> Any:
    """``ours`` as openai's type, validated; every field of theirs that must be there is."""
    record = json.loads(ours.model_dump_json())
    return theirs.model_validate(record, strict=True)


# ---- chat ----------------------------------------------------------------------------------------


def test_chat(engine: Engine) -> None:
    answer = engine.chat.completions.create(messages=say("Hi"), max_tokens=5)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", "HiHiH")
    assert choice.finish_reason == "length"
    assert answer.model == "stub"
    assert answer.usage is not None
    assert answer.usage.model_dump() == {
        "prompt_tokens": 2,
        "completion_tokens": 5,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert answer.timings is not None
    assert answer.timings.first_token_seconds == 0.5
    parsed = check_shape(answer, openai_chat.ChatCompletion)
    assert parsed.choices[0].message.content == "HiHiH"
    assert parsed.object == "chat.completion"
    assert set(json.loads(answer.model_dump_json())["choices"][0]["message"]) == {
        *("role", "content", "refusal")
    }


def test_chat_stream(engine: Engine) -> None:
    stream = engine.chat.completions.create(
        messages=say("Hi"),
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True},
        seed=5,
    )
    assert isinstance(stream, Stream)
    chunks = list(stream)
    for chunk in chunks:
        check_shape(chunk, openai_chat.ChatCompletionChunk)
        assert chunk.id == chunks[0].id
    records = [json.loads(chunk.model_dump_json()) for chunk in chunks]
    deltas = [record["choices"][0]["delta"] for record in records[:-1]]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "H"},
        {"content": "i"},
        {"content": "H"},
        {},
    ]
    finishes = [record["choices"][0]["finish_reason"] for record in records[:-1]]
    assert finishes == [None, None, None, None, "length"]
    assert records[-1]["choices"] == []
    assert records[-1]["usage"]["total_tokens"] == 5
    assert records[-1]["seed"] == 5
    assert "usage" not in records[0]
    without = engine.chat.completions.create(messages=say("Hi"), max_tokens=3, stream=True)
    assert all(chunk.choices and chunk.usage is None for chunk in without)


def test_choices(engine: Engine) -> None:
    answer = engine.chat.completions.create(messages=say("Hi"), max_tokens=3, n=3)
    assert [choice.message.content for choice in answer.choices] == ["HiH", "iHi", "HiH"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 2
    assert answer.usage.completion_tokens == 9
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    assert answer.timings is not None
    assert answer.timings.total_seconds == 3
    texts = ["", "", ""]
    for chunk in engine.chat.completions.create(messages=say("Hi"), max_tokens=3, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["HiH", "iHi", "HiH"]


def test_logprobs(engine: Engine) -> None:
    answer = engine.chat.completions.create(
        messages=say("A\u00e9"), max_tokens=3, logprobs=True, top_logprobs=2
    )
    parsed = check_shape(answer, openai_chat.ChatCompletion)
    assert parsed.choices[0].message.content == "A\u00e9"
    tokens = parsed.choices[0].logprobs.content
    assert [token.bytes for token in tokens] == [[65], [0xC3], [0xA9]]
    assert [token.token for token in tokens] == ["A", "\ufffd", "\ufffd"]
    assert tokens[0].logprob == -65 / 64
    likely = [(item.token, item.logprob) for item in tokens[0].top_logprobs]
    assert likely == [("A", -65 / 64), ("B", -65 / 64 - 1)]
    # A token whose text is held back goes with the next one that has some.
    chunks = list(
        engine.chat.completions.create(
            messages=say("A\u00e9"), max_tokens=3, logprobs=True, stream=True
        )
    )
    counts = [
        len(chunk.choices[0].logprobs.content or ()) if chunk.choices[0].logprobs else 0
        for chunk in chunks
    ]
    assert counts == [0, 1, 2, 0]
    assert (
        engine.chat.completions.create(messages=say("A"), max_tokens=1).choices[0].logprobs is None
    )


def test_stop_reasons(engine: Engine) -> None:
    stopped = engine.chat.completions.create(**once("Hi")).choices[0]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", "!")
    late = engine.chat.completions.create(messages=say("Hi"), timeout=0.007).choices[0]
    assert (late.message.content, late.finish_reason, late.stop_reason) == (
        *("Hi", "length"),
        "deadline",
    )
    with pytest.raises(DeadlineError, match="waited too long"):
        engine.chat.completions.create(messages=say("Hi"), timeout=0.006)


# ---- tools and reasoning -------------------------------------------------------------------------


def test_tool_calls(engine: Engine) -> None:
    text = 'Hm[f({"a": "x"})][g({})]'
    answer = engine.chat.completions.create(**once(text), tools=TOOLS)
    parsed = check_shape(answer, openai_chat.ChatCompletion)
    choice = parsed.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Hm"
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [("f", '{"a": "x"}'), ("g", "{}")]
    ids = {call.id for call in choice.message.tool_calls}
    assert len(ids) == 2
    assert all(name.startswith("call_") for name in ids)
    alone = engine.chat.completions.create(**once("[g({})]"), tools=TOOLS).choices[0].message
    assert alone.content is None


def test_tool_call_chunks(engine: Engine) -> None:
    stream = engine.chat.completions.create(**once("[f({})]"), tools=TOOLS, stream=True)
    chunks = list(stream)
    for chunk in chunks:
        check_shape(chunk, openai_chat.ChatCompletionChunk)
    deltas = [json.loads(chunk.model_dump_json())["choices"][0]["delta"] for chunk in chunks]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0].pop("id").startswith("call_")
    assert calls == [
        {"index": 0, "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": "{"}},
        {"index": 0, "function": {"arguments": "}"}},
    ]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_tools_are_rendered_as_given_and_parsed_only_then(engine: Engine) -> None:
    seen: list[str] = []
    real = RequestBuilder.render_chat

    def watch(self: RequestBuilder, messages: Any, **options: Any) -> str:
        text = real(self, messages, **options)
        seen.append(text)
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestBuilder, "render_chat", watch)
        engine.chat.completions.create(**once("[f({})]"), tools=TOOLS)
        none = engine.chat.completions.create(**once("[f(1)]"), tools=TOOLS, tool_choice="none")
    shown = json.loads(seen[0])["tools"]
    # The order of keys is the caller's; "strict" is for the engine.
    assert list(shown[0]["function"]) == ["parameters", "name", "description"]
    assert list(shown[0]["function"]["parameters"]["properties"]) == ["z", "a"]
    assert "tools" not in json.loads(seen[1])
    assert none.choices[0].message.content == "[f(1)]"
    assert none.choices[0].finish_reason == "stop"


def test_forced_tools_bind_the_text(engine: Engine) -> None:
    answer = engine.chat.completions.create(
        **once("[f({})]"), tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    request = submitted(engine)
    assert request["grammar_kind"] == 5
    assert request["grammar"].startswith('0 "required" [{"type":"function"')
    named = {"type": "function", "function": {"name": "g"}}
    engine.chat.completions.create(**once("[g({})]"), tools=TOOLS, tool_choice=named)
    choice = json.dumps(named, separators=(",", ":"))
    assert submitted(engine)["grammar"].startswith(f"0 {choice} ")  # one call of a named function
    engine.chat.completions.create(
        **once("[g({})]"), tools=TOOLS, tool_choice=named, parallel_tool_calls=True
    )
    assert submitted(engine)["grammar"].startswith(f"1 {choice} ")
    engine.chat.completions.create(**once("x"), tools=TOOLS, tool_choice="auto")
    assert submitted(engine)["grammar_kind"] == 0


def test_one_call_where_one_was_asked_for(engine: Engine) -> None:
    before = engine.metrics()["cancelled"]
    answer = engine.chat.completions.create(
        messages=say("[f({})][g({})]"), tools=TOOLS, parallel_tool_calls=False
    )
    message = answer.choices[0].message
    assert message.tool_calls is not None
    assert [call.function.name for call in message.tool_calls] == ["f"]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert engine.drain(5)
    assert engine.metrics()["cancelled"] == before + 1
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len("[f({})][g(")


def test_reasoning(engine: Engine) -> None:
    # A prompt may open the reasoning, as some templates do.
    opened = engine.chat.completions.create(
        messages=say("why}so!"), stop="!", chat_template_kwargs={"thinks": "{"}
    )
    assert opened.choices[0].message.reasoning_content == "why"
    message = engine.chat.completions.create(**once("{why}so")).choices[0].message
    assert (message.reasoning_content, message.content) == ("why", "so")
    deltas = [
        chunk.choices[0].delta
        for chunk in engine.chat.completions.create(**once("{why}so"), stream=True)
    ]
    assert "".join(delta.reasoning_content or "" for delta in deltas) == "why"
    assert "".join(delta.content or "" for delta in deltas) == "so"


def test_a_conversation_goes_on_with_what_came_back(engine: Engine) -> None:
    answer = engine.chat.completions.create(**once('[f({"a": 1})]'), tools=TOOLS)
    message = answer.choices[0].message
    theirs = check_shape(answer, openai_chat.ChatCompletion).choices[0].message
    assert message.tool_calls is not None
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "5"}
    seen: list[Any] = []
    real = RequestBuilder.render_chat

    def watch(self: RequestBuilder, messages: Any, **options: Any) -> str:
        seen.append((messages, options))
        return real(self, messages, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestBuilder, "render_chat", watch)
        for given in (message, theirs):
            conversation = [*say("x"), given, result]
            engine.chat.completions.create(messages=conversation, max_tokens=1)
    for messages, _ in seen:
        assert messages[1] == {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": message.tool_calls[0].id,
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"a": 1}'},
                }
            ],
        }
        assert messages[2] == result


def test_template_options(engine: Engine) -> None:
    seen: list[dict[str, Any]] = []
    real = RequestBuilder.render_chat

    def watch(self: RequestBuilder, messages: Any, **options: Any) -> str:
        seen.append({"messages": messages, **options})
        return real(self, messages, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestBuilder, "render_chat", watch)
        engine.chat.completions.create(
            messages=[
                {"role": "developer", "content": [{"type": "text", "text": "be brief"}]},
                *say("x"),
                {"role": "assistant", "content": "I"},
            ],
            max_tokens=1,
            chat_template_kwargs={"enable_thinking": False},
            reasoning_effort="low",
            continue_final_message=True,
        )
    (options,) = seen
    assert options["messages"][0] == {
        "role": "system",
        "content": [{"type": "text", "text": "be brief"}],
    }
    assert options["variables"] == {"enable_thinking": False, "reasoning_effort": "low"}
    assert options["continue_final_message"] is True
    assert options["add_generation_prompt"] is False


# ---- parameters ----------------------------------------------------------------------------------


def test_every_parameter_reaches_the_runtime(engine: Engine) -> None:
    parameters: dict[str, Any] = {
        "model": "stub",
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 3,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": -1.5,
        "frequency_penalty": 0.75,
        "seed": 9,
        "logit_bias": {"5": -100, "6": 2.5},
        "ignore_eos": True,
        "stop": ["xy", "z"],
        "stop_token_ids": [8, 9],
        "timeout": 1.5,
        "max_tokens": 4,
    }
    expected = {
        **parameters,
        "tokens": 2,
        "logit_bias": [[5, "-inf"], [6, 2.5]],
        "ignore_eos": 1,
        "logprobs": 1,
        "top_logprobs": 2,
        "timeout_ms": 1500,
        "grammar_kind": 3,
        "grammar": "[a-z]+",
    }
    del expected["model"], expected["timeout"]
    grammar = {"type": "regex", "value": "[a-z]+"}
    ignored: dict[str, Any] = {"user": "u", "store": True, "metadata": {"a": "b"}}
    engine.chat.completions.create(
        messages=say("Hi"), logprobs=True, top_logprobs=2, grammar=grammar, **parameters, **ignored
    )
    assert submitted(engine) == expected
    engine.completions.create(prompt=[72, 105], logprobs=2, grammar=grammar, **parameters)
    assert submitted(engine) == expected
    engine.chat.completions.create(
        messages=say("Hi"), max_completion_tokens=3, extra_body={"top_k": 7}
    )
    assert submitted(engine)["max_tokens"] == 3
    assert submitted(engine)["top_k"] == 7


def test_formats(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    for given, kind, text in (
        ({"type": "text"}, 0, ""),
        ({"type": "json_object"}, 1, ""),
        (
            {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}},
            2,
            '{"type":"object","properties":{"b":{},"a":{}}}',
        ),
    ):
        engine.chat.completions.create(messages=say("x"), max_tokens=1, response_format=given)
        assert (submitted(engine)["grammar_kind"], submitted(engine)["grammar"]) == (kind, text)
    for parameters, param in (
        ({"grammar": {"type": "ebnf", "value": "bad"}}, "grammar"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "s", "schema": {"x": "bad"}},
                }
            },
            "response_format",
        ),
    ):
        with pytest.raises(GrammarError, match="bad is not good") as error:
            engine.chat.completions.create(messages=say("x"), **parameters)
        assert error.value.param == param


def test_sampling_of_the_bundle_where_the_request_does_not_say(
    bundle: Path, engine: Engine, tmp_path: Path
) -> None:
    engine.chat.completions.create(messages=say("x"), max_tokens=1)
    drawn = submitted(engine)
    assert (drawn["temperature"], drawn["top_p"], drawn["top_k"], drawn["min_p"]) == (1, 1, 0, 0)
    answer = engine.chat.completions.create(messages=say("x"), max_tokens=1)
    assert answer.seed == submitted(engine)["seed"]
    assert answer.seed != drawn["seed"]
    greedy = engine.chat.completions.create(messages=say("x"), max_tokens=1, temperature=0)
    assert greedy.seed is None
    root = tmp_path / "bundle"
    stub_bundle.write_files(root, (bundle / "lib/libmlcb.so").read_bytes())

    def with_sampling(sampling: Any) -> Engine:
        (root / "chat.json").write_text(json.dumps({**stub_bundle.CHAT, "sampling": sampling}))
        (root / "bundle.json").unlink(missing_ok=True)
        write_bundle(root, stub_bundle.parts())
        return Engine(root)

    sampling = {"temperature": 0.5, "top_p": 0.75, "top_k": 20, "repetition_penalty": 1.25}
    with with_sampling(sampling) as other:
        other.chat.completions.create(messages=say("x"), max_tokens=1)
        found = submitted(other)
        assert {name: found[name] for name in sampling} == sampling
        other.completions.create(prompt=[1], top_k=-1, top_p=0, temperature=0.25)
        found = submitted(other)
        assert (found["temperature"], found["top_k"]) == (0.25, 0)
        assert 0 < found["top_p"] < 1e-6  # OpenAI's 0: the likeliest token, not "off"
        assert found["max_tokens"] == 16
        other.generate([1], max_tokens=1)
        assert submitted(other)["temperature"] == 0
    with pytest.raises(VerificationError, match=r"sampling\.top_p"):
        with_sampling({"top_p": "high"})


MESSAGES = say("x")
BAD_CHATS: list[tuple[dict[str, Any], str | None, str]] = [
    ({}, "messages", "messages is missing"),
    ({"messages": []}, "messages", "messages is empty"),
    ({"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role", "should be 'system'"),
    ({"messages": [{"role": "user"}]}, "messages[0]", "needs content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "valid string or"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
        "only text parts are supported, not 'image_url'",
    ),
    (
        {"messages": [{"role": "user", "content": "\ud800"}]},
        "messages[0].content",
        "half a surrogate pair",
    ),
    (
        {"messages": [{"role": "user", "content": "x", "tool_calls": []}]},
        "messages[0]",
        "belong to role assistant",
    ),
    ({"temperature": 2.5}, "temperature", "less than or equal to 2"),
    ({"temperature": "1"}, "temperature", "valid number"),
    ({"temperature": float("nan")}, "temperature", "temperature is nan"),
    ({"temprature": 1}, "temprature", "unknown parameter temprature\nhint: did you mean temperat"),
    ({"zzz": None}, "zzz", "unknown parameter zzz"),
    ({"functions": []}, "functions", "not supported\nhint: use tools"),
    ({"top_p": 1.5}, "top_p", "less than or equal to 1"),
    ({"top_k": -2}, "top_k", "greater than or equal to -1"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"n": True}, "n", "valid integer"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": 1 << 40}, "max_tokens", "less than"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "different things"),
    ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "no token id"),
    ({"logit_bias": {"260": 1}}, "logit_bias", "the model has 260"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1", "less than or equal to 100"),
    ({"stop": ["a", ""]}, "stop[1]", "stop[1] is empty"),
    ({"stop_token_ids": [3, 260]}, "stop_token_ids", "names token 260, the model has 260"),
    ({"stop": ["a"] * 65}, "stop", "at most 64"),
    ({"timeout": 0}, "timeout", "greater than 0"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
    ({"model": "other"}, "model", "there is no model other; there is stub"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"tools": [*TOOLS, TOOLS[0]]}, "tools", "two functions of one name"),
    ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type", "should be 'function'"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "h"}}},
        "tool_choice",
        "names h, which is not in tools",
    ),
    (
        {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
        "tool_choice",
        "another format binds",
    ),
    (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema",
        "response_format.json_schema is missing",
    ),
    (
        {"response_format": {"type": "text", "json_schema": {"name": "a", "schema": {}}}},
        "response_format",
        "belongs to type json_schema, not to text",
    ),
    (
        {"response_format": {"type": "json_object"}, "grammar": {"type": "json"}},
        "grammar",
        "cannot both bind",
    ),
    ({"grammar": {"type": "regex"}}, "grammar", "needs a value"),
    ({"grammar": "[0-9]+"}, "grammar", "should be an object"),
    ({"continue_final_message": True}, "continue_final_message", "last message of role assistant"),
    ({"modalities": ["audio"]}, "modalities[0]", "should be 'text'"),
]


@pytest.mark.parametrize(("change", "param", "text"), BAD_CHATS)
def test_bad_chats(engine: Engine, change: dict[str, Any], param: str, text: str) -> None:
    body = change if not change or "messages" in change else {"messages": MESSAGES, **change}
    with pytest.raises(InvalidRequestError) as error:
        engine.chat.completions.create(body)
    assert text in str(error.value)
    assert error.value.param == param
    assert error.value.exit_code == 2


def test_a_request_that_is_no_object(engine: Engine) -> None:
    with pytest.raises(
        InvalidRequestError, match="not list\nhint: parameters go in by their names"
    ):
        engine.chat.completions.create(MESSAGES)  # type: ignore[call-overload]


def test_deep_nesting_is_refused(engine: Engine) -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(InvalidRequestError, match="metadata is nested too deeply"):
        engine.chat.completions.create({"messages": MESSAGES, "metadata": deep})


BAD_COMPLETIONS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "prompt is missing"),
    ({"prompt": []}, "prompt", "empty list"),
    ({"prompt": [-1]}, "prompt[0]", "greater than or equal to 0"),
    ({"prompt": [1, "a"]}, "prompt[0]", "valid string"),
    ({"prompt": [[1], []]}, "prompt[1]", "prompt[1] has no tokens"),
    ({"prompt": []}, "prompt", "empty"),
    ({"prompt": [1, 260]}, "prompt", "holds token 260, the model has 260"),
    ({"prompt": "a", "best_of": 2}, "best_of", "must equal n"),
    ({"prompt": "a", "suffix": "b"}, "suffix", "suffix is not supported"),
    ({"prompt": "a", "logprobs": 21}, "logprobs", "less than or equal to 20"),
    ({"prompt": "a", "echo": True, "logprobs": 1}, "logprobs", "not told"),
    ({"prompt": "a", "messages": []}, "messages", "unknown parameter messages"),
]


@pytest.mark.parametrize(("body", "param", "text"), BAD_COMPLETIONS)
def test_bad_completions(engine: Engine, body: dict[str, Any], param: str, text: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        engine.completions.create(body)
    assert text in str(error.value)
    assert error.value.param == param


def test_what_the_runtime_refuses(bundle: Path, engine: Engine) -> None:
    with pytest.raises(PromptTooLongError):
        engine.chat.completions.create(messages=say("x" * 101))
    with pytest.raises(InvalidRequestError, match="the template says: no") as refused:
        engine.chat.completions.create(messages=[{"role": "user", "content": "REFUSE"}])
    assert refused.value.param == "messages"
    with pytest.raises(InternalError, match="a kernel failed"):
        engine.completions.create(prompt=[[65], [66, 258], [67]], max_tokens=90)
    assert engine.drain(5)
    with pytest.raises(InvalidRequestError, match="beside a request that is ready"):
        engine.chat.completions.create({"messages": MESSAGES}, temperature=1)  # type: ignore[call-overload]
    with Engine(bundle, max_waiting=1) as small:
        with small.chat.completions.create(messages=say("x"), stream=True) as stream:
            next(stream)
            with pytest.raises(BusyError):
                small.completions.create(prompt=[[1], [2]])
        assert small.drain(5)


# ---- plain completions ---------------------------------------------------------------------------


def test_completion(engine: Engine) -> None:
    answer = engine.completions.create(prompt="ECHO:Hi", max_tokens=5)
    parsed = check_shape(answer, openai_types.Completion)
    assert parsed.object == "text_completion"
    assert parsed.choices[0].text == "HiHiH"
    assert parsed.choices[0].finish_reason == "length"
    assert parsed.usage.total_tokens == 7
    raw = engine.completions.create(prompt="a", max_tokens=5)
    assert raw.choices[0].text == "????a"  # BOS, four times


def test_completions_of_several_prompts(engine: Engine) -> None:
    answer = engine.completions.create(prompt=[[65, 66], [67]], n=2, max_tokens=3, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    echoed = ("A" * 20 + "B" * 20, "C" * 20)
    assert [choice.text for choice in answer.choices] == [
        echoed[0] + "ABA",
        echoed[0] + "BAB",
        echoed[1] + "CCC",
        echoed[1] + "CCC",
    ]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 12)
    texts = engine.completions.create(prompt=["ECHO:x", "ECHO:y"], max_tokens=2)
    assert [choice.text for choice in texts.choices] == ["xx", "yy"]


def test_completion_stream(engine: Engine) -> None:
    stream = engine.completions.create(
        prompt=[[72, 105], [33]],
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=1,
    )
    chunks = list(stream)
    texts = ["", ""]
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        record = json.loads(chunk.model_dump_json())
        # OpenAI itself sends null here, though its type does not say so.
        record["choices"][0]["finish_reason"] = record["choices"][0]["finish_reason"] or "stop"
        openai_types.Completion.model_validate(record)
        assert "usage" not in record
    assert texts == ["HiH", "!!!"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


def test_completion_logprobs(engine: Engine) -> None:
    answer = engine.completions.create(prompt=[72, 105], max_tokens=3, logprobs=2)
    parsed = check_shape(answer, openai_types.Completion)
    found = parsed.choices[0].logprobs
    assert found.tokens == ["H", "i", "H"]
    assert found.token_logprobs == [-72 / 64, -105 / 64, -72 / 64]
    assert found.text_offset == [0, 1, 2]
    assert found.top_logprobs[0] == {"H": -72 / 64, "I": -72 / 64 - 1}
    only = engine.completions.create(prompt=[72], max_tokens=1, logprobs=0).choices[0].logprobs
    assert only is not None
    assert only.tokens == ["H"]
    assert only.top_logprobs is None


def test_models(engine: Engine) -> None:
    (model,) = engine.models.list()
    assert check_shape(model, openai_types.Model).id == "stub"
    assert model.context_window_size == 100
    assert engine.models.retrieve("stub") == model
    with pytest.raises(ModelNotFoundError, match="there is no model x; there is stub") as error:
        engine.models.retrieve("x")
    assert (error.value.param, error.value.code) == ("model", "model_not_found")


def test_a_request_that_is_ready(engine: Engine) -> None:
    chat = parse_request(ChatCompletionRequest, {"messages": say("Hi"), "max_tokens": 2})
    answer = engine.chat.completions.create(chat)
    assert isinstance(answer, ChatCompletion)
    assert answer.choices[0].message.content == "Hi"
    text = parse_request(CompletionRequest, {"prompt": [72], "max_tokens": 2, "stream": True})
    chunks = list(engine.completions.create(text))
    assert all(isinstance(chunk, Completion) for chunk in chunks)


def test_closing_a_stream_cancels(engine: Engine) -> None:
    before = engine.metrics()["cancelled"]
    stream = engine.chat.completions.create(messages=say("x"), stream=True)
    next(stream)
    stream.close()
    with engine.completions.create(prompt=[[65], [66]], max_tokens=90, stream=True) as texts:
        next(texts)
    assert list(texts) == []
    assert engine.drain(5)
    assert engine.metrics()["cancelled"] == before + 3


# ---- asyncio -------------------------------------------------------------------------------------


def run_with(bundle: Path, work: Callable[[AsyncEngine], Awaitable[None]], **options: Any) -> None:
    """Runs ``work`` over a fresh AsyncEngine."""

    async def main() -> None:
        async with await AsyncEngine.open(bundle, **options) as engine:
            await work(engine)

    asyncio.run(asyncio.wait_for(main(), 60))


async def cancelled(engine: AsyncEngine) -> int:
    """Requests that were cancelled, once nothing runs any more."""
    assert await engine.drain(5)
    assert engine._hub.in_flight == 0
    count: int = engine.metrics()["cancelled"]
    return count


def test_async_calls(bundle: Path) -> None:
    async def work(engine: AsyncEngine) -> None:
        answer = await engine.chat.completions.create(messages=say("Hi"), max_tokens=5)
        assert answer.choices[0].message.content == "HiHiH"
        stream = await engine.chat.completions.create(
            {"messages": say("Hi"), "max_tokens": 3, "stream": True}
        )
        assert isinstance(stream, AsyncStream)
        texts = [chunk.choices[0].delta.content async for chunk in stream]
        assert texts == ["", "H", "i", "H", None]
        await stream.aclose()
        plain = await engine.completions.create(prompt=[65], max_tokens=2)
        assert plain.choices[0].text == "AA"
        assert [model.id for model in await engine.models.list()] == ["stub"]
        assert (await engine.models.retrieve("stub")).id == "stub"
        assert engine.tokenize("ECHO:a") == [97]
        assert (await engine.generate([72, 105], max_tokens=3)).text == "HiH"
        pair = await engine.generate_choices([72, 105], 2, max_tokens=3)
        assert [item.text for item in pair] == ["HiH", "iHi"]
        batch = await engine.generate_batch([[65], [66]], max_tokens=2)
        assert [item.text for item in batch] == ["AA", "BB"]
        assert [text async for text in await engine.stream([65], max_tokens=2)] == ["A", "A"]
        events = [event async for event in await engine.stream_events([65], n=2, max_tokens=1)]
        assert sorted(event.choice for event in events) == [0, 0, 1, 1]
        assert (await engine.logits([7, 9])).argmax(axis=1).tolist() == [9, 7]
        with pytest.raises(InvalidRequestError, match="temperature"):
            await engine.chat.completions.create(messages=say("x"), temperature=3)
        with pytest.raises(PromptTooLongError):
            await engine.generate([1] * 101)
        with pytest.raises(InternalError, match="a kernel failed"):
            await engine.completions.create(prompt=[[65], [66, 258]], max_tokens=90)
        assert await cancelled(engine) == 1

    run_with(bundle, work)


def test_many_tasks_do_not_mix(bundle: Path) -> None:
    async def work(engine: AsyncEngine) -> None:
        async def ask(number: int) -> str:
            letter = chr(65 + number % 26)
            text = ""
            stream = await engine.chat.completions.create(
                messages=say(letter), max_tokens=10 + number, stream=True
            )
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
            assert text == letter * (10 + number)
            return text

        assert len(await asyncio.gather(*(ask(number) for number in range(80)))) == 80
        assert await cancelled(engine) == 0

    run_with(bundle, work)


def test_cancelling_a_task_cancels_its_request(bundle: Path) -> None:
    async def work(engine: AsyncEngine) -> None:
        whole = asyncio.ensure_future(engine.chat.completions.create(messages=say("x")))
        while not engine._hub.in_flight:
            await asyncio.sleep(0)
        whole.cancel()
        with pytest.raises(asyncio.CancelledError):
            await whole
        assert await cancelled(engine) == 1

        async def read() -> None:
            async for _ in await engine.stream([65], max_tokens=90):
                started.set()

        started = asyncio.Event()
        reading = asyncio.ensure_future(read())
        await started.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await cancelled(engine) == 2
        async with await engine.stream([65], max_tokens=90) as stream:
            await stream.__anext__()
        assert [text async for text in stream] == []
        stream = await engine.stream([65], max_tokens=90)
        await stream.close()
        assert await cancelled(engine) == 4

    run_with(bundle, work)


def test_cancelling_while_a_request_is_prepared(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()
    real = Flight.__init__

    def slow(self: Flight, *arguments: Any) -> None:
        entered.set()
        assert go_on.wait(10)
        real(self, *arguments)

    async def work(engine: AsyncEngine) -> None:
        task = asyncio.ensure_future(engine.generate([65], max_tokens=90))
        await asyncio.to_thread(entered.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        monkeypatch.undo()
        assert (await engine.generate([66], max_tokens=90)).finish_reason == "length"
        assert await cancelled(engine) == 1

    monkeypatch.setattr(Flight, "__init__", slow)
    run_with(bundle, work)


def test_closing_tells_those_who_wait(bundle: Path) -> None:
    async def work(engine: AsyncEngine) -> None:
        stream = await engine.stream([65], max_tokens=90)
        await stream.__anext__()
        waiting = asyncio.ensure_future(read_all(stream))
        await asyncio.sleep(0)
        await engine.close()
        with pytest.raises(UsageError, match="closed while a request was running"):
            await waiting
        with pytest.raises(UsageError, match="closed"):
            await engine.generate([65])

    async def read_all(stream: AsyncIterator[str]) -> list[str]:
        return [text async for text in stream]

    run_with(bundle, work)


def test_one_engine_in_several_loops(bundle: Path) -> None:
    engine = AsyncEngine(bundle)
    results: list[str] = []

    def work(letter: int) -> None:
        result = asyncio.run(engine.generate([letter], max_tokens=20))
        results.append(result.text)

    threads = [threading.Thread(target=work, args=(65 + number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    asyncio.run(engine.close())
    assert sorted(results) == [letter * 20 for letter in "ABCD"]


def test_a_loop_that_ended_does_not_stop_the_others(bundle: Path) -> None:
    engine = AsyncEngine(bundle)
    kept: list[Any] = []

    async def start() -> None:
        stream = await engine.stream([65], max_tokens=90)
        kept.append(stream)  # not closed: its loop ends while it runs
        await stream.__anext__()

    asyncio.run(start())
    assert asyncio.run(engine.generate([66], max_tokens=3)).text == "BBB"
    asyncio.run(engine.close())


def test_chunks_put_together_are_the_answer(engine: Engine) -> None:
    """What a client makes of the chunks equals the answer in one piece."""
    parameters = {**once('{why}so[f({"a": 1})]'), "tools": TOOLS, "n": 2, "logprobs": True}
    whole = engine.chat.completions.create(**parameters)
    request = parse_request(ChatCompletionRequest, {**parameters, "stream": True})
    assembler = ChatAssembler(engine._builder.chat(request))
    for chunk in engine.chat.completions.create(request):
        assert isinstance(chunk, ChatCompletionChunk)
        assembler.add(chunk)
    theirs = assembler.result()
    for ours, other in zip(whole.choices, theirs.choices, strict=True):
        mine, yours = ours.model_dump(), other.model_dump()
        for record in (mine, yours):
            for call in record["message"].get("tool_calls") or ():
                call["id"] = ""
        assert mine == yours


def test_the_examples_of_the_documentation_run(
    bundle: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (stub_bundle.HERE.parents[1] / "docs" / "python-api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 6
    # Prompts of the examples are longer than the stub's window.
    real = RequestBuilder.tokenize
    monkeypatch.setattr(
        RequestBuilder, "tokenize", lambda self, text, **options: real(self, text[:20])
    )
    places = re.compile(r'"artifacts/[^"]+"')
    for block in blocks:
        names: dict[str, Any] = {"bundle": bundle, "engine": engine, "messages": say("Hi")}
        exec(places.sub("bundle", block), names)
