"""Compares a bundle's own text code with the reference: token ids, round trips, chat rendering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mlcbuild.bundle.abi import TextFlags
from mlcbuild.bundle.chat_reference import (
    ChatReference,
    Conversation,
    MessageStyle,
    first_difference,
)
from mlcbuild.bundle.chat_traits import find_traits
from mlcbuild.bundle.conversations import conversations
from mlcbuild.bundle.jinja_template import PINNED_NOW, TemplateRefusal
from mlcbuild.bundle.messages import Message
from mlcbuild.bundle.reader import Bundle
from mlcbuild.bundle.sample_text import all_samples
from mlcbuild.errors import MlcbuildError, VerificationError

# Enough special tokens to try each kind; Llama 3 reserves 250 that differ by a number.
_MAX_SPECIALS = 24


class TextRuntime(Protocol):
    """What is checked: ``mlcbuild.bundle.native.NativeBundle``."""

    @property
    def bundle(self) -> Bundle:
        """The bundle that is open."""

    def tokenize(self, text: str, flags: TextFlags = ...) -> list[int]:
        """Token ids of ``text``."""

    def detokenize(self, token_ids: Sequence[int], flags: TextFlags = ...) -> bytes:
        """The bytes of the ids."""

    def render_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = ...,
        *,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        now: int | None = ...,
        variables: Mapping[str, Any] | None = ...,
    ) -> str:
        """The rendered conversation."""


@dataclass(frozen=True, slots=True)
class TextReport:
    """How many samples were compared, and how many token ids they have together."""

    samples: int
    token_ids: int


def check_tokenizer(runtime: TextRuntime) -> TextReport:
    """Compares the runtime with Hugging Face ``tokenizers`` on the bundle's own tokenizer.json.

    For every sample: the same ids with special tokens recognized, and the same text from those ids
    (special tokens kept). Raises ``VerificationError`` listing every sample that differs.
    """
    where = runtime.bundle.manifest.tokenizer
    reference = _reference_tokenizer(runtime.bundle)
    added = sorted(reference.get_added_tokens_decoder().items())
    specials = tuple(token.content for _, token in added)[:_MAX_SPECIALS]
    problems: list[str] = []
    total = 0
    samples = all_samples(specials)
    for sample in samples:
        expected = reference.encode(sample, add_special_tokens=False).ids
        total += len(expected)
        try:
            problem = _compare(runtime, reference, sample, expected)
        except MlcbuildError as error:
            problem = error.message
        if problem is not None:
            problems.append(f"{sample[:60]!r}: {problem}")
    if problems:
        raise VerificationError(
            f"the bundle's tokenizer differs from the reference on {len(problems)} of "
            f"{len(samples)} samples",
            where=where,
            why="; ".join(problems[:8]) + (" ..." if len(problems) > 8 else ""),
            hint="the runtime does not know a component of this tokenizer: please report the model",
        )
    return TextReport(len(samples), total)


def _reference_tokenizer(bundle: Bundle) -> Any:
    """The tokenizer as Hugging Face's library reads it."""
    from tokenizers import Tokenizer

    where = bundle.manifest.tokenizer
    try:
        return Tokenizer.from_file(str(bundle.file(where)))
    except Exception as error:  # the library raises bare Exception
        raise VerificationError(
            "the reference library cannot read the tokenizer", where=where, why=str(error)
        ) from None


