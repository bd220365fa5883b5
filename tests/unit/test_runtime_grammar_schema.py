"""JSON schemas as grammars: tables of texts, refusals, random schemas."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.cpp_driver import build_cpp
from tests.unit.grammar_tools import (
    GRAMMAR,
    REFUSED,
    WHOLE,
    Grammars,
    small_vocabulary,
    write_vocabulary,
)
from tests.unit.text_driver import Driver, DriverError

Schema = dict[str, Any]


@pytest.fixture(scope="module")
def grammars(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Grammars]:
    vocabulary = tmp_path_factory.mktemp("grammar") / "vocabulary.txt"
    write_vocabulary(small_vocabulary(), vocabulary)
    with Driver(build_cpp(pytestconfig, "grammar_driver")) as driver:
        yield Grammars(driver, vocabulary)


def objects(properties: Schema, *required: str, **more: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), **more}


INTEGER, STRING, BOOLEAN = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": objects(
            {"v": INTEGER, "l": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "v", "l"
        )
    },
}
# name -> (schema, texts that fit, texts that do not)
TABLE: dict[str, tuple[Any, list[str], list[str]]] = {
    "true": (True, ["1", '"a"', "[{}]", "null"], ["", "x"]),
    "empty": ({}, ["1", '{"a":[]}'], ["{"]),
    "annotations": (
        {"title": "t", "description": "d", "default": 3, "examples": [1], "x-own": 1, "$id": "u"},
        ["3", '"a"'],
        ["-"],
    ),
    "types": ({"type": ["integer", "null"]}, ["1", "-20", "null"], ["1.5", '"a"', "true"]),
    "nullable": ({"type": "string", "nullable": True}, ['"a"', "null"], ["1"]),
    "number": ({"type": "number"}, ["0", "-0.5", "1e9", "12.5E-3"], ["01", ".5", "1.", "+1"]),
    "integer": (INTEGER, ["0", "-7", "123456789012345678901234567890"], ["1.0", "1e3", "00", "-"]),
    "range": (
        {"type": "integer", "minimum": -5, "maximum": 120},
        ["-5", "0", "9", "99", "100", "120", "-1"],
        ["-6", "121", "130", "200", "1000", "-10", "-0", "00"],
    ),
    "open range": (
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
        ["1", "9"],
        ["0", "10", "-1"],
    ),
    "one bound": ({"type": "integer", "minimum": 1000}, ["1000", "9999", "123456"], ["999", "-5"]),
    "negative range": (
        {"type": "integer", "minimum": -250, "maximum": -13},
        ["-13", "-99", "-250", "-200"],
        ["-12", "-251", "-260", "13", "0", "-1000"],
    ),
    "draft 4 range": (
        {"type": "integer", "minimum": 3, "exclusiveMinimum": True},
        ["4", "10"],
        ["3", "2"],
    ),
    "fractions": (
        {"type": "number", "minimum": 0.25, "maximum": 10.5},
        ["0.25", "0.3", "0.250", "1", "9.99", "10", "10.5", "10.50", "10.4999"],
        ["0.2", "0.2499", "10.6", "10.51", "11", "100", "-1", "0"],
    ),
    "close bounds": (
        {"type": "number", "exclusiveMinimum": 1.25, "maximum": 1.27},
        ["1.251", "1.26", "1.27", "1.2500001"],
        ["1.25", "1.250", "1.271", "1.2", "1", "2"],
    ),
    "around zero": (
        {"type": "number", "minimum": -0.5, "maximum": 0.5},
        ["0", "0.5", "-0.5", "-0.25", "0.0"],
        ["0.51", "-0.6", "1", "-1", "-0", "-0.0"],
    ),
    "multiples": (
        {"type": "integer", "multipleOf": 7, "minimum": 0},
        ["0", "7", "14", "700", "777"],
        ["1", "15", "-7"],
    ),
    "cents": (
        {"type": "number", "multipleOf": 0.05},
        ["0.05", "1.10", "3", "-2.5", "7.000"],
        ["0.01", "1.11", "1.111"],
    ),
    "large bound": (
        {"type": "integer", "minimum": 0, "maximum": 9223372036854775807},
        ["9223372036854774784", "5"],
        ["9223372036854775808", "99999999999999999999"],
    ),
    "lengths": (
        {"type": "string", "minLength": 2, "maxLength": 3},
        ['"ab"', '"abc"', '"é日"', '"\\n\\u00e9"', '"\\ud83d\\ude00x"', '"😀😀😀"'],
        ['"a"', '"abcd"', '""', '"\\n"', '"\\ud83dx"'],
    ),
    "no length": ({"type": "string", "maxLength": 0}, ['""'], ['"a"']),
    "long": (
        {"type": "string", "minLength": 100000},
        ['"' + "a" * 100000 + '"', '"' + "é" * 100001 + '"'],
        ['"' + "a" * 99999 + '"'],
    ),
    "pattern": (
        {"type": "string", "pattern": "^[a-c]+$"},
        ['"abc"', '"\\u0061b"'],
        ['""', '"abd"', '"\\u0064"'],
    ),
    "pattern anywhere": (
        {"type": "string", "pattern": "b.d"},
        ['"bcd"', '"xxb\\td\\n"', '"b\\\\d日"', '"bbbdd"'],
        ['"bd"', '"b\\nd"', '"bc"'],
    ),
    "pattern at one end": (
        {"type": "string", "pattern": "^a|b$"},
        ['"a"', '"axx"', '"xxb"', '"b"'],
        ['""', '"xax"', '"bx"'],
    ),
    "pattern of escapes": (
        {"type": "string", "pattern": '^["\\\\\\n]{2}$'},
        ['"\\"\\\\"', '"\\n\\u000A"', '"\\u0022\\u005c"'],
        ['""', '"\\""', '"\\t\\t"', '"nn"'],
    ),
    "pattern and length": (
        {"type": "string", "pattern": "^(ab)*$", "minLength": 3, "maxLength": 6},
        ['"abab"', '"ababab"'],
        ['"ab"', '"abababab"', '"aba"'],
    ),
    "enum": (
        {"enum": ["a", 'q"\n', 1, 1.5, True, None, [1, {"k": 2}]]},
        ['"a"', '"q\\"\\n"', "1", "1.5", "true", "null", '[1,{"k":2}]', '[ 1, { "k": 2 } ]'],
        ['"b"', "2", "false", "[1]", '"q"'],
    ),
    "enum of a type": ({"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"]),
    "enum with limits": (
        {"enum": [1, 5, 10, "ab", "b"], "minimum": 4, "minLength": 2},
        ["5", "10", '"ab"'],
        ["1", '"b"'],
    ),
    "const": ({"const": {"a": [True]}}, ['{"a":[true]}', '{ "a" : [ true ] }'], ["{}"]),
    "required": (
        objects({"a": INTEGER, "b": STRING, "c": BOOLEAN}, "a", "c"),
        ['{"a":1,"c":true}', '{ "a" : 1 , "b":"x","c" :false }', '{\n  "a": 1,\n  "c": true\n}'],
        ['{"a":1}', '{"c":true,"a":1}', '{"a":1,"c":true,"d":1}', '{"a":1 "c":true}', "{}"],
    ),
    "optional": (
        objects({"a": INTEGER, "b": INTEGER, "c": INTEGER}),
        ["{}", '{"b":1}', '{"a":1,"c":2}', '{"a":1,"b":2,"c":3}', "{ }"],
        ['{"b":1,"a":2}', '{"a":1,}', '{,"a":1}', '{"a":1,"a":2}'],
    ),
    "strict": (
        objects({"é\n": INTEGER}, "é\n", additionalProperties=False),
        ['{"é\\n":1}'],
        ['{"é\\n":1,"x":1}', "{}"],
    ),
    "additional": (
        objects({"a": INTEGER}, additionalProperties=STRING),
        ["{}", '{"a":1}', '{"a":1,"b":"x"}', '{"b":"x","c":"y"}', '{"ab":"x"}', '{"":"x"}'],
        ['{"a":"x"}', '{"b":1}', '{"b":"x","a":1}', '{"\\u0061":"x"}'],
    ),
    "any additional": (
        objects({"a": INTEGER}, additionalProperties=True),
        ['{"a":1,"b":[{}]}', '{"b":null}'],
        ['{"a":"x"}'],
    ),
    "open object": ({"type": "object"}, ["{}", '{"a":1}'], ["[]"]),
    "required and not listed": (
        objects({"a": INTEGER}, "z"),
        ['{"a":1,"z":[]}', '{"z":1}'],
        ['{"a":1}'],
    ),
    "pattern properties": (
        {
            "type": "object",
            "patternProperties": {"^s_": STRING, "_i$": INTEGER},
            "additionalProperties": BOOLEAN,
        },
        ['{"s_a":"x"}', '{"a_i":1,"other":true}', "{}"],
        ['{"s_a":1}', '{"a_i":"x"}', '{"s_i":1}', '{"s_i":"x"}', '{"other":1}'],
    ),
    "property names": (
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 3}},
        ['{"abc":1,"z":2}', "{}"],
        ['{"abcd":1}', '{"A":1}', '{"":1}'],
    ),
    "property counts": (
        {"type": "object", "minProperties": 2, "maxProperties": 3, "additionalProperties": INTEGER},
        ['{"a":1,"b":2}', '{"a":1,"b":2,"c":3}'],
        ["{}", '{"a":1}', '{"a":1,"b":2,"c":3,"d":4}'],
    ),
    "counts of listed": (
        objects({"a": INTEGER, "b": INTEGER, "c": INTEGER}, "b", minProperties=2, maxProperties=2),
        ['{"a":1,"b":1}', '{"b":1,"c":1}'],
        ['{"b":1}', '{"a":1,"b":1,"c":1}', '{"a":1,"c":1}'],
    ),
    "impossible property": (
        objects({"a": INTEGER, "b": False}, "a"),
        ['{"a":1}'],
        ['{"a":1,"b":1}'],
    ),
    "items": ({"type": "array", "items": INTEGER}, ["[]", "[1]", "[ 1 , 2,3 ]"], ["[1,]", '["a"]']),
    "item counts": (
        {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 3},
        ["[1,2]", "[1,2,3]"],
        ["[]", "[1]", "[1,2,3,4]"],
    ),
    "many items": (
        {"type": "array", "items": INTEGER, "minItems": 1000, "maxItems": 1001},
        [json.dumps([1] * 1000), json.dumps([1] * 1001)],
        [json.dumps([1] * 999), json.dumps([1] * 1002)],
    ),
    "no items": ({"type": "array", "maxItems": 0}, ["[]", "[ ]"], ["[1]"]),
    "prefix items": (
        {"type": "array", "prefixItems": [INTEGER, STRING], "items": BOOLEAN},
        ["[]", "[1]", '[1,"a"]', '[1,"a",true,false]'],
        ['["a"]', "[1,2]", '[1,"a",1]'],
    ),
    "tuple": (
        {"type": "array", "prefixItems": [INTEGER, STRING], "items": False, "minItems": 2},
        ['[1,"a"]'],
        ["[1]", '[1,"a",1]', "[]"],
    ),
    "draft 7 tuple": (
        {"type": "array", "items": [INTEGER, STRING], "additionalItems": BOOLEAN},
        ['[1,"a",true]', "[1]"],
        ['[1,"a",1]'],
    ),
    "any of": (
        {"anyOf": [INTEGER, objects({"a": STRING}, "a")]},
        ["1", '{"a":"x"}'],
        ['"x"', "{}"],
    ),
    "one of": ({"oneOf": [INTEGER, STRING]}, ["1", '"x"'], ["true"]),
    "any of beside": (
        {
            "type": "object",
            "properties": {"a": INTEGER, "b": INTEGER},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        ['{"a":1}', '{"b":1}', '{"a":1,"b":2}'],
        ["{}"],
    ),
    "all of": (
        {
            "allOf": [objects({"a": INTEGER}, "a"), objects({"b": STRING}), {"$ref": "#/$defs/c"}],
            "$defs": {"c": objects({"a": {"minimum": 5}, "c": BOOLEAN}, "c")},
        },
        ['{"a":5,"b":"x","c":true}', '{"a":7,"c":false}'],
        ['{"a":4,"c":true}', '{"a":5}', '{"a":5.5,"c":true}'],
    ),
    "all of with closed part": (
        {"allOf": [objects({"a": INTEGER}, additionalProperties=False), objects({"b": INTEGER})]},
        ['{"a":1}', "{}"],
        ['{"b":1}', '{"a":1,"b":1}'],
    ),
    "patterns of all": (
        {"allOf": [{"pattern": "^a"}, {"pattern": "z$"}, {"type": "string", "maxLength": 4}]},
        ['"az"', '"abcz"'],
        ['"a"', '"abcdz"', '"xz"'],
    ),
    "reference with siblings": (
        {"$ref": "#/definitions/n", "maximum": 5, "definitions": {"n": {"type": "integer"}}},
        ["5", "-9"],
        ["6", "1.5"],
    ),
    "recursion": (
        TREE,
        ['{"v":1,"l":null}', '{"v":1,"l":{"v":2,"l":{"v":3,"l":null}}}'],
        ['{"v":1}', '{"v":1,"l":{}}'],
    ),
    "recursion to the top": (
        objects({"next": {"$ref": "#"}}),
        ["{}", '{"next":{"next":{}}}'],
        ['{"next":1}'],
    ),
    "anchor and escapes": (
        {
            "anyOf": [{"$ref": "#here"}, {"$ref": "#/$defs/a~1b%20~0"}],
            "$defs": {"x": {"$anchor": "here", "const": 1}, "a/b ~": {"const": 2}},
        },
        ["1", "2"],
        ["3"],
    ),
    "no type": ({"properties": {"a": INTEGER}, "required": ["a"]}, ['{"a":1}'], ["1", "{}"]),
    "date": (
        {"type": "string", "format": "date"},
        ['"2024-02-29"', '"2000-02-29"', '"2023-12-31"', '"1999-04-30"'],
        ['"2023-02-29"', '"1900-02-29"', '"2023-13-01"', '"2023-04-31"', '"2023-1-1"'],
    ),
    "date-time": (
        {"type": "string", "format": "date-time"},
        ['"2024-01-01T23:59:59Z"', '"2024-01-01T00:00:00.125+05:30"'],
        ['"2024-01-01 23:59:59Z"', '"2024-01-01T24:00:00Z"', '"2024-01-01T23:59:59"'],
    ),
    "time": ({"format": "time"}, ['"12:00:00Z"'], ['"12:00Z"', '"12:60:00Z"']),
    "duration": (
        {"format": "duration"},
        ['"P3D"', '"PT1H30M"', '"P2W"'],
        ['"P"', '"P1D2Y"', '"PT"'],
    ),
    "email": (
        {"format": "email"},
        ['"a.b+c@ex-a.org"'],
        ['"a@"', '"@b.c"', '"a@b@c"', '"a b@c.d"'],
    ),
    "uuid": (
        {"format": "uuid"},
        ['"123e4567-e89b-12d3-a456-426614174000"'],
        ['"123e4567e89b12d3a456426614174000"', '"g23e4567-e89b-12d3-a456-426614174000"'],
    ),
    "ipv4": ({"format": "ipv4"}, ['"1.2.3.4"', '"255.0.10.199"'], ['"256.1.1.1"', '"1.2.3"']),
    "ipv6": (
        {"format": "ipv6"},
        ['"::1"', '"fe80::1:2"', '"1:2:3:4:5:6:7:8"', '"::"'],
        ['"1:2:3"', '":::"', '"1::2::3"', '"12345::"'],
    ),
    "hostname": ({"format": "hostname"}, ['"a.example.com"', '"localhost"'], ['"-a.b"', '"a..b"']),
    "uri": (
        {"format": "uri"},
        ['"https://a.b:80/c?d=e#f"', '"mailto:a@b"', '"urn:x:y"'],
        ['"/a/b"', '"http://a b"', '"1a:b"'],
    ),
    "json-pointer": ({"format": "json-pointer"}, ['""', '"/a~1b/\\""'], ['"a"', '"/~2"']),
    "own format": ({"type": "string", "format": "color"}, ['"anything"'], ["1"]),
}


@pytest.mark.parametrize("name", TABLE)
def test_table(grammars: Grammars, name: str) -> None:
    schema, good, bad = TABLE[name]
    grammars.compile("json_schema", json.dumps(schema))
    assert [t for t, a in zip(good, grammars.match(*good), strict=True) if a != WHOLE] == []
    assert [t for t, a in zip(bad, grammars.match(*bad), strict=True) if a == WHOLE] == []
    short = [text for text in good if len(text) < 200]
    for text in short:
        data = text.encode()
        for cut in {len(data) // 3, len(data) * 2 // 3}:
            assert grammars.brute_force(data[:cut]) == [], (name, data[:cut])
    # Every text that can be written fits and is JSON.
    for seed in range(2):
        written, ended, _ = grammars.generate(seed, 60)
        if ended:
            json.loads(written)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"not": {"type": "string"}}, '/not: "not" is not supported'),
        ({"properties": {"a/b": {"if": {}, "then": {}}}}, '/properties/a~1b/if: "if"'),
        ({"type": "array", "uniqueItems": True}, "a grammar cannot compare items"),
        ({"type": "array", "contains": {}}, '"contains"'),
        ({"type": "object", "dependentRequired": {}}, '"dependentRequired"'),
        ({"type": "object", "unevaluatedProperties": {"type": "string"}}, "true or false only"),
        ({"$ref": "https://example.com/x"}, "not in this schema"),
        ({"$ref": "#/$defs/x"}, "which is not there"),
        ({"$ref": "#"}, "refers to itself"),
        ({"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"allOf": [{"$ref": "#"}]}}}, "itself"),
        ({"type": "text"}, "no such type"),
        ({"type": "string", "pattern": "(?=a)"}, "/pattern: line 1, column 2: look-around"),
        ({"type": "string", "format": "regex"}, '"regex" is not supported'),
        ({"type": "string", "minLength": -1}, "whole number"),
        ({"type": "string", "minLength": 1.5}, "whole number"),
        ({"type": "string", "minLength": "1"}, "must be a number"),
        ({"type": "string", "maxLength": 1e12}, "1000000000"),
        ({"type": "integer", "multipleOf": 0}, "greater than 0"),
        ({"type": "integer", "multipleOf": 1234567}, "multipleOf"),
        ({"enum": [12345678901234567890]}, "beyond 2^53"),
        ({"enum": [[1]], "minItems": 2}, "beside an enum"),
        ({"enum": "a"}, "must be an array"),
        ({"properties": []}, "must be an object"),
        ({"anyOf": []}, "must not be empty"),
        ({"items": 5, "type": "array", "minItems": 1}, "must be an object, true or false"),
        (
            {"required": ["a"], "properties": {"a": False}},
            "no text at all fits the grammar: see /p",
        ),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "see the top"),
        (
            {
                "required": ["a"],
                "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 1}},
            },
            "see /properties/a",
        ),
        (
            {
                "properties": {"b": {"$ref": "#/$defs/x"}},
                "required": ["b"],
                "$defs": {"x": {"enum": []}},
            },
            "see /properties/b",
        ),
        ({"type": "integer", "multipleOf": 1234567}, "JSON schema: the top: multipleOf"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "no text at all"),
        (False, "no text at all"),
        ({"patternProperties": {str(i): {} for i in range(5)}}, "more than 4 patterns"),
        ({"propertyNames": {"anyOf": [{}]}, "type": "object"}, '"propertyNames"'),
    ],
)
def test_refusals(grammars: Grammars, schema: Any, words: str) -> None:
    assert words in grammars.error("json_schema", json.dumps(schema))


def test_bad_json(grammars: Grammars) -> None:
    assert "JSON schema: byte 1" in grammars.error("json_schema", "{")
    assert "occurs twice" in grammars.error("json_schema", '{"type":"string","type":"null"}')


def test_unused_definitions_do_no_harm(grammars: Grammars) -> None:
    grammars.compile("json_schema", {"type": "null", "$defs": {"a": {"not": {}}, "b": 5}})
    assert grammars.accepts("null")


# ---- random schemas, against a validator of our own


def random_schema(rng: random.Random, depth: int) -> Schema:
    kinds = ["integer", "number", "string", "enum", "boolean", "null", "pattern"]
    kind = rng.choice(kinds + ["object", "array", "any", "all", "ref"] * (2 if depth > 0 else 0))
    low = rng.randint(-30, 30)
    if kind in ("integer", "number"):
        schema: Schema = {"type": kind}
        scale = 1 if kind == "integer" else rng.choice([1, 0.5, 0.25])
        if rng.random() < 0.6:
            schema[rng.choice(["minimum", "exclusiveMinimum"])] = low * scale
        if rng.random() < 0.6:
            schema[rng.choice(["maximum", "exclusiveMaximum"])] = (
                low + rng.randint(2, 200)
            ) * scale
        if rng.random() < 0.2:
            schema["multipleOf"] = rng.choice([2, 3, 0.5])
        return schema
    if kind == "string":
        least = rng.randint(0, 4)
        return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 9)}
    if kind == "pattern":
        return {
            "type": "string",
            "pattern": rng.choice(["^[a-d]{2,5}$", "^a|b$", "c", '^(é|"|x)+$']),
        }
    if kind == "enum":
        return {"enum": rng.sample(["a", "b", "", "ab\n", 0, 1, 2.5, None, True, [1, "x"]], 3)}
    if kind == "object":
        names = rng.sample(["a", "ab", "b", "c", "é", "x y", 'q"'], rng.randint(0, 4))
        schema = {"type": "object", "properties": {n: random_schema(rng, depth - 1) for n in names}}
        schema["required"] = [name for name in names if rng.random() < 0.5]
        if rng.random() < 0.6:
            schema["additionalProperties"] = rng.choice([False, True, random_schema(rng, 0)])
        if rng.random() < 0.2:
            schema["maxProperties"] = len(schema["required"]) + rng.randint(0, 2)
        return schema
    if kind == "array":
        schema = {"type": "array", "items": random_schema(rng, depth - 1)}
        if rng.random() < 0.4:
            schema["prefixItems"] = [
                random_schema(rng, depth - 1) for _ in range(rng.randint(1, 2))
            ]
        schema["minItems"] = rng.randint(0, 2)
        if rng.random() < 0.5:
            schema["maxItems"] = schema["minItems"] + rng.randint(0, 2)
        return schema
    if kind == "any":
        return {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    if kind == "all":
        return {"allOf": [random_schema(rng, depth - 1), {"title": "t"}], "description": "d"}
    return {"$ref": "#/$defs/node"} if kind == "ref" else {"type": kind}


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def is_valid(value: Any, schema: Any, root: Schema) -> bool:
    """The keywords above, with the choices that docs/structured-output.md tells."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return is_valid(value, root["$defs"]["node"], root)
    if "enum" in schema:
        return any(same(value, item) for item in schema["enum"])
    if not all(is_valid(value, part, root) for part in schema.get("allOf", [])):
        return False
    if "anyOf" in schema and not any(is_valid(value, part, root) for part in schema["anyOf"]):
        return False
    kind = schema.get("type")
    if kind in ("integer", "number"):
        if not is_number(value) or (kind == "integer" and not isinstance(value, int)):
            return False
        return (
            value >= schema.get("minimum", value)
            and value <= schema.get("maximum", value)
            and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
            and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
            and ("multipleOf" not in schema or value % schema["multipleOf"] == 0)
        )
    if kind == "string":
        return (
            isinstance(value, str)
            and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9)
            and re.search(schema.get("pattern", ""), value) is not None
        )
    if kind == "array":
        first = schema.get("prefixItems", [])
        return (
            isinstance(value, list)
            and schema["minItems"] <= len(value) <= schema.get("maxItems", 10**9)
            and all(
                is_valid(item, first[i] if i < len(first) else schema["items"], root)
                for i, item in enumerate(value)
            )
        )
    if kind == "object":
        if not isinstance(value, dict) or not set(schema["required"]) <= set(value):
            return False
        others = schema.get("additionalProperties", not schema["properties"])
        return len(value) <= schema.get("maxProperties", 10**9) and all(
            is_valid(item, schema["properties"].get(name, others), root)
            for name, item in value.items()
        )
    if kind == "boolean":
        return isinstance(value, bool)
    return kind is None or value is None


