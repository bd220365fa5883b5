"""The runtime's Jinja: JSON, errors and their lines, limits, hostile and damaged templates."""

# ruff: noqa: E501 - templates read best on one line
from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.chat_driver import ChatDriver, build_chat_driver
from tests.unit.random_templates import VARIABLES, random_template
from tests.unit.test_runtime_jinja import STATEMENTS
from tests.unit.text_driver import DriverError

ARGUMENT, UNSUPPORTED, BUNDLE = 1, 5, 20


@pytest.fixture(scope="module")
def driver(pytestconfig: pytest.Config) -> Iterator[ChatDriver]:
    # Half of what threads have that iOS makes; those of other systems have more.
    with ChatDriver(build_chat_driver(pytestconfig), stack_kib=256) as driver:
        yield driver


# ---- JSON ------------------------------------------------------------------------------------


def test_json_goes_in_and_out_as_in_python(driver: ChatDriver) -> None:
    values: list[Any] = [
        0,
        -0.0,
        1.0,
        1e5,
        1e16,
        1.5e-7,
        123456789012345678,
        18446744073709551615,
        -(1 << 63),
        1 << 63,
        10**40,
        0.1,
        1e308,
        5e-324,
        True,
        None,
        "é\u2028\x7f\x1f\"\\/<>&' \U0001f600",
        "",
        [],
        {},
        [[], {}],
        {"": {"a": [1, {"b": None}]}},
        {"z": 1, "a": {"c": 2, "b": [1.5, "x"]}},
    ]
    for value in values:
        assert driver.render_template("{{ v | tojson }}", {"v": value}) == json.dumps(
            value, ensure_ascii=False
        )
        for options, more in (
            ("indent=2", {"indent": 2}),
            ("ensure_ascii=true, sort_keys=true", {"ensure_ascii": True, "sort_keys": True}),
            ("separators=(',', ':')", {"separators": (",", ":")}),
            ("indent='--', separators=('; ', '= ')", {"indent": "--", "separators": ("; ", "= ")}),
        ):
            expected = json.dumps(value, **{"ensure_ascii": False, **more})  # type: ignore[arg-type]
            assert (
                driver.render_template("{{ v | tojson(" + options + ") }}", {"v": value})
                == expected
            )
        assert driver.render_template("{{ v }}", {"v": value}) == str(value)


@pytest.mark.parametrize(
    "text",
    ["", "[", "[1,]", "{,}", '{"a"}', '{"a":1,}', "01", "1.", ".5", "+1", "1e", "nul", "'a'",
     '"\\ud800"', '"\\x"', '"\t"', "[1] 2", '"', "1e999", "9" * 500, "[" * 200, '{"a":1,"a":2}'],
)  # fmt: skip
def test_json_that_is_none(text: str, driver: ChatDriver) -> None:
    with pytest.raises(DriverError, match="variables: byte") as error:
        driver("template", source=b"x", variables=text)
    assert error.value.status == ARGUMENT


# ---- errors and limits -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "line", "why"),
    [
        ("a\n{{ x.y.z }}", 2, "'x' is undefined"),
        ("{% set x = {'a': 1} %}\n\n{{ x.b.c }}", 3, "dict has no 'b'"),
        ("\n{{ 'a' + 1 }}", 2, "'+' does not work between str and int"),
        ("\n\n{% for i in 5 %}{% endfor %}", 3, "int cannot be iterated over"),
        ("{% macro m() %}\n{{ raise_exception('two\nlines') }}{% endmacro %}\n{{ m() }}", 2, "two"),
        ("\n{{ 'x' | join(none) }}{{ 1 | items }}", 2, "items takes a dict, not int"),
        ("\n{{ {} | tojson(colour=1) }}", 2, "tojson takes no argument 'colour'"),
        ("\n{{ range | tojson }}", 2, "function cannot be written as JSON"),
        ("\n{{ 9223372036854775807 + 1 }}", 2, "an integer beyond 64 bits"),
        ("\n{{ 10 ** 30 }}", 2, "an integer beyond 64 bits"),
        ("{{ [1, 2] | map('upper') }}", 1, "an iterator cannot be written"),
    ],
)
def test_errors_name_the_line(source: str, line: int, why: str, driver: ChatDriver) -> None:
    with pytest.raises(DriverError) as error:
        driver.render_template(source)
    assert f"\nwhy: line {line}: {why}" in str(error.value)
    assert error.value.status == ARGUMENT


