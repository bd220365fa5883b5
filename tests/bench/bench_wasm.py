"""A bundle for WebAssembly in node beside the same model's Linux bundle, one thread each.

    python tests/bench/bench_wasm.py WEB_BUNDLE LINUX_BUNDLE --rounds 5

Prints how far the variants are from the Linux bundle's float mode (teacher-forced over a text),
then tokens per second, medians over rounds that alternate between all of them, and the ratio to the
Linux variant with the same activations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from mlcbuild.bundle.native import NativeBundle, NativeEngine
from mlcbuild.bundle.node import NodeBundle, NodeEngine
from mlcbuild.bundle.reader import open_bundle
from mlcbuild.core.node import node_program
from mlcbuild.engine.bench import BenchPlan, run_bench
from tests.bench import machine
from tests.bench.bench_quality import divergence, log_softmax

TEXT = Path(__file__).parents[1] / "data" / "tokenizer_sample.txt"
SCRIPT = Path(__file__).with_name("wasm_speed.mjs")
NATIVE = {"int8": "avx2", "float": "avx2-float"}  # what a variant is compared with


def chances(engine: NativeEngine | NodeEngine, ids: list[int]) -> npt.NDArray[np.float64]:
    """Log probabilities behind each position."""
    return log_softmax(np.array([list(row) for row in engine.logits(ids)], np.float32))


def agreement(web: Path, linux: Path, positions: int) -> None:
    """Prints top-1 agreement and mean KLD of every variant."""
    with NativeBundle.open(linux) as native:
        ids = native.tokenize(TEXT.read_text(encoding="utf-8"))[:positions]
        with native.open_engine(threads=1, activations="float", variant="avx2-float") as engine:
            reference = chances(engine, ids)
    print(f"{len(ids)} positions against avx2-float: top-1, mean KLD")
    for variant in open_bundle(web).manifest.variants:
        with (
            NodeBundle.open(web) as node,
            node.open_engine(variant=variant.name, activations=variant.activations) as engine,
        ):
            own = chances(engine, ids)
        same = (own.argmax(axis=1) == reference.argmax(axis=1)).mean()
        print(f"{variant.name:16} {same:8.4f} {divergence(reference, own).mean():.2e}")


def web_speed(web: Path, variant: str, prompt: int, tokens: int) -> dict[str, float]:
    """Tokens per second in node."""
    command = [str(node_program()), str(SCRIPT), str(web), variant, str(prompt), str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def linux_speed(linux: Path, variant: str, prompt: int, tokens: int) -> dict[str, float]:
    """Tokens per second of the Linux bundle with one thread."""
    activations = next(kind for kind, name in NATIVE.items() if name == variant)
    plan = BenchPlan(
        prefill=(prompt,),
        decode=tokens,
        batch=(1,),
        depth=(prompt,),
        repeat=1,
        threads=1,
        activations=activations,
        variant=variant,
    )
    record: dict[str, Any] = run_bench(linux, plan)
    return {row["kind"]: row["tok_s"] for row in record["results"]}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("web", type=Path)
    parser.add_argument("linux", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--positions", type=int, default=400)
    options = parser.parse_args()
    print(json.dumps(machine.describe()))
    agreement(options.web, options.linux, options.positions)
    variants = {v.name: v.activations for v in open_bundle(options.web).manifest.variants}
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(options.rounds):
        for name in variants:
            found[name].append(web_speed(options.web, name, options.prompt, options.tokens))
        for name in sorted(set(NATIVE.values())):
            found[name].append(linux_speed(options.linux, name, options.prompt, options.tokens))
    middle = {
        name: {kind: statistics.median(row[kind] for row in rows) for kind in ("prefill", "decode")}
        for name, rows in found.items()
    }
    print(f"tok/s, medians of {options.rounds} rounds; Linux divided by node")
    for name, row in middle.items():
        base = middle[NATIVE.get(variants.get(name, ""), name)]
        cells = [f"{kind} {row[kind]:7.1f} {base[kind] / row[kind]:5.2f}" for kind in row]
        print(f"{name:16} {'   '.join(cells)}")
    print(json.dumps(machine.describe()))


if __name__ == "__main__":
    main()
