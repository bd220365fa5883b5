"""The build-time comparison of a bundle's text code with the reference finds every difference."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mlcbuild.bundle.abi import TextFlags
from mlcbuild.bundle.chat_reference import ChatReference, Conversation, MessageStyle
from mlcbuild.bundle.conversations import conversations
from mlcbuild.bundle.jinja_template import JinjaTemplate, TemplateRefusal
from mlcbuild.bundle.messages import Message
from mlcbuild.bundle.reader import Bundle, open_bundle
from mlcbuild.bundle.tokenizer_check import check_chat, check_stop, check_tokenizer
from mlcbuild.bundle.writer import write_bundle
from mlcbuild.errors import UsageError, VerificationError
from tests.unit import stub_bundle

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{% if m.role == 'alien' %}{{ raise_exception('no aliens') }}{% endif %}"
    "{{ '<' + m.role[0] + '>' + m.content + '</' + m.role[0] + '>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
)


def reference_of(template: str = TEMPLATE) -> ChatReference:
    return ChatReference(JinjaTemplate(template, {}))


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("</a>", special=True, normalized=False)])
    return tokenizer


class Reference:
    """A runtime that does what the reference does, or what a test makes it do."""

    def __init__(self, bundle: Bundle) -> None:
        """The tokenizer and chat.json of ``bundle``."""
        self.bundle = bundle
        self._tokenizer = Tokenizer.from_file(str(bundle.file(bundle.manifest.tokenizer)))
        chat = bundle.read_json(bundle.manifest.chat)
        style = MessageStyle(chat["content_style"], chat["arguments_style"])
        self._chat = ChatReference(JinjaTemplate(chat["template"], {}), style=style)

    def tokenize(self, text: str, flags: TextFlags = TextFlags.NONE) -> list[int]:
        assert flags == TextFlags.TOKENIZE_SPECIAL
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def detokenize(self, token_ids: Sequence[int], flags: TextFlags = TextFlags.NONE) -> bytes:
        assert flags == TextFlags.DETOKENIZE_SPECIAL
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text.encode()

    def render_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: int | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        given = None if tools is None else tuple(tools)
        conversation = Conversation("asked for", tuple(messages), given, variables)
        try:
            return self._chat.render(conversation, add_generation_prompt)
        except TemplateRefusal as error:
            raise UsageError(str(error)) from None


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    root = stub_bundle.write_files(tmp_path / "b")
    tokenizer = byte_tokenizer()
    tokenizer.save(str(root / "tokenizer/tokenizer.json"))
    chat = {
        **stub_bundle.CHAT,
        "template": TEMPLATE,
        "takes_tools": True,
        "stop_token_ids": [tokenizer.token_to_id("</a>")],
    }
    (root / "chat.json").write_text(json.dumps(chat))
    write_bundle(root, stub_bundle.parts())
    return open_bundle(root)


def test_agreement(bundle: Bundle) -> None:
    report = check_tokenizer(Reference(bundle))
    assert report.samples > 25
    assert report.token_ids > 1000
    chat = check_chat(Reference(bundle), reference_of())
    assert chat.renderings == 2 * len(conversations())
    assert chat.refused > 4  # the alien, and messages without content
    check_stop(Reference(bundle), reference_of())


class WrongIds(Reference):
    """Splits one character differently."""

    def tokenize(self, text: str, flags: TextFlags = TextFlags.NONE) -> list[int]:
        return super().tokenize(text.replace("\u00e9", "e"), flags)


class WrongText(Reference):
    """Loses what is no ASCII when it decodes."""

    def detokenize(self, token_ids: Sequence[int], flags: TextFlags = TextFlags.NONE) -> bytes:
        return bytes(byte for byte in super().detokenize(token_ids, flags) if byte < 128)


class Failing(Reference):
    """Reports an error on emoji."""

    def tokenize(self, text: str, flags: TextFlags = TextFlags.NONE) -> list[int]:
        if "\U0001f600" in text:
            raise UsageError("no emoji here")
        return super().tokenize(text, flags)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (WrongIds, "the reference has"),
        (WrongText, "decoded, the reference has"),
        (Failing, "no emoji here"),
    ],
)
def test_differences_are_named(bundle: Bundle, kind: type[Reference], why: str) -> None:
    with pytest.raises(VerificationError) as error:
        check_tokenizer(kind(bundle))
    assert why in str(error.value)
    assert error.value.exit_code == 6


class ForgetsTools(Reference):
    """Renders without the tools."""

    def render_chat(self, *arguments: Any, **options: Any) -> str:
        options["tools"] = None
        return super().render_chat(*arguments, **options)


class Obliging(Reference):
    """Renders what the template refuses."""

    def render_chat(self, *arguments: Any, **options: Any) -> str:
        try:
            return super().render_chat(*arguments, **options)
        except UsageError:
            return "anything"


class Refusing(Reference):
    """Refuses conversations without a generation prompt."""

    def render_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **options: Any
    ) -> str:
        if not add_generation_prompt:
            raise UsageError("always open")
        return super().render_chat(messages, add_generation_prompt, **options)


@pytest.mark.parametrize(
    ("kind", "template", "why"),
    [
        (
            Reference,
            TEMPLATE.replace("m.content", "m.content | trim"),
            "at character 3 the template says",
        ),
        (ForgetsTools, TEMPLATE, "at character 0 the template says"),
        (Obliging, TEMPLATE, "only the template refuses it"),
        (Refusing, TEMPLATE, "the bundle refuses it: always open"),
        (WrongIds, TEMPLATE, "its tokens: from token"),
    ],
)
def test_chat_difference_is_named(
    bundle: Bundle, kind: type[Reference], template: str, why: str
) -> None:
    with pytest.raises(VerificationError, match=r"^conversation ") as error:
        check_chat(kind(bundle), reference_of(template))
    assert why in str(error.value)


def test_a_turn_that_never_stops(bundle: Bundle, tmp_path: Path) -> None:
    file = bundle.file("chat.json")
    chat: dict[str, Any] = json.loads(file.read_bytes())
    file.write_text(json.dumps({**chat, "stop_token_ids": [3]}))
    with pytest.raises(VerificationError, match="nothing stops the model"):
        check_stop(Reference(bundle), reference_of())
    file.write_text(json.dumps({**chat, "stop_token_ids": [3], "stop_strings": ["</a>"]}))
    check_stop(Reference(bundle), reference_of())
    # A template that ends no turn leaves it to the model's own stop tokens.
    file.write_text(json.dumps({**chat, "stop_token_ids": [3]}))
    ends_nothing = "{% for m in messages %}{{ '\n\n' + m.content }}{% endfor %}"
    check_stop(Reference(bundle), reference_of(ends_nothing))
