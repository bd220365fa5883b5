"""The conversations on which a bundle's rendering is compared with the model's own template."""

from __future__ import annotations

from typing import Any

from mlcbuild.bundle.chat_reference import Conversation

# Odd white space, scripts, text that looks like a template's, like a marker, and none at all.
_CONTENTS = {
    "plain": ("What is the capital of France?", "Paris.", "And of Italy?"),
    "white space": ("  two spaces \n", "\n\ttabbed answer\t\n", " \r\n windows \r\n"),
    "unicode": ("Grüße, 世界! 👩‍👩‍👧 \u00a0", "नमस्ते — e\u0301", "\u2003wide\u2003 שלום"),
    "template text": (
        "{{ messages }} {% if x %}{# no #}",
        "<|im_end|>\n<|im_start|>user\n<|eot_id|></s>",
        "[INST] {{ bos_token }} &lt;b&gt; \\n",
    ),
    "thoughts": ("Think first.", "<think>\nhm\n</think>\n\nDone.", "<tool_response>1"),
    "empty": ("", "", ""),
}

# What templates ask for besides the conversation itself.
_VARIABLES: tuple[dict[str, Any], ...] = (
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"thinking": True},
    {"reasoning_effort": "high"},
    {"date_string": "1 Jan 2030"},
    {"documents": [{"title": "T", "text": "A <text>."}]},
)

TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'The "weather" of a <city> & more: é',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Which city"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                    "days": {"type": "integer", "minimum": 1, "default": 3},
                    "latitude": {"type": "number", "minimum": -90.5, "maximum": 1e21},
                    "options": {
                        "type": "object",
                        "properties": {"places": {"type": "array", "items": {"type": "string"}}},
                    },
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "stop",
            "description": "",
            "parameters": {"type": "object", "properties": {}},
        },
    },
)


def call_message(content: Any, *calls: tuple[str, Any], **more: Any) -> dict[str, Any]:
    """An assistant's message that calls tools, each given as (name, arguments)."""
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": f"call{index:05d}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for index, (name, arguments) in enumerate(calls)
        ],
        **more,
    }


def _result(content: Any, index: int = 0) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": content,
        "tool_call_id": f"call{index:05d}",
        "name": "get_weather",
    }


def _turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def conversations(*, tools: bool = True) -> tuple[Conversation, ...]:
    """All of them; ``tools``: whether those with tools are among them."""
    found = (*plain_conversations(), *_special_conversations())
    return (*found, *_tool_conversations()) if tools else found


def plain_conversations() -> tuple[Conversation, ...]:
    """Users and assistants in turn, with and without a system message."""
    result: list[Conversation] = []
    for name, (first, answer, second) in _CONTENTS.items():
        turns = (
            _turn("user", first),
            _turn("assistant", answer),
            _turn("user", second),
            _turn("assistant", answer + first),
        )
        for count in (1, 2, 3, 4):
            plural = "s" if count > 1 else ""
            result.append(Conversation(f"{name}, {count} message{plural}", turns[:count]))
            for system in ("You are terse.", f" {first}\n{second} ", ""):
                result.append(
                    Conversation(
                        f"{name}, {count} message{plural} after the system message {system!r}",
                        (_turn("system", system), *turns[:count]),
                    )
                )
    return tuple(result)


def _special_conversations() -> tuple[Conversation, ...]:
    user = _turn("user", "Hi")
    reasoned = {**_turn("assistant", "Yes."), "reasoning_content": "\nHm, é.\n"}
    talk = (_turn("system", "Be brief."), user, reasoned, _turn("user", "And now?"))
    parts = [{"type": "text", "text": " one "}, {"type": "text", "text": "two\n"}]
    result = [
        Conversation("reasoning", (user, reasoned, _turn("user", "Why?"), reasoned)),
        Conversation("content in one part", (_turn("user", parts[:1]),)),
        Conversation(
            "content in parts",
            (_turn("system", parts[:1]), _turn("user", parts), _turn("assistant", parts), user),
        ),
        Conversation("no content", (user, {"role": "assistant", "content": None}, user)),
        Conversation("a late system message", (user, _turn("system", "late"), user)),
        Conversation("two users", (user, user)),
        Conversation("the assistant begins", (_turn("assistant", "I begin."), user)),
        Conversation("a developer", (_turn("developer", "Be brief."), user)),
        Conversation("an unknown role", (_turn("alien", "Hi"),)),
    ]
    for variables in _VARIABLES:
        name = ", ".join(f"{key}={value}" for key, value in variables.items())
        result.append(Conversation(name, talk, variables=variables))
    return tuple(result)


def _tool_conversations() -> tuple[Conversation, ...]:
    user, system = _turn("user", "Rain?"), _turn("system", "Be brief.")
    arguments = {"city": "Zürich", "days": 2, "latitude": 47.5, "options": {"places": ["a", 1]}}
    call = ("get_weather", arguments)
    text_call = ("get_weather", '{"city": "Bern", "days": 1}')
    said = _turn("assistant", "It rains.")
    histories: dict[str, tuple[dict[str, Any], ...]] = {
        "tools": (user,),
        "tools and a system message": (system, user),
        "a call": (user, call_message("", call), _result("rain")),
        "a call and its answer": (
            system,
            user,
            call_message("", call),
            _result('{"rain": true}'),
            said,
            user,
        ),
        "a call beside text": (user, call_message(" I look. ", call), _result(" é\n")),
        "a call without content": (user, call_message(None, call), _result("")),
        "a call last": (user, call_message("", call)),
        "arguments as text": (user, call_message("", text_call), _result("sun"), said),
        "no arguments": (user, call_message("", ("stop", {})), _result("done")),
        "two calls": (
            user,
            call_message("", call, ("stop", {})),
            _result("1"),
            _result("2", 1),
        ),
        "reasoning and a call": (
            user,
            call_message("", call, reasoning_content="I must look."),
            _result("rain"),
        ),
    }
    result = [Conversation(name, messages, TOOLS) for name, messages in histories.items()]
    result += [
        Conversation(f"a call, {key}={value}", histories["a call"], TOOLS, {key: value})
        for key, value in (("enable_thinking", False), ("enable_thinking", True))
    ]
    return tuple(result)
