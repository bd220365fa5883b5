"""The table of goals: a bundle beside llama.cpp and onnxruntime-genai, all rows in one run.

    python tests/bench/bench_table.py BUNDLE --llama Q4_0=model-q4_0.gguf --peers .cache/peers \
        --ort-python .venv-parity/bin/python --ort-model model-ort-int4

`make bench` does so for a random Llama of 1.1 B parameters. Every round starts one process of each
engine for each group of rows, and another engine comes first; a figure is the median over the
rounds. A ratio says how many times better than the first llama.cpp model the bundle is: of speeds
ours to theirs, of memory and time theirs to ours. Refuses to start on a busy machine unless
--busy-ok is given; rows during which others used the machine are marked either way.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from mlcbuild.bundle.reader import open_bundle
from tests.bench import machine
from tests.bench.bench_speed import Key, key_of
from tests.bench.peers import fetch
from tests.bench.table_engines import (
    FIRST_TOKEN,
    MEMORY,
    OURS,
    Engine,
    Group,
    Ours,
    llama,
    one_cpu_busy,
    ort,
)
from tests.bench.table_page import write_page

MEMORY_OVER_CONTENT = 1.15  # peak memory over weights and KV cache
FIRST_TOKEN_SECONDS = 0.5
FOREIGN_SHARE = 0.1  # of the machine, used by others: the row is marked


@dataclass(frozen=True)
class Row:
    """A line of the table: what a group measured, and the ratio that it should have."""

    label: str
    group: str
    what: Key | str
    goal: float | None = None


@dataclass(frozen=True)
class Sizes:
    """Tokens of the measurements."""

    prefill: tuple[int, int] = (128, 512)
    decode: int = 32
    depth: int = 128
    deep: int = 4096
    busy_decode: int = 16
    busy_length: int = 32


def make_groups(sizes: Sizes, threads: int) -> list[Group]:
    """All groups; those with one thread and beside a loop need two CPUs to differ."""
    most = Group(f"{threads} threads", threads, sizes.prefill, sizes.decode, (sizes.depth,))
    one = Group("1 thread", 1, sizes.prefill[:1], sizes.decode, (sizes.depth,))
    deep = Group("deep", threads, (), sizes.decode, (sizes.deep,))
    length = sizes.busy_length
    busy = Group("busy", threads, (length,), sizes.busy_decode, (length,), busy=True)
    small = Group("small", threads, (16,), 16, (16,))
    return [most, *([one] if threads > 1 else []), deep, *([busy] if threads > 1 else []), small]


def make_rows(sizes: Sizes, threads: int) -> list[Row]:
    """The rows with their goals."""

    def prefill(tokens: int) -> Key:
        return ("prefill", 1, 0, tokens)

    def decode(tokens: int, depth: int) -> Key:
        return ("decode", 1, depth, tokens)

    most = f"{threads} threads"
    rows = [
        *(Row(f"prefill {tokens}", most, prefill(tokens), 1.8) for tokens in sizes.prefill),
        Row(
            f"decode {sizes.decode} at depth {sizes.depth}",
            most,
            decode(sizes.decode, sizes.depth),
            1.15,
        ),
        Row(
            f"decode {sizes.decode} at depth {sizes.deep}",
            "deep",
            decode(sizes.decode, sizes.deep),
            1.3,
        ),
        Row("peak memory, 32 tokens", "small", MEMORY),
        Row("open to first token", "small", FIRST_TOKEN),
    ]
    if threads == 1:
        return rows
    length, first = sizes.busy_length, sizes.prefill[0]
    return [
        *rows,
        Row(
            f"decode {sizes.busy_decode} at depth {length}, one CPU busy",
            "busy",
            decode(sizes.busy_decode, length),
            5.0,
        ),
        Row(f"prefill {length}, one CPU busy", "busy", prefill(length)),
        Row(f"prefill {first}, 1 thread", "1 thread", prefill(first)),
        Row(
            f"decode {sizes.decode} at depth {sizes.depth}, 1 thread",
            "1 thread",
            decode(sizes.decode, sizes.depth),
        ),
    ]


# -- running ------------------------------------------------------------------------------------

Rounds = dict[str, dict[str, list[dict[str, Any]]]]  # group, engine: the record of every round


def run_rounds(engines: list[Engine], groups: list[Group], rounds: int) -> Rounds:
    """Every round of every group; each record also tells the ``foreign`` share of the machine."""
    found: Rounds = {group.name: {engine.name: [] for engine in engines} for group in groups}
    for number in range(rounds):
        turn = number % len(engines)
        for group in groups:
            for engine in engines[turn:] + engines[:turn]:
                print(f"round {number + 1}, {group.name}: {engine.name}", file=sys.stderr)
                others = machine.Others()
                if group.busy:
                    with one_cpu_busy():
                        record = engine.measure(group)
                else:
                    record = engine.measure(group)
                found[group.name][engine.name].append({**record, "foreign": others.share()})
    return found


def value_of(record: dict[str, Any], what: Key | str) -> float:
    """A figure of one round: tokens per second, bytes or seconds."""
    if isinstance(what, str):
        return float(record[what])
    (rate,) = (result["tok_s"] for result in record["results"] if key_of(result) == what)
    return float(rate)


def compare(
    rows: list[Row], rounds: Rounds, baseline: str, bounds: dict[str, float]
) -> list[dict[str, Any]]:
    """Each row with medians, spread, ratio, goal and whether it is met.

    ``bounds``: of what is not held against the peer, the most that it may be.
    """
    table = []
    for row in rows:
        records = rounds[row.group]
        values = {
            name: [value_of(record, row.what) for record in found]
            for name, found in records.items()
        }
        medians = {name: statistics.median(found) for name, found in values.items()}
        is_speed = not isinstance(row.what, str)

        def better(name: str, medians: dict[str, float], is_speed: bool) -> float:
            ratio = medians[name] / medians[baseline]
            return ratio if is_speed else 1 / ratio

        ratios = {name: better(name, medians, is_speed) for name in medians}
        bound = bounds.get(row.what) if isinstance(row.what, str) else None
        met = None
        if row.goal is not None:
            met = ratios[OURS] >= row.goal
        elif bound is not None:
            met = medians[OURS] <= bound
        table.append(
            {
                "row": row.label,
                "unit": row.what if isinstance(row.what, str) else "tok_s",
                "median": medians,
                "spread": {name: [min(found), max(found)] for name, found in values.items()},
                "ratio": ratios,
                "goal": row.goal,
                "bound": bound,
                "met": met,
                "foreign": max(r["foreign"] for found in records.values() for r in found),
            }
        )
    return table


# -- showing ------------------------------------------------------------------------------------


def figure(value: float, unit: str) -> str:
    """A figure with its unit; speeds have none."""
    if unit == MEMORY:
        return f"{value / 2**20:.0f} MiB"
    if unit == FIRST_TOKEN:
        return f"{value:.3f} s"
    return f"{value:.1f}"


def cells(table: list[dict[str, Any]], baseline: str) -> list[list[str]]:
    """Heading and rows as text; the columns are the engines, ours last, ratio, goal, verdict."""
    names = [name for name in table[0]["median"] if name != OURS]
    lines = [["row", *names, OURS, f"ours to {baseline}", "goal", "met"]]
    for row in table:
        goal = "" if row["goal"] is None else f"{row['goal']:.2f}"
        if row["bound"] is not None:
            goal = f"<= {figure(row['bound'], row['unit'])}"
        mark = " !" if row["foreign"] > FOREIGN_SHARE else ""
        figures = [figure(row["median"][name], row["unit"]) for name in (*names, OURS)]
        verdict = {None: "", True: "yes", False: "NO"}[row["met"]]
        lines.append([row["row"] + mark, *figures, f"{row['ratio'][OURS]:.2f}", goal, verdict])
    return lines


def markdown(lines: list[list[str]]) -> list[str]:
    """The lines as a Markdown table whose columns are also aligned as text."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    rows = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    return [rows[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *rows[1:]]


