"""chat.json from Jinja templates: what is found out about them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from mlcbuild.bundle.chat_config import ChatConfig, derive_chat_config, sampling_defaults
from mlcbuild.bundle.chat_probe import ChatForm, Turn, derive_form
from mlcbuild.bundle.chat_reference import Conversation, MessageStyle, prepare
from mlcbuild.bundle.chat_traits import ChatTraits, find_traits
from mlcbuild.bundle.conversations import TOOLS, call_message, conversations
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


def form_of(template: str, bos: str | None = None) -> ChatForm:
    return derive_form(JinjaTemplate(template, {} if bos is None else {"bos_token": bos}), bos)


def assert_renders_as_jinja(form: ChatForm, template: str, tokens: dict[str, str]) -> None:
    """On conversations beside those that deriving compares."""
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


# ---- the prefix/suffix form ------------------------------------------------------------------


def test_form_of_chatml_with_default_system() -> None:
    # As in SmolLM2, BOS is the token that starts every turn; it is no text in front of them.
    form = form_of(CHATML_DEFAULT_SYSTEM, "<|im_start|>")
    assert form.bos == ""
    assert form.default_system == "You help."
    assert form.roles["user"] == Turn("<|im_start|>user\n", "<|im_end|>\n")
    assert form.generation_prompt == "<|im_start|>assistant\n"
    assert form.trim_content is False
    assert_renders_as_jinja(form, CHATML_DEFAULT_SYSTEM, {"bos_token": "<|im_start|>"})


def test_form_of_qwen_like_without_bos() -> None:
    form = form_of(QWEN_LIKE)
    assert form.default_system == "You are a helpful assistant."
    assert form.bos == ""
    assert_renders_as_jinja(form, QWEN_LIKE, {})


def test_form_of_llama3() -> None:
    form = form_of(LLAMA3, "<|begin_of_text|>")
    assert form.bos == "<|begin_of_text|>"
    assert form.default_system is None
    assert form.trim_content is True
    assert_renders_as_jinja(form, LLAMA3, {"bos_token": "<|begin_of_text|>"})


def test_form_of_llama3_that_always_opens_the_turn() -> None:
    form = form_of(LLAMA3_ALWAYS_OPENS, "<|begin_of_text|>")
    assert form == form_of(LLAMA3, "<|begin_of_text|>")
    assert any("always opens" in note for note in form.notes)


def test_form_with_a_pinned_date() -> None:
    form = form_of(LLAMA31, "<|begin_of_text|>")
    assert form.default_system == ""
    assert form.roles["system"].prefix.endswith("Today Date: 26 Jul 2024\n\n")
    assert_renders_as_jinja(form, LLAMA31, {"bos_token": "<|begin_of_text|>"})


def test_form_without_system_role() -> None:
    form = form_of(NO_SYSTEM, "<s>")
    assert sorted(form.roles) == ["assistant", "user"]
    assert form.roles["assistant"].prefix == "<turn>model\n"
    assert form.bos == "<s>"
    assert any("no system message" in note for note in form.notes)


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
    ],
)
def test_templates_without_a_form(template: str, why: str) -> None:
    with pytest.raises(SourceError) as error:
        form_of(template, "<|begin_of_text|>")
    assert why in str(error.value)


def test_first_difference_is_named() -> None:
    trims_answers = CHATML_DEFAULT_SYSTEM.replace(
        "m.content ~", "(m.content | trim if m.role == 'assistant' else m.content) ~"
    )
    with pytest.raises(SourceError) as error:
        form_of(trims_answers)
    assert "conversation 'white space, " in str(error.value)
    assert "at character " in str(error.value)


# ---- chat.json -------------------------------------------------------------------------------


def test_chat_json_has_the_template() -> None:
    record = derive(LLAMA3, bos="<|begin_of_text|>", eos="<|end_of_text|>").to_json()
    assert record["chat_version"] == 2
    assert record["template"] == LLAMA3
    assert record["tool_template"] is None
    assert record["tokens"] == {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    # Case 12: the eos of the tokenizer never ends a turn, <|eot_id|> does.
    assert record["stop_token_ids"] == [IDS["<|end_of_text|>"], IDS["<|eot_id|>"]]
    assert record["takes_tools"] is False
    assert record["sampling"] is None


@pytest.mark.parametrize("template", [MERGES_SYSTEM, LLAMA31, NO_SYSTEM, LLAMA3_ALWAYS_OPENS])
def test_templates_without_a_form_build(template: str) -> None:
    config = derive(template, bos="<s>", eos="</s>")
    assert config.to_json()["template"] == template
    assert IDS["</s>"] in config.stop_token_ids


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for m in messages %}", "does not compile"),
        ("{{ raise_exception('buy the licence') }}", "buy the licence"),
        ("{{ messages.__class__.__mro__ }}", "renders no conversation"),
    ],
)
def test_templates_that_never_render_are_refused(template: str, why: str) -> None:
    with pytest.raises(SourceError) as error:
        derive(template, bos="<s>", eos="</s>")
    assert why in str(error.value)


def test_all_token_names_reach_the_template() -> None:
    config = derive(
        "{{ image_token }}{{ messages[0].content }}{{ pad_token }}{{ boi_token }}",
        bos=None,
        eos="</s>",
        tokenizer_config={
            "image_token": "<img>",
            "pad_token": {"content": "<pad>"},
            "unk_token": None,
            "add_bos_token": False,
            "extra_special_tokens": {"boi_token": "<boi>"},
        },
    )
    assert config.tokens == {
        "image_token": "<img>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "boi_token": "<boi>",
    }
    assert config.reference is not None
    hi = Conversation("hi", ({"role": "user", "content": "hi"},))
    assert config.reference.render(hi, True) == "<img>hi<pad><boi>"


@pytest.mark.parametrize(
    ("generation_config", "expected"),
    [
        (None, None),
        ({"eos_token_id": 3, "do_sample": True}, None),
        (
            {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "max_length": 9},
            {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0},
        ),
        (
            {"temperature": "hot", "top_k": None, "repetition_penalty": 1.05},
            {"repetition_penalty": 1.05},
        ),
        ({"temperature": 0.7, "do_sample": False}, {"temperature": 0.0}),
    ],
)
def test_sampling(generation_config: Any, expected: Any) -> None:
    assert sampling_defaults(generation_config) == expected


# ---- traits ----------------------------------------------------------------------------------

CALLS = """
{%- if tools %}{{ '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
    {%- for call in m.tool_calls or [] %}{% set call = call.function %}CALL{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

HERMES = CALLS.replace(
    "CALL",
    '{{ \'\\n<tool_call>\\n{"name": "\' + call.name + \'", "arguments": \' }}'
    "{{ call.arguments | tojson if call.arguments is mapping else call.arguments }}"
    "{{ '}\\n</tool_call>' }}",
)
LLAMA_CALLS = CALLS.replace(
    "CALL",
    "{{ '{\"name\": \"' + call.name + '\", \"parameters\": ' + call.arguments | tojson + '}' }}",
)
MISTRAL = CALLS.replace(
    "CALL",
    '{{ \'[TOOL_CALLS] [{"name": "\' + call.name + \'", "arguments": \' }}'
    "{{ call.arguments | tojson + '}]' }}",
)
MISTRAL_ARGS = CALLS.replace(
    "CALL", "{{ '[TOOL_CALLS]' + call.name + '[ARGS]' + call.arguments | tojson }}"
)
TEXT_ARGUMENTS = CALLS.replace("CALL", "{{ 'call ' + call.name + ' ' + call.arguments }}")
ONLY_TOLD = CALLS.replace("CALL", "").replace(
    "tools | tojson", "tools | tojson + 'Write <tool_call>{\"arguments\"' "
)


def traits_of(template: str) -> ChatTraits:
    return find_traits(JinjaTemplate(template, {}))


@pytest.mark.parametrize(
    ("template", "tool_format", "arguments"),
    [
        (HERMES, "hermes", "any"),
        (LLAMA_CALLS, "llama3", "object"),
        (MISTRAL, "mistral", "object"),
        (MISTRAL_ARGS, "mistral_args", "object"),
        (TEXT_ARGUMENTS, None, "text"),
        (ONLY_TOLD, "hermes", "any"),
    ],
)
def test_tool_conventions(template: str, tool_format: str | None, arguments: str) -> None:
    traits = traits_of(template)
    assert traits.takes_tools
    assert traits.tool_format == tool_format
    assert traits.style.arguments == arguments
    assert traits.turn_end == "<|im_end|>\n"


def test_no_place_for_tools() -> None:
    config = derive(LLAMA3, bos=None, eos="</s>")
    assert any("no place for tools" in note for note in config.notes)
    unknown = derive(TEXT_ARGUMENTS, bos=None, eos="</s>")
    assert any("calls stay in the text" in note for note in unknown.notes)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("m.content", "text"),
        ("(m.content if m.content is string else m.content[0].text)", "any"),
        ("m.content[0].text", "parts"),
    ],
)
def test_content_style(content: str, expected: str) -> None:
    template = "{% for m in messages %}{{ '<' + m.role + '>' + " + content + " }}{% endfor %}"
    assert traits_of(template).style.content == expected


@pytest.mark.parametrize(
    ("opening", "expected"),
    [
        ("'<a>'", "think_tags"),
        ("'<a><think>\\n'", "think_tags_open"),
        ("'<a><think></think>'", "think_tags"),
        ("'<a>[THINK][/THINK]'", "think_brackets"),
    ],
)
def test_reasoning_format(opening: str, expected: str) -> None:
    template = (
        "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"
        "{% if add_generation_prompt %}{{ " + opening + " }}{% endif %}"
    )
    assert traits_of(template).reasoning_format == expected
    assert traits_of(LLAMA3).reasoning_format is None


def test_markers_that_are_special_tokens_are_kept() -> None:
    added = [
        {"id": 9, "content": "</s>", "special": True},
        {"id": 10, "content": "<tool_call>", "special": True},
        {"id": 11, "content": "</tool_call>", "special": False},
        {"id": 12, "content": "[TOOL_CALLS]", "special": True},
    ]
    tokenizer = {**TOKENIZER, "added_tokens": added}
    config = derive(HERMES, bos=None, eos="</s>", tokenizer=tokenizer)
    assert config.kept_special_tokens == (10,)
    config = derive(MISTRAL, bos=None, eos="</s>", tokenizer=tokenizer)
    assert config.kept_special_tokens == (12,)
    assert derive(LLAMA3, bos=None, eos="</s>", tokenizer=tokenizer).kept_special_tokens == ()


def test_messages_are_prepared() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        call_message(None, ("f", '{"x": 1}'), ("f", "no JSON"), reasoning="r"),
        {"role": "user", "content": "c", "name": None},
    ]
    first, second, third = prepare(messages, MessageStyle("text", "object"))
    assert first["content"] == "a\nb"
    assert "content" not in second
    found = [call["function"]["arguments"] for call in second["tool_calls"]]
    assert found == [{"x": 1}, "no JSON"]
    assert second["reasoning_content"] == second["thinking"] == "r"
    assert third == {"role": "user", "content": "c"}
    first, second, third = prepare(
        [messages[0], call_message("", ("f", {"x": "é"})), messages[2]],
        MessageStyle("parts", "text"),
    )
    assert first["content"] == messages[0]["content"]
    assert second["tool_calls"][0]["function"]["arguments"] == '{"x": "é"}'
    assert third["content"] == [{"type": "text", "text": "c"}]


