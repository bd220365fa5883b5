"""Speed of the CPU kernels: GB/s of weights or cache read, GFLOP/s, at real models' shapes."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from mlcbuild.kernels.cpu.set import CpuKernels
from mlcbuild.kernels.cpu.tiles import Tiles, default_tiles
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.weights.dtypes import numpy_dtype
from tests.unit import kernel_runner

VARIANTS = {variant.isa: variant for variant in kernel_runner.VARIANTS}
# (outputs, inputs): SmolLM2-135M's layers and head, then a large layer.
SHAPES = [(960, 576), (3072, 576), (576, 1536), (49152, 576), (8192, 2048), (2048, 8192)]
# What is measured: the builder, its arguments, bytes of a weight.
KINDS: dict[str, tuple[str, dict[str, Any], float]] = {
    f"linear_int{bits}{kind}": (
        f"linear_int{bits}{kind}",
        {"group_size": 32, "scale_dtype": "float16", "zero_point": zero_point},
        bits / 8 + 2 / 32,
    )
    for bits, zero_point in ((4, 7), (8, 128), (3, 3))
    for kind in ("", "_float")
}
for dtype in ("float16", "bfloat16"):
    KINDS[f"linear_dense_{dtype}"] = ("linear_dense", {"weight_dtype": dtype}, 2)
# A layer of a decode step finds nothing of its weights in the caches: enough copies of them, used
# in turn, to fill more than the last level.
COLD_BYTES = 96 << 20


def build(variant: Capabilities, functions: dict[str, Any]) -> Any:
    """One library of some kernels."""
    target = tvm.target.Target(
        {
            "kind": "llvm",
            "mtriple": "x86_64-linux-gnu",
            "mcpu": variant.llvm_cpu,
            "mattr": list(variant.llvm_features),
        }
    )
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    return tvm.compile(tvm.IRModule(named), target)


def seconds_of(call: Callable[..., Any], sets: list[list[Any]], repeats: int) -> float:
    """Time of a call after two to warm up; each takes the next of the sets of arguments.

    The first quartile: on a shared machine the median tells more of the neighbours.
    """
    times = []
    for repetition in range(repeats + 2):
        begin = time.perf_counter()
        call(*sets[repetition % len(sets)])
        times.append(time.perf_counter() - begin)
    return statistics.quantiles(times[2:], n=4)[0]


def report(name: str, seconds: float, read: float, flops: float) -> None:
    """One line of results."""
    print(
        f"{name:44s} {seconds * 1e6:10.1f} us {read / seconds / 1e9:8.1f} GB/s "
        f"{flops / seconds / 1e9:8.1f} GFLOP/s",
        flush=True,
    )


def tensors(function: Any, n: int, free: dict[str, int], rng: np.random.Generator) -> list[Any]:
    """Arguments for a PrimFunc: random floats, small integers, dynamic sizes from ``free``."""
    result = []
    for parameter in function.params:
        buffer = parameter.ty
        shape = [free.get(d.name, n) if hasattr(d, "name") else int(d) for d in buffer.shape]
        dtype = str(buffer.dtype)
        if "float" in dtype:
            value = rng.random(shape, dtype="float32").astype(numpy_dtype(dtype))
        elif parameter.name == "w":
            value = rng.integers(-(2**31), 2**31, shape, dtype="int32")
        else:
            value = np.zeros(shape, dtype)
        result.append(tvm.runtime.tensor(value))
    return result


def bench_linear(
    variant: Capabilities,
    kind: str,
    rows: list[int],
    repeats: int,
    only: str,
    changes: dict[str, dict[str, int]],
) -> None:
    """Every shape of one kind of linear layer, with some fields of its tiles changed."""
    builder, arguments, weight_bytes = KINDS[kind]
    functions = {}
    for outputs, inputs in SHAPES:
        name = f"{kind}_{outputs}x{inputs}"
        if only in name:
            tiles = changed_tiles(default_tiles(variant, builder, outputs), changes)
            kernels = CpuKernels(variant, tiles)
            functions[name] = getattr(kernels, builder)(outputs, inputs, **arguments)
    if not functions:
        return
    library = build(variant, functions)
    rng = np.random.default_rng(0)
    for name, function in functions.items():
        outputs, inputs = (int(v) for v in name.rsplit("_", 1)[1].split("x"))
        read = outputs * inputs * weight_bytes
        for n in rows:
            if n > 1 and outputs > 8192:
                continue
            copies = max(1, int(COLD_BYTES / read)) if n == 1 else 1
            sets = [tensors(function, n, {}, rng) for _ in range(copies)]
            seconds = seconds_of(library[name], sets, max(repeats, copies) if n < 32 else 8)
            report(f"{name} n={n}", seconds, read, 2.0 * n * outputs * inputs)


def bench_attention(kernels: CpuKernels, rows: list[int], repeats: int, context: int) -> None:
    """Decode and prefill attention over a context, for one row with pages that are not cached."""
    for heads, kv_heads, head_dim in ((9, 3, 64), (32, 8, 64), (8, 8, 128)):
        function = kernels.paged_attention(heads, kv_heads, head_dim, 16, "float16", 0.125)
        library = build(kernels.capabilities, {"attention": function})
        for n in rows:
            pages = context // 16
            rng = np.random.default_rng(0)
            first = context - n
            size = context * kv_heads * head_dim * 2 * 2
            sets = []
            for _ in range(COLD_BYTES // size + 1 if n == 1 else 1):
                arguments = tensors(function, n, {"pages": pages, "nnz": pages}, rng)
                arguments[2] = tvm.runtime.tensor(np.arange(first, context, dtype="int32"))
                order = rng.permutation(pages).astype("int32")
                arguments[4] = tvm.runtime.tensor(order)
                sets.append(arguments)
            seconds = seconds_of(library["attention"], sets, max(repeats, len(sets)))
            seen = n * (first + context + 1) / 2
            report(
                f"paged_attention {heads}/{kv_heads}x{head_dim} n={n} of {context}",
                seconds,
                n * size,
                seen * heads * head_dim * 4,
            )


def bench_rows(kernels: CpuKernels, rows: list[int], repeats: int) -> None:
    """The row-wise kernels of SmolLM2-135M."""
    functions = {
        "quantize_rows": kernels.quantize_rows(576),
        "rms_norm_quantize": kernels.rms_norm_quantize(576, 1e-5),
        "silu_mul_quantize": kernels.silu_mul_quantize(1536),
        "rope_append": kernels.rope_append(9, 3, 64, 64, 16, "float16"),
        "embedding_int4": kernels.embedding_int4(49152, 576, 32, "float16", 7),
    }
    library = build(kernels.capabilities, functions)
    for name, function in functions.items():
        for n in rows:
            arguments = tensors(
                function, n, {"pages": 64, "rope_positions": 8}, np.random.default_rng(0)
            )
            seconds = seconds_of(library[name], [arguments], repeats)
            moved = sum(
                a.numpy().nbytes for a in arguments if a.shape[0] == n and len(a.shape) == 2
            )
            report(f"{name} n={n}", seconds, moved, 0.0)


def changed_tiles(tiles: Tiles, changes: dict[str, dict[str, int]]) -> Tiles:
    """Tiles with some fields of some forms changed."""
    return replace(tiles, **{f: replace(getattr(tiles, f), **c) for f, c in changes.items()})


def main() -> int:
    """Run the benchmarks asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", choices=VARIANTS, default="avx512vnni")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,8,128", help="batch sizes, with commas")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", default="", help="linear_int4[:576x1536], attention, rows ...")
    parser.add_argument("--context", type=int, default=512, help="tokens, for attention")
    parser.add_argument("--tiles", default="{}", help='fields of Tiles: {"one": {"ahead": 0}}')
    options = parser.parse_args()
    tvm.get_global_func("runtime.config_threadpool")(1, options.threads)
    variant = VARIANTS[options.isa]
    kernel_runner.skip_unless_runnable(variant)
    changes = json.loads(options.tiles)
    kernels = CpuKernels(variant)
    rows = [int(n) for n in options.rows.split(",")]
    group, _, shape = options.only.partition(":")
    for kind in KINDS:
        if group in ("", kind):
            bench_linear(variant, kind, rows, options.repeats, shape, changes)
    if options.only in ("", "attention"):
        bench_attention(kernels, rows, options.repeats, options.context)
    if options.only in ("", "rows"):
        bench_rows(kernels, rows, options.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
