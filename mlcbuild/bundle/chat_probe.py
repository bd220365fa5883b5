"""Finds the prefix/suffix form of a Jinja chat template by rendering conversations of sentinels.

A bundle does not need one: its runtime renders the template itself. Other runtimes, which have no
Jinja, can do with such a form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlcbuild.bundle.chat_reference import first_difference
from mlcbuild.bundle.conversations import plain_conversations
from mlcbuild.bundle.jinja_template import JinjaTemplate, TemplateRefusal
from mlcbuild.bundle.messages import Message
from mlcbuild.errors import SourceError

ROLES = ("system", "user", "assistant")

# Letters only, so that no template trims, splits or escapes them.
_S, _U1, _A1, _U2 = "QzSystemQz", "QzFirstUserQz", "QzAssistantQz", "QzSecondUserQz"


@dataclass(frozen=True, slots=True)
class Turn:
    """What stands before and behind a message's content."""

    prefix: str
    suffix: str


@dataclass(frozen=True, slots=True)
class ChatForm:
    """A chat template as data.

    A conversation is bos, the system message (``default_system`` if it has none), each message as
    prefix + content + suffix, the generation prompt.
    """

    bos: str
    default_system: str | None
    roles: Mapping[str, Turn]
    generation_prompt: str
    trim_content: bool
    # The template renders the generation prompt whether asked for it or not.
    always_opens: bool = field(default=False, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """The conversation as text.

        ``KeyError`` on a role that the form lacks.
        """
        parts = [self.bos]
        if self.default_system is not None and (not messages or messages[0]["role"] != "system"):
            turn = self.roles["system"]
            parts += [turn.prefix, self.default_system, turn.suffix]
        parts += [self._turn(message["role"], message["content"]) for message in messages]
        if add_generation_prompt:
            parts.append(self.generation_prompt)
        return "".join(parts)

    def _turn(self, role: str, content: str) -> str:
        turn = self.roles[role]
        return turn.prefix + (content.strip() if self.trim_content else content) + turn.suffix


def refuse(why: str) -> SourceError:
    """The error for a template that has no prefix/suffix form."""
    return SourceError(
        "the model's chat template cannot be expressed as prefixes and suffixes",
        where="chat template",
        why=why,
        hint="only a runtime that renders the template itself can use this model in a chat",
    )


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _between(text: str, left: str | None, right: str | None) -> str:
    """What stands between two sentinels; None means the text's start or end."""
    start = 0 if left is None else text.find(left)
    if left is not None and start >= 0:
        start += len(left)
    end = len(text) if right is None else text.find(right, max(start, 0))
    if start < 0 or end < 0:
        raise refuse(f"a message's content does not appear in the rendered text {text!r}")
    return text[start:end]


def _without_prefix(text: str, prefix: str, what: str) -> str:
    if not text.startswith(prefix):
        raise refuse(f"{what}: {text!r} does not start with {prefix!r}")
    return text[len(prefix) :]


def _without_suffix(text: str, suffix: str, what: str) -> str:
    if not text.endswith(suffix):
        raise refuse(f"{what}: {text!r} does not end with {suffix!r}")
    return text[: len(text) - len(suffix)]


def derive_form(template: JinjaTemplate, bos_token: str | None) -> ChatForm:
    """The form of a template, checked against it on conversations of users and assistants.

    Raises ``SourceError`` if the template has no such form, naming the conversation and the first
    difference.
    """
    form = probe(template, bos_token)
    check_form(form, template)
    return form


def check_form(form: ChatForm, template: JinjaTemplate) -> None:
    """Compares the form with the template, generation prompt on and off.

    Raises ``SourceError`` naming the first mismatch.
    """
    for conversation in plain_conversations():
        if any(message["role"] not in form.roles for message in conversation.messages):
            continue
        for add_generation_prompt in (True, False):
            try:
                expected = template.render(conversation.messages, add_generation_prompt)
            except TemplateRefusal as error:
                raise refuse(f"conversation {conversation.name!r}: {error}") from None
            found = form.render(conversation.messages, add_generation_prompt or form.always_opens)
            if found != expected:
                which = "with" if add_generation_prompt else "without"
                raise refuse(
                    f"conversation {conversation.name!r}, {which} generation prompt: "
                    f"{first_difference(expected, found, 'the derived form')}"
                )


def probe(template: JinjaTemplate, bos_token: str | None) -> ChatForm:
    """The prefix/suffix form that explains the template's output for a few sentinel conversations.

    The form is a hypothesis: the caller compares it with the template on real conversations.
    Raises ``SourceError`` if the template has no such form.
    """
    notes: list[str] = []
    user = _message("user", _U1)
    turns = [user, _message("assistant", _A1), _message("user", _U2)]
    try:
        opened = template.render([user], True)
        closed = template.render([user], False)
        answered = template.render(turns[:2], False)
        three = template.render(turns, False)
        padded = template.render([_message("user", f" \n{_U1}\n ")], False)
    except TemplateRefusal as error:
        raise refuse(f"it does not render a plain conversation: {error}") from None

    head_and_user_prefix = _between(closed, None, _U1)
    after_user = _between(closed, _U1, None)  # suffix, or suffix + generation prompt
    after_assistant = _between(answered, _A1, None)
    assistant_to_user = _between(three, _A1, _U2)
    user_to_assistant = _between(answered, _U1, _A1)
    if bos_token and bos_token in assistant_to_user:
        bos_token = None  # a part of every turn (SmolLM2's BOS is <|im_start|>), not of the start
    always_opens = opened == closed and after_user == user_to_assistant != ""
    if always_opens:
        # The template ignores add_generation_prompt. With no default system message the text
        # before the first content is bos + user prefix, which gives everything else.
        user_prefix = _without_prefix(
            head_and_user_prefix, bos_token or "", "the first user message"
        )
        assistant_suffix = _without_suffix(assistant_to_user, user_prefix, "a later user message")
        generation_prompt = _without_prefix(
            after_assistant, assistant_suffix, "the end of an assistant message"
        )
        user_suffix = _without_suffix(after_user, generation_prompt, "the end of a user message")
        notes.append(
            "the chat template always opens the assistant's turn; this form does so only when asked"
        )
    else:
        generation_prompt = _without_prefix(opened, closed, "the generation prompt")
        user_suffix = after_user
        assistant_suffix = after_assistant
        user_prefix = _without_prefix(assistant_to_user, assistant_suffix, "a user message")
    assistant_prefix = _without_prefix(user_to_assistant, user_suffix, "an assistant message")
    head = _without_suffix(head_and_user_prefix, user_prefix, "the first user message")
    roles = {
        "user": Turn(user_prefix, user_suffix),
        "assistant": Turn(assistant_prefix, assistant_suffix),
    }
    bos, default_system = head, None
    system = _probe_system(template, user, user_prefix)
    if system is None:
        notes.append("the chat template takes no system message")
    else:
        bos = bos_token if bos_token and head.startswith(bos_token) else ""
        system_prefix = _without_prefix(system.prefix, bos, "a system message")
        roles["system"] = Turn(system_prefix, system.suffix)
        block = head[len(bos) :]
        if block:
            inner = _without_prefix(block, system_prefix, "the default system message")
            default_system = _without_suffix(inner, system.suffix, "the default system message")
    return ChatForm(
        bos=bos,
        default_system=default_system,
        roles=roles,
        generation_prompt=generation_prompt,
        trim_content=f" \n{_U1}" not in padded,
        always_opens=always_opens,
        notes=tuple(notes),
    )


def _probe_system(template: JinjaTemplate, user: Message, user_prefix: str) -> Turn | None:
    """The system turn (its prefix with bos still in front), or None if the role is refused."""
    try:
        text = template.render([_message("system", _S), user], False)
    except TemplateRefusal:
        return None
    prefix = _between(text, None, _S)
    suffix = _without_suffix(_between(text, _S, _U1), user_prefix, "the end of a system message")
    return Turn(prefix, suffix)
