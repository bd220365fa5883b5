"""The conversation template of MLC's browser client, derived from a model's own and checked.

The client knows no Jinja: it puts text before and behind each message. Its rules, read from
@mlc-ai/web-llm 0.2.86, are what ``WebConversation.render`` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from mlcbuild.bundle.chat_probe import ChatForm, derive_form, refuse
from mlcbuild.bundle.chat_reference import Conversation, first_difference
from mlcbuild.bundle.conversations import plain_conversations
from mlcbuild.bundle.jinja_template import JinjaTemplate
from mlcbuild.bundle.messages import Message

_SYSTEM_PLACE = "{system_message}"
_SUBSTITUTION = re.compile(r"\$[$&`']")
_LOST_END = (
    "when a conversation goes on, the browser's client leaves out what ends the answer before: "
    "call its resetChat() before each request, as the page of this bundle does"
)


@dataclass(frozen=True, slots=True)
class WebConversation:
    """A conversation template in the client's terms.

    A message is its role's text, ``role_content_sep``, the content and the separator of its turn;
    the answer that is to come is the assistant's text and ``role_empty_sep``.

    ``always_system``: the system part stands in every conversation, also with an empty message.
    """

    bos_token_id: int | None
    bos: str
    system_template: str
    system_message: str
    user: str
    assistant: str
    role_content_sep: str
    role_empty_sep: str
    user_end: str
    assistant_end: str
    stop_strings: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    always_system: bool = False
    notes: tuple[str, ...] = ()

    def to_json(self, name: str) -> dict[str, Any]:
        """``conv_template`` of mlc-chat-config.json.

        Without ``role_templates``, whose placeholders the client replaces by a method of
        JavaScript that gives ``$&`` in a message a meaning.
        """
        record: dict[str, Any] = {
            "name": name,
            "system_template": self.system_template,
            "system_message": self._default_system(),
            "render_empty_system_message": self.always_system,
            "add_role_after_system_message": True,
            "roles": {"user": self.user, "assistant": self.assistant, "tool": self.user},
            "role_content_sep": self.role_content_sep,
            "role_empty_sep": self.role_empty_sep,
            "seps": [self.user_end, self.assistant_end],
            "stop_str": list(self.stop_strings),
            "stop_token_ids": list(self.stop_token_ids),
            "messages": [],
            "function_string": "",
            "use_function_calling": False,
        }
        if self.bos_token_id is not None:
            record["system_prefix_token_ids"] = [self.bos_token_id]
        return record

    def render(self, messages: Sequence[Message]) -> str:
        """A conversation that ends with a user's message, as the client feeds it to the model."""
        return self.bos + "".join(self.pieces(messages))

    def pieces(self, messages: Sequence[Message]) -> list[str]:
        """The texts behind the start token, each of which the client encodes by itself."""
        system, turns = self._default_system(), list(messages)
        if turns and turns[0]["role"] == "system":
            system = turns.pop(0)["content"]
        parts = []
        if system or self.always_system:
            parts.append(client_replace(self.system_template, _SYSTEM_PLACE, system))
        ends = (self.user_end, self.assistant_end)
        roles = {"user": self.user, "assistant": self.assistant}
        for number, message in enumerate(turns):
            text = roles[message["role"]] + self.role_content_sep + message["content"]
            parts.append(text + ends[number % 2])
        parts.append(self.assistant + self.role_empty_sep)
        return parts

    def _default_system(self) -> str:
        """As the configuration has it: the client replaces ``$$`` by ``$``."""
        return self.system_message.replace("$", "$$")


def client_replace(text: str, place: str, value: str) -> str:
    """``text.replace(place, value)`` of JavaScript: the first place, and ``$`` has a meaning.

    (GetSubstitution of ECMA-262, where nothing was captured.)
    """
    before, found, after = text.partition(place)
    if not found:
        return text
    meanings = {"$$": "$", "$&": place, "$`": before, "$'": after}
    return before + _SUBSTITUTION.sub(lambda match: meanings[match.group()], value) + after


def derive_web_conversation(
    template: JinjaTemplate,
    *,
    bos_token: str | None,
    token_ids: Mapping[str, int],
    stop_strings: Sequence[str],
    stop_token_ids: Sequence[int],
) -> WebConversation:
    """The client's form of ``template``, compared with it on whole conversations.

    ``token_ids`` are the added tokens by content. Raises SourceError for a template that has no
    such form, naming the first difference.
    """
    form = derive_form(template, bos_token)
    user, assistant = form.roles["user"], form.roles["assistant"]
    separator = _role_separator(form)
    notes = []
    if form.bos and form.bos not in token_ids:
        raise refuse(f"it begins every conversation with {form.bos!r}, which is no token")
    system = form.roles.get("system")
    if system is None:
        notes.append("the model takes no system message: the browser's client leaves it out")
    if form.trim_content:
        notes.append(
            "the chat template removes white space around a message, the browser's client keeps it"
        )
    if template.uses_date:
        notes.append("the chat template tells a date; in the browser it is a fixed one")
    conversation = WebConversation(
        bos_token_id=token_ids[form.bos] if form.bos else None,
        bos=form.bos,
        system_template="" if system is None else system.prefix + _SYSTEM_PLACE + system.suffix,
        system_message=form.default_system or "",
        user=user.prefix.removesuffix(separator),
        assistant=assistant.prefix.removesuffix(separator),
        role_content_sep=separator,
        role_empty_sep=form.generation_prompt.removeprefix(
            assistant.prefix.removesuffix(separator)
        ),
        user_end=user.suffix,
        assistant_end=assistant.suffix,
        stop_strings=tuple(stop_strings),
        stop_token_ids=tuple(stop_token_ids),
        notes=tuple(notes),
    )
    if form.default_system is not None and system is not None:
        moved = _with_ends_first(conversation, system.suffix)
        if moved is not None and _difference(moved, form, template) is None:
            return moved
    difference = _difference(conversation, form, template)
    if difference is not None:
        raise refuse(difference)
    if conversation.assistant_end:
        return replace(conversation, notes=(*notes, _LOST_END))
    return conversation


