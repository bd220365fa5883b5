"""libFuzzer over what the runtime reads from others, with AddressSanitizer and UBSan.

    apt-get install clang
    python tests/bench/fuzz_runtime.py --minutes 10 [--parts tokenizer,grammar,template,output,plan]

Compiles the library's sources with clang's coverage (objects are kept in .cache/fuzz), then runs a
target for each part, one after the other. Inputs that were worth keeping stay in
.cache/fuzz/PART/corpus. Exit code 1 if a run crashed, hung or ran out of memory; the input that did
it lies in .cache/fuzz/PART.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from mlcbuild.pipeline.stages.runtime import ROOT, read_sources
from tests.unit import fake_bundle
from tests.unit.fake_bundle import FakeLimits

PARTS = ("tokenizer", "grammar", "template", "output", "plan")
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
    if part == "tokenizer":
        text = json.dumps(fake_bundle.make_tokenizer()).encode()
        return [text + b"\xffHello <|im_end|> w\xc3\xb6rld"]
    if part == "plan":
        return [fake_bundle.canonical(fake_bundle.make_plan(FakeLimits(), "fast", "int8"))]
    return [text.encode("latin-1") for text in SEEDS[part]]


def compile_objects(folder: Path) -> list[Path]:
    """The library's objects with coverage; those that are there are taken."""
    flags = [*FLAGS, "-fsanitize=fuzzer-no-link"]
    headers = hashlib.sha256(" ".join(flags).encode())
    for path in sorted([*ROOT.glob("src/**/*.h"), *ROOT.glob("include/*.h")]):
        headers.update(path.read_bytes())
    sources = [ROOT / source.path for source in read_sources(ROOT) if source.in_library]

    def compile_one(source: Path) -> Path:
        digest = hashlib.sha256(headers.digest() + source.read_bytes()).hexdigest()[:16]
        output = folder / f"{source.stem}-{digest}.o"
        if not output.exists():
            scratch = output.with_suffix(".tmp.o")
            subprocess.run(["clang++", *flags, *INCLUDES, "-c", source, "-o", scratch], check=True)
            scratch.replace(output)
        return output

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(compile_one, sources))


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
    limits = ["-timeout=20", "-rss_limit_mb=3000", "-max_len=20000", "-print_final_stats=1"]
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
