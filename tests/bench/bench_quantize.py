"""How fast and how exactly weights are quantized: ``python tests/bench/bench_quantize.py [MODEL]``.

Without a model, random weights; with a checkpoint's folder or GGUF file, all its matrices.
Prints one JSON line for each rule: relative squared error and million weights per second.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlcbuild.quant.groupwise import dequantize, quantize
from mlcbuild.quant.schemes import get_scheme
from mlcbuild.sources.checkpoint import open_checkpoint
from mlcbuild.spec.scheme import QuantScheme


def random_weights() -> Iterator[npt.NDArray[Any]]:
    """Normal and heavy-tailed (Student's t, 5 degrees of freedom) matrices."""
    generator = np.random.default_rng(0)
    for _ in range(2):
        yield generator.standard_normal((2048, 2048), dtype=np.float32) * np.float32(0.02)
        yield (generator.standard_t(5, (2048, 2048)) * 0.02).astype(np.float32)


def model_weights(path: Path) -> Iterator[npt.NDArray[Any]]:
    """Every matrix of a checkpoint."""
    checkpoint = open_checkpoint(path)
    for name, info in checkpoint.tensors.items():
        if len(info.shape) == 2:
            yield checkpoint.read(name)


def measure(
    scheme: QuantScheme, matrices: Iterator[npt.NDArray[Any]], threads: int
) -> dict[str, object]:
    """Total relative squared error, overall and median speed."""
    error = energy = seconds = 0.0
    count = 0
    rates = []
    for matrix in matrices:
        exact = np.asarray(matrix, dtype=np.float32)
        begin = time.perf_counter()
        quantized = quantize(exact, scheme, threads=threads)
        taken = time.perf_counter() - begin
        difference = dequantize(quantized, scheme) - exact
        error += float(np.square(difference, dtype=np.float64).sum())
        energy += float(np.square(exact, dtype=np.float64).sum())
        seconds += taken
        count += exact.size
        rates.append(exact.size / taken / 1e6)
    return {
        "scheme": scheme.name,
        "scale_rule": scheme.scale_rule,
        "max_code": scheme.max_code,
        "weights": count,
        "relative_mse": round(error / energy, 6),
        "mweights_s": round(count / seconds / 1e6, 1),
        "mweights_s_median": round(statistics.median(rates), 1),
    }


def main() -> int:
    """Runs the rules one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="a checkpoint's folder or GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scheme", default="q4f16_1")
    options = parser.parse_args()
    scheme = get_scheme(options.scheme)
    for variant in (
        dataclasses.replace(scheme, scale_rule="absmax"),
        dataclasses.replace(scheme, max_code=2 * (scheme.zero_point or 0)),
        scheme,
    ):
        matrices = model_weights(options.model) if options.model else random_weights()
        print(json.dumps(measure(variant, matrices, options.threads)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
