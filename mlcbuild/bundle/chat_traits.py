"""What a chat template expects and what its model writes, found by rendering probes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlcbuild.bundle.chat_reference import (
    ArgumentsStyle,
    ChatReference,
    ContentStyle,
    Conversation,
    MessageStyle,
)
from mlcbuild.bundle.conversations import call_message
from mlcbuild.bundle.jinja_template import JinjaTemplate, TemplateRefusal

# Letters only, so that no template trims, splits or escapes them.
_TEXT, _ANSWER, _VALUE = "QzFirstQz", "QzAnswerQz", "QzValueQz"
_FUNCTION, _KEY = "qz_function", "qz_key"
_ARGUMENTS = {_KEY: _VALUE}
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _FUNCTION,
        "description": "Probes.",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "A value"}},
            "required": [_KEY],
        },
    },
}
_USER = {"role": "user", "content": _TEXT}
_SYSTEM = {"role": "system", "content": "QzSystemQz"}

# The markers of each convention; those that are special tokens stay in the text of an answer.
TOOL_MARKERS: Mapping[str, tuple[str, ...]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama3": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]",),
    "mistral_args": ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
}
REASONING_MARKERS: Mapping[str, tuple[str, ...]] = {
    "think_tags": ("<think>", "</think>"),
    "think_tags_open": ("<think>", "</think>"),
    "think_brackets": ("[THINK]", "[/THINK]"),
}


@dataclass(frozen=True, slots=True)
class ChatTraits:
    """What chat.json tells of a template besides its source.

    ``turn_end``: the text behind an assistant's content, None where the template does not show it.
    """

    style: MessageStyle
    takes_tools: bool
    tool_format: str | None
    reasoning_format: str | None
    turn_end: str | None


def find_traits(template: JinjaTemplate, tool_template: JinjaTemplate | None = None) -> ChatTraits:
    """The traits of a model's templates; ``tool_template`` is the one for tools, if it differs."""
    plain = ChatReference(template, tool_template)
    content = _content_style(plain)
    reference = ChatReference(template, tool_template, MessageStyle(content))
    takes_tools = _takes_tools(reference)
    arguments = _arguments_style(reference) if takes_tools else "any"
    styled = ChatReference(template, tool_template, MessageStyle(content, arguments))
    return ChatTraits(
        style=styled.style,
        takes_tools=takes_tools,
        tool_format=_tool_format(styled) if takes_tools else None,
        reasoning_format=_reasoning_format(styled),
        turn_end=_turn_end(styled),
    )


def _render(
    reference: ChatReference,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: bool = False,
    opens: bool = False,
) -> str:
    """The conversation as text, "" if the template refuses it."""
    conversation = Conversation("probe", tuple(messages), (_TOOL,) if tools else None)
    try:
        return reference.render(conversation, opens)
    except TemplateRefusal:
        return ""


def _in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _content_style(reference: ChatReference) -> ContentStyle:
    answer = {"role": "assistant", "content": _ANSWER}
    histories = ([_SYSTEM, _USER, answer, _USER], [_USER, answer, _USER], [_USER])
    for tools, messages in itertools.product((False, True), histories):
        in_parts = [_in_parts(message) for message in messages]
        text = _render(reference, messages, tools=tools)
        parts = _render(reference, in_parts, tools=tools)
        if _TEXT in text:
            return "any" if parts == text else "text"
        if _TEXT in parts:
            return "parts"
    return "any"


def _takes_tools(reference: ChatReference) -> bool:
    return any(
        _FUNCTION in _render(reference, messages, tools=True)
        for messages in ([_USER], [_SYSTEM, _USER])
    )


def _calls(arguments: Any) -> list[dict[str, Any]]:
    call = call_message("", (_FUNCTION, arguments))
    result = {
        "role": "tool",
        "content": _ANSWER,
        "name": _FUNCTION,
        "tool_call_id": call["tool_calls"][0]["id"],
    }
    return [_USER, call, result]


def _shows_arguments(text: str) -> bool:
    """Whether the value of a call's argument is there, and not as Python writes it."""
    return _VALUE in text and f"'{_KEY}': " not in text and '\\"' not in text


def _arguments_style(reference: ChatReference) -> ArgumentsStyle:
    from_object = _render(reference, _calls(_ARGUMENTS), tools=True)
    from_text = _render(reference, _calls(json.dumps(_ARGUMENTS)), tools=True)
    if _shows_arguments(from_object):
        return "any" if from_text == from_object else "object"
    return "text" if _shows_arguments(from_text) else "any"


def _tool_format(reference: ChatReference) -> str | None:
    """The convention of the rendered call; of the instructions where calls are not rendered."""
    call = _render(reference, _calls(_ARGUMENTS), tools=True)
    at = call.rfind(_VALUE)
    written = call[: at + 80] if at >= 0 else ""
    name = rf'"name":\s*"{_FUNCTION}"'
    if re.search(rf"\[TOOL_CALLS\]\s*{_FUNCTION}(\[CALL_ID\]\w+)?\[ARGS\]", written):
        return "mistral_args"
    if re.search(rf"\[TOOL_CALLS\]\s*\[\s*\{{[^\[\]]*{name}", written):
        return "mistral"
    if re.search(rf"<tool_call>\s*\{{\s*{name},\s*\"arguments\":\s*\{{", written):
        return "hermes"
    if re.search(rf"\{{\s*(\"type\":\s*\"function\",\s*)?{name},\s*\"parameters\":\s*\{{", written):
        return "llama3"
    if written:
        return None  # a convention that is not known
    told = _render(reference, [_USER], tools=True) or _render(
        reference, [_SYSTEM, _USER], tools=True
    )
    if "<tool_call>" in told and '"arguments"' in told:
        return "hermes"
    return None


def _reasoning_format(reference: ChatReference) -> str | None:
    source = reference.template.source
    if "[THINK]" in source and "[/THINK]" in source:
        return "think_brackets"
    if "</think>" not in source:
        return None
    opened = _render(reference, [_USER], opens=True).rstrip()
    return "think_tags_open" if opened.endswith("<think>") else "think_tags"


def _turn_end(reference: ChatReference) -> str | None:
    answer = {"role": "assistant", "content": _ANSWER}
    for tools, first in itertools.product((False, True), ([_USER], [_SYSTEM, _USER])):
        answered = _render(reference, [*first, answer], tools=tools)
        if _ANSWER not in answered:
            continue
        end = answered.rpartition(_ANSWER)[2]
        opened = _render(reference, first, tools=tools, opens=True)
        if opened != _render(reference, first, tools=tools):
            return end
        # The template always opens a turn: what any turn begins with follows the end.
        next_turn = _render(reference, [*first, answer, _USER], tools=tools).rpartition(_ANSWER)[2]
        common = 0
        while common < min(len(end), len(next_turn)) and end[common] == next_turn[common]:
            common += 1
        return end[:common]
    return None
