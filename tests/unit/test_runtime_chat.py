"""The runtime's chat templates: conversations in, text out, as Jinja itself renders them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mlcbuild.bundle.chat_config import derive_chat_config
from mlcbuild.bundle.conversations import TOOLS, call_message, conversations
from tests.unit.chat_driver import ChatDriver, build_chat_driver, compare_renderings
from tests.unit.test_chat_config import (
    CHATML_DEFAULT_SYSTEM,
    HERMES,
    LLAMA3,
    LLAMA31,
    LLAMA_CALLS,
    MERGES_SYSTEM,
    MISTRAL,
    NO_SYSTEM,
    QWEN_LIKE,
    TEXT_ARGUMENTS,
    TOKENIZER,
)
from tests.unit.text_driver import DriverError

ARGUMENT, UNSUPPORTED, BUNDLE, VERSION = 1, 5, 20, 21

# Keeps the thoughts of the last answer only, numbers tool results, loops backwards: what newer
# models' templates do.
MODERN = """
{%- macro content_of(value, trimmed=true) -%}
    {%- if value is string -%}{{ value | trim if trimmed else value }}
    {%- elif value is iterable and value is not mapping -%}
        {%- for part in value -%}{{ part.text if part.type == 'text' else '<?>' }}{%- endfor -%}
    {%- endif -%}
{%- endmacro %}
{%- set ns = namespace(last=-1, results=0) %}
{%- for m in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if ns.last < 0 and m.role == 'user' %}{% set ns.last = index %}{% endif %}
{%- endfor %}
{%- if tools %}
    {{- '# Tools\\n' }}
    {%- for tool in tools %}
        {{- loop.index ~ '. ' ~ tool.function.name ~ ': ' }}{{ tool | tojson(indent=2) }}{{ '\\n' }}
        {%- for name, value in tool.function.parameters.properties | dictsort %}
            {{- '   - ' + name + ' (' + value.type | default('any') + ')' + '\\n' }}
        {%- endfor %}
    {%- endfor %}
{%- endif %}
{%- for m in messages %}
    {%- if m.role not in ['system', 'user', 'assistant', 'tool', 'developer'] %}
        {{- raise_exception('Unknown role: ' ~ m['role']) }}
    {%- endif %}
    {{- '<' ~ m.role | upper ~ '>' }}
    {%- set text = content_of(m.content, trimmed=m.role != 'user') %}
    {%- if m.role == 'assistant' %}
        {%- set thoughts = m.reasoning_content if m.reasoning_content is string else '' %}
        {%- if '</think>' in text %}
            {%- set thoughts = text.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set text = text.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and thoughts and enable_thinking is not false %}
            {{- '<think>' + thoughts.strip('\\n') + '</think>' }}
        {%- endif %}
        {%- generation %}{{ text }}{% endgeneration %}
        {%- for call in m.tool_calls or [] %}
            {%- if call.function is defined %}{% set call = call.function %}{% endif %}
            {{- '\\n<call name="%s">' % call.name }}
            {%- for key, value in call.arguments | items %}
                {{- key ~ '=' ~ (value if value is string else value | tojson) ~ ';' }}
            {%- endfor %}
            {{- '</call>' }}
        {%- endfor %}
    {%- elif m.role == 'tool' %}
        {%- set ns.results = ns.results + 1 %}
        {{- '{}/{}: '.format(ns.results, loop.length) }}{{ text }}
    {%- else %}
        {{- text }}
    {%- endif %}
    {{- '</' ~ m.role | upper ~ '>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<ASSISTANT>' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{% endif %}
{%- endif %}
"""
PARTS_ONLY = (
    "{% for m in messages %}{{ m.role + ':' }}{% for p in m.content %}{{ p.text }}{% endfor %}"
    "{{ '\\n' }}{% endfor %}"
)
TEMPLATES = {
    "chatml": CHATML_DEFAULT_SYSTEM,
    "hermes": HERMES,
    "llama3": LLAMA3,
    "llama31": LLAMA31,
    "llama calls": LLAMA_CALLS,
    "merges system": MERGES_SYSTEM,
    "mistral": MISTRAL,
    "modern": MODERN,
    "no system": NO_SYSTEM,
    "parts only": PARTS_ONLY,
    "qwen": QWEN_LIKE,
    "text arguments": TEXT_ARGUMENTS,
}
USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def driver(pytestconfig: pytest.Config) -> Iterator[ChatDriver]:
    with ChatDriver(build_chat_driver(pytestconfig)) as driver:
        yield driver


def load(driver: ChatDriver, source: str | None, **changes: Any) -> dict[str, Any]:
    """Loads the chat.json of a template; gives it."""
    config = derive_chat_config(
        TOKENIZER, {"bos_token": "<s>", "eos_token": "</s>", "chat_template": source}
    )
    chat = {**json.loads(config.to_bytes()), **changes}
    driver("chat", chat=chat)
    return chat


@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_render_as_in_jinja(name: str, driver: ChatDriver) -> None:
    config = derive_chat_config(
        TOKENIZER, {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATES[name]}
    )
    assert config.reference is not None
    assert config.traits is not None
    driver("chat", chat=json.loads(config.to_bytes()))
    chosen = conversations(tools=config.traits.takes_tools)
    compared, refused, differences = compare_renderings(driver, config.reference, chosen)
    assert differences == []
    assert compared == 2 * len(chosen)
    assert refused < compared


def test_tool_template(driver: ChatDriver) -> None:
    named = [{"name": "default", "template": LLAMA3}, {"name": "tool_use", "template": MODERN}]
    config = derive_chat_config(TOKENIZER, {"eos_token": "</s>", "chat_template": named})
    assert config.reference is not None
    driver("chat", chat=json.loads(config.to_bytes()))
    compared, refused, differences = compare_renderings(driver, config.reference, conversations())
    assert differences == []
    assert refused < compared


# ---- the conversation ------------------------------------------------------------------------


def test_forms_of_a_conversation(driver: ChatDriver) -> None:
    load(driver, CHATML_DEFAULT_SYSTEM)
    text = (
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert driver.render_chat([USER]) == text
    assert driver.render_chat({"messages": [USER]}) == text
    assert driver.render_chat({"messages": [USER], "tools": None}) == text
    assert driver.render_chat({"messages": [USER], "tools": []}) == text
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    assert driver.render_chat([{**USER, "content": parts}]) == text.replace("Hi", "H\ni")
    closed = driver.render_chat({"messages": [USER], "add_generation_prompt": False})
    assert closed == text.removesuffix("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        ("[", "conversation: byte 1 is not valid JSON: a value is expected"),
        ("[1] x", "byte 4 is not valid JSON: text follows"),
        ('[{"role": "user", "role": "user"}]', 'the key "role" is given twice'),
        ("1", "expected a list of messages or an object"),
        ({}, '"messages" is missing'),
        ([], "a conversation needs at least one"),
        ({"messages": {}}, "messages: expected a list"),
        ([1], r"messages\[0\]: expected an object"),
        ([USER, {"content": "x"}], r'messages\[1\]: "role" is missing'),
        ([{"role": 1}], r"messages\[0\].role: expected a text"),
        ([{"role": "user", "content": 1}], "expected a text or a list of parts"),
        ([{"role": "user", "content": ["x"]}], 'a part has no "type"'),
        ([{"role": "user", "content": [{"type": "text"}]}], 'a part has no "text"'),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            'parts of type "image_url" are not supported',
        ),
        ([{**USER, "tool_calls": {}}], "tool_calls: expected a list"),
        ([{**USER, "tool_calls": [1]}], "tool_calls: expected objects"),
        ({"messages": [USER], "tools": {}}, "tools: expected a list"),
        ({"messages": [USER], "tools": [1]}, "tools: expected objects"),
        ({"messages": [USER], "tool": []}, 'key "tool" is not known'),
        ({"messages": [USER], "now": 1.5}, "now: expected a whole number"),
        ({"messages": [USER], "now": -1}, "now: expected a whole number"),
        ({"messages": [USER], "add_generation_prompt": 1}, "expected true or false"),
        ({"messages": [USER], "variables": []}, "variables: expected an object"),
        ({"messages": [USER], "variables": {"tools": []}}, '"tools" has a place of its own'),
        (
            {"messages": [USER], "continue_final_message": True, "add_generation_prompt": True},
            "exclude each other",
        ),
        ({"messages": [{"role": "user"}], "continue_final_message": True}, "has no content"),
    ],
)
def test_conversations_are_checked(conversation: Any, message: str, driver: ChatDriver) -> None:
    load(driver, CHATML_DEFAULT_SYSTEM)
    with pytest.raises(DriverError, match=message) as error:
        driver.render_chat(conversation)
    assert error.value.status == ARGUMENT


def test_tools_need_a_place(driver: ChatDriver) -> None:
    load(driver, LLAMA3)
    with pytest.raises(DriverError, match="no place for tools") as error:
        driver.render_chat({"messages": [USER], "tools": list(TOOLS)})
    assert error.value.status == UNSUPPORTED
    load(driver, None)
    with pytest.raises(DriverError, match="the model has no chat template") as error:
        driver.render_chat([USER])
    assert error.value.status == UNSUPPORTED


def test_refusals_have_the_template_s_words_and_line(driver: ChatDriver) -> None:
    load(driver, MODERN)
    line = MODERN[: MODERN.index("raise_exception")].count("\n") + 1
    with pytest.raises(DriverError) as error:
        driver.render_chat([{"role": "alien", "content": "x"}])
    assert str(error.value) == (
        "the model's chat template refuses this conversation\n"
        f"why: line {line}: Unknown role: alien"
    )
    assert error.value.status == ARGUMENT


def test_dates(driver: ChatDriver) -> None:
    load(driver, "{{ strftime_now('%Y-%m-%d %H:%M:%S|%d %b %Y|%B %-d|%A|%a|%j|%y|%I %p|%%') }}")
    leap_day = driver.render_chat({"messages": [USER], "now": 951782400 + 43_265})
    assert leap_day == ("2000-02-29 12:01:05|29 Feb 2000|February 29|Tuesday|Tue|060|00|12 PM|%")
    begin = driver.render_chat({"messages": [USER], "now": 0})
    assert begin.startswith("1970-01-01 00:00:00|01 Jan 1970|January 1|Thursday")
    end = driver.render_chat({"messages": [USER], "now": 253402300799})
    assert end.startswith("9999-12-31 23:59:59")
    load(driver, "{{ strftime_now('%Y') }}")
    assert driver.render_chat([USER]) in (
        time.strftime("%Y", time.gmtime(time.time() - s)) for s in (0, 9)
    )
    with pytest.raises(DriverError, match="strftime_now does not know %Q"):
        driver.render_template("{{ strftime_now('%Q') }}")


@pytest.mark.parametrize(
    ("content", "template", "expected"),
    [
        ("Once ", CHATML_DEFAULT_SYSTEM, "<|im_start|>assistant\nOnce "),
        ("Once \n", LLAMA3, "<|end_header_id|>\n\nOnce"),  # it trims
        ("", CHATML_DEFAULT_SYSTEM, "<|im_start|>assistant\n"),
        ([{"type": "text", "text": "Once "}], CHATML_DEFAULT_SYSTEM, "assistant\nOnce "),
        ("Once ", PARTS_ONLY, "assistant:Once "),
    ],
)
def test_the_final_message_goes_on(
    content: Any, template: str, expected: str, driver: ChatDriver
) -> None:
    load(driver, template)
    messages = [USER, {"role": "assistant", "content": content}]
    text = driver.render_chat({"messages": messages, "continue_final_message": True})
    assert text.endswith(expected)


def test_a_template_that_drops_the_final_message(driver: ChatDriver) -> None:
    load(driver, "{{ messages[0].content }}")
    messages = [USER, {"role": "assistant", "content": "x"}]
    with pytest.raises(DriverError, match="leaves the last message out"):
        driver.render_chat({"messages": messages, "continue_final_message": True})


def test_messages_take_the_form_that_the_template_wants(driver: ChatDriver) -> None:
    call = call_message("", ("f", '{"b": [1, 2.50], "a": "\\u00e9"}'))
    chat = load(driver, MODERN)
    assert chat["arguments_style"] == "object"
    assert '<call name="f">b=[1, 2.5];a=é;</call>' in driver.render_chat([USER, call])
    chat = load(driver, TEXT_ARGUMENTS)
    assert chat["arguments_style"] == "text"
    text = driver.render_chat([USER, call_message("", ("f", {"b": [1, True], "a": "é"}))])
    assert 'call f {"b": [1, true], "a": "é"}' in text
    # What a model wrote that is no JSON object stays as it is.
    assert "call f oops" in driver.render_chat([USER, call_message("", ("f", "oops"))])


# ---- chat.json -------------------------------------------------------------------------------


def test_what_chat_json_tells(driver: ChatDriver) -> None:
    load(
        driver,
        HERMES,
        stop_token_ids=[3, 9],
        stop_strings=["###"],
        kept_special_tokens=[7],
        add_bos_token_id=1,
        reasoning_format="think_tags",
    )
    assert driver("about") == {
        "present": True,
        "stop_token_ids": [3, 9],
        "kept_token_ids": [7],
        "stop_strings": ["###"],
        "bos_token_id": 1,
        "tool_format": "hermes",
        "reasoning_format": "think_tags",
    }
    load(driver, None)
    about = driver("about")
    assert about["present"] is False
    assert about["bos_token_id"] == -1
    assert about["tool_format"] == about["reasoning_format"] == ""


@pytest.mark.parametrize(
    ("changes", "message", "status"),
    [
        ({"chat_version": 1}, "chat_version 1, this runtime reads version 2", VERSION),
        ({"template": 1}, "expected a string", BUNDLE),
        ({"template": "\n{% if x %}"}, "line 2: the block that begins here", BUNDLE),
        ({"template": "{% include 'x' %}"}, "line 1: the tag 'include'", UNSUPPORTED),
        ({"tool_template": "{{"}, "not valid Jinja", BUNDLE),
        ({"tokens": {"bos_token": 1}}, "expected a string", BUNDLE),
        ({"stop_token_ids": [-1]}, "not a token id", BUNDLE),
        ({"stop_strings": [1]}, "expected a string", BUNDLE),
        ({"add_bos_token_id": 1.5}, "expected an integer", BUNDLE),
        ({"kept_special_tokens": [1 << 31]}, "kept_special_tokens has 2147483648", BUNDLE),
        ({"tool_format": "morse"}, '"morse" are not known', UNSUPPORTED),
        ({"reasoning_format": "smoke"}, '"smoke" is not known', UNSUPPORTED),
        ({"content_style": "song"}, 'content_style is "song"', UNSUPPORTED),
    ],
)
def test_chat_json_is_checked(
    changes: dict[str, Any], message: str, status: int, driver: ChatDriver
) -> None:
    with pytest.raises(DriverError, match=message) as error:
        load(driver, CHATML_DEFAULT_SYSTEM, **changes)
    assert error.value.status == status
