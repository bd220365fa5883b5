"""chat.json: a model's chat template and what the runtime must know beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mlcbuild.bundle.chat_reference import ChatReference
from mlcbuild.bundle.chat_traits import (
    REASONING_MARKERS,
    TOOL_MARKERS,
    ChatTraits,
    find_traits,
)
from mlcbuild.bundle.conversations import conversations
from mlcbuild.bundle.jinja_template import JinjaTemplate, TemplateRefusal
from mlcbuild.bundle.manifest import CHAT_VERSION
from mlcbuild.bundle.tokenizer_kind import check_kind
from mlcbuild.core import canonical_json
from mlcbuild.errors import SourceError

# Keys of generation_config.json that say how the model's makers sample.
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """The content of chat.json.

    ``reference`` and ``traits`` are None for a model without a chat template. ``notes`` are for the
    manifest: what a user should know that chat.json does not say.
    """

    reference: ChatReference | None
    traits: ChatTraits | None
    tokens: Mapping[str, str]
    stop_token_ids: tuple[int, ...]
    stop_strings: tuple[str, ...]
    add_bos_token_id: int | None
    kept_special_tokens: tuple[int, ...] = ()
    sampling: Mapping[str, float] | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The record of docs/formats.md."""
        reference, traits = self.reference, self.traits
        tool_template = None if reference is None else reference.tool_template
        return {
            "chat_version": CHAT_VERSION,
            "template": None if reference is None else reference.template.source,
            "tool_template": None if tool_template is None else tool_template.source,
            "tokens": dict(self.tokens),
            "content_style": "any" if traits is None else traits.style.content,
            "arguments_style": "any" if traits is None else traits.style.arguments,
            "takes_tools": False if traits is None else traits.takes_tools,
            "tool_format": None if traits is None else traits.tool_format,
            "reasoning_format": None if traits is None else traits.reasoning_format,
            "stop_token_ids": list(self.stop_token_ids),
            "stop_strings": list(self.stop_strings),
            "kept_special_tokens": list(self.kept_special_tokens),
            "add_bos_token_id": self.add_bos_token_id,
            "sampling": None if self.sampling is None else dict(self.sampling),
        }

    def to_bytes(self) -> bytes:
        """chat.json's bytes (canonical JSON)."""
        return canonical_json.encode(self.to_json())


def derive_chat_config(
    tokenizer: Mapping[str, Any],
    tokenizer_config: Mapping[str, Any],
    *,
    generation_config: Mapping[str, Any] | None = None,
    model_config: Mapping[str, Any] | None = None,
    chat_template: str | None = None,
) -> ChatConfig:
    """Everything that chat.json says, from a model's decoded Hugging Face files.

    ``tokenizer`` is tokenizer.json; ``chat_template`` the text of chat_template.jinja, which goes
    before the one in ``tokenizer_config``. Raises ``SourceError`` if the template does not compile
    or renders no conversation at all, or if a stop token is unknown.
    """
    check_kind(tokenizer)
    tokens = special_tokens(tokenizer_config)
    added = [
        (str(token["content"]), int(token["id"]), bool(token.get("special")))
        for token in tokenizer.get("added_tokens", [])
    ]
    ids = {content: number for content, number, _ in added}
    notes: list[str] = []
    traits = None
    reference = load_reference(tokenizer_config, chat_template)
    if reference is None:
        notes.append("the model has no chat template: prompts are raw text")
    else:
        _check_renders(reference.template)
        traits = find_traits(reference.template, reference.tool_template)
        reference = ChatReference(reference.template, reference.tool_template, traits.style)
        notes += _template_notes(reference, traits)
    stop_ids = _configured_stop_ids(generation_config, model_config)
    stop_ids |= _token_ids(tokens.get("eos_token"), tokenizer, ids)
    stop_strings: tuple[str, ...] = ()
    if traits is not None and traits.turn_end is not None:
        end_ids, stop_strings = end_of_turn(traits.turn_end, ids)
        stop_ids |= end_ids
    if not stop_ids and not stop_strings:
        raise SourceError(
            "nothing would ever stop this model",
            where="tokenizer_config.json, generation_config.json",
            why="neither names an eos token, and the chat template ends no turn",
            hint='add "eos_token_id" to generation_config.json',
        )
    bos_id, bos_note = raw_bos_token_id(tokenizer, tokenizer_config, tokens, ids)
    if bos_note:
        notes.append(bos_note)
    markers = _markers(traits)
    return ChatConfig(
        reference=reference,
        traits=traits,
        tokens=tokens,
        stop_token_ids=tuple(sorted(stop_ids)),
        stop_strings=stop_strings,
        add_bos_token_id=bos_id,
        kept_special_tokens=tuple(
            number for content, number, special in added if special and content in markers
        ),
        sampling=sampling_defaults(generation_config),
        notes=tuple(notes),
    )


def _markers(traits: ChatTraits | None) -> set[str]:
    """The markers of the model's conventions."""
    if traits is None:
        return set()
    return {
        *TOOL_MARKERS.get(traits.tool_format or "", ()),
        *REASONING_MARKERS.get(traits.reasoning_format or "", ()),
    }


def _check_renders(template: JinjaTemplate) -> None:
    """Raises ``SourceError`` if the template renders none of the conversations."""
    first: TemplateRefusal | None = None
    for conversation in conversations():
        try:
            template.render(conversation.messages, True, tools=conversation.tools)
            return
        except TemplateRefusal as error:
            first = first or error
    raise SourceError(
        "the chat template renders no conversation",
        where="chat template",
        why=str(first),
        hint="the model's tokenizer_config.json or chat_template.jinja is damaged",
    )