# ---- stopping, BOS ---------------------------------------------------------------------------


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


def test_base_model_has_no_template() -> None:
    config = derive(None, bos=None, eos="</s>")
    assert config.to_json()["template"] is None
    assert config.to_json()["takes_tools"] is False
    assert any("no chat template" in note for note in config.notes)


def test_template_file_goes_first_and_named_templates() -> None:
    config = derive(CHATML_DEFAULT_SYSTEM, bos=None, eos="</s>", chat_template=LLAMA3)
    assert config.to_json()["template"] == LLAMA3
    named = [{"name": "tool_use", "template": HERMES}, {"name": "default", "template": LLAMA3}]
    config = derive(named, bos=None, eos="</s>")  # type: ignore[arg-type]
    assert config.to_json()["template"] == LLAMA3
    assert config.to_json()["tool_template"] == HERMES
    assert config.to_json()["tool_format"] == "hermes"
    assert config.reference is not None
    user = ({"role": "user", "content": "hi"},)
    assert "<|eot_id|>" in config.reference.render(Conversation("", user), True)
    assert "get_weather" in config.reference.render(Conversation("", user, TOOLS), True)
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
    for refused in (
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
        "{{ none.x.y }}",
        "{% set n = namespace(_x=1) %}",
        "{% set n = namespace() %}{% set n._x = 1 %}",
    ):
        with pytest.raises(TemplateRefusal):
            JinjaTemplate(refused, {}).render([], False)


def test_conversations_are_varied() -> None:
    found = conversations()
    assert len({conversation.name for conversation in found}) == len(found) > 120
    assert any(conversation.has_system for conversation in found)
    assert any(conversation.tools and conversation.variables for conversation in found)
    assert any(isinstance(c.messages[0]["content"], list) for c in found)
    assert not any(conversation.tools for conversation in conversations(tools=False))
