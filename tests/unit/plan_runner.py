"""Lowers small models and runs their plans in Python, to test passes without a bundle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from mlcbuild.kernels.registry import get_kernel_set
from mlcbuild.passes.export_model import export_model
from mlcbuild.passes.lower_model import NATIVE_FUNCTIONS, Lowered, LoweringInput
from mlcbuild.passes.plan_expression import evaluate
from mlcbuild.quant.layers import Packing, rewrite_layers
from mlcbuild.quant.schemes import get_scheme
from mlcbuild.spec.attention import AttentionSpec
from mlcbuild.spec.limits import Limits
from mlcbuild.targets.registry import get_target
from mlcbuild.targets.target import Variant

Array = npt.NDArray[Any]

TARGET = get_target("linux-x86_64-cpu")
LIMITS = Limits(context_window_size=64, prefill_chunk_size=16, max_batch_size=4)
NO_ATTENTION = AttentionSpec(
    layers=1, heads=1, kv_heads=1, head_dim=16, rotary_dim=16, inv_freq=(1.0,) * 8
)
TABLE_DTYPES = {"float32": np.float32, "int32": np.int32, "int8": np.int8, "float16": np.float16}


def variant_named(name: str, scheme: str) -> Variant:
    return next(v for v in TARGET.variants(get_scheme(scheme)) if v.name == name)


def lowering_input(
    model: Any,
    attention: AttentionSpec = NO_ATTENTION,
    *,
    variant: str = "avx2",
    scheme: str = "q0f32",
    limits: Limits = LIMITS,
    vocab_size: int = 32,
) -> LoweringInput:
    """What ``lower_model`` takes for a model definition, as the lower stage makes it."""
    chosen = variant_named(variant, scheme)
    layout = TARGET.layout(get_scheme(scheme))
    assert layout is not None
    kernels = get_kernel_set(chosen.capabilities)
    rewrite_layers(model, Packing(get_scheme(scheme), layout, kernels, chosen.activations))
    mod, names = export_model(model, NATIVE_FUNCTIONS)
    return LoweringInput(
        mod=mod,
        param_names=names,
        kernels=kernels,
        attention=attention,
        limits=limits,
        target=TARGET.name,
        variant=chosen.name,
        activations=chosen.activations,
        capability=chosen.capabilities.features,
        layout=layout.id,
        vocab_size=vocab_size,
    )


def aligned(array: Array) -> Array:
    """A copy whose data begin at a multiple of 64 bytes, as kernels want it."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class PlanRunner:
    """A plan's functions over one arena, without attention (no tables, no key-value pages)."""

    def __init__(self, lowered: Lowered, params: Mapping[str, Array]) -> None:
        variant = next(
            v
            for v in (*TARGET.integer_variants, *TARGET.float_variants)
            if v.name == lowered.plan["variant"]
        )
        record = {"kind": "llvm", "mtriple": TARGET.triple, "mcpu": variant.capabilities.llvm_cpu}
        self.plan = lowered.plan
        self._library = tvm.compile(lowered.kernels, tvm.target.Target(record))
        self._params = [aligned(params[entry["name"]]) for entry in self.plan["params"]]
        size = max(function["arena_bytes"] for function in self.plan["functions"])
        self._arena = aligned(np.full(size, 0xFF, np.uint8))  # what nobody wrote reads as NaN

    def run(self, name: str, inputs: list[Array], **values: int) -> list[Array]:
        """The outputs of one function for values of its shape variables."""
        function = next(f for f in self.plan["functions"] if f["name"] == name)
        numbers = {i: values[variable] for i, variable in enumerate(function["vars"])}
        sizes = [evaluate(tuple(tokens), numbers) for tokens in function["exprs"]]
        tensors: list[Array] = []
        for kind, ref, offset, dtype, shape in function["tensors"]:
            dims = [sizes[index] for index in shape]
            if kind == "param":
                tensors.append(self._params[ref])
            elif kind == "input":
                tensors.append(aligned(inputs[ref]).reshape(dims))
            else:
                assert kind == "arena"
                nbytes = int(np.prod(dims)) * np.dtype(dtype).itemsize
                assert offset % 64 == 0
                assert offset + nbytes <= function["arena_bytes"]
                part = self._arena[offset : offset + nbytes]
                tensors.append(part.view(TABLE_DTYPES[dtype]).reshape(dims))
        views = [tvm.runtime.from_dlpack(tensor) for tensor in tensors]
        for kernel, args in function["calls"]:
            symbol = self.plan["symbol_prefix"] + self.plan["kernels"][kernel]
            actual = [views[ref] if kind == "t" else sizes[ref] for kind, ref in args]
            self._library[symbol](*actual)
        return [tensors[index].copy() for index in function["outputs"]]


def buffers_of(plan: Mapping[str, Any], function: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """(offset, bytes at the bounds, first call, last call) of everything in the arena.

    Told from the plan alone: every call writes its last tensor, a quantizing one its last three;
    what is read is what was written last at that place.
    """
    numbers = {i: plan["bounds"][name] for i, name in enumerate(function["vars"])}
    sizes = [evaluate(tuple(tokens), numbers) for tokens in function["exprs"]]
    found: list[list[int]] = []
    written: dict[tuple[int, int], list[int]] = {}

    def place(index: int) -> tuple[int, int]:
        _, _, offset, dtype, shape = function["tensors"][index]
        return offset, math.prod(sizes[i] for i in shape) * np.dtype(dtype).itemsize

    for number, (kernel, args) in enumerate(function["calls"]):
        arguments = [ref for kind, ref in args if kind == "t"]
        count = 3 if "quantize" in plan["kernels"][kernel] else 1
        for index in arguments[:-count]:
            if function["tensors"][index][0] == "arena":
                written[place(index)][3] = number
        for index in arguments[-count:]:
            assert function["tensors"][index][0] == "arena"
            written[place(index)] = [*place(index), number, number]
            found.append(written[place(index)])
    for index in function["outputs"]:
        written[place(index)][3] = len(function["calls"])
    return [tuple(entry) for entry in found]
