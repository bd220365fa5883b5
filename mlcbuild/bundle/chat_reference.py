"""What the runtime must render for a conversation, computed with Jinja itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mlcbuild.bundle.jinja_template import PINNED_NOW, JinjaTemplate
from mlcbuild.bundle.messages import Message

ContentStyle = Literal["any", "text", "parts"]
ArgumentsStyle = Literal["any", "object", "text"]


@dataclass(frozen=True, slots=True)
class MessageStyle:
    """How a template wants what OpenAI's API leaves open.

    ``content``: texts, lists of ``{"type": "text", "text": ...}``, or either. ``arguments`` of a
    tool call: an object, its JSON text, or either.
    """

    content: ContentStyle = "any"
    arguments: ArgumentsStyle = "any"


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a caller may want rendered; ``name`` is for people."""

    name: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] | None = None
    variables: Mapping[str, Any] | None = None

    @property
    def has_system(self) -> bool:
        """Whether it starts with a system message."""
        return bool(self.messages[0]["role"] == "system")


@dataclass(frozen=True, slots=True)
class ChatReference:
    """A model's templates with the preparation that the runtime gives to messages.

    ``tool_template`` is used where there are tools; None: ``template`` is.
    """

    template: JinjaTemplate
    tool_template: JinjaTemplate | None = None
    style: MessageStyle = MessageStyle()

    def render(
        self,
        conversation: Conversation,
        add_generation_prompt: bool,
        *,
        now: int = PINNED_NOW,
    ) -> str:
        """The conversation as text. Raises ``TemplateRefusal``."""
        template = self.template
        if conversation.tools and self.tool_template is not None:
            template = self.tool_template
        return template.render(
            prepare(conversation.messages, self.style),
            add_generation_prompt,
            tools=conversation.tools,
            variables=conversation.variables,
            now=now,
        )


def prepare(messages: Sequence[Message], style: MessageStyle) -> list[dict[str, Any]]:
    """Messages as the template gets them.

    As in transformers, keys whose value is None are left out, and reasoning has the name that
    templates read.
    """
    result: list[dict[str, Any]] = []
    for given in messages:
        message = {key: value for key, value in given.items() if value is not None}
        if "content" in message:
            message["content"] = _styled_content(message["content"], style.content)
        if "tool_calls" in message:
            message["tool_calls"] = [
                _styled_call(call, style.arguments) for call in message["tool_calls"]
            ]
        result.append(_named_reasoning(message))
    return result


def _styled_content(content: Any, style: ContentStyle) -> Any:
    if style == "text" and isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    if style == "parts" and isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content


def _styled_call(call: Mapping[str, Any], style: ArgumentsStyle) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or "arguments" not in function:
        return dict(call)
    arguments = function["arguments"]
    if style == "object" and isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except ValueError:
            parsed = None
        if isinstance(parsed, dict):
            arguments = parsed
    elif style == "text" and isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _named_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    names = ("reasoning_content", "thinking", "reasoning")
    reasoning = next((message[name] for name in names if name in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def first_difference(expected: str, found: str, other: str) -> str:
    """Where the template's text and that of ``other`` part, with a little of what follows."""
    at = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
        min(len(expected), len(found)),
    )
    return (
        f"at character {at} the template says {expected[at : at + 40]!r}, "
        f"{other} {found[at : at + 40]!r}"
    )