@pytest.mark.parametrize(
    ("source", "line", "why", "status"),
    [
        ("\n{% if a %}\n{{ b }", 3, "unexpected '}'", BUNDLE),
        ("\n{% if a %}\n{{ b }}", 2, "the block that begins here has no 'endif'", BUNDLE),
        ("\n{{ a | nope }}", 2, "there is no filter 'nope'", BUNDLE),
        ("\n{{ a is nope }}", 2, "there is no test 'nope'", BUNDLE),
        ("\n{% nope %}", 2, "unknown tag 'nope'", BUNDLE),
        ("\n{{ a b }}", 2, "expected '}}', found 'b'", BUNDLE),
        ("\n{{ 'a }}", 2, "a string has no end", BUNDLE),
        ("\n{# a", 2, "a comment has no end", BUNDLE),
        ("{% raw %}\n\n", 1, "a raw block has no end", BUNDLE),
        ("\n{{ '\\ud800' }}", 2, "an escape of a string names no character", BUNDLE),
        ("\n{{ 99999999999999999999 }}", 2, "an integer beyond 64 bits", BUNDLE),
        ("\n{{ a ? b }}", 2, "unexpected character '?'", BUNDLE),
        ("\n{{ \u201ca\u201d }}", 2, "unexpected character '\u201c'", BUNDLE),
        ("\n{{ a | urlize }}", 2, "the filter 'urlize'", UNSUPPORTED),
        ("\n{% extends 'a' %}", 2, "the tag 'extends'", UNSUPPORTED),
        (b"\xff", 1, "it is not UTF-8", BUNDLE),
    ],
)
def test_templates_that_do_not_compile(
    source: str | bytes, line: int, why: str, status: int, driver: ChatDriver
) -> None:
    with pytest.raises(DriverError) as error:
        driver.render_template(source)
    assert f"why: line {line}: {why}" in str(error.value)
    assert error.value.status == status


