"""Compares a bundle's own text code with the reference: token ids, round trips, chat rendering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mlcbuild.bundle.abi import TextFlags
from mlcbuild.bundle.chat_config import conversations, first_difference
from mlcbuild.bundle.jinja_template import JinjaTemplate, TemplateRefusal
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

    def render_chat(self, messages: Sequence[Message], add_generation_prompt: bool = ...) -> str:
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
    from tokenizers import Tokenizer

    bundle = runtime.bundle
    where = bundle.manifest.tokenizer
    try:
        reference = Tokenizer.from_file(str(bundle.file(where)))
    except Exception as error:  # the library raises bare Exception
        raise VerificationError(
            "the reference library cannot read the tokenizer", where=where, why=str(error)
        ) from None
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


def check_chat(runtime: TextRuntime, template: JinjaTemplate) -> int:
    """Compares the runtime's rendering with the Jinja template itself.

    Returns how many conversations were compared; those that the template refuses are left out.
    Raises ``VerificationError`` naming the conversation and the first difference.
    """
    bundle = runtime.bundle
    roles = bundle.read_json(bundle.manifest.chat)["roles"]
    compared = 0
    for conversation in conversations():
        if any(message["role"] not in roles for message in conversation.messages):
            continue
        try:
            expected = template.render(conversation.messages, True)
        except TemplateRefusal:
            continue
        found = runtime.render_chat(conversation.messages, True)
        if found != expected:
            raise VerificationError(
                "the bundle renders a conversation differently from the model's template",
                where=f"conversation {conversation.name!r}",
                why=first_difference(expected, found, "the bundle"),
                hint="please report the model: its chat.json does not say what the template does",
            )
        compared += 1
    return compared


def check_stop(runtime: TextRuntime) -> None:
    """Checks that a rendered assistant turn really stops.

    Its suffix must hold one of the stop token ids or stop strings. Raises ``VerificationError``.
    """
    bundle = runtime.bundle
    chat = bundle.read_json(bundle.manifest.chat)
    if "assistant" not in chat["roles"]:
        return
    suffix = chat["roles"]["assistant"]["suffix"]
    ids = runtime.tokenize(suffix, TextFlags.TOKENIZE_SPECIAL)
    stops = set(chat["stop_token_ids"])
    if not stops.intersection(ids) and not any(text in suffix for text in chat["stop_strings"]):
        raise VerificationError(
            "nothing stops the model at the end of its turn",
            where=bundle.manifest.chat,
            why=f"its turn ends with {suffix!r} (ids {ids}), it stops at {sorted(stops)} "
            f"and {chat['stop_strings']}",
            hint="tokenizer.json and the chat template belong to different models",
        )
