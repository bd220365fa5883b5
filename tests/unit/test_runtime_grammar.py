"""Grammars of structured output: the languages, the token masks, the limits."""

from __future__ import annotations

import codecs
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cpp_driver import build_cpp
from tests.unit.grammar_tools import (
    GRAMMAR,
    PREFIX,
    REFUSED,
    STOP,
    WHOLE,
    Grammars,
    small_vocabulary,
    to_hex,
    write_vocabulary,
)
from tests.unit.text_driver import Driver, DriverError

JSON_GBNF = r"""
# JSON as llama.cpp's users write it
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.fixture(scope="module")
def grammars(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Grammars]:
    vocabulary = tmp_path_factory.mktemp("grammar") / "vocabulary.txt"
    write_vocabulary(small_vocabulary(), vocabulary)
    with Driver(build_cpp(pytestconfig, "grammar_driver")) as driver:
        yield Grammars(driver, vocabulary)


def mutations(text: str, seed: int, count: int, alphabet: str) -> list[str]:
    """``count`` texts that differ from ``text`` in a character or two."""
    rng = random.Random(f"{seed}{text}")
    texts = []
    for _ in range(count):
        chars = list(text)
        for _ in range(rng.randint(1, 2)):
            place = rng.randint(0, len(chars))
            kind = rng.randrange(3)
            if kind == 0:
                chars.insert(place, rng.choice(alphabet))
            elif kind == 1 and place < len(chars):
                del chars[place]
            elif place < len(chars):
                chars[place] = rng.choice(alphabet)
        texts.append("".join(chars))
    return texts


# ---- regular expressions

PATTERNS = {
    r"": ["", "a"],
    r"abc": ["abc", "ab", "abcd", ""],
    r"a|bc|": ["a", "bc", "", "b", "abc"],
    r"(ab)*c+d?": ["c", "ababccd", "abd", "cc"],
    r"[a-c]{2,4}": ["ab", "abca", "a", "abcab"],
    r"(?:x{3}|y{2,}){1,2}": ["xxx", "xxxyy", "yyyyyyy", "xx", "xxxyyxxx"],
    r"\d{3}-\d{4}": ["123-4567", "123-456", "12a-4567"],
    r"[^\W\d]\w*": ["_a1", "1a", "a-"],
    r"\s*\S+\s*": [" a ", "\tab\n", " ", "a b"],
    r"a.c": ["abc", "a\nc", "aéc", "a😀c", "ac"],
    r"(a+)+b": ["aaab", "b", "aaa"],
    r"(a*)*": ["", "aaaa", "b"],
    r"a??b*?c+?": ["abc", "c", "bbcc", "aac"],
    r"^ab$": ["ab", "b", "abb"],
    r"(^a|b)c$": ["ac", "bc", "c"],
    r"[\u00e9\x41-\x43]+": ["éA", "BC", "D", "é"],
    r"[.\-\]\\^]+": ["-.", "]", "\\^", "a"],
    r"\(\[\{\}\]\)\.\*\+\?\|": ["([{}]).*+?|", "([{}])"],
    r"(?P<year>\d{4})": ["2026", "026"],
    r"(25[0-5]|2[0-4]\d|1?\d?\d)(\.(25[0-5]|2[0-4]\d|1?\d?\d)){3}": ["127.0.0.1", "256.1.1.1"],
    r"(.*a.{8})x": ["abcdefghix", "aaaaaaaaaaaaax", "baaaaaax"],
    r"日本(語)?": ["日本", "日本語", "日"],
    r"[a-zA-Z0-9._%+-]+@[a-z]+\.(com|org)": ["a.b@ex.com", "a@b.net", "@x.org"],
    r"x{0}y{0,0}z": ["z", "xz"],
    r"{a}[b-d]{0,2}": ["{a}bd", "{a}", "{a}bbb"],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_regex_agrees_with_python(grammars: Grammars, pattern: str) -> None:
    grammars.compile("regex", pattern)
    samples = PATTERNS[pattern]
    alphabet = "abcxyzAB019 -_.@éÿ日\n" + "".join(samples)
    texts = [m for s in samples for m in mutations(s, 1, 40, alphabet)] + samples
    compiled = re.compile(pattern, re.ASCII)
    expected = [compiled.fullmatch(text) is not None for text in texts]
    if pattern == "a.c":  # no line terminator at all, as in ECMAScript
        expected = [
            e and not set(t) & set("\r\u2028\u2029") for e, t in zip(expected, texts, strict=True)
        ]
    answers = [answer == WHOLE for answer in grammars.match(*texts)]
    assert [t for t, a, e in zip(texts, answers, expected, strict=True) if a != e] == []
    assert any(expected)


def test_regex_properties_and_big_counts(grammars: Grammars) -> None:
    grammars.compile("regex", r"\p{Lu}\p{Ll}+ \P{L}")
    assert grammars.match("Éa 1", "Ωμέγα -", "éa 1", "Ab c") == [WHOLE, WHOLE, REFUSED, REFUSED]
    for pattern in (r"[a-z]{3,100000}!?", r"(ab|cd){2,60000}!?"):
        grammars.compile("regex", pattern)
        assert grammars.match("abcd", "ab" * 50000, "ab" * 50000 + "!", "a", "ab!") == [
            WHOLE, WHOLE, WHOLE, PREFIX, REFUSED
        ]  # fmt: skip
    assert grammars.match("ab" * 60000, "ab" * 60001) == [WHOLE, REFUSED]
    # Too large for an automaton with all choices told apart: they are followed side by side.
    grammars.compile("regex", r"(a|b)*a(a|b){40}")
    assert grammars.match("a" + "b" * 40, "b" * 41, "ab" * 30 + "b") == [WHOLE, PREFIX, WHOLE]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"(a)\1", "back references"),
        (r"(?=a)b", "look-around"),
        (r"(?<!a)b", "look-around"),
        (r"\bword", "word boundaries"),
        (r"(?>a)", "atomic"),
        (r"a++", "possessive"),
        (r"a{,2}", "{"),
        (r"\u{}", "hexadecimal"),
        (r"(?i)a", "this kind of group"),
        (r"[[:alpha:]]", "POSIX"),
        (r"\p{Greek}", "general categories"),
        (r"a{3,2}", "wrong order"),
        (r"[z-a]", "wrong order"),
        (r"(a", "')' is missing"),
        (r"a)", "too many"),
        (r"[a", "']' is missing"),
        (r"*a", "nothing to repeat"),
        (r"a**", "needs a group"),
        ("a\\", "at the end"),
        (r"\q", "this escape"),
        (r"\u12", "4 hexadecimal digits"),
        (r"\ud800", "surrogate"),
        (r"a{99999999999}", "1000000000"),
        ("(" * 200 + ")" * 200, "nest too deeply"),
        (r"[^\s\S]", "no text at all"),
    ],
)
def test_regex_refusals(grammars: Grammars, pattern: str, words: str) -> None:
    assert words in grammars.error("regex", pattern)


def test_errors_tell_the_place(grammars: Grammars) -> None:
    assert "line 1, column 4" in grammars.error("regex", r"ab(?=c)")
    assert "line 3, column 12" in grammars.error("ebnf", 'root ::= a\n\na ::= "x"  ) b')


# ---- JSON


def test_json_agrees_with_python(grammars: Grammars) -> None:
    grammars.compile("json")
    samples = [
        "{}", "[]", '{"a": [1, -2.5e+10, true, false, null, "x\\n\\u00e9\\"\\\\"]}',
        '[{"a":{"b":[[]]}} , {}]', '["\\ud83d\\ude00é日😀"]', "[0.1,10,-0]", "[\n\t1\r\n]",
    ]  # fmt: skip
    texts = samples + [m for s in samples for m in mutations(s, 2, 150, '{}[]":,01e.+-\\u a\n\x01')]

    def valid(text: str) -> bool:
        def refuse(word: str) -> Any:
            raise ValueError(word)

        try:
            value = json.loads(text, parse_constant=refuse)
            json.dumps(value, ensure_ascii=False).encode()  # no lone surrogates
        except (ValueError, UnicodeEncodeError):
            return False
        # A raw line break can only stand between tokens, where there is one at most.
        broken = re.search(r"\n[ \t]*\r?\n|\r(?!\n)", text)
        return isinstance(value, dict | list) and text == text.strip(" \t\n\r") and not broken

    answers = [answer == WHOLE for answer in grammars.match(*texts)]
    assert [t for t, a in zip(texts, answers, strict=True) if a != valid(t)] == []


def test_json_bounds_white_space_and_depth(grammars: Grammars) -> None:
    grammars.compile("json")
    assert grammars.match("[" + " " * 64 + "]", "[" + " " * 65, " []") == [WHOLE, REFUSED, REFUSED]
    blanks = " \t" * 32
    assert grammars.match(f"[{blanks}\r\n{blanks}]", "[\n\n]", "[\r]") == [WHOLE, REFUSED, REFUSED]
    depth = 900
    assert grammars.accepts("[" * depth + "]" * depth)
    assert grammars.match("[" * 1100) == [REFUSED]
    # Near the limit too, masks and accept() agree, and there is a way out.
    deep = "[" * 990
    assert grammars.brute_force(deep) == []
    assert grammars.accepts(deep + "]" * 990)
    assert grammars.match(b'["\xff"]', b'["\xc3\xa9"]', b'["\xed\xa0\x80"]') == [0, 2, 0]


# ---- EBNF


def test_ebnf_json(grammars: Grammars) -> None:
    grammars.compile("ebnf", JSON_GBNF)
    assert grammars.match(
        '{"a": [1, 2.5, {"b": null}]}', '{"a":\n   "x\\n"}', '{ "a":  1}', '{"a": 01}', "[]"
    ) == [WHOLE, WHOLE, REFUSED, REFUSED, REFUSED]


ARITHMETIC = """
root ::= sum
sum ::= sum "+" product | product
product ::= product "*" atom | atom
atom ::= "(" sum ")" | [0-9]+
"""
EBNF = {
    "left recursion": (
        ARITHMETIC,
        ["1", "1+2*3", "(1+2)*3", "((1))"],
        ["", "+1", "1+", "(1", "1**2"],
    ),
    "indirect left recursion": (
        'a ::= b "x" | "1"\nb ::= c "y"\nc ::= a "z" | empty a "w"\nempty ::= "e"?',
        ["1", "1zyx", "e1wyx", "1wyx", "1zyxzyx", "1zyxwyx", "ee1wyxwyx"],
        ["", "x", "1zy", "1zx", "e1zyx"],
    ),
    "nullable left recursion": (
        'root ::= opt root "a" | "b"\nopt ::= "c"*',
        ["b", "ba", "cba", "ccbaa", "baaa"],
        ["a", "cb", "ca"],
    ),
    "ambiguous": (
        'root ::= s\ns ::= s s | "a" | "(" s ")"',
        ["a", "aaaa", "a(aa)a", "((a))"],
        ["", "()", "(a"],
    ),
    "unit cycle": ('root ::= a\na ::= b | "x"\nb ::= a | "y"', ["x", "y"], ["", "xy"]),
    "right recursion": ('root ::= "a" root | "b"', ["b", "a" * 3000 + "b"], ["a", "ba"]),
    "middle recursion": ('root ::= "a" root "b" | ""', ["", "ab", "aaabbb"], ["aab", "ba"]),
    "palindromes": (
        'root ::= "a" root "a" | "b" root "b" | "c"',
        ["c", "abcba", "bbcbb"],
        ["abcab", "cc"],
    ),
    "classes": (
        r'root ::= [^a-y\n\]] [é-ü] "\x41\u00e9\U0001F600\"\\" . [-x] # end',
        ['zëAé😀"\\\n-', 'AéAé😀"\\xx'],
        ['aëAé😀"\\xx', 'zëAé😀"\\xy'],
    ),
    "repeats": (
        'root ::= ("a" | "bc"){2,3} x{2} y{1,} z?\nx ::= "x"\ny ::= "y"\nz ::= "z"',
        ["abcxxy", "aaaxxyyyz"],
        ["axxy", "aaaaxxy", "aaxy", "aaxx"],
    ),
    "start is root": ('a ::= "x" root\nroot ::= "y"', ["y"], ["xy", "x"]),
    "first rule starts": ('top ::= "x" | low\nlow ::= "y"', ["x", "y"], ["xy"]),
    "lines": ('root ::= "a"\n  | "b" # or\n  | (\n "c"\n )\n\n', ["a", "b", "c"], ["ab"]),
}


@pytest.mark.parametrize("name", EBNF)
def test_ebnf(grammars: Grammars, name: str) -> None:
    text, good, bad = EBNF[name]
    grammars.compile("ebnf", text)
    assert grammars.match(*good) == [WHOLE] * len(good)
    assert WHOLE not in grammars.match(*bad)
    for sample in good:
        assert grammars.brute_force(sample[: len(sample) // 2].encode()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no rule"),
        ("root ::= missing", "missing is not defined"),
        ('root ::= "a"\nroot ::= "b"', "defined twice"),
        ("root ::= root", "no text at all"),
        ('root ::= "a" root', "no text at all"),
        ('root ::= "a', "'\"' is missing"),
        ('root ::= (= "a") "b"', "look-ahead"),
        ('root ::= TagDispatch(("a", b))', "not supported"),
        ('root ::= "a"{x}', "expected {m}"),
        ("root ::= [b-a]", "wrong order"),
        ('root = "a"', "expected a rule"),
        ('root ::= "a" & "b"', "expected a literal"),
        ("root ::= " + "(" * 150 + '"a"' + ")" * 150, "nest too deeply"),
        ('root ::= a{300}\na ::= root{300} | "x"', "begins with itself"),
        (r'root ::= "\ud800"', "no such character"),
    ],
)
def test_ebnf_refusals(grammars: Grammars, text: str, words: str) -> None:
    assert words in grammars.error("ebnf", text)


# ---- structures


def test_structure(grammars: Grammars) -> None:
    call = {
        "type": "sequence",
        "parts": [
            {"type": "literal", "text": '<tool_call>\n{"name": "add", "arguments": '},
            {
                "type": "json_schema",
                "schema": {
                    "type": "object",
                    "properties": {"a": {"$ref": "#/$defs/n"}},
                    "required": ["a"],
                    "$defs": {"n": {"type": "integer"}},
                },
            },
            {"type": "literal", "text": "}\n</tool_call>"},
        ],
    }
    grammars.compile("structure", call)
    assert grammars.forced() == b'<tool_call>\n{"name": "add", "arguments": {'
    good = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert grammars.match(good, good[:-1], good.replace("1", "x")) == [WHOLE, PREFIX, REFUSED]

    text_then_call = {"type": "sequence", "parts": [{"type": "any_text"}, call]}
    grammars.compile("structure", text_then_call)
    assert grammars.match("Let me see. <tool " + good, good, "no") == [WHOLE, WHOLE, PREFIX]

    for low, high in ((0, None), (1, 3), (2, 2), (0, 0)):
        repeat = {
            "type": "repeat", "min": low, "max": high,
            "item": {"type": "choice", "options": [
                {"type": "regex", "pattern": "[a-c]+"}, {"type": "ebnf", "grammar": 'r ::= "1" r?'}
            ]},
            "separator": {"type": "literal", "text": "; "},
        }  # fmt: skip
        grammars.compile("structure", repeat)
        for count in range(5):
            expected = count >= low and (high is None or count <= high)
            assert grammars.accepts("; ".join(["ab", "1", "c", "11"][:count])) == expected
        del repeat["separator"]
        grammars.compile("structure", repeat)
        assert grammars.accepts("1" * 2 + "a") == (high != 0)
        assert grammars.accepts("") == (low == 0)


@pytest.mark.parametrize(
    ("structure", "words"),
    [
        ([], "expected an object"),
        ({}, '"type" must be a string'),
        ({"type": "poem"}, 'unknown type "poem"'),
        ({"type": "literal"}, '"text" must be a string'),
        ({"type": "literal", "text": "a", "txet": "b"}, 'unknown key "txet"'),
        ({"type": "choice", "options": []}, "needs options"),
        ({"type": "repeat", "item": {"type": "json"}, "min": 2, "max": 1}, "max is less"),
        ({"type": "repeat", "item": {"type": "json"}, "min": -1}, "whole number"),
        ({"type": "sequence", "parts": [{"type": "regex", "pattern": "("}]}, "/parts/0/pattern"),
        (
            {"type": "json_schema", "schema": {"items": {"not": {}}, "type": "array"}},
            '/schema/items/not: "not" is not supported',
        ),
    ],
)
def test_structure_refusals(grammars: Grammars, structure: Any, words: str) -> None:
    assert words in grammars.error("structure", structure)
    assert "structure" in grammars.error("structure", "{")


# ---- the matcher


def test_masks_are_exact(grammars: Grammars) -> None:
    """Random walks; at every step the mask is compared with accept() of every token."""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 9},
            "n": {"type": "number", "minimum": -3, "maximum": 40},
            "kind": {"enum": ["a", "ab", "abc", 1, None]},
            "list": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
            "when": {"type": "string", "format": "date"},
            "p": {"type": "string", "pattern": '^(a|"|é)*$', "minLength": 2},
        },
        "additionalProperties": {"type": "boolean"},
        "required": ["kind"],
    }
    cases: list[tuple[str, str | dict[str, Any]]] = [
        ("json", ""),
        ("json_schema", schema),
        ("json_schema", {"type": "string", "minLength": 5, "maxLength": 30}),
        ("json_schema", {"type": "array", "items": {"type": "string"}, "maxItems": 300}),
        ("regex", r"[a-c]{2,500}([0-9]{1,3}|é)*\."),
        ("regex", r"(a|ab|abc|日本?)+"),
        ("regex", r"(hello world|[a-w ]{5,400}[x-z]){3,}"),
        ("ebnf", JSON_GBNF),
        ("ebnf", EBNF["ambiguous"][0]),
        ("ebnf", EBNF["nullable left recursion"][0]),
        ("ebnf", 'root ::= ("ab" | "a" | "abc" | [b-z] ","){300,400} "."'),
        ("structure", {"type": "sequence", "parts": [{"type": "any_text"}, {"type": "json"}]}),
    ]
    ended = 0
    for number, (kind, text) in enumerate(cases):
        grammars.compile(kind, text)
        for seed in range(6):
            sample, end, different = grammars.generate(100 * number + seed, 40, check=True)
            assert different == 0, (kind, text, sample)
            assert grammars.match(sample)[0] >= (WHOLE if end else PREFIX)
            ended += end
    assert ended >= 20


def test_stop_tokens(grammars: Grammars) -> None:
    grammars.compile("regex", "a|ab")
    ids = {token: i for i, token in enumerate(small_vocabulary())}
    assert grammars.allowed("a") == sorted([ids[b"b"], STOP])
    assert grammars.allowed("ab") == [STOP]
    assert ids[b"ab"] in grammars.allowed()
    accept = grammars.driver
    special = STOP - 1
    assert accept("accept", ids=[STOP]) == [[0, 0, 0]]
    assert accept("accept", ids=[special]) == [[0, 0, 0]]
    assert accept("accept", ids=[-1]) == accept("accept", ids=[99999]) == [[0, 0, 0]]
    assert accept("accept", ids=[ids[b"a"], ids[b"b"], STOP, STOP]) == [
        [1, 1, 0], [1, 1, 1], [1, 1, 1], [0, 1, 1]
    ]  # fmt: skip
    assert accept("accept", ids=[ids[b"a"], STOP, ids[b"b"]])[1:] == [[1, 1, 1], [0, 1, 1]]


def test_forced_bytes(grammars: Grammars) -> None:
    grammars.compile("regex", "abc(d|e)fg")
    assert grammars.forced() == b"abc"
    assert grammars.forced("abcd") == b"fg"
    assert grammars.forced("abcdfg") == b""
    grammars.compile("regex", "日(本|木)")  # the last two begin with the same byte
    assert grammars.forced() == "日".encode()
    assert grammars.forced("日".encode()[:1]) == "日".encode()[1:]
    grammars.compile("regex", "ab?")
    assert grammars.forced("a") == b""  # it may end here
    grammars.compile("json_schema", {"enum": ["apple", "apricot"]})
    assert grammars.forced() == b'"ap'
    assert grammars.forced('"app') == b'le"'


def test_cache_and_threads(grammars: Grammars) -> None:
    texts = ["a+", "b+", "a+", *(f"c{{{n}}}" for n in range(1, 65)), "b+", "a+"]
    numbers = grammars.driver("cache", kind="regex", texts=texts)
    assert numbers[:3] == [0, 1, 0]
    assert numbers[-2] == 66  # forgotten and compiled again
    assert grammars.driver("cache", kind="json", texts=["", "x"]) == [0, 0]
    grammars.compile("ebnf", JSON_GBNF)
    text = json.dumps({"a": [{"b": [1.5, "x y", None]}] * 5})
    assert grammars.driver("threads", kind="ebnf", grammar=JSON_GBNF, text=to_hex(text)) == 0


def test_valid_size(grammars: Grammars, tmp_path: Path) -> None:
    write_vocabulary(small_vocabulary(), tmp_path / "vocabulary.txt")
    grammars.driver("load", file=str(tmp_path / "vocabulary.txt"), stop=[97, STOP, 5], valid=100)
    try:
        grammars.compile("regex", "[a-z]*")
        # 97, the letter a, ends texts here; what is beyond 100 is no token.
        assert grammars.allowed() == [5, 97, 98, 99]
    finally:
        grammars.driver("load", file=str(tmp_path / "vocabulary.txt"), stop=[STOP])


# ---- limits


def test_hostile_grammars_end_quickly(grammars: Grammars) -> None:
    """Each is compiled or refused, and one mask is taken or refused."""
    blowup = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40)) + '\nr40 ::= "a"?'
    wide = "root ::= " + " | ".join(f'"{i:05d}" root' for i in range(20000)) + ' | "."'
    hostile: list[tuple[str, Any]] = [
        ("regex", "((((a{100}){100}){100}){100}){100}"),
        ("regex", "(((((a*)*)*)*)*)*b"),
        ("regex", "(" * 90 + "a" + ")+" * 90),
        ("regex", "(a?){500}a{500}"),
        ("regex", "(a|aa|aaa){1,100000}"),
        ("regex", "(x+x+)+y" * 50),
        ("regex", "|".join(f"(a|b)*a(a|b){{{n}}}" for n in range(20))),
        ("regex", r"(\p{L}\p{N}){1,9999}"),
        ("regex", "(){1000000000}"),
        ("ebnf", blowup),
        ("ebnf", wide),
        ("ebnf", 'root ::= ("a" root?){1,1000}'),
        ("ebnf", "\n".join(f'r{i} ::= r{(i + 1) % 200} "a" | "b"' for i in range(200))),
        ("json_schema", {"type": "string", "minLength": 100000}),
        ("json_schema", {"type": "array", "minItems": 100000, "maxItems": 200000}),
        ("json_schema", {"type": "object", "minProperties": 100000}),
        ("json_schema", {"type": "string", "pattern": "a{5000}", "maxLength": 30000}),
        ("json_schema", {"enum": [f"value {i}" for i in range(5000)]}),
        ("json_schema", {"type": "object", "properties": {f"p{i}": {} for i in range(800)}}),
        (
            "json_schema",
            {"allOf": [{"anyOf": [{"minimum": i}, {"maximum": i}]} for i in range(30)]},
        ),
        ("json_schema", {"type": "number", "multipleOf": 0.0001, "minimum": 1e-9}),
        ("json_schema", {"type": "number", "minimum": 1e300, "maximum": 1.7e308}),
        ("structure", {"type": "repeat", "item": {"type": "any_text"}}),
    ]
    outcomes = []
    for kind, text in hostile:
        try:
            grammars.compile(kind, text)
            grammars.allowed()
            outcomes.append("ok")
        except DriverError as error:
            outcomes.append("refused" if error.status == GRAMMAR else f"{error.status}: {error}")
    assert set(outcomes) == {"ok", "refused"}, outcomes
    assert outcomes.count("ok") >= len(hostile) - 6, outcomes


def test_ambiguity_is_bounded(grammars: Grammars) -> None:
    grammars.compile("ebnf", 'root ::= s\ns ::= s s s | s s | "a" | "aa"')
    assert grammars.accepts("a" * 60)
    grammars.compile("regex", r"([ab]{1,3000},?){1,3000}")
    assert grammars.match("ab" * 20) == [WHOLE]
    with pytest.raises(DriverError, match="too ambiguous") as caught:
        grammars.match("ab" * 2000)
    assert caught.value.status == GRAMMAR
    assert grammars.match("ab" * 20) == [WHOLE]  # and the grammar is as good as before


def begins_characters(token: bytes) -> bool:
    """Whether these bytes can be the beginning of a text."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(token)
    except UnicodeDecodeError:
        return False
    return True