def _template_notes(reference: ChatReference, traits: ChatTraits) -> list[str]:
    notes: list[str] = []
    if reference.template.uses_date:
        notes.append("the chat template tells today's date")
    if not traits.takes_tools:
        notes.append("the chat template has no place for tools")
    elif traits.tool_format is None:
        notes.append(
            "tools can be given to the model, but how it writes calls is not known to the runtime: "
            "calls stay in the text"
        )
    return notes


def sampling_defaults(generation_config: Mapping[str, Any] | None) -> dict[str, float] | None:
    """How the model's makers sample (generation_config.json), or None if it does not say."""
    config = generation_config or {}
    found: dict[str, float] = {}
    for key in _SAMPLING_KEYS:
        value = config.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[key] = value
    if config.get("do_sample") is False:
        found["temperature"] = 0.0
    return found or None


def load_reference(
    tokenizer_config: Mapping[str, Any], chat_template: str | None = None
) -> ChatReference | None:
    """A model's compiled chat templates, or None; arguments as for ``derive_chat_config``.

    Of several named templates, as in transformers, the one called default is used, and the one
    called tool_use where there are tools. The style of messages is left open.
    """
    sources = [chat_template, None] if chat_template is not None else _embedded(tokenizer_config)
    tokens = special_tokens(tokenizer_config)
    template, tool_template = (
        None if source is None else JinjaTemplate(source, tokens) for source in sources
    )
    return None if template is None else ChatReference(template, tool_template)


def special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """The named special tokens; each is a string or an added-token record with ``content``."""
    extra = tokenizer_config.get("extra_special_tokens")
    named = {**tokenizer_config, **(extra if isinstance(extra, Mapping) else {})}
    tokens: dict[str, str] = {}
    for key, value in sorted(named.items()):
        if not key.endswith("_token"):
            continue
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            tokens[key] = value
    return tokens


def _embedded(tokenizer_config: Mapping[str, Any]) -> list[str | None]:
    """[the template, the one for tools] of tokenizer_config.json."""
    value = tokenizer_config.get("chat_template")
    if not isinstance(value, list):
        return [value if isinstance(value, str) else None, None]
    named = {item.get("name"): item.get("template") for item in value}
    if named.get("default") is None:
        raise SourceError(
            "the model has several chat templates and none is called default",
            where="tokenizer_config.json",
            why=f"names: {', '.join(sorted(str(name) for name in named))}",
            hint="put the one to use into chat_template.jinja",
        )
    return [named["default"], named.get("tool_use")]


def _configured_stop_ids(*configs: Mapping[str, Any] | None) -> set[int]:
    # transformers reads the model's own config only where there is no generation_config.
    for config in configs:
        value = None if config is None else config.get("eos_token_id")
        if value is not None:
            return {int(item) for item in value} if isinstance(value, list) else {int(value)}
    return set()


def _token_ids(
    token: str | None, tokenizer: Mapping[str, Any], added: Mapping[str, int]
) -> set[int]:
    if token is None:
        return set()
    if token in added:
        return {added[token]}
    vocab = tokenizer.get("model", {}).get("vocab", {})
    if isinstance(vocab, Mapping) and token in vocab:
        return {int(vocab[token])}
    raise SourceError(
        f"the eos token {token!r} is not in the tokenizer",
        where="tokenizer_config.json",
        hint="tokenizer.json and tokenizer_config.json belong to different models",
    )


def end_of_turn(turn_end: str, added: Mapping[str, int]) -> tuple[set[int], tuple[str, ...]]:
    """What ends the assistant's turn: (token ids, stop strings).

    The id of the first added token in the text behind its content; that text as a stop string if
    there is none.
    """
    found = [(turn_end.find(token), -len(token), token) for token in added if token in turn_end]
    if found:
        position, _, token = min(found)
        before = turn_end[:position].strip()
        return {added[token]}, (before,) if before else ()
    text = turn_end.strip()
    return set(), (text,) if text else ()


def raw_bos_token_id(
    tokenizer: Mapping[str, Any],
    tokenizer_config: Mapping[str, Any],
    tokens: Mapping[str, str],
    added: Mapping[str, int],
) -> tuple[int | None, str | None]:
    """(BOS id that goes before a raw prompt or None, a note or None).

    ``add_bos_token`` in tokenizer_config.json decides where it is given (transformers then rewrites
    the post-processor); otherwise the post-processor's template in tokenizer.json does.
    """
    before, after = _template_tokens(tokenizer.get("post_processor"))
    note = None
    if after:
        note = f"the tokenizer appends {', '.join(after)} to a raw prompt; the bundle does not"
    wanted = tokenizer_config.get("add_bos_token")
    if wanted is False:
        return None, note
    token = tokens.get("bos_token") if wanted is True else (before[0] if before else None)
    if token is None:
        return None, note
    if token not in added:
        raise SourceError(
            f"the BOS token {token!r} is not among the added tokens", where="tokenizer.json"
        )
    return added[token], note


def _template_tokens(processor: object) -> tuple[list[str], list[str]]:
    """Special tokens that a TemplateProcessing puts before and behind a single sequence."""
    before: list[str] = []
    after: list[str] = []
    for item in _processors(processor):
        if item.get("type") != "TemplateProcessing":
            continue
        target = before
        for piece in item.get("single", []):
            if "Sequence" in piece:
                target = after
            elif "SpecialToken" in piece:
                target.append(str(piece["SpecialToken"]["id"]))
    return before, after


def _processors(processor: object) -> Iterable[Mapping[str, Any]]:
    if not isinstance(processor, Mapping):
        return
    if processor.get("type") == "Sequence":
        for inner in processor.get("processors", []):
            yield from _processors(inner)
    else:
        yield processor
