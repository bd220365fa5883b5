"""Telling apart what a model writes, and the grammars under which it must call a tool."""

# ruff: noqa: E501 - outputs read best on one line
from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.chat_driver import ChatDriver, build_chat_driver
from tests.unit.text_driver import DriverError

ARGUMENT, UNSUPPORTED = 1, 5


@pytest.fixture(scope="module")
def driver(pytestconfig: pytest.Config) -> Iterator[ChatDriver]:
    with ChatDriver(build_chat_driver(pytestconfig)) as driver:
        yield driver


Part = tuple[str, Any]


def joined(deltas: list[dict[str, Any]]) -> list[Part]:
    """Deltas with neighbours of one kind put together; every call has its whole text."""
    parts: list[Part] = []
    for delta in deltas:
        ((kind, value),) = delta.items()
        if kind == "tool_call":
            expected = sum(known == "tool_call" for known, _ in parts)
            assert value["index"] == expected
            parts.append((kind, (value["name"], value["arguments"])))
            continue
        assert value != ""
        if parts and parts[-1][0] == kind:
            parts[-1] = (kind, parts[-1][1] + value)
        else:
            parts.append((kind, value))
    return parts


def parse(
    driver: ChatDriver,
    pieces: list[str] | list[bytes],
    tools: str = "",
    reasoning: str = "",
    prompt: str | None = None,
) -> list[Part]:
    driver("parser", tools=tools, reasoning=reasoning)
    if prompt is not None:
        driver("prompt", text=prompt)
    deltas: list[dict[str, Any]] = []
    for piece in pieces:
        deltas += driver.push(piece.encode() if isinstance(piece, str) else piece)
    return joined(deltas + driver.push(b"", last=True))


def content(text: str) -> Part:
    return ("content", text)


def thought(text: str) -> Part:
    return ("reasoning_content", text)


def call(name: str, arguments: str) -> Part:
    return ("tool_call", (name, arguments))


H = '<tool_call>\n{"name": "f", "arguments": {"x": [1, {"y": "}</tool_call>\\""}]}}\n</tool_call>'
H_CALL = call("f", '{"x": [1, {"y": "}</tool_call>\\""}]}')
M = '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}, "id": "abcdef123"}, {"name": "g", "arguments": {}}]'
L = '{"name": "f", "parameters": {"x": "a;b"}}'

