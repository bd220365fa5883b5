"""chat.json derived from Jinja templates, and refused where it cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlcbuild.bundle.chat_config import (
    ChatConfig,
    conversations,
    derive_chat_config,
    form_from_json,
)
from mlcbuild.bundle.jinja_template import JinjaTemplate, TemplateRefusal
from mlcbuild.errors import SourceError

# Templates of our own that behave like the families'.
CHATML_DEFAULT_SYSTEM = """
{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

QWEN_LIKE = """
{%- if tools %}{{ raise_exception('no tools') }}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "system" and loop.first %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

LLAMA3 = """
{%- for message in messages %}
    {%- if loop.first %}{{ bos_token }}{% endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

LLAMA3_ALWAYS_OPENS = LLAMA3.replace("if add_generation_prompt", "if true")

# Llama 3.1 always has a system turn, with dates in front of its content.
LLAMA31 = """
{{- bos_token }}
{%- set date = strftime_now("%d %b %Y") if strftime_now is defined else "26 Jul 2024" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\nToday Date: " + date + "\\n\\n" }}
{{- system + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

NO_SYSTEM = """{{ bos_token }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- set role = 'model' if m.role == 'assistant' else m.role %}
{{- '<turn>' + role + '\\n' + m.content | trim + '<end>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<turn>model\\n' }}{% endif %}"""

MERGES_SYSTEM = """
{%- set ns = namespace(text='') %}
{%- for m in messages %}
    {%- if m.role == 'system' %}{% set ns.text = m.content + '\\n' %}
    {%- elif m.role == 'user' %}
        {{- '[I]' + (ns.text if loop.index0 < 2 else '') + m.content + '[/I]' }}
    {%- else %}{{ m.content + '</s>' }}{% endif %}
{%- endfor %}"""

TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<end>",
    "<s>",
    "</s>",
]
IDS = {token: 100 + index for index, token in enumerate(TOKENS)}
TOKENIZER: dict[str, Any] = {
    "added_tokens": [{"id": number, "content": token} for token, number in IDS.items()],
    "model": {"type": "BPE", "vocab": {"a": 0, "eos-in-vocab": 7}},
}


def derive(template: str | None, *, bos: str | None, eos: str, **more: Any) -> ChatConfig:
    config = {"eos_token": eos, "chat_template": template, **more.pop("tokenizer_config", {})}
    if bos is not None:
        config["bos_token"] = {"content": bos, "lstrip": False}
    return derive_chat_config(more.pop("tokenizer", TOKENIZER), config, **more)


def assert_renders_as_jinja(config: ChatConfig, template: str, tokens: dict[str, str]) -> None:
    """Compares through chat.json's JSON, on conversations beside those that deriving compares."""
    form = form_from_json(json.loads(config.to_bytes()))
    reference = JinjaTemplate(template, tokens)
    for system in ([], [{"role": "system", "content": " Be \u00e9lan.\n"}]):
        messages = [
            *system,
            {"role": "user", "content": "\u00a0x {{ y }}\n"},
            {"role": "assistant", "content": "z"},
            {"role": "user", "content": "<|im_start|>"},
        ]
        assert form.render(messages, True) == reference.render(messages, True)
        assert form.render(messages[:-1], False) == reference.render(messages[:-1], False)


def test_chatml_with_default_system() -> None:
    # As in SmolLM2, BOS is the token that starts every turn; it is no text in front of them.
    config = derive(CHATML_DEFAULT_SYSTEM, bos="<|im_start|>", eos="<|im_end|>")
    record = config.to_json()
    assert record["family"] == "chatml"
    assert record["bos"] == ""
    assert record["default_system"] == "You help."
    assert record["roles"]["user"] == {"prefix": "<|im_start|>user\n", "suffix": "<|im_end|>\n"}  # type: ignore[index]
    assert record["generation_prompt"] == "<|im_start|>assistant\n"
    assert record["trim_content"] is False
    assert record["stop_token_ids"] == [IDS["<|im_end|>"]]
    assert_renders_as_jinja(config, CHATML_DEFAULT_SYSTEM, {"bos_token": "<|im_start|>"})


def test_qwen_like_without_bos() -> None:
    config = derive(QWEN_LIKE, bos=None, eos="<|im_end|>")
    assert config.form is not None
    assert config.form.default_system == "You are a helpful assistant."
    assert config.form.bos == ""
    assert_renders_as_jinja(config, QWEN_LIKE, {})


def test_llama3() -> None:
    config = derive(LLAMA3, bos="<|begin_of_text|>", eos="<|end_of_text|>")
    record = config.to_json()
    assert record["family"] == "llama3"
    assert record["bos"] == "<|begin_of_text|>"
    assert record["default_system"] is None
    assert record["trim_content"] is True
    # Case 12: the eos of the tokenizer never ends a turn, <|eot_id|> does.
    assert record["stop_token_ids"] == [IDS["<|end_of_text|>"], IDS["<|eot_id|>"]]
    assert_renders_as_jinja(config, LLAMA3, {"bos_token": "<|begin_of_text|>"})


def test_llama3_that_always_opens_the_turn() -> None:
    config = derive(LLAMA3_ALWAYS_OPENS, bos="<|begin_of_text|>", eos="<|eot_id|>")
    plain = derive(LLAMA3, bos="<|begin_of_text|>", eos="<|eot_id|>")
    assert config.form == plain.form
    assert any("always opens" in note for note in config.notes)


def test_llama31_dates_are_pinned_and_noted() -> None:
    config = derive(LLAMA31, bos="<|begin_of_text|>", eos="<|eot_id|>")
    assert config.form is not None
    assert config.form.default_system == ""
    assert config.form.roles["system"].prefix.endswith("Today Date: 26 Jul 2024\n\n")
    assert any("2024-07-26" in note for note in config.notes)
    assert_renders_as_jinja(config, LLAMA31, {"bos_token": "<|begin_of_text|>"})


def test_template_without_system_role() -> None:
    config = derive(NO_SYSTEM, bos="<s>", eos="</s>")
    assert config.form is not None
    assert sorted(config.form.roles) == ["assistant", "user"]
    assert config.form.roles["assistant"].prefix == "<turn>model\n"
    assert config.form.bos == "<s>"
    assert set(config.stop_token_ids) == {IDS["</s>"], IDS["<end>"]}
    assert any("no system message" in note for note in config.notes)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        # Merges the system message into the first user message.
        (
            MERGES_SYSTEM,
            "the first user message",
        ),
        # Drops the thoughts of earlier answers.
        (
            CHATML_DEFAULT_SYSTEM.replace(
                "m.content ~", "(m.content.split('</think>')[-1] if not loop.last else m.content) ~"
            ),
            "conversation 'thoughts, ",
        ),
        # Numbers the turns.
        (LLAMA3.replace("message['role'] +", "message['role'] ~ loop.index ~"), "user message"),
        # Upper-cases: the content is not in the text.
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "does not appear"),
        # Refuses everything.
        ("{{ raise_exception('buy the licence') }}", "buy the licence"),
        # Reaches out of the sandbox.
        ("{{ messages.__class__.__mro__ }}{{ messages[0].content }}", "plain conversation"),
        ("{% for m in messages %}", "does not compile"),
    ],
)
def test_templates_beyond_prefix_and_suffix_are_refused(template: str, why: str) -> None:
    with pytest.raises(SourceError) as error:
        derive(template, bos="<|begin_of_text|>", eos="</s>")
    assert why in str(error.value)


