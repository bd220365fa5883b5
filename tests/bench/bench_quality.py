"""How far bundles are from an unquantized one: mean and p99 KLD, top-1 agreement, perplexity.

    python tests/bench/bench_quality.py --text FILE --tokens 2000 \
        --bundle q0f32=artifacts/NAME/q0f32/linux-x86_64-cpu \
        --bundle q4f16_1=artifacts/NAME/q4f16_1/linux-x86_64-cpu

The first bundle is the reference. The text is cut into fresh sequences of ``--chunk`` tokens. The
KLD of a position is sum_v p(v) (log p(v) - log q(v)) in nats, p being the reference's distribution.
A ``--peer NAME=FILE.gguf`` is measured through llama.cpp (tests/bench/peers/fetch.py).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from mlcbuild.engine import Engine
from tests.bench import machine
from tests.bench.peers import fetch

Floats = npt.NDArray[np.float64]
Logits = npt.NDArray[np.float32]
Model = Callable[[int, Sequence[int]], Logits]  # (first position in the text, ids) -> logits
ROWS = 64  # positions at a time, to bound memory


def log_softmax(logits: npt.NDArray[np.floating]) -> Floats:
    """Log probabilities of each row, in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def divergence(reference: Floats, other: Floats) -> Floats:
    """KLD of each row from log probabilities [n, vocab], in nats."""
    result: Floats = (np.exp(reference) * (reference - other)).sum(axis=-1)
    return result


@dataclass
class Figures:
    """What is gathered of one model."""

    divergences: list[Floats] = field(default_factory=list)
    same_choice: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    losses: list[Floats] = field(default_factory=list)  # of each next token, in nats

    def add(self, reference: Floats, own: Floats, following: npt.NDArray[np.int64]) -> None:
        """Take in rows; ``following`` holds their next tokens and may be one shorter."""
        self.divergences.append(divergence(reference, own))
        self.same_choice.append(reference.argmax(-1) == own.argmax(-1))
        self.losses.append(-own[np.arange(len(following)), following])

    def summary(self) -> dict[str, float]:
        """The figures of the report."""
        divergences = np.concatenate(self.divergences)
        return {
            "mean_kld": float(divergences.mean()),
            "p99_kld": float(np.quantile(divergences, 0.99)),
            "top1": float(np.concatenate(self.same_choice).mean()),
            "ppl": math.exp(float(np.concatenate(self.losses).mean())),
        }


def measure(
    models: dict[str, Model], ids: Sequence[int], chunk: int
) -> dict[str, dict[str, float]]:
    """The figures of every model; the first is the reference."""
    figures = {name: Figures() for name in models}
    for begin in range(0, len(ids), chunk):
        part = ids[begin : begin + chunk]
        logits = {name: model(begin, part) for name, model in models.items()}
        print(f"{begin + len(part)} of {len(ids)} tokens", file=sys.stderr)
        for row in range(0, len(part), ROWS):
            following = np.array(part[row + 1 : row + ROWS + 1], np.int64)
            rows = {name: log_softmax(values[row : row + ROWS]) for name, values in logits.items()}
            reference = next(iter(rows.values()))
            for name, own in rows.items():
                figures[name].add(reference, own, following)
    return {name: gathered.summary() for name, gathered in figures.items()}


def peer_model(folder: Path, gguf: Path, ids: Sequence[int], chunk: int, scratch: Path) -> Model:
    """llama.cpp's logits of the whole text, computed now and read from a file later."""
    given, out = scratch / f"{gguf.stem}.ids", scratch / f"{gguf.stem}.logits"
    np.array(ids, np.int32).tofile(given)
    command = [str(fetch.driver_path(folder)), "logits", str(fetch.library_folder(folder))]
    command += [str(gguf), "2", str(chunk), str(given), str(out)]
    subprocess.run(command, check=True)
    logits = np.memmap(out, np.float32, "r").reshape(len(ids), -1)
    return lambda begin, part: np.asarray(logits[begin : begin + len(part)])


def bundle_model(engine: Engine) -> Model:
    """A bundle's logits."""
    return lambda _, part: engine.logits(part)


def named_path(text: str) -> tuple[str, Path]:
    """``NAME=PATH``, for argparse."""
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    return name, Path(path)


def table(figures: dict[str, dict[str, float]]) -> list[str]:
    """The report in Markdown."""
    lines = ["| model | mean KLD | p99 KLD | top-1 | PPL |", "|---|---|---|---|---|"]
    for name, row in figures.items():
        kld = f"{row['mean_kld']:.5f} | {row['p99_kld']:.4f}"
        lines.append(f"| {name} | {kld} | {row['top1']:.4f} | {row['ppl']:.3f} |")
    return lines


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--bundle", type=named_path, action="append", required=True, metavar="NAME=PATH"
    )
    parser.add_argument("--peer", type=named_path, action="append", default=[], metavar="NAME=GGUF")
    parser.add_argument("--peers", type=Path, help="folder of peers/fetch.py")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--activations", choices=["int8", "float"], help="default: each's best")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    if arguments.peer and arguments.peers is None:
        parser.error("--peer needs --peers")
    heading = machine.heading(machine.describe())
    engines = {}
    for number, (name, path) in enumerate(arguments.bundle):
        wanted = arguments.activations if number else None  # a float reference has one mode only
        engines[name] = Engine(path, activations=wanted)
    reference = next(iter(engines.values()))
    ids = reference.tokenize(arguments.text.read_text(encoding="utf-8"))[: arguments.tokens]
    windows = [engine.manifest.limits.context_window_size for engine in engines.values()]
    chunk = min(arguments.chunk, *windows, len(ids))
    models = {name: bundle_model(engine) for name, engine in engines.items()}
    with tempfile.TemporaryDirectory() as scratch:
        for name, gguf in arguments.peer:
            folder = arguments.peers.resolve()
            models[name] = peer_model(folder, gguf, ids, chunk, Path(scratch))
        figures = measure(models, ids, chunk)
    print(heading)
    first = arguments.bundle[0][0]
    print(f"{len(ids)} tokens of {arguments.text.name} in chunks of {chunk}, against {first}")
    for name, engine in engines.items():
        print(f"{name}: {engine.info['variant']}, {engine.info['activations']} activations")
    print("\n".join(["", *table(figures)]))
    if arguments.json:
        text = json.dumps({"heading": heading, "tokens": len(ids), "chunk": chunk} | figures)
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