CASES: list[tuple[str, str, str, list[Part]]] = [
    # text only
    ("", "", "Just <tool_call> text</think>.", [content("Just <tool_call> text</think>.")]),
    ("hermes", "think_tags", "", []),
    ("hermes", "", "a < b, <tool, </tool_call>", [content("a < b, <tool, </tool_call>")]),
    # Hermes
    ("hermes", "", H, [H_CALL]),
    ("hermes", "", f"I look.\n{H}\n", [content("I look.\n"), H_CALL]),
    ("hermes", "", f"{H}\n{H}", [H_CALL, H_CALL]),
    ("hermes", "", f"{H} And\nmore.", [H_CALL, content(" And\nmore.")]),
    ("hermes", "", f"{H} <tool {H}", [H_CALL, content(" <tool "), H_CALL]),
    ("hermes", "", H.removesuffix("</tool_call>"), [H_CALL]),
    ("hermes", "", '<tool_call>{"name":"f"}</tool_call>', [call("f", "{}")]),
    ("hermes", "", '<tool_call> {"arguments": {"é": 1.50}, "name": "\\u00e9"}</tool_call>', [call("é", '{"é": 1.50}')]),
    ("hermes", "", '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', [call("f", '{"x": 1}')]),
    ("hermes", "", '<tool_call>{"name": "f", "arguments": null}</tool_call>', [call("f", "{}")]),
    # no well-formed calls: nothing is lost
    ("hermes", "", "<tool_call>not JSON</tool_call>", [content("<tool_call>not JSON</tool_call>")]),
    ("hermes", "", '<tool_call>{"name": f}</tool_call>!', [content('<tool_call>{"name": f}</tool_call>!')]),
    ("hermes", "", '<tool_call>{"nom": "f"}</tool_call>', [content('<tool_call>{"nom": "f"}</tool_call>')]),
    ("hermes", "", '<tool_call>{"name": "f", "arguments": 3}</tool_call>', [content('<tool_call>{"name": "f", "arguments": 3}</tool_call>')]),
    ("hermes", "", '<tool_call>{"name": "f"', [content('<tool_call>{"name": "f"')]),
    ("hermes", "", "<tool_call>  ", [content("<tool_call>  ")]),
    ("hermes", "", '<tool_call>{"name": "f"} trailing', [content('<tool_call>{"name": "f"} trailing')]),
    ("hermes", "", f"<tool_call><tool_call>{H}", [content("<tool_call><tool_call>"), H_CALL]),
    ("hermes", "", f"{H}\n<tool_call>x", [H_CALL, content("\n<tool_call>x")]),
    # Llama 3
    ("llama3", "", L, [call("f", '{"x": "a;b"}')]),
    ("llama3", "", f" \n{L}\n", [call("f", '{"x": "a;b"}')]),
    ("llama3", "", f"<|python_tag|>{L}", [call("f", '{"x": "a;b"}')]),
    ("llama3", "", f"{L}; {L};{L}", [call("f", '{"x": "a;b"}')] * 3),
    ("llama3", "", f"{L}\n{L}", [call("f", '{"x": "a;b"}')] * 2),
    ("llama3", "", f"Well. <|python_tag|>{L}", [content("Well. "), call("f", '{"x": "a;b"}')]),
    ("llama3", "", '{"type": "function", "function": {"name": "f", "parameters": {}}}', [call("f", "{}")]),
    ("llama3", "", '{"type": "function", "function": "f", "parameters": {"q": 1}}', [call("f", '{"q": 1}')]),
    ("llama3", "", '{"answer": 42}', [content('{"answer": 42}')]),
    ("llama3", "", "{not JSON", [content("{not JSON")]),
    ("llama3", "", '{"name": "Ada", "parameters": 3} ok', [content('{"name": "Ada", "parameters": 3} ok')]),
    ("llama3", "", '{"name": "f"', [content('{"name": "f"')]),
    ("llama3", "", "<|python_tag|>print(1)", [content("<|python_tag|>print(1)")]),
    ("llama3", "", f"The call is {L}", [content(f"The call is {L}")]),
    ("llama3", "", f"{L}; done", [call("f", '{"x": "a;b"}'), content("; done")]),
    # Mistral
    ("mistral", "", M, [call("f", '{"a": "]"}'), call("g", "{}")]),
    ("mistral", "", f"Hm. {M}\n", [content("Hm. "), call("f", '{"a": "]"}'), call("g", "{}")]),
    ("mistral", "", '[TOOL_CALLS]{"name": "f", "arguments": {}}', [call("f", "{}")]),
    ("mistral", "", "[TOOL_CALLS] []", [content("[TOOL_CALLS] []")]),
    ("mistral", "", "[TOOL_CALLS] [1, 2] x", [content("[TOOL_CALLS] [1, 2] x")]),
    ("mistral", "", '[TOOL_CALLS] [{"name": "f"', [content('[TOOL_CALLS] [{"name": "f"')]),
    ("mistral", "", "[TOOL", [content("[TOOL")]),
    ("mistral_args", "", '[TOOL_CALLS]f[ARGS]{"a": 1}', [call("f", '{"a": 1}')]),
    ("mistral_args", "", '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"a": 1}', [call("f", '{"a": 1}')]),
    ("mistral_args", "", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', [call("f", '{"a": 1}'), call("g", "{}")]),
    ("mistral_args", "", "[TOOL_CALLS]f[ARGS]oops", [content("[TOOL_CALLS]f[ARGS]oops")]),
    ("mistral_args", "", "[TOOL_CALLS]a\nb", [content("[TOOL_CALLS]a\nb")]),
    ("mistral_args", "", '[TOOL_CALLS]f[ARGS]{"a" 1}', [content('[TOOL_CALLS]f[ARGS]{"a" 1}')]),
    ("mistral_args", "", "[TOOL_CALLS]" + "n" * 300, [content("[TOOL_CALLS]" + "n" * 300)]),
    # reasoning
    ("", "think_tags", "<think>\nhm\n\n</think>\n\nYes.", [thought("hm"), content("Yes.")]),
    ("", "think_tags", "  <think>hm</think>Yes.", [thought("hm"), content("Yes.")]),
    ("", "think_tags", "<think></think>Yes.", [content("Yes.")]),
    ("", "think_tags", "<think>hm, <b> </thin", [thought("hm, <b> </thin")]),
    ("", "think_tags", "Yes <think>no</think>.", [content("Yes <think>no</think>.")]),
    ("", "think_tags", "<thinking> is hard", [content("<thinking> is hard")]),
    ("", "think_tags_open", "hm\n</think>\n\nYes.", [thought("hm"), content("Yes.")]),
    ("", "think_tags_open", "<think>\nhm</think>Yes.", [thought("hm"), content("Yes.")]),
    ("", "think_tags_open", "never ends", [thought("never ends")]),
    ("", "think_tags_open", "</think>Yes.", [content("Yes.")]),
    ("", "think_brackets", "[THINK]hm[/THINK]Yes.", [thought("hm"), content("Yes.")]),
    # both
    ("hermes", "think_tags", f"<think>\nI call <tool_call>.\n</think>\n\n{H}", [thought("I call <tool_call>."), H_CALL]),
    ("hermes", "think_tags_open", f"hm</think>\n\nI look.\n{H}", [thought("hm"), content("I look.\n"), H_CALL]),
    ("llama3", "think_tags", f"<think>hm</think>\n{L}", [thought("hm"), call("f", '{"x": "a;b"}')]),
    ("mistral_args", "think_brackets", "[THINK]é[/THINK][TOOL_CALLS]f[ARGS]{}", [thought("é"), call("f", "{}")]),
]  # fmt: skip


@pytest.mark.parametrize(("tools", "reasoning", "text", "expected"), CASES)
def test_parts_do_not_depend_on_the_pieces(
    tools: str, reasoning: str, text: str, expected: list[Part], driver: ChatDriver
) -> None:
    assert parse(driver, [text], tools, reasoning) == expected
    assert parse(driver, list(text), tools, reasoning) == expected
    rng = random.Random(len(text))
    for _ in range(6):
        cuts = sorted({0, len(text), *(rng.randrange(len(text) + 1) for _ in range(4))})
        pieces = [text[a:b] for a, b in itertools.pairwise(cuts)]
        assert parse(driver, pieces, tools, reasoning) == expected


def test_text_is_held_back_no_longer_than_it_must(driver: ChatDriver) -> None:
    driver("parser", tools="hermes", reasoning="think_tags")
    assert driver.push(b"A < b") == [{"content": "A < b"}]
    assert driver.push(b" <tool") == [{"content": " "}]
    assert driver.push(b"box> ") == [{"content": "<toolbox> "}]
    assert driver.push(b"<tool_call>") == []
    assert driver.push(b"{") == []
    assert driver.push(b"]") == []
    assert driver.push(b"}") == [{"content": "<tool_call>{]}"}]
    assert driver.push(b'<tool_call>{"name": "f"}</tool_call> ') == [
        {"tool_call": {"index": 0, "name": "f", "arguments": "{}"}}
    ]
    driver("parser", tools="", reasoning="think_tags")
    assert driver.push(b"<think>a") == [{"reasoning_content": "a"}]
    assert driver.push(b" </th") == []
    assert driver.push(b"e b ") == [{"reasoning_content": " </the b"}]
    assert driver.push(b"</think> \n") == []
    assert driver.push(b"c ") == [{"content": "c "}]
    driver("parser", tools="llama3", reasoning="")
    assert driver.push(b'{"na') == []
    assert driver.push(b'ture": 1') == [{"content": '{"nature": 1'}]
    driver("parser", tools="", reasoning="")
    assert driver.push(b"<tool_call>") == [{"content": "<tool_call>"}]


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("<|im_start|>assistant\n<think>\n", "hm</think>Yes.", [thought("hm"), content("Yes.")]),
        ("<think>a</think>b<|im_start|>assistant\n", "<think>c</think>d", [thought("c"), content("d")]),
        ("assistant\n<think>\n\n</think>\n\n", "Yes.", [content("Yes.")]),
        ("assistant\n", "Yes.", [content("Yes.")]),
    ],
)  # fmt: skip
def test_the_prompt_tells_where_reasoning_is(
    prompt: str, text: str, expected: list[Part], driver: ChatDriver
) -> None:
    assert parse(driver, list(text), "", "think_tags", prompt) == expected
    assert parse(driver, [text], "hermes", "think_tags_open", prompt) == expected


