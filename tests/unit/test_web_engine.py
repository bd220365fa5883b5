"""The JavaScript engine of web bundles: its own tests, and that it answers as the Python engine."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlcbuild.bundle.abi import EventKind, GrammarKind, TextFlags
from mlcbuild.bundle.native import NativeEvent, RequestUsage, json_text
from mlcbuild.core.node import node_program
from mlcbuild.engine.answers import (
    ChatAssembler,
    ChatStream,
    CompletionAssembler,
    CompletionStream,
    Header,
)
from mlcbuild.engine.prepare import Prepared, RequestBuilder
from mlcbuild.engine.protocol import ChatCompletionRequest, CompletionRequest, parse_request
from mlcbuild.server.api_error import describe_error
from tests.unit.web_engine_cases import random_body, random_events

WEB = Path(__file__).parents[1] / "web"
VOCAB = 260
MANIFEST = {"name": "fake", "model": {"vocab_size": VOCAB}}
CHAT = {"template": "x", "sampling": {"temperature": 0.6, "top_k": 40, "min_p": 0.05}}


def node(*arguments: str, given: str = "") -> str:
    """What node prints."""
    result = subprocess.run(
        [str(node_program()), *arguments],
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
    for _ in range(1200):
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
    assert min(kinds["chat"], kinds["text"]) > 200
    for code in (
        "invalid_value",
        "unknown_parameter",
        "unsupported_parameter",
        "missing_parameter",
    ):
        assert kinds[code] > 10, kinds
    assert kinds["model_not_found"] > 10
