"""libFuzzer over what the runtime reads from others, with AddressSanitizer and UBSan.

    apt-get install clang
    python tests/bench/fuzz_runtime.py --minutes 10 [--parts tokenizer,packed,...]

Compiles the library's sources with clang's coverage (objects are kept in .cache/fuzz), then runs a
target for each part, one after the other. Inputs that were worth keeping stay in
.cache/fuzz/PART/corpus. Exit code 1 if a run crashed, hung or ran out of memory; the input that did
it lies in .cache/fuzz/PART.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from mlcbuild.bundle.tokenizer_pack import pack_tokenizer
from mlcbuild.pipeline.stages.runtime import ROOT, RuntimeUnit
from tests.unit import fake_bundle
from tests.unit.fake_bundle import FakeLimits
from tests.unit.runtime_objects import compile_units, library_units
from tests.unit.test_runtime_text_kinds import all_kinds

PARTS = ("tokenizer", "packed", "grammar", "template", "output", "plan", "params")
FLAGS = ["-std=c++17", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
INCLUDES = [f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}"]

SEEDS: dict[str, list[str]] = {
    "grammar": [
        "\x00\xff[1,2]",
        (
            '\x01{"type":"object","properties":{"a":{"type":"integer","minimum":3},'
            '"b":{"enum":["x",null]}},"required":["a"],"additionalProperties":false}\xff{"a":12}'
        ),
        (
            '\x01{"$ref":"#/$defs/n","$defs":{"n":{"anyOf":[{"type":"null"},'
            '{"type":"array","items":{"$ref":"#/$defs/n"},"maxItems":3}]}}}\xff[null]'
        ),
        '\x01{"type":"string","pattern":"^[a-z]{2,5}$","maxLength":4}\xff"ab"',
        "\x02(ab|c)*[^x-z]{2,4}\\d+?\xffababc",
        '\x03root ::= "a" item{1,3} | [0-9]+\nitem ::= root? "b" # c\xffab',
        (
            '\x04{"type":"sequence","parts":[{"type":"literal","text":"x"},'
            '{"type":"repeat","item":{"type":"regex","pattern":"a|b"},"min":1,"max":null}]}\xffxab'
        ),
    ],
    "template": [
        "{% for m in messages %}{{ m.role ~ m['content'] | trim }}{% endfor %}\xffhello",
        (
            "{%- set ns = namespace(a=1) -%}{% macro f(x, y=2) %}{{ x[::-1] }}{% endmacro %}"
            "{{ f(messages[0].content) if messages else raise_exception('none') }}\xffabc"
        ),
        "{{ messages | tojson(indent=2) }}{{ 'a,b'.split(',') | join('-') | upper }}\xff[1]",
        (
            "{% for t in tools %}{{ t | tojson }}{% set x = t.function.name %}{% endfor %}"
            "{% for m in messages if m.tool_calls is defined %}{{ m.tool_calls }}{% endfor %}\xffa"
        ),
    ],
    "output": [
        '\x08a<tool_call>\n{"name":"f","arguments":{"x":[1,"}"]}}\n</tool_call>b',
        '\x09<|python_tag|>{"name":"f","parameters":{}}',
        '\x0a[TOOL_CALLS][{"name":"f","arguments":{}}]',
        "\x0c<think>why</think>because",
    ],
}


def seeds(part: str) -> list[bytes]:
    """What a part's fuzzing begins with."""
    if part in ("tokenizer", "packed"):
        kinds = [fake_bundle.make_tokenizer(), *all_kinds().values()]
        texts = [json.dumps(kind, ensure_ascii=False).encode() for kind in kinds]
        if part == "packed":
            return [pack_tokenizer(text) for text in texts]
        return [text + b"\xffHello <|im_end|> w\xc3\xb6rld" for text in texts]
    if part == "plan":
        plans = (("fast", "int8"), ("plain", "float"), ("fast", "float"))
        made = [fake_bundle.make_plan(FakeLimits(), name, kv) for name, kv in plans]
        return [fake_bundle.canonical(plan) for plan in made]
    if part == "params":
        with tempfile.TemporaryDirectory() as folder:
            fake_bundle.write_params(Path(folder))
            return [(Path(folder) / "params" / "index.json").read_bytes()]
    return [text.encode("latin-1") for text in SEEDS[part]]


def compile_objects(folder: Path) -> list[Path]:
    """The library's objects with coverage; those that are there are taken."""
    flags = [*FLAGS, "-fsanitize=fuzzer-no-link"]

    def run(unit: RuntimeUnit, output: Path) -> None:
        command = ["clang++", *flags, *INCLUDES, *unit.input_arguments(), "-o", str(output)]
        subprocess.run(command, check=True, cwd=ROOT)

    return compile_units(folder, library_units(), " ".join(flags), run)


def fuzz(part: str, objects: list[Path], folder: Path, seconds: int) -> bool:
    """Runs one part; whether it came through."""
    own = folder / part
    corpus = own / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(part)):
        (corpus / f"seed{number}").write_bytes(seed)
    program = own / "fuzz"
    target = ROOT / "tests" / "fuzz_targets.cc"
    flags = [*FLAGS, "-fsanitize=fuzzer", f"-DFUZZ=fuzz_{part}", *INCLUDES]
    link = [*map(str, [target, *objects]), "-o", str(program), "-ldl", "-pthread"]
    subprocess.run(["clang++", *flags, *link], check=True)
    limits = ["-timeout=60", "-rss_limit_mb=3000", "-max_len=60000", "-print_final_stats=1"]
    command = [str(program), str(corpus), *limits]
    command += [f"-max_total_time={seconds}", f"-artifact_prefix={own}/"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    runs = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    coverage = re.findall(r"cov: (\d+)", done.stderr)
    state = "ok" if done.returncode == 0 else f"FAILED, see {own}"
    count = runs.group(1) if runs else "?"
    reached = coverage[-1] if coverage else "?"
    print(f"| {part} | {seconds} s | {count} | {reached} | {state} |", flush=True)
    if done.returncode != 0:
        print("\n".join(done.stderr.splitlines()[-60:]), file=sys.stderr)
    return done.returncode == 0


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--folder", type=Path, default=Path(".cache/fuzz"))
    options = parser.parse_args()
    if shutil.which("clang++") is None:
        raise SystemExit("clang++ is missing\nhint: apt-get install clang")
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    objects = compile_objects(folder)
    print("| part | time | runs | edges | |\n|---|---|---|---|---|")
    results = [
        fuzz(part, objects, folder, round(60 * options.minutes))
        for part in options.parts.split(",")
    ]
    raise SystemExit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