def test_unknown_formats(driver: ChatDriver) -> None:
    for formats in ({"tools": "morse"}, {"reasoning": "smoke"}):
        with pytest.raises(DriverError, match=r"(are|is) not known") as error:
            driver("parser", **formats)
        assert error.value.status == UNSUPPORTED


def test_any_output_survives(driver: ChatDriver) -> None:
    """Random pieces of markers and JSON, and bytes that are no text: no crash, nothing lost."""
    rng = random.Random(3)
    parts = ["<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "f", ', '"arguments": ', "{}", "}",
             "[TOOL_CALLS]", "[ARGS]", "[", "]", ",", ";", " ", "\n", '"', "\\", "f", "é", "<|python_tag|>",
             '{"name": "f", "parameters": {}}', "<", "<tool", "[THINK]", "[/THINK]"]  # fmt: skip
    for index in range(600):
        tools = rng.choice(["", "hermes", "llama3", "mistral", "mistral_args"])
        reasoning = rng.choice(["", "think_tags", "think_tags_open", "think_brackets"])
        pieces = rng.choices(parts, k=rng.randrange(1, 30))
        text = "".join(pieces)
        found = parse(driver, [text], tools, reasoning)
        assert parse(driver, pieces, tools, reasoning) == found
        assert parse(driver, list(text), tools, reasoning) == found
        if not reasoning and not any(kind == "tool_call" for kind, _ in found):
            assert found == [content(text)]
        if index % 4 == 0:
            data = bytearray(text.encode())
            for _ in range(3):
                data[rng.randrange(len(data))] = rng.randrange(256)
            parse(driver, [bytes(data)], tools, reasoning)


