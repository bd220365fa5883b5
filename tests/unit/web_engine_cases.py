"""Requests and events, good ones and bad ones, on which two engines are compared."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from mlcbuild.engine.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    InvalidRequestError,
    parse_request,
)

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
    None, True, False, 0, 1, 2, 3, -1, 21, 129, 2.5, -0.5, 0.25, 1e5 + 0.5, 1 << 31, 1 << 53,
    -(1 << 52), "", "a", "none", "auto", "required", "text", "\ud800", "7", [], ["a"], [""], [1],
    [1, 2], [-1], [[1], [2, 3]], [300], ["a", 1], ["x"] * 65, {}, {"5": 1}, {"300": 1},
    {"5": -100, "7": 0.5},
    {"a": 1}, {"5": 101}, {"include_usage": True}, {"include_usage": 1}, {"x": 1},
    {"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}, {"type": "other"},
    {"type": "json_schema", "json_schema": SCHEMA}, {"type": "text", "json_schema": SCHEMA},
    {"type": "json_schema", "json_schema": {"name": "s", "schema": 1}}, {"type": "json"},
    {"type": "regex", "value": "a+"}, {"type": "structure", "value": {"z": 1, "a": [2]}},
    {"type": "ebnf", "value": {}}, {"type": "regex"},
    {"type": "function", "function": {"name": "f"}},
    {"type": "function", "function": {"name": "h"}}, {"type": "function"}, TOOLS,
    [*TOOLS, TOOLS[0]], [{"type": "function", "function": {"name": "a b"}}],
    [{"type": "function", "function": {"x": 1}}],
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