def numbers(text: str) -> tuple[int, ...]:
    """A list of numbers, with commas between."""
    return tuple(int(part) for part in text.split(","))


def named_file(text: str) -> tuple[str, Path]:
    """NAME=FILE."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=FILE")
    return name, Path(path)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    sizes = Sizes()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--peers", type=Path, required=True, help="folder of peers/fetch.py")
    parser.add_argument(
        "--llama",
        type=named_file,
        action="append",
        required=True,
        metavar="NAME=GGUF",
        help="a model for llama.cpp; ratios are to the first",
    )
    parser.add_argument("--ort-python", type=Path, help="an environment with onnxruntime-genai")
    parser.add_argument("--ort-model", type=Path, help="what ort_peer.py built")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill", type=numbers, default=sizes.prefill)
    parser.add_argument("--decode", type=int, default=sizes.decode)
    parser.add_argument("--depth", type=int, default=sizes.depth)
    parser.add_argument("--deep", type=int, default=sizes.deep)
    parser.add_argument(
        "--wait", type=float, default=60, help="seconds to wait for a quiet machine"
    )
    parser.add_argument("--busy-ok", action="store_true", help="measure on a busy machine too")
    parser.add_argument("--json", type=Path, help="write every round here")
    parser.add_argument("--html", type=Path, help="write the table and a plot here")
    options = parser.parse_args(arguments)
    if (options.ort_python is None) != (options.ort_model is None):
        parser.error("--ort-python and --ort-model go together")
    if len(options.prefill) != 2:
        parser.error("--prefill takes two lengths")
    return options


def main() -> None:
    """Measure, show, write."""
    options = parse()
    sizes = Sizes(options.prefill, options.decode, options.depth, options.deep)
    engines: list[Engine] = [llama(name, path, options.peers) for name, path in options.llama]
    if options.ort_python is not None:
        engines.append(ort(options.ort_python, options.ort_model))
    engines.append(Ours(options.bundle))
    quiet = machine.wait_until_quiet(options.wait)
    if not quiet and not options.busy_ok:
        raise SystemExit("others use this machine; wait until it is quiet, or give --busy-ok")
    before = machine.describe()
    groups = make_groups(sizes, options.threads)
    rounds = run_rounds(engines, groups, options.rounds)
    memory = open_bundle(options.bundle).manifest.memory
    content = memory.weights_bytes + 32 * memory.kv_bytes_per_token
    bounds = {MEMORY: MEMORY_OVER_CONTENT * content, FIRST_TOKEN: FIRST_TOKEN_SECONDS}
    baseline = engines[0].name
    table = compare(make_rows(sizes, options.threads), rounds, baseline, bounds)
    lines = cells(table, baseline)
    first = {name: records[0] for name, records in rounds[groups[0].name].items()}
    ours = first[OURS]
    versions = [fetch.PEER, *(item["version"] for item in first.values() if "version" in item)]
    notes = [
        machine.heading(before) + f" before, {machine.describe()['load_average']} after",
        f"versions: {before['versions']}, {', '.join(versions)}",
        f"bundle: {ours['bundle']} {ours['scheme']}, {ours['variant']}, {ours['activations']}",
        f"tokens per second where no unit is said; medians; rounds: {options.rounds}",
        f"threads: {options.threads}; a ratio above 1 is better than {baseline}",
    ]
    if not quiet:
        notes.append("THE MACHINE WAS BUSY: these figures are worth nothing")
    marked = [row for row in table if row["foreign"] > FOREIGN_SHARE]
    if marked:
        most = max(row["foreign"] for row in marked)
        notes.append(f"!: others used up to {most:.0%} of the machine meanwhile")
    print("\n".join([*notes, "", *markdown(lines)]))
    missed = [row["row"] for row in table if row["met"] is False]
    print("\ngoals missed: " + (", ".join(missed) or "none"))
    if options.json:
        record = {"before": before, "quiet": quiet, "table": table, "rounds": rounds}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if options.html:
        write_page(options.html, table, lines, notes, OURS, baseline)


if __name__ == "__main__":
    main()