HOSTILE = {
    "endless recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursion through filters": "{% macro m(x) %}{{ [1] | map('string') | list }}{{ m(x) | upper | trim }}{% endmacro %}{{ m(1) }}",
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "many steps": "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% endfor %}{% endfor %}{% endfor %}",
    "a large text": "{{ 'x' * 1000000000000 }}",
    "a large list": "{{ [1] * 1000000000000 }}",
    "doubling": "{% set ns = namespace(x='x') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling with ~": "{% set ns = namespace(x='x') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "much output": "{% set x = 'x' * 1000000 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
    "captured output": "{% macro m(k) %}{{ 'x' * 1000000 }}{% for i in range(40) %}{{ m(k + 1) }}{% endfor %}{% endmacro %}{{ m(0) }}",
    "one value in many places": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "the same as JSON": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
    "comparing such values": "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "such a key": "{% set ns = namespace(x=(1,)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ {ns.x: 1} }}",
    "a deep list": "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
    "a deep namespace": "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = namespace(y=ns.x) %}{% endfor %}{{ ns }}",
    "a circle": "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
    "a wide format": "{{ '%999999999d' % 1 }}",
    "a wide brace format": "{{ '{:999999999}'.format(1) }}",
    "a precise format": "{{ '%.999999999f' % 1.5 }}",
    "a wide center": "{{ 'x' | center(999999999999) }}",
    "a wide indent": "{{ '\n\n\n' | indent(99999999999, blank=true) }}",
    "a wide JSON indent": "{{ [1] | tojson(indent=999999999) }}",
    "a long search": "{% set x = 'a' * 20000000 %}{% for i in range(100000) %}{{ (x ~ 'b') in x }}{% endfor %}",
    "replacing by much": "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "joining much": "{{ range(100000) | join('x' * 1000000) }}",
    "stripping much": "{{ ('a' * 10000000).strip('b' * 10000000 + 'a') }}",
    "splitting much": "{% for i in range(100000) %}{% set x = ('a,' * 1000000).split(',') %}{% endfor %}",
    "a large fill": "{{ [1] | batch(999999999999, 'x') | list }}",
    "many slices": "{{ [1] | slice(999999999999) | list }}",
    "deep brackets": "{{ " + "(" * 100000 + " }}",
    "deep blocks": "{% if a %}" * 100000,
    "deep lists": "{{ " + "[" * 50000 + "]" * 50000 + " }}",
    "deep not": "{{ " + "not " * 100000 + "a }}",
    "deep minus": "{{ " + "-" * 100000 + "1 }}",
    "deep attributes": "{{ a" + ".b" * 100000 + " }}",
    "deep filters": "{{ a" + "|upper" * 100000 + " }}",
    "deep conditions": "{{ " + "a if b else " * 100000 + "c }}",
    "deep targets": "{% set " + "(" * 100000 + " %}",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_in_an_error(name: str, driver: ChatDriver) -> None:
    began = time.monotonic()
    with pytest.raises(DriverError) as error:
        # A tenth of the steps that a conversation may take: seconds on a quiet machine.
        driver("template", source=HOSTILE[name].encode(), variables="{}", steps=3_000_000)
    assert error.value.status in (ARGUMENT, UNSUPPORTED, BUNDLE)
    assert time.monotonic() - began < 30


def test_what_is_long_but_harmless(driver: ChatDriver) -> None:
    plus = " + ".join(["1"] * 190)
    assert driver.render_template("{{ " + plus + " }}") == "190"
    concat = " ~ ".join(["'a'"] * 100000)
    assert driver.render_template("{{ " + concat + " }}") == "a" * 100000
    chain = "".join("{% elif a == " + str(i) + " %}" + str(i) for i in range(1000))
    assert driver.render_template("{% if false %}" + chain + "{% endif %}", {"a": 999}) == "999"
    text = "é" * 1_000_000
    messages = [{"content": text}] * 4
    assert (
        driver.render_template("{% for m in v %}{{ m.content }}{% endfor %}", {"v": messages})
        == text * 4
    )
    circle = (
        "{% macro m() %}{% set me = m %}x{% endmacro %}{% set ns = namespace(m=m) %}{{ ns.m() }}"
    )
    assert driver.render_template(circle) == "x"


def status_of(driver: ChatDriver, source: bytes) -> int:
    try:
        driver.render_template(source, VARIABLES)
    except DriverError as error:
        return error.status
    return 0


def test_damaged_templates_never_crash(driver: ChatDriver) -> None:
    rng = random.Random(5)
    whole = [random_template(seed).encode() for seed in range(40)]
    whole += [source.encode() for source in STATEMENTS]
    statuses: set[int] = set()
    for _ in range(1500):
        data = bytearray(rng.choice(whole))
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(data) + 1)
            kind = rng.randrange(4)
            if kind == 0 and data:
                del data[at : at + rng.randrange(1, 9)]
            elif kind == 1:
                data[at:at] = rng.choice(b"{{ }} {% %} {# ' ( [ - | \xff \\".split())
            elif kind == 2:
                other = rng.choice(whole)
                data[at:at] = other[: rng.randrange(len(other) + 1)]
            elif data:
                data[at % len(data)] = rng.randrange(256)
        statuses.add(status_of(driver, bytes(data)))
    assert {0, ARGUMENT, BUNDLE} <= statuses <= {0, ARGUMENT, UNSUPPORTED, BUNDLE}
