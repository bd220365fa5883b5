"""Speed of the WebGPU kernels beside TVM's generic schedules, on this machine's adapter.

Software adapters tell ratios, nothing about a GPU's speed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import wgpu
from tvm import relax

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from mlcbuild.arch.registry import get_architecture
from mlcbuild.nn.attention import ATTENTION_CALL
from mlcbuild.nn.layers import GatedMLP
from mlcbuild.passes.compile_web import kernel_passes
from mlcbuild.passes.editor import op_name
from mlcbuild.passes.web_model import WebInput, build_web_module
from mlcbuild.quant.layers import rewrite_layers
from mlcbuild.quant.row_layers import RowPacking
from mlcbuild.quant.schemes import SCHEMES
from mlcbuild.spec.limits import Limits
from tests.unit.wgsl_runner import TARGET, Kernel, compile_kernels, device

_COMMON: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
MODELS: dict[str, dict[str, Any]] = {
    "smollm2-135m": _COMMON
    | {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
    },
    # The shape of a model of 1.1 billion parameters, with a quarter of its layers.
    "1b": _COMMON
    | {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 6,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
    },
}
KINDS = ("ours", "generic")
_HEADER = (
    f"{'model':13s} {'scheme':8s} {'function':13s} {'rows':>4s} {'ours':>13s} {'generic':>13s} "
    f"{'ratio':>8s}  {'shaders, ours':>14s} {'generic':>14s}"
)


class PlainPacking(RowPacking):
    """Layers one by one, as the generic schedules take them."""

    def gated(self, layer: GatedMLP) -> None:
        """No kernel of both halves."""


def module_of(model: str, scheme: str, own: bool) -> tvm.IRModule:
    """The fused and scheduled module of a model."""
    config = dict(MODELS[model])
    architecture = get_architecture("llama")
    parsed = architecture.config.read_config(config)
    network = architecture.model.Model(parsed)
    packing = (RowPacking if own else PlainPacking)(SCHEMES[scheme])
    rewrite_layers(network, packing)
    source = WebInput(
        model=network,
        attention=architecture.model.attention_spec(parsed),
        limits=Limits(2048, 512, 1, kv_dtype=SCHEMES[scheme].kv_dtype),
        model_type="llama",
        scheme=scheme,
        vocab_size=parsed.vocab_size,
    )
    with TARGET:
        passes = tvm.transform.Sequential(kernel_passes(TARGET, own_kernels=own))
        return passes(build_web_module(source, TARGET))


@dataclass
class Dispatch:
    """One launch of a kernel."""

    name: str
    kernel: Kernel
    group: Any
    grid: tuple[int, int, int]
    shape: str


class Step:
    """A function of a model with everything but attention, on the device."""

    def __init__(self, module: tvm.IRModule, name: str, rows: int) -> None:
        self.kernels = compile_kernels(module)
        self._rows = rows
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        self._done = device().create_buffer(size=4, usage=usage)
        self._rng = np.random.default_rng(0)
        self._buffers: dict[Any, tuple[Any, tuple[int, ...]]] = {}
        self.dispatches: list[Dispatch] = []
        func = module[name]
        for binding in func.body.blocks[0].bindings:
            self._add(binding.var, binding.value)

    def _shape(self, ty: Any) -> tuple[int, ...]:
        return tuple(getattr(size, "value", self._rows) for size in ty.shape.values)

    def _buffer(self, ty: Any) -> tuple[Any, tuple[int, ...]]:
        """A buffer of random contents: words of bits, small floats, zeros for indices."""
        shape, dtype = self._shape(ty), str(ty.dtype)
        if dtype.startswith("float"):
            data = ((self._rng.random(shape, np.float32) - 0.5) / 10).astype(dtype)
        elif dtype == "uint32":
            data = self._rng.integers(0, 2**32, shape, dtype=np.uint32)
        else:
            data = np.zeros(shape, dtype)
        contents = data.tobytes() + bytes(-data.nbytes % 4)
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        return device().create_buffer_with_data(data=contents, usage=usage), shape

    def _of(self, var: Any) -> tuple[Any, tuple[int, ...]]:
        if var not in self._buffers:
            self._buffers[var] = self._buffer(var.ty)
        return self._buffers[var]

    def _add(self, var: Any, value: Any) -> None:
        if op_name(value) == "relax.reshape":
            buffer, _ = self._of(value.args[0])
            self._buffers[var] = buffer, self._shape(var.ty)
        elif op_name(value) == "relax.call_tir":
            name = value.args[0].name_hint
            kernel = self.kernels[name]
            places = [self._of(field) for field in value.args[1].fields] + [self._of(var)]
            grid, words = kernel.arguments([shape for _, shape in places], ())
            group = kernel.bind([buffer for buffer, _ in places], words)
            shapes = "x".join(str(n) for n in places[1][1])
            self.dispatches.append(Dispatch(name, kernel, group, grid, shapes))
        elif op_name(value) == "relax.call_dps_packed":
            assert value.args[0].global_symbol == ATTENTION_CALL
        elif not isinstance(value, relax.TupleGetItem | relax.Tuple | relax.Var):
            raise AssertionError(f"an unknown value: {value}")

    def seconds(self, dispatches: list[Dispatch]) -> float:
        """Time of some launches in one submission."""
        begin = time.perf_counter()
        encoder = device().create_command_encoder()
        step = encoder.begin_compute_pass()
        for dispatch in dispatches:
            step.set_pipeline(dispatch.kernel.pipeline)
            step.set_bind_group(0, dispatch.group)
            step.dispatch_workgroups(*dispatch.grid)
        step.end()
        device().queue.submit([encoder.finish()])
        device().queue.read_buffer(self._done)  # waits for everything before
        return time.perf_counter() - begin


def compare(model: str, scheme: str, rows: int, rounds: int, details: bool) -> str:
    """One line of the table; with ``details``, the time of each kernel is printed."""
    name = "batch_decode" if rows == 1 else "batch_prefill"
    steps: dict[str, Step] = {}
    times: dict[str, list[float]] = {}
    sizes: dict[str, str] = {}
    by_kernel: dict[str, dict[str, list[tuple[float, int, str]]]] = {}
    for kind in KINDS:
        module = module_of(model, scheme, kind == "ours")
        steps[kind] = Step(module, name, rows)
        kernels = steps[kind].kernels
        size = sum(len(kernel.code) for kernel in kernels.values())
        sizes[kind] = f"{len(kernels)} of {size / 1000:.0f} kB"
        times[kind], by_kernel[kind] = [], {}
        steps[kind].seconds(steps[kind].dispatches)  # compiles the shaders
    for _ in range(rounds):
        for kind, step in steps.items():
            times[kind].append(step.seconds(step.dispatches))
    for _ in range(max(3, rounds // 2) if details else 0):
        for kind, step in steps.items():
            for one in {d.name for d in step.dispatches}:
                some = [d for d in step.dispatches if d.name == one]
                found = by_kernel[kind].setdefault(one, [])
                found.append((step.seconds(some), len(some), some[0].shape))
    median = {kind: statistics.median(times[kind]) for kind in KINDS}
    for kind, kernels_of in by_kernel.items():
        rows_of = []
        for one, runs in kernels_of.items():
            rows_of.append((statistics.median(r[0] for r in runs), one, runs[0][1], runs[0][2]))
        for seconds, one, count, shape in sorted(rows_of, reverse=True):
            print(f"  {kind:8s} {one:40s} {count:4d} x {shape:12s} {seconds * 1e3:9.2f} ms")
    ratio = median["generic"] / median["ours"]
    return (
        f"{model:13s} {scheme:8s} {name:13s} {rows:4d} {median['ours'] * 1e3:10.1f} ms "
        f"{median['generic'] * 1e3:10.1f} ms {ratio:6.2f} x  {sizes['ours']:>14s} "
        f"{sizes['generic']:>14s}"
    )


def main() -> int:
    """Run the comparisons asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="smollm2-135m,1b")
    parser.add_argument("--schemes", default="q4f16_1,q4f32_1,q0f16,q0f32")
    parser.add_argument("--rows", default="1,32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", action="store_true", help="the time of each kernel, too")
    options = parser.parse_args()
    print(f"adapter: {device().adapter.info['device']}; attention is left out")
    print(_HEADER)
    for model in options.models.split(","):
        for scheme in options.schemes.split(","):
            for rows in options.rows.split(","):
                line = compare(model, scheme, int(rows), options.rounds, options.kernels)
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
