"""The browser client's conversation template: what it renders is what the model's own does."""

from __future__ import annotations

from typing import Any

import pytest

from mlcbuild.bundle.jinja_template import JinjaTemplate
from mlcbuild.bundle.web_chat import (
    WebConversation,
    check_pieces,
    client_replace,
    derive_web_conversation,
)
from mlcbuild.errors import SourceError

IDS = {"<s>": 1, "</s>": 2, "<|im_start|>": 3, "<|im_end|>": 4, "<|begin|>": 5}
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (
    "{{ bos_token }}{% for m in messages %}<|h|>{{ m['role'] }}<|/h|>\n\n{{ m['content'] | trim }}"
    "<|e|>{% endfor %}{% if add_generation_prompt %}<|h|>assistant<|/h|>\n\n{% endif %}"
)
INSTRUCTIONS = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }}"
    " [/INST]{% elif m['role'] == 'assistant' %} {{ m['content'] }}</s>{% else %}"
    "{{ raise_exception('no system') }}{% endif %}{% endfor %}"
)
# The answer to come begins in another way than one of the past, and not as a user's does.
TWO_OPENINGS = (
    "{% for m in messages %}{{ '#' if m['role'] == 'user' else '@x' }}{{ m['content'] }}|"
    "{% endfor %}{% if add_generation_prompt %}@y{% endif %}"
)


def derive(template: str, bos: str | None = None) -> WebConversation:
    return derive_web_conversation(
        JinjaTemplate(template, {} if bos is None else {"bos_token": bos}),
        bos_token=bos,
        token_ids=IDS,
        stop_strings=(),
        stop_token_ids=(2, 4),
    )


def test_chatml_with_a_default_system_message() -> None:
    record = derive(CHATML).to_json("tiny")
    assert record["system_template"] == "<|im_start|>system\n{system_message}"
    assert record["system_message"] == "Be kind."
    assert record["render_empty_system_message"]
    assert record["roles"]["user"] == "<|im_end|>\n<|im_start|>user\n"
    assert record["seps"] == ["<|im_end|>\n", ""]
    assert (record["role_content_sep"], record["role_empty_sep"]) == ("", "")
    assert record["stop_token_ids"] == [2, 4]
    assert "system_prefix_token_ids" not in record
    assert "role_templates" not in record


def continued(conversation: WebConversation, messages: list[dict[str, Any]]) -> str:
    """What the model has seen when a conversation went on turn by turn.

    The client feeds a user's message and the start of the answer; the answer is what was sampled,
    without the token that ended it.
    """
    text = conversation.render(messages[:1])
    for number in range(1, len(messages), 2):
        answer, question = messages[number : number + 2]
        piece = conversation.pieces([question])[-2:]
        text += str(answer["content"]) + "".join(piece)
    return text


def test_a_conversation_that_goes_on_is_the_whole_one() -> None:
    messages = [
        {"role": role, "content": f"{role} {turn}"}
        for turn in range(3)
        for role in ("user", "assistant")
    ][:-1]
    conversation = derive(CHATML)
    assert continued(conversation, messages) == conversation.render(messages)
    assert not any("resetChat" in note for note in conversation.notes)
    # Where nothing is always there to be ended, the end stays behind the answer, with a note.
    other = derive(HEADERS, "<|begin|>")
    assert continued(other, messages) != other.render(messages)
    assert any("resetChat" in note for note in other.notes)


@pytest.mark.parametrize("text", ["Pay $& or $$5", "$'", "a $` b", "$1 $<x> $"])
def test_a_default_system_message_with_dollars(text: str) -> None:
    """The client replaces the place in the template, where a dollar has a meaning."""
    template = CHATML.replace("Be kind.", text)
    conversation = derive(template)
    assert conversation.to_json("tiny")["system_message"] == text.replace("$", "$$")
    messages: list[dict[str, Any]] = [{"role": "user", "content": "U"}]
    assert conversation.render(messages) == JinjaTemplate(template, {}).render(messages, True)


def test_replacing_as_javascript_does() -> None:
    assert client_replace("<s>{m}</s>{m}", "{m}", "1$$2$&3$`4$'5$6") == (
        "<s>1$2{m}3<s>4</s>{m}5$6</s>{m}"
    )
    assert client_replace("plain", "{m}", "$&") == "plain"


def test_a_system_part_that_ends_in_another_way() -> None:
    template = CHATML.replace("Be kind.<|im_end|>\n", "Be kind.<|im_end|>\n\n").replace(
        "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n",
        "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
        "{% if m['role'] == 'system' %}{{ '\n' }}{% endif %}",
    )
    conversation = derive(template)
    assert conversation.assistant_end == "<|im_end|>\n"
    assert conversation.system_template.endswith("<|im_end|>\n\n")
    assert any("resetChat" in note for note in conversation.notes)


def test_pieces_that_are_other_tokens_than_the_whole() -> None:
    conversation = derive(CHATML)
    assert check_pieces(conversation, lambda text: [ord(char) for char in text]) is None
    note = check_pieces(conversation, lambda text: [ord(char) for char in text[::2]])
    assert note is not None
    assert "encodes each message by itself" in note


def test_a_start_of_text_and_trimmed_contents() -> None:
    conversation = derive(HEADERS, "<|begin|>")
    assert conversation.to_json("tiny")["system_prefix_token_ids"] == [5]
    assert conversation.system_message == ""
    assert any("white space" in note for note in conversation.notes)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "S"}]
    messages.append({"role": "user", "content": "U"})
    expected = JinjaTemplate(HEADERS, {"bos_token": "<|begin|>"}).render(messages, True)
    assert conversation.render(messages) == expected


def test_a_space_that_only_a_past_answer_has() -> None:
    conversation = derive(INSTRUCTIONS, "<s>")
    assert conversation.role_content_sep == " "
    assert conversation.role_empty_sep == ""
    assert (conversation.user, conversation.assistant) == ("[INST]", "")
    assert conversation.to_json("tiny")["system_template"] == ""
    assert any("no system message" in note for note in conversation.notes)


@pytest.mark.parametrize(
    ("template", "bos", "why"),
    [
        (TWO_OPENINGS, None, "one separator for all"),
        (INSTRUCTIONS.replace("{{ bos_token }}", "Hi."), None, "which is no token"),
        ("{% for m in messages %}{{ m['content'] | upper }}{% endfor %}", None, "does not appear"),
    ],
)
def test_what_the_client_cannot_say(template: str, bos: str | None, why: str) -> None:
    with pytest.raises(SourceError) as caught:
        derive(template, bos)
    assert why in (caught.value.why or "")


def test_a_difference_in_later_turns_is_found() -> None:
    # Every second answer ends in another way, which prefixes and suffixes cannot say.
    template = (
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}"
        "{{ '!!' if loop.index > 3 else '!' }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    with pytest.raises(SourceError, match="cannot be expressed"):
        derive(template)