def test_first_difference_is_named() -> None:
    trims_answers = CHATML_DEFAULT_SYSTEM.replace(
        "m.content ~", "(m.content | trim if m.role == 'assistant' else m.content) ~"
    )
    with pytest.raises(SourceError) as error:
        derive(trims_answers, bos=None, eos="<|im_end|>")
    assert "conversation 'white space, " in str(error.value)
    assert "at character " in str(error.value)


def test_stop_ids_are_a_union() -> None:
    config = derive(
        LLAMA3,
        bos="<|begin_of_text|>",
        eos="<|end_of_text|>",
        generation_config={"eos_token_id": [3, IDS["<|eot_id|>"]]},
        model_config={"eos_token_id": 5},
    )
    assert config.stop_token_ids == (3, IDS["<|end_of_text|>"], IDS["<|eot_id|>"])
    config = derive(LLAMA3, bos=None, eos="eos-in-vocab", model_config={"eos_token_id": 5})
    assert config.stop_token_ids == (5, 7, IDS["<|eot_id|>"])


def test_end_of_turn_without_a_token_of_its_own_is_a_stop_string() -> None:
    template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\n###\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    config = derive(template, bos=None, eos="</s>")
    assert config.stop_strings == ("###",)
    assert config.stop_token_ids == (IDS["</s>"],)