def random_value(rng: random.Random, schema: Any, root: Schema, depth: int) -> Any:
    """Mostly a value that fits."""
    if isinstance(schema, bool) or rng.random() < 0.04:
        return rng.choice([0, -3, 17, 0.5, "a", "abc", "", None, True, [], {}, {"a": 1}])
    if "$ref" in schema:
        return random_value(rng, root["$defs"]["node"], root, depth - 1)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    for key in ("anyOf", "allOf"):
        if key in schema:
            parts = schema[key][: 1 if key == "allOf" else None]
            return random_value(rng, rng.choice(parts), root, depth)
    kind = schema.get("type")
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -40))
        value = low + rng.randint(-1, 120) * rng.choice([1, 0.5 if kind == "number" else 1])
        return int(value) if value == int(value) else value
    if kind == "string":
        if "pattern" in schema:
            return "".join(rng.choice('aabbccdé"x') for _ in range(rng.randint(0, 6)))
        length = rng.randint(schema["minLength"], schema["maxLength"] + 1)
        return "".join(rng.choice('ab"\\\né日😀 ') for _ in range(length))
    if kind == "array":
        first = schema.get("prefixItems", [])
        count = rng.randint(schema["minItems"], schema["minItems"] + (2 if depth > 0 else 0))
        return [
            random_value(rng, first[i] if i < len(first) else schema["items"], root, depth - 1)
            for i in range(count)
        ]
    if kind == "object":
        value = {
            name: random_value(rng, part, root, depth - 1)
            for name, part in schema["properties"].items()
            if name in schema["required"] or (depth > 0 and rng.random() < 0.5)
        }
        if rng.random() < 0.3:
            others = schema.get("additionalProperties", True)
            value["zz"] = random_value(rng, others, root, 0)
        return value
    return rng.random() < 0.5 if kind == "boolean" else None