def test_long_output_takes_linear_time(driver: ChatDriver) -> None:
    text = '<tool_call>{"name": "f", "arguments": {"x": "' + "a" * 200_000 + '"}}</tool_call>'
    pieces = [text[i : i + 50] for i in range(0, len(text), 50)]
    found = parse(driver, pieces, "hermes", "think_tags")
    assert [kind for kind, _ in found] == ["tool_call"]
    pieces = ["<tool_call>{" + '"' * 3] * 3000
    assert parse(driver, pieces, "hermes", "") == [content("".join(pieces))]


# ---- grammars --------------------------------------------------------------------------------

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "number", "maximum": 1e3}}}}},
    {"type": "function", "function": {"name": 'say "é"', "description": "no parameters"}},
]  # fmt: skip


def grammar(
    driver: ChatDriver,
    tool_format: str,
    choice: Any = "required",
    parallel: bool = False,
    tools: list[dict[str, Any]] = TOOLS,
) -> dict[str, Any]:
    found: dict[str, Any] = driver(
        "grammar",
        format=tool_format,
        tools=json.dumps(tools),
        choice=json.dumps(choice),
        parallel=parallel,
    )
    return found


def sample(structure: dict[str, Any], rng: random.Random) -> str:
    """A text of the structure; objects of a schema are {}."""
    kind = structure["type"]
    if kind == "literal":
        return str(structure["text"])
    if kind == "json_schema":
        assert structure["schema"]["type"] == "object"
        return "{}"
    if kind == "sequence":
        return "".join(sample(part, rng) for part in structure["parts"])
    if kind == "choice":
        return sample(rng.choice(structure["options"]), rng)
    assert kind == "repeat"
    assert structure["min"] == 1
    assert structure["max"] is None
    separator = sample(structure["separator"], rng) if "separator" in structure else ""
    return separator.join(sample(structure["item"], rng) for _ in range(rng.randrange(1, 4)))


