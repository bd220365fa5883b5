"""The build-time comparison of a bundle's text code with the reference finds every difference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mlcbuild.bundle.abi import TextFlags
from mlcbuild.bundle.chat_config import form_from_json
from mlcbuild.bundle.jinja_template import JinjaTemplate
from mlcbuild.bundle.messages import Message
from mlcbuild.bundle.reader import Bundle, open_bundle
from mlcbuild.bundle.tokenizer_check import check_chat, check_stop, check_tokenizer
from mlcbuild.bundle.writer import write_bundle
from mlcbuild.errors import UsageError, VerificationError
from tests.unit import stub_bundle

TEMPLATE = (
    "{% for m in messages %}{{ '<' + m.role[0] + '>' + m.content + '</' + m.role[0] + '>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
)


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
        self._form = form_from_json(bundle.read_json(bundle.manifest.chat))

    def tokenize(self, text: str, flags: TextFlags = TextFlags.NONE) -> list[int]:
        assert flags == TextFlags.TOKENIZE_SPECIAL
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def detokenize(self, token_ids: Sequence[int], flags: TextFlags = TextFlags.NONE) -> bytes:
        assert flags == TextFlags.DETOKENIZE_SPECIAL
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text.encode()

    def render_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        return self._form.render(messages, add_generation_prompt)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    root = stub_bundle.write_files(tmp_path / "b")
    tokenizer = byte_tokenizer()
    tokenizer.save(str(root / "tokenizer/tokenizer.json"))
    roles = {
        role: {"prefix": f"<{role[0]}>", "suffix": f"</{role[0]}>"}
        for role in ("system", "user", "assistant")
    }
    chat = {**stub_bundle.CHAT, "roles": roles, "stop_token_ids": [tokenizer.token_to_id("</a>")]}
    (root / "chat.json").write_text(json.dumps(chat))
    write_bundle(root, stub_bundle.parts())
    return open_bundle(root)


def test_agreement(bundle: Bundle) -> None:
    report = check_tokenizer(Reference(bundle))
    assert report.samples > 25
    assert report.token_ids > 1000
    assert check_chat(Reference(bundle), JinjaTemplate(TEMPLATE, {})) == 96
    check_stop(Reference(bundle))


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


def test_chat_difference_is_named(bundle: Bundle) -> None:
    template = TEMPLATE.replace("m.content", "m.content | trim")
    with pytest.raises(VerificationError, match=r"at character 3 the template says .*, the bundle"):
        check_chat(Reference(bundle), JinjaTemplate(template, {}))


def test_a_turn_that_never_stops(bundle: Bundle, tmp_path: Path) -> None:
    file = bundle.file("chat.json")
    chat: dict[str, Any] = json.loads(file.read_bytes())
    file.write_text(json.dumps({**chat, "stop_token_ids": [3]}))
    with pytest.raises(VerificationError, match="nothing stops the model"):
        check_stop(Reference(bundle))
    file.write_text(json.dumps({**chat, "stop_token_ids": [3], "stop_strings": ["</a>"]}))
    check_stop(Reference(bundle))