def test_unknown_eos_and_no_stop_at_all() -> None:
    with pytest.raises(SourceError, match="'<nope>' is not in the tokenizer"):
        derive(LLAMA3, bos=None, eos="<nope>")
    with pytest.raises(SourceError, match="nothing would ever stop"):
        derive_chat_config(TOKENIZER, {})


@pytest.mark.parametrize(
    ("tokenizer_config", "with_processor", "expected"),
    [
        ({}, False, None),
        ({}, True, IDS["<s>"]),
        ({"add_bos_token": False}, True, None),
        ({"add_bos_token": True}, False, IDS["<|begin_of_text|>"]),
    ],
)
def test_bos_before_raw_prompts(
    tokenizer_config: dict[str, Any], with_processor: bool, expected: int | None
) -> None:
    processor = {
        "type": "Sequence",
        "processors": [
            {"type": "ByteLevel"},
            {
                "type": "TemplateProcessing",
                "single": [
                    {"SpecialToken": {"id": "<s>", "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": "</s>", "type_id": 0}},
                ],
            },
        ],
    }
    tokenizer = {**TOKENIZER, "post_processor": processor if with_processor else None}
    config = derive(
        LLAMA3,
        bos="<|begin_of_text|>",
        eos="</s>",
        tokenizer=tokenizer,
        tokenizer_config=tokenizer_config,
    )
    assert config.add_bos_token_id == expected
    assert any("appends </s>" in note for note in config.notes) == with_processor


def test_base_model_has_no_roles() -> None:
    config = derive(None, bos=None, eos="</s>")
    assert config.to_json()["roles"] == {}
    assert config.family is None
    assert any("no chat template" in note for note in config.notes)


def test_template_file_goes_first_and_named_templates() -> None:
    config = derive(CHATML_DEFAULT_SYSTEM, bos=None, eos="</s>", chat_template=LLAMA3)
    assert config.family == "llama3"
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": LLAMA3}]
    assert derive(named, bos=None, eos="</s>").family == "llama3"  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="none is called default"):
        derive(named[:1], bos=None, eos="</s>")  # type: ignore[arg-type]


def test_rendering_follows_transformers() -> None:
    template = JinjaTemplate(
        "{% for m in messages %}\n    {% if loop.first %}\n{% generation %}{{ m.content }}"
        "{% endgeneration %}\n    {% endif %}\n{% break %}{% endfor %}"
        "{{ {'a': '<\u00e9>'} | tojson }}{{ tools }}{{ unknown }}",
        {},
    )
    text = template.render([{"role": "user", "content": "hi"}], False)
    assert text == 'hi{"a": "<\u00e9>"}None'
    with pytest.raises(TemplateRefusal):
        JinjaTemplate("{{ messages.append(1) }}", {}).render([], False)


def test_conversations_are_varied() -> None:
    found = conversations()
    assert len({conversation.name for conversation in found}) == len(found) > 80
    assert any(conversation.has_system for conversation in found)
    assert any(len(conversation.messages) == 5 for conversation in found)