def write(rng: random.Random, value: Any) -> str:
    """JSON text with white space here and there, and characters escaped or not."""
    indent = rng.choice([None, None, 1, 4])
    separators = rng.choice([(",", ":"), (", ", ": ")])
    return json.dumps(
        value,
        indent=indent,
        separators=separators,
        ensure_ascii=rng.random() < 0.5 and ascii_keys(value),
    )


def read(text: bytes) -> tuple[Any, bool]:
    """The value of a JSON text, and whether an object in it has a key twice."""
    repeated = False

    def make(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        repeated |= len(dict(pairs)) < len(pairs)
        return dict(pairs)

    return json.loads(text, object_pairs_hook=make), repeated


def ascii_keys(value: Any) -> bool:
    """Whether keys and constants are written alike with and without escapes."""
    return "é" not in json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize("seed", range(8))
def test_random_schemas(grammars: Grammars, seed: int) -> None:
    rng = random.Random(seed)
    counts = {True: 0, False: 0}
    for _ in range(40):
        root = random_schema(rng, 3)
        root["$defs"] = {"node": {"anyOf": [random_schema(rng, 0), {"type": "null"}]}}
        values = [random_value(rng, root, root, 4) for _ in range(20)]
        expected = [is_valid(value, root, root) for value in values]
        try:
            grammars.compile("json_schema", root)
        except DriverError as error:
            # Only a schema that nothing satisfies is refused.
            outcome = (error.status, "no text at all" in str(error), any(expected))
            assert outcome == (GRAMMAR, True, False), root
            continue
        texts = [write(rng, value) for value in values]
        answers = [answer == WHOLE for answer in grammars.match(*texts)]
        wrong = [t for t, a, e in zip(texts, answers, expected, strict=True) if a != e]
        assert wrong == [], json.dumps(root)
        for fits in expected:
            counts[fits] += 1
        text, ended, different = grammars.generate(seed, 80, check=True)
        assert different == 0, (root, text)
        value, repeated = read(text) if ended else (None, True)
        if not repeated:
            assert is_valid(value, root, root), (root, text)
    assert counts[True] > 100
    assert counts[False] > 100


def test_generated_texts_fit(grammars: Grammars) -> None:
    """What random tokens write within a closed schema is always valid."""
    schema = objects(
        {"n": {"type": "integer", "minimum": 3, "maximum": 400}, "s": {"enum": ["a", "b"]},
         "l": {"type": "array", "items": BOOLEAN, "minItems": 1, "maxItems": 3}},
        "n", "l",
    )  # fmt: skip
    grammars.compile("json_schema", schema)
    ended = 0
    for seed in range(40):
        text, end, _ = grammars.generate(seed, 300)
        if end:
            value = json.loads(text)
            assert 3 <= value["n"] <= 400
            assert 1 <= len(value["l"]) <= 3
            assert value.get("s", "a") in ("a", "b")
            assert list(value) == [name for name in schema["properties"] if name in value]
            ended += 1
    assert ended > 10
    assert grammars.match('{"n":2}') == [REFUSED]