def _with_ends_first(conversation: WebConversation, system_end: str) -> WebConversation | None:
    """The same conversations, with what ends an answer in front of the user's next message.

    The client goes on from the answer that it has just computed, and feeds the next message alone:
    what stands behind an answer would never be seen. In front of the first message it must end the
    system part, so that part must be there and end in the same way; else None.
    """
    end = conversation.assistant_end
    if not end or system_end != end:
        return None
    return replace(
        conversation,
        system_template=conversation.system_template.removesuffix(end),
        user=end + conversation.user,
        assistant_end="",
        always_system=True,
    )


def _role_separator(form: ChatForm) -> str:
    """What the client puts between a role and its content, of both roles.

    The text of the assistant in front of it must also begin the answer that is to come.
    """
    user, assistant = form.roles["user"].prefix, form.roles["assistant"].prefix
    for length in range(min(len(user), len(assistant)) + 1):
        separator = assistant[len(assistant) - length :]
        if not user.endswith(separator):
            break
        if form.generation_prompt.startswith(assistant[: len(assistant) - length]):
            return separator
    raise refuse(
        f"a user's message begins with {user!r}, an answer with {assistant!r}, and the answer to "
        f"come with {form.generation_prompt!r}: the browser's client has one separator for all"
    )


def _difference(
    conversation: WebConversation, form: ChatForm, template: JinjaTemplate
) -> str | None:
    """The first difference between the client's text and the template's, if there is one.

    Of every conversation that both can have.
    """
    for case in plain_conversations():
        if not _takes(case, set(form.roles)):
            continue
        if any(not _shows(message, conversation, form) for message in case.messages):
            continue
        expected = template.render(case.messages, True)
        found = conversation.render(case.messages)
        if found != expected:
            difference = first_difference(expected, found, "the browser's client")
            return f"conversation {case.name!r}: {difference}"
    return None


def _takes(case: Conversation, roles: Set[str]) -> bool:
    """Whether the client takes the conversation: turns alternate, and a user's is the last."""
    found = [message["role"] for message in case.messages]
    turns = found[1:] if found[0] == "system" else found
    alternate = [("user", "assistant")[number % 2] for number in range(len(turns))]
    return turns == alternate and len(turns) % 2 == 1 and set(found) <= roles


def plain_conversation(
    *, stop_strings: Sequence[str], stop_token_ids: Sequence[int]
) -> WebConversation:
    """For a model without a chat template: its prompts are raw text."""
    return WebConversation(
        bos_token_id=None,
        bos="",
        system_template=_SYSTEM_PLACE,
        system_message="",
        user="",
        assistant="",
        role_content_sep="",
        role_empty_sep="",
        user_end="",
        assistant_end="",
        stop_strings=tuple(stop_strings),
        stop_token_ids=tuple(stop_token_ids),
        notes=("in the browser, use completions: chat would put messages one behind the other",),
    )


def check_pieces(
    conversation: WebConversation, encode: Callable[[str], Sequence[int]]
) -> str | None:
    """A note if the client's token ids differ from those of the whole text, else None.

    The client encodes each message by itself, so a token that would reach over the border of two
    messages becomes two. ``encode`` gives ids without adding any.
    """
    roles = {"user", "assistant"} | ({"system"} if conversation.system_template else set())
    for case in plain_conversations():
        if not _takes(case, roles):
            continue
        pieces = conversation.pieces(case.messages)
        joined = [token for piece in pieces for token in encode(piece)]
        whole = list(encode("".join(pieces)))
        if joined != whole:
            place = next(
                (n for n, (a, b) in enumerate(zip(joined, whole, strict=False)) if a != b),
                min(len(joined), len(whole)),
            )
            return (
                "the browser's client encodes each message by itself, which gives other tokens "
                f"than the whole conversation (first in {case.name!r}, at token {place})"
            )
    return None


def _shows(message: Message, conversation: WebConversation, form: ChatForm) -> bool:
    """Whether a message is one that the client can give as it is."""
    content = str(message["content"])
    if form.trim_content and content != content.strip():
        return False
    return bool(message["role"] != "system" or content or conversation.always_system)
