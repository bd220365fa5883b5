"""onnxruntime-genai as a peer for the benches, in an environment that has it.

    ort_peer.py build MODEL OUT
    ort_peer.py bench MODEL THREADS REPEATS SPEC...

``build`` makes MODEL, a Hugging Face folder, an int4 model for CPUs with onnxruntime-genai's own
builder (accuracy level 4: int8 activations); a second run does nothing. ``bench`` prints one JSON
object in the shape of ``mlcbuild bench --json``, as llama_peer does: SPEC is ``prefill:TOKENS`` or
``decode:1:DEPTH:TOKENS``.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ANY_ID = (300, 31_000)  # ordinary tokens, of which a vocabulary may have fewer


def build(model: Path, out: Path) -> None:
    """The int4 model in ``out``."""
    if (out / "genai_config.json").exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(model)]
    command += ["-o", str(out), "-p", "int4", "-e", "cpu", "-c", str(out / "cache")]
    command += ["--extra_options", "int4_accuracy_level=4"]
    subprocess.run(command, check=True, stdout=sys.stderr)


class Peer:
    """A loaded model."""

    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime_genai as og  # type: ignore[import-not-found]  # another environment

        self._og = og
        config = og.Config(str(folder))
        options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = og.Model(config)
        settings = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))
        self._vocabulary = int(settings["model"]["vocab_size"])
        self._random = random.Random(1)

    def rates(self, depth: int, steps: int) -> tuple[float, float]:
        """Tokens per second of a prompt of ``depth`` up to its first token, and of decoding."""
        ids = [self._id() for _ in range(depth)]
        params = self._og.GeneratorParams(self._model)
        length = depth + steps + 1
        params.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = self._og.Generator(self._model, params)
        begin = time.perf_counter()
        generator.append_tokens(ids)
        generator.generate_next_token()
        middle = time.perf_counter()
        for _ in range(steps):
            generator.generate_next_token()
        end = time.perf_counter()
        return depth / (middle - begin), steps / (end - middle)

    def _id(self) -> int:
        low, high = ANY_ID
        return self._random.randrange(min(low, self._vocabulary // 2), min(high, self._vocabulary))


def measure(peer: Peer, spec: str, repeats: int) -> dict[str, Any]:
    """The median of ``repeats`` runs after one that warms up."""
    kind, *numbers = spec.split(":")
    *batch, last = map(int, numbers)
    if kind == "prefill":
        rates = [peer.rates(last, 0)[0] for _ in range(repeats + 1)]
        return {"kind": kind, "tokens": last, "tok_s": statistics.median(rates[1:])}
    sequences, depth = batch
    if sequences != 1:
        raise SystemExit("ort_peer decodes one sequence only")
    rates = [peer.rates(max(1, depth), last)[1] for _ in range(repeats + 1)]
    figures = {"kind": kind, "batch": 1, "depth": depth, "tokens": last}
    return {**figures, "tok_s": statistics.median(rates[1:])}


def peak_bytes() -> int:
    """The largest resident set of this process."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("Linux does not tell VmHWM")


def main() -> None:
    """Command line."""
    mode, *arguments = sys.argv[1:] or [""]
    if mode == "build" and len(arguments) == 2:
        build(Path(arguments[0]), Path(arguments[1]))
    elif mode == "bench" and len(arguments) > 3:
        folder, threads, repeats, *specs = arguments
        import onnxruntime_genai  # loading the library is not part of opening a model

        begin = time.perf_counter()
        peer = Peer(Path(folder), int(threads))
        peer.rates(1, 0)
        first = time.perf_counter() - begin
        results = [measure(peer, spec, int(repeats)) for spec in specs]
        record = {"results": results, "rss_peak_bytes": peak_bytes(), "first_token_s": first}
        record["version"] = f"onnxruntime-genai {onnxruntime_genai.__version__}"
        print(json.dumps(record))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
