"""Prefill and decode of a bundle beside llama.cpp or another checkout, alternately in one run.

    python tests/bench/peers/fetch.py .cache/peers --smollm2
    python tests/bench/bench_speed.py artifacts/smollm2-135m/q4f16_1/linux-x86_64-cpu \
        --peers .cache/peers

Against another state of this project, which has its own environment and bundle:

    python tests/bench/bench_speed.py BUNDLE --other-python OTHER/.venv/bin/python \
        --other-bundle OTHER/artifacts/smollm2-135m/q4f16_1/linux-x86_64-cpu

Every round starts one process of each engine, which of them first changes from round to round; a
figure is the median over the rounds. Both engines warm up before each figure. Prints a table in
Markdown for docs/results.md; ``--json`` writes every round. Exit code 1 if llama.cpp decodes
faster at a batch of 8.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from tests.bench import machine
from tests.bench.peers import fetch

PEER = "llama.cpp"
OTHER = "other"
Key = tuple[str, int, int, int]  # kind, batch, depth, tokens


def key_of(result: dict[str, Any]) -> Key:
    """What a result of either engine measures."""
    return (result["kind"], result.get("batch", 1), result.get("depth", 0), result["tokens"])


def run_json(command: list[str]) -> dict[str, Any]:
    """The JSON object that a command prints on its last line.

    Python finds the command's own package, whatever checkout this is run from.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if command[0] == sys.executable:
        environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    result = subprocess.run(
        command, check=True, text=True, stdout=subprocess.PIPE, cwd="/", env=environment
    )
    record: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return record


def bundle_command(
    python: str | Path, bundle: Path, arguments: argparse.Namespace, threads: int
) -> list[str]:
    """One round of mlcbuild."""
    command = [str(python), "-m", "mlcbuild", "bench", str(bundle.resolve()), "--json"]
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
    command += [str((arguments.peer_model or fetch.smollm2(folder)).resolve()), str(threads), "1"]
    command += [f"prefill:{tokens}" for tokens in arguments.prefill.split(",")]
    for depth in arguments.depth.split(","):
        for batch in arguments.batch.split(","):
            command.append(f"decode:{batch}:{depth}:{arguments.decode}")
    return command


def measure(arguments: argparse.Namespace, threads: int) -> dict[str, Any]:
    """All rounds at one number of threads."""
    commands = {"mlcbuild": bundle_command(sys.executable, arguments.bundle, arguments, threads)}
    if arguments.other_bundle is not None:
        python, bundle = arguments.other_python.absolute(), arguments.other_bundle
        commands[OTHER] = bundle_command(python, bundle, arguments, threads)
    else:
        commands[PEER] = peer_command(arguments, threads)
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
    (peer_name,) = set(rates) - {"mlcbuild"}
    if set(rates["mlcbuild"]) != set(rates[peer_name]):
        raise SystemExit("the engines measured different things")
    rows = []
    for key, values in rates["mlcbuild"].items():
        ours, peer = statistics.median(values), statistics.median(rates[peer_name][key])
        row: dict[str, Any] = dict(zip(("kind", "batch", "depth", "tokens"), key, strict=True))
        rows.append(row | {"mlcbuild": ours, "peer": peer, "ratio": ours / peer})
    return rows


def peak_memory(rounds: dict[str, list[dict[str, Any]]]) -> str:
    """Median peak memory of each engine's process."""
    parts = []
    for name, records in rounds.items():
        peak = statistics.median(record["rss_peak_bytes"] for record in records)
        parts.append(f"{name} {peak / 2**20:.0f} MiB")
    return ", ".join(parts)


def table(measurements: list[dict[str, Any]], peer: str) -> list[str]:
    """The Markdown table."""
    lines = [
        f"| threads | what | mlcbuild tok/s | {peer} tok/s | ratio |",
        "|---|---|---|---|---|",
    ]
    for measurement in measurements:
        for row in measurement["rows"]:
            what = f"prefill {row['tokens']}"
            if row["kind"] == "decode":
                what = f"decode {row['tokens']}, batch {row['batch']}, depth {row['depth']}"
            figures = f"{row['mlcbuild']:.1f} | {row['peer']:.1f} | {row['ratio']:.2f}"
            lines.append(f"| {measurement['threads']} | {what} | {figures} |")
    return lines


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--peers", type=Path, help="folder of peers/fetch.py")
    parser.add_argument("--peer-model", type=Path, help="GGUF file (default: SmolLM2 Q4_1)")
    parser.add_argument("--other-python", type=Path, help="of another checkout's environment")
    parser.add_argument("--other-bundle", type=Path, help="a bundle that the other checkout built")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--prefill", default="128,512")
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--batch", default="1,4,8")
    parser.add_argument("--depth", default="0,128")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--activations", choices=["int8", "float"])
    parser.add_argument("--json", type=Path, help="write every round here")
    arguments = parser.parse_args()
    if (arguments.other_python is None) != (arguments.other_bundle is None):
        parser.error("--other-python and --other-bundle go together")
    if (arguments.peers is None) == (arguments.other_bundle is None):
        parser.error("needs either --peers or --other-bundle")
    peer = PEER if arguments.other_bundle is None else OTHER
    peer_version = fetch.PEER if peer == PEER else f"other: {arguments.other_bundle}"
    before = machine.describe()
    if machine.is_busy(before):
        print("warning: the machine is busy, wait until it is quiet", file=sys.stderr)
    measurements = [measure(arguments, int(count)) for count in arguments.threads.split(",")]
    after = machine.describe()
    record = {"peer": peer_version, "before": before, "after": after, "measurements": measurements}
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    ours = measurements[0]["rounds"]["mlcbuild"][0]
    print(machine.heading(before) + f" before, {after['load_average']} after")
    print(f"versions: {before['versions']}, {peer_version}")
    print(f"bundle: {ours['bundle']} {ours['scheme']}, {ours['variant']}, {ours['activations']}")
    for measurement in measurements:
        memory = peak_memory(measurement["rounds"])
        print(f"peak memory at {measurement['threads']} threads: {memory}")
    print("\n".join(["", *table(measurements, peer)]))
    slower = [
        f"{measurement['threads']} threads, depth {row['depth']}: {row['ratio']:.2f}"
        for measurement in measurements
        for row in measurement["rows"]
        if row["kind"] == "decode" and row["batch"] == 8 and row["ratio"] < 1
    ]
    if slower and peer == PEER:
        raise SystemExit(f"{PEER} decodes faster at a batch of 8: {', '.join(slower)}")


if __name__ == "__main__":
    main()