def _compare(
    runtime: TextRuntime, reference: object, sample: str, expected: Sequence[int]
) -> str | None:
    found = runtime.tokenize(sample, TextFlags.TOKENIZE_SPECIAL)
    if found != list(expected):
        at = next(
            (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
            min(len(expected), len(found)),
        )
        return (
            f"from token {at} on the reference has {list(expected[at : at + 6])}, "
            f"the bundle {found[at : at + 6]}"
        )
    decode = reference.decode  # type: ignore[attr-defined]
    text: str = decode(found, skip_special_tokens=False)
    back = runtime.detokenize(found, TextFlags.DETOKENIZE_SPECIAL).decode("utf-8", "replace")
    if back != text:
        return f"decoded, the reference has {text[:60]!r}, the bundle {back[:60]!r}"
    return None


@dataclass(frozen=True, slots=True)
class ChatReport:
    """How many renderings were compared, and how many of them both sides refuse."""

    renderings: int
    refused: int


def check_chat(runtime: TextRuntime, reference: ChatReference) -> ChatReport:
    """Compares the runtime's rendering with Jinja's: texts, their token ids, and refusals.

    Raises ``VerificationError`` naming the conversation and the first difference.
    """
    bundle = runtime.bundle
    tokenizer = _reference_tokenizer(bundle)
    chat = bundle.read_json(bundle.manifest.chat)
    takes_tools = chat["takes_tools"]
    reference = replace(
        reference, style=MessageStyle(chat["content_style"], chat["arguments_style"])
    )
    compared = refused = 0
    tokenized: set[str] = set()
    for conversation in conversations(tools=takes_tools):
        for opens in (True, False):
            text = _compare_rendering(runtime, reference, conversation, opens)
            compared += 1
            if text is None:
                refused += 1
            elif text not in tokenized:
                tokenized.add(text)
                expected = tokenizer.encode(text, add_special_tokens=False).ids
                problem = _compare(runtime, tokenizer, text, expected)
                if problem is not None:
                    raise _chat_error(conversation, opens, f"its tokens: {problem}")
    return ChatReport(compared, refused)


def _compare_rendering(
    runtime: TextRuntime, reference: ChatReference, conversation: Conversation, opens: bool
) -> str | None:
    """The text that both sides render, or None if both refuse. Raises ``VerificationError``."""
    expected: str | None
    try:
        expected, refusal = reference.render(conversation, opens), ""
    except TemplateRefusal as error:
        expected, refusal = None, str(error)
    try:
        found = runtime.render_chat(
            conversation.messages,
            opens,
            tools=conversation.tools,
            now=PINNED_NOW,
            variables=conversation.variables,
        )
    except MlcbuildError as error:
        if expected is None:
            return None
        raise _chat_error(conversation, opens, f"the bundle refuses it: {error}") from None
    if expected is None:
        raise _chat_error(conversation, opens, f"only the template refuses it: {refusal}")
    if found != expected:
        raise _chat_error(conversation, opens, first_difference(expected, found, "the bundle"))
    return found


def _chat_error(conversation: Conversation, opens: bool, why: str) -> VerificationError:
    which = "with" if opens else "without"
    return VerificationError(
        "the bundle renders a conversation differently from the model's template",
        where=f"conversation {conversation.name!r}, {which} generation prompt",
        why=why,
        hint="please report the model: the runtime takes its template for something else",
    )


def check_stop(runtime: TextRuntime, reference: ChatReference) -> None:
    """Checks that a rendered assistant turn really stops.

    What the template puts behind an assistant's content must hold one of the stop token ids or stop
    strings; a template that puts nothing but white space there, or refuses such a conversation,
    leaves stopping to the model's own stop tokens. Raises ``VerificationError``.
    """
    bundle = runtime.bundle
    chat = bundle.read_json(bundle.manifest.chat)
    end = find_traits(reference.template, reference.tool_template).turn_end
    if end is None or not end.strip():
        return
    ids = runtime.tokenize(end, TextFlags.TOKENIZE_SPECIAL)
    stops = set(chat["stop_token_ids"])
    if not stops.intersection(ids) and not any(text in end for text in chat["stop_strings"]):
        raise VerificationError(
            "nothing stops the model at the end of its turn",
            where=bundle.manifest.chat,
            why=f"its turn ends with {end!r} (ids {ids}), it stops at {sorted(stops)} "
            f"and {chat['stop_strings']}",
            hint="tokenizer.json and the chat template belong to different models",
        )
