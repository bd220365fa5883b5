"""What the engine's caches and guesses gain: time to the first token, accepted guesses, speed.

    python tests/bench/bench_engine.py BUNDLE [--draft BUNDLE] [--target BUNDLE]

1. The time to the first token of a prompt whose beginning is known, over that of a cold one.
2. Speculation on prompts with and without repetition: accepted share, speed over plain decoding,
   and whether the texts are the same (they must be). ``--target`` is the bundle that ``--draft``
   guesses for.
3. Decoding under a JSON schema over decoding without one.

Ratios are of medians over alternating rounds in one process. Prints tables in Markdown for
docs/results.md; ``--json`` writes every round. Exit code 1 if a known beginning does not save what
it must.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from mlcbuild.engine.engine import Engine
from tests.bench import machine

Rounds = dict[str, list[float]]

STORY = (
    "The harbour lay still under the morning fog, and the men on the quay spoke little. "
    "A bell rang twice. Somewhere out on the water an engine coughed, stopped, and coughed again. "
)
FIRST_TOKEN_RATIO = 0.2  # at most, after 512 known tokens
REPEATS = (
    "Repeat this list three times, exactly as it is: red apple, green pear, yellow banana, "
    "purple plum, orange peach, black grape."
)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def first_token_seconds(engine: Engine, prompt: list[int]) -> float:
    """Seconds from submitting ``prompt`` to its first token."""
    started = time.perf_counter()
    events = engine.stream_events(prompt, max_tokens=1)
    next(iter(events))
    elapsed = time.perf_counter() - started
    for _ in events:
        pass
    return elapsed


def bench_prefix(bundle: Path, threads: int, rounds: int, length: int) -> dict[str, Any]:
    """Cold and warm prompts that share ``length`` tokens and end differently."""
    figures: Rounds = {"cold": [], "warm": []}
    with Engine(bundle, threads=threads) as engine:
        text = engine.tokenize(STORY * (1 + length // 30), special=False)[: length + 8]
        for number in range(rounds + 1):
            engine.clear_cache()
            prompt = [number + 5, *text[: length - 1]]
            cold = first_token_seconds(engine, [*prompt, 11, 12, 13, 14])
            warm = first_token_seconds(engine, [*prompt, 21, 22, 23, 24])
            if number:  # the first round warms up
                figures["cold"].append(cold)
                figures["warm"].append(warm)
    ratio = statistics.median(figures["warm"]) / statistics.median(figures["cold"])
    return {"length": length, "rounds": figures, "ratio": ratio}


def decode(engine: Engine, prompt: str, tokens: int) -> tuple[float, tuple[int, ...]]:
    """Tokens per second of a greedy text, and its tokens."""
    started = time.perf_counter()
    result = engine.generate(prompt, max_tokens=tokens, ignore_eos=True)
    return len(result.token_ids) / (time.perf_counter() - started), result.token_ids


def bench_speculation(
    bundle: Path, draft: Path | None, threads: int, rounds: int, tokens: int
) -> dict[str, Any]:
    """Plain against guessed decoding of the same bundle, in alternation."""
    kind = "ngram" if draft is None else "draft"
    rows = []
    with (
        Engine(bundle, threads=threads, prefix_cache=False) as plain,
        Engine(
            bundle, threads=threads, prefix_cache=False, speculation=kind, draft=draft
        ) as guessing,
    ):
        for name, prompt in (("prose", "Tell me about the sea."), ("repetitive", REPEATS)):
            rates: Rounds = {"plain": [], "guessing": []}
            before = guessing.metrics()["speculation"]
            for number in range(rounds + 1):
                plain_rate, expected = decode(plain, prompt, tokens)
                rate, found = decode(guessing, prompt, tokens)
                if found != expected:
                    raise SystemExit(f"{kind}: the text differs: {found} is not {expected}")
                if number:
                    rates["plain"].append(plain_rate)
                    rates["guessing"].append(rate)
            after = guessing.metrics()["speculation"]
            proposed = after["proposed"] - before["proposed"]
            accepted = after["accepted"] - before["accepted"]
            rows.append(
                {
                    "prompt": name,
                    "rates": rates,
                    "ratio": statistics.median(rates["guessing"])
                    / statistics.median(rates["plain"]),
                    "accepted": accepted / proposed if proposed else None,
                }
            )
    return {"kind": kind, "rows": rows}


def bench_schema(bundle: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Seconds for a text under a JSON schema, over those of as many tokens without one."""
    seconds: Rounds = {"schema": [], "plain": []}
    prompt = "Describe a person as JSON."
    with Engine(bundle, threads=threads, prefix_cache=False) as engine:
        for number in range(rounds + 1):
            started = time.perf_counter()
            result = engine.generate(
                prompt, max_tokens=120, grammar={"type": "json_schema", "value": SCHEMA}
            )
            middle = time.perf_counter()
            value = json.loads(result.text)
            count = len(result.token_ids)
            plain_start = time.perf_counter()
            engine.generate(prompt, max_tokens=count, ignore_eos=True)
            if number:
                seconds["schema"].append(middle - started)
                seconds["plain"].append(time.perf_counter() - plain_start)
        grammar = engine.metrics()["grammar"]
    return {
        "value": value,
        "tokens": count,
        "seconds": seconds,
        "ratio": statistics.median(seconds["plain"]) / statistics.median(seconds["schema"]),
        "jump_ahead_tokens": grammar["jump_ahead_tokens"] / (rounds + 1),
        "mask_microseconds": 1e6
        * grammar["mask_seconds"]
        / max(1.0, (rounds + 1) * count - grammar["jump_ahead_tokens"]),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--draft", type=Path, help="bundle that guesses")
    parser.add_argument("--target", type=Path, help="bundle that --draft guesses for")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--length", type=int, default=512, help="tokens of the known beginning")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    before = machine.describe()
    if machine.is_busy(before):
        print("warning: the machine is busy, wait until it is quiet", file=sys.stderr)
    record: dict[str, Any] = {"machine": before}
    prefix = bench_prefix(options.bundle, options.threads, options.rounds, options.length)
    record["prefix"] = prefix
    record["speculation"] = [
        bench_speculation(options.bundle, None, options.threads, options.rounds, options.tokens)
    ]
    if options.draft is not None:
        target = options.target or options.bundle
        record["speculation"].append(
            bench_speculation(
                target, options.draft, options.threads, options.rounds, options.tokens
            )
        )
    schema = bench_schema(options.bundle, options.threads, options.rounds)
    record["schema"] = schema
    print(machine.heading(before))
    print(
        f"\nfirst token, {prefix['length']} known tokens: {prefix['ratio']:.3f} of a cold prompt's"
    )
    print("\n| guesses | text | accepted | speed over plain |\n|---|---|---|---|")
    for table in record["speculation"]:
        for row in table["rows"]:
            accepted = "none proposed" if row["accepted"] is None else f"{row['accepted']:.2f}"
            print(f"| {table['kind']} | {row['prompt']} | {accepted} | {row['ratio']:.2f} |")
    print(
        f"\nJSON schema: {schema['tokens']} tokens, {schema['jump_ahead_tokens']:.1f} of them "
        f"skipped; speed over plain {schema['ratio']:.2f}; "
        f"mask {schema['mask_microseconds']:.1f} us a token"
    )
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if prefix["ratio"] > FIRST_TOKEN_RATIO:
        raise SystemExit(f"the first token took more than {FIRST_TOKEN_RATIO} of a cold prompt's")


if __name__ == "__main__":
    main()