def test_ids_beyond_the_tokenizer(grammars: Grammars, tmp_path: Path) -> None:
    """A model may have more rows than its tokenizer has tokens; they are never allowed."""
    tokens = small_vocabulary()
    write_vocabulary(tokens, tmp_path / "vocabulary.txt")
    grammars.driver("load", file=str(tmp_path / "vocabulary.txt"), stop=[STOP], valid=STOP + 200)
    try:
        grammars.compile("structure", {"type": "any_text"})
        assert grammars.allowed() == [
            i for i, token in enumerate(tokens) if begins_characters(token)
        ] + [STOP]
        assert grammars.brute_force() == []
    finally:
        grammars.driver("load", file=str(tmp_path / "vocabulary.txt"), stop=[STOP])


def test_kept_special_tokens_are_text(grammars: Grammars, tmp_path: Path) -> None:
    """A marker that stays in the text is one token of it; other special tokens never are."""
    lines = [token.hex() for token in small_vocabulary()]
    marker = len(lines)
    lines += [b"[CALL]".hex() + " special", b"[CALL]".hex() + " special", "-"]
    path = tmp_path / "vocabulary.txt"
    path.write_text("\n".join(lines) + "\n")
    try:
        for kept in ([], [marker]):
            grammars.driver("load", file=str(path), stop=[marker + 2], kept=kept)
            grammars.compile("regex", r"\[CALL\]x")
            assert grammars.allowed() == [ord("["), *kept]
    finally:
        write_vocabulary(small_vocabulary(), path)
        grammars.driver("load", file=str(path), stop=[STOP])