@pytest.mark.parametrize("tool_format", ["hermes", "llama3", "mistral", "mistral_args"])
def test_what_a_grammar_forces_is_a_call(tool_format: str, driver: ChatDriver) -> None:
    rng = random.Random(1)
    counts: set[int] = set()
    names: set[str] = set()
    for parallel in (False, True):
        structure = grammar(driver, tool_format, parallel=parallel)
        for _ in range(20):
            found = parse(driver, [sample(structure, rng)], tool_format)
            assert {kind for kind, _ in found} == {"tool_call"}
            assert {arguments for _, (_, arguments) in found} == {"{}"}
            names |= {name for _, (name, _) in found}
            counts.add(len(found))
            assert parallel or len(found) == 1
    assert names == {"f", 'say "é"'}
    assert counts == {1, 2, 3}


def test_a_chosen_tool_and_its_schema(driver: ChatDriver) -> None:
    choice = {"type": "function", "function": {"name": "f"}}
    assert grammar(driver, "hermes", choice) == {
        "type": "sequence",
        "parts": [
            {"type": "literal", "text": "<tool_call>\n"},
            {
                "type": "sequence",
                "parts": [
                    {"type": "literal", "text": '{"name": "f", "arguments": '},
                    {
                        "type": "json_schema",
                        "schema": {
                            **TOOLS[0]["function"]["parameters"],
                            "additionalProperties": False,
                        },
                    },
                    {"type": "literal", "text": "}"},
                ],
            },
            {"type": "literal", "text": "\n</tool_call>"},
        ],
    }
    other = grammar(driver, "llama3", {"type": "function", "function": {"name": 'say "é"'}})
    assert other["parts"][0]["text"] == '{"name": "say \\"é\\"", "parameters": '
    assert other["parts"][1]["schema"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("parameters", "schema"),
    [
        ({}, {"type": "object", "properties": {}, "additionalProperties": False}),
        (None, {"type": "object", "properties": {}, "additionalProperties": False}),
        (
            {"properties": {"x": {"type": "integer"}}, "required": ["x"]},
            {
                "type": "object",
                "properties": {"x": {"type": "integer"}},
                "required": ["x"],
                "additionalProperties": False,
            },
        ),
        ({"type": "object"}, {"type": "object"}),
        (
            {"properties": {}, "additionalProperties": True},
            {"type": "object", "properties": {}, "additionalProperties": True},
        ),
        (
            {"properties": {"x": {}}, "allOf": [{"required": ["y"]}]},
            {"type": "object", "properties": {"x": {}}, "allOf": [{"required": ["y"]}]},
        ),
    ],
)
def test_arguments_are_an_object(
    parameters: Any, schema: dict[str, Any], driver: ChatDriver
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    (part,) = (
        part
        for part in grammar(driver, "llama3", tools=tools)["parts"]
        if part["type"] == "json_schema"
    )
    assert part["schema"] == schema


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ("[", '"required"', "tools: byte 1 is not valid JSON"),
        ("[]", '"required"', "at least one tool"),
        ("{}", '"required"', "at least one tool"),
        ('[{"name": "f"}]', '"required"', r"tools\[0\]: expected"),
        ('[{"function": {"name": ""}}]', '"required"', r"tools\[0\]: expected"),
        ('[{"function": {"name": "f", "parameters": 1}}]', '"required"', "expected a JSON schema"),
        (
            '[{"function": {"name": "f"}}, {"function": {"name": "f"}}]',
            '"required"',
            r"tools\[1\]: a tool has this name already",
        ),
        ('[{"function": {"name": "f"}}]', '"auto"', "tool_choice: expected"),
        ('[{"function": {"name": "f"}}]', "{}", "tool_choice: expected"),
        ('[{"function": {"name": "f"}}]', "x", "tool_choice: byte 0"),
        (
            '[{"function": {"name": "f"}}]',
            '{"function": {"name": "g"}}',
            'tool_choice: no tool is called "g"',
        ),
    ],
)
def test_tools_are_checked(tools: str, choice: str, message: str, driver: ChatDriver) -> None:
    with pytest.raises(DriverError, match=message) as error:
        driver("grammar", format="hermes", tools=tools, choice=choice, parallel=False)
    assert error.value.status == ARGUMENT


def test_grammars_need_a_convention(driver: ChatDriver) -> None:
    for tool_format in ("", "morse"):
        with pytest.raises(DriverError) as error:
            grammar(driver, tool_format)
        assert error.value.status == UNSUPPORTED
