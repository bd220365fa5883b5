"""Prefill and decode of a bundle beside llama.cpp, alternately in one run.

    python tests/bench/peers/fetch.py .cache/peers --smollm2
    python tests/bench/bench_speed.py artifacts/smollm2-135m/q4f16_1/linux-x86_64-cpu \
        --peers .cache/peers

Every round starts one process of each engine, which of them first changes from round to round; a
figure is the median over the rounds. Both engines warm up before each figure. Prints a table in
Markdown for docs/results.md; ``--json`` writes every round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from tests.bench import machine
from tests.bench.peers import fetch

Key = tuple[str, int, int, int]  # kind, batch, depth, tokens


def key_of(result: dict[str, Any]) -> Key:
    """What a result of either engine measures."""
    return (result["kind"], result.get("batch", 1), result.get("depth", 0), result["tokens"])


def run_json(command: list[str]) -> dict[str, Any]:
    """The JSON object that a command prints on its last line."""
    result = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
    record: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return record


def bundle_command(arguments: argparse.Namespace, threads: int) -> list[str]:
    """One round of mlcbuild."""
    command = [sys.executable, "-m", "mlcbuild", "bench", str(arguments.bundle), "--json"]
    command += ["--prefill", arguments.prefill, "--decode", str(arguments.decode)]
    command += ["--batch", arguments.batch, "--depth", arguments.depth]
    command += ["--threads", str(threads), "--repeat", "1"]
    if arguments.activations:
        command += ["--activations", arguments.activations]
    return command


def peer_command(arguments: argparse.Namespace, threads: int) -> list[str]:
    """One round of llama.cpp, with the same measurements."""
    folder = arguments.peers.resolve()
    command = [str(fetch.driver_path(folder)), "bench", str(fetch.library_folder(folder))]
    command += [str(arguments.peer_model or fetch.smollm2(folder)), str(threads), "1"]
    command += [f"prefill:{tokens}" for tokens in arguments.prefill.split(",")]
    for depth in arguments.depth.split(","):
        for batch in arguments.batch.split(","):
            command.append(f"decode:{batch}:{depth}:{arguments.decode}")
    return command


def measure(arguments: argparse.Namespace, threads: int) -> dict[str, Any]:
    """All rounds at one number of threads."""
    commands = {
        "mlcbuild": bundle_command(arguments, threads),
        "llama.cpp": peer_command(arguments, threads),
    }
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for number in range(arguments.rounds):
        for name in sorted(commands, reverse=bool(number % 2)):
            print(f"{threads} threads, round {number + 1}: {name}", file=sys.stderr)
            rounds[name].append(run_json(commands[name]))
    return {"threads": threads, "rounds": rounds, "rows": compare(rounds)}


def compare(rounds: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Medians and their ratio for what both engines measured."""
    rates: dict[str, dict[Key, list[float]]] = {}
    for name, records in rounds.items():
        by_key = rates.setdefault(name, {})
        for record in records:
            for result in record["results"]:
                by_key.setdefault(key_of(result), []).append(result["tok_s"])
    if set(rates["mlcbuild"]) != set(rates["llama.cpp"]):
        raise SystemExit("the engines measured different things")
    rows = []
    for key, values in rates["mlcbuild"].items():
        ours, peer = statistics.median(values), statistics.median(rates["llama.cpp"][key])
        row: dict[str, Any] = dict(zip(("kind", "batch", "depth", "tokens"), key, strict=True))
        rows.append(row | {"mlcbuild": ours, "llama.cpp": peer, "ratio": ours / peer})
    return rows


def peak_memory(rounds: dict[str, list[dict[str, Any]]]) -> str:
    """Median peak memory of each engine's process."""
    parts = []
    for name, records in rounds.items():
        peak = statistics.median(record["rss_peak_bytes"] for record in records)
        parts.append(f"{name} {peak / 2**20:.0f} MiB")
    return ", ".join(parts)


def table(measurements: list[dict[str, Any]]) -> list[str]:
    """The Markdown table."""
    lines = [
        "| threads | what | mlcbuild tok/s | llama.cpp tok/s | ratio |",
        "|---|---|---|---|---|",
    ]
    for measurement in measurements:
        for row in measurement["rows"]:
            what = f"prefill {row['tokens']}"
            if row["kind"] == "decode":
                what = f"decode {row['tokens']}, batch {row['batch']}, depth {row['depth']}"
            figures = f"{row['mlcbuild']:.1f} | {row['llama.cpp']:.1f} | {row['ratio']:.2f}"
            lines.append(f"| {measurement['threads']} | {what} | {figures} |")
    return lines


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--peers", type=Path, required=True, help="folder of peers/fetch.py")
    parser.add_argument("--peer-model", type=Path, help="GGUF file (default: SmolLM2 Q4_1)")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--prefill", default="128,512")
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--batch", default="1,4")
    parser.add_argument("--depth", default="0,128")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--activations", choices=["int8", "float"])
    parser.add_argument("--json", type=Path, help="write every round here")
    arguments = parser.parse_args()
    before = machine.describe()
    if machine.is_busy(before):
        print("warning: the machine is busy, wait until it is quiet", file=sys.stderr)
    measurements = [measure(arguments, int(count)) for count in arguments.threads.split(",")]
    after = machine.describe()
    record = {"peer": fetch.PEER, "before": before, "after": after, "measurements": measurements}
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    ours = measurements[0]["rounds"]["mlcbuild"][0]
    print(machine.heading(before) + f" before, {after['load_average']} after")
    print(f"versions: {before['versions']}, {fetch.PEER}")
    print(f"bundle: {ours['bundle']} {ours['scheme']}, {ours['variant']}, {ours['activations']}")
    for measurement in measurements:
        memory = peak_memory(measurement["rounds"])
        print(f"peak memory at {measurement['threads']} threads: {memory}")
    print("\n".join(["", *table(measurements)]))


if __name__ == "__main__":
    main()
