"""chat.json: a model's chat template as data, checked against the template itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mlcbuild.bundle.chat_probe import ROLES, ChatForm, Turn, probe, refuse
from mlcbuild.bundle.jinja_template import PINNED_DATE, JinjaTemplate, TemplateRefusal
from mlcbuild.bundle.manifest import CHAT_VERSION
from mlcbuild.bundle.messages import Message
from mlcbuild.bundle.tokenizer_kind import check_kind
from mlcbuild.core import canonical_json
from mlcbuild.errors import SourceError

_TOKEN_KEYS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation that the derived form must render exactly as the template does."""

    name: str
    messages: tuple[Message, ...]

    @property
    def has_system(self) -> bool:
        """Whether it starts with a system message."""
        return self.messages[0]["role"] == "system"


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """The content of chat.json.

    ``form`` is None for a model without a chat template. ``notes`` are for the manifest: what a
    user should know that chat.json does not say.
    """

    form: ChatForm | None
    family: str | None
    stop_token_ids: tuple[int, ...]
    stop_strings: tuple[str, ...]
    add_bos_token_id: int | None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The record of docs/formats.md."""
        form = self.form or ChatForm("", None, {}, "", False)
        return {
            "chat_version": CHAT_VERSION,
            "family": self.family,
            "bos": form.bos,
            "default_system": form.default_system,
            "roles": {
                role: {"prefix": turn.prefix, "suffix": turn.suffix}
                for role, turn in form.roles.items()
            },
            "generation_prompt": form.generation_prompt,
            "trim_content": form.trim_content,
            "stop_token_ids": list(self.stop_token_ids),
            "stop_strings": list(self.stop_strings),
            "add_bos_token_id": self.add_bos_token_id,
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
    before the one in ``tokenizer_config``. Raises ``SourceError`` if the template has no
    prefix/suffix form, naming the conversation and the first difference, or if a stop token is
    unknown.
    """
    check_kind(tokenizer)
    tokens = special_tokens(tokenizer_config)
    ids = {str(token["content"]): int(token["id"]) for token in tokenizer.get("added_tokens", [])}
    notes: list[str] = []
    form = None
    template = load_template(tokenizer_config, chat_template)
    if template is None:
        notes.append("the model has no chat template: prompts are raw text")
    else:
        form = probe(template, tokens.get("bos_token"))
        check_form(form, template)
        notes += form.notes
        if template.uses_date:
            notes.append(
                "the chat template asks for today's date; the bundle always says "
                f"{PINNED_DATE:%Y-%m-%d}"
            )
    stop_ids = _configured_stop_ids(generation_config, model_config)
    stop_ids |= _token_ids(tokens.get("eos_token"), tokenizer, ids)
    stop_strings: tuple[str, ...] = ()
    if form is not None:
        end_ids, stop_strings = end_of_turn(form, ids)
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
    return ChatConfig(
        form=form,
        family=None if form is None else chat_family(form),
        stop_token_ids=tuple(sorted(stop_ids)),
        stop_strings=stop_strings,
        add_bos_token_id=bos_id,
        notes=tuple(notes),
    )


def load_template(
    tokenizer_config: Mapping[str, Any], chat_template: str | None = None
) -> JinjaTemplate | None:
    """A model's compiled chat template, or None; arguments as for ``derive_chat_config``."""
    source = chat_template if chat_template is not None else _embedded_template(tokenizer_config)
    return None if source is None else JinjaTemplate(source, special_tokens(tokenizer_config))


def special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """The named special tokens; each is a string or an added-token record with ``content``."""
    tokens: dict[str, str] = {}
    for key in _TOKEN_KEYS:
        value = tokenizer_config.get(key)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            tokens[key] = value
    return tokens


def _embedded_template(tokenizer_config: Mapping[str, Any]) -> str | None:
    value = tokenizer_config.get("chat_template")
    if isinstance(value, list):  # named templates: [{"name": ..., "template": ...}]
        named = {item.get("name"): item.get("template") for item in value}
        value = named.get("default")
        if value is None:
            raise SourceError(
                "the model has several chat templates and none is called default",
                where="tokenizer_config.json",
                why=f"names: {', '.join(sorted(str(name) for name in named))}",
                hint="put the one to use into chat_template.jinja",
            )
    return value if isinstance(value, str) else None


def chat_family(form: ChatForm) -> str | None:
    """A label for well-known forms; nothing depends on it."""
    prefix = form.roles["user"].prefix
    if prefix == "<|im_start|>user\n":
        return "chatml"
    if prefix == "<|start_header_id|>user<|end_header_id|>\n\n":
        return "llama3"
    return None


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


def end_of_turn(form: ChatForm, added: Mapping[str, int]) -> tuple[set[int], tuple[str, ...]]:
    """What ends the assistant's turn: (token ids, stop strings).

    The id of the first added token in its suffix; the suffix as a stop string if there is none.
    """
    suffix = form.roles["assistant"].suffix
    found = [(suffix.find(token), -len(token), token) for token in added if token in suffix]
    if found:
        position, _, token = min(found)
        before = suffix[:position].strip()
        return {added[token]}, (before,) if before else ()
    text = suffix.strip()
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


def check_form(form: ChatForm, template: JinjaTemplate) -> None:
    """Compares the form with the template on ``conversations()``, generation prompt on and off.

    Raises ``SourceError`` naming the first mismatch.
    """
    for conversation in conversations():
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


def conversations() -> tuple[Conversation, ...]:
    """The conversations on which the derived form is compared with the template."""
    contents = {
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
    result: list[Conversation] = []
    for name, (first, answer, second) in contents.items():
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


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def form_from_json(chat: Mapping[str, Any]) -> ChatForm:
    """The form that a chat.json holds."""
    return ChatForm(
        bos=chat["bos"],
        default_system=chat["default_system"],
        roles={
            role: Turn(chat["roles"][role]["prefix"], chat["roles"][role]["suffix"])
            for role in ROLES
            if role in chat["roles"]
        },
        generation_prompt=chat["generation_prompt"],
        trim_content=chat["trim_content"],
    )
