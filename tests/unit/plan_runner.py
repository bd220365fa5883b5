"""Lowers small models and runs their plans in Python, to test passes without a bundle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm

from mlcbuild.kernels.registry import get_kernel_set
from mlcbuild.passes.export_model import export_model
from mlcbuild.passes.lower_model import NATIVE_FUNCTIONS, Lowered, LoweringInput
from mlcbuild.passes.plan_expression import evaluate
from mlcbuild.quant.layers import Packing, rewrite_layers
from mlcbuild.quant.schemes import get_scheme
from mlcbuild.spec.attention import AttentionSpec
from mlcbuild.spec.limits import Limits
from mlcbuild.targets.registry import get_plan_target
from mlcbuild.targets.target import Variant
from tests.unit.kernel_runner import Array, aligned, as_tensor

TARGET = get_plan_target("linux-x86_64-cpu")
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
    kernels = get_kernel_set(chosen.capabilities)(chosen.capabilities)
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


_COMPILED: dict[tuple[str, str], Any] = {}


def compiled_kernel(func: Any, cpu: str) -> Any:
    """A kernel as a function; plans that share a kernel share its machine code."""
    named = func.with_attr("global_symbol", "kernel")
    key = (named.script(), cpu)
    if key not in _COMPILED:
        target = tvm.target.Target({"kind": "llvm", "mtriple": TARGET.triple, "mcpu": cpu})
        _COMPILED[key] = tvm.compile(tvm.IRModule({"kernel": named}), target)["kernel"]
    return _COMPILED[key]


class PlanRunner:
    """A plan's functions over one arena, and ``pages`` pages of each layer for attention."""

    def __init__(self, lowered: Lowered, params: Mapping[str, Array], pages: int = 0) -> None:
        variant = next(
            v
            for v in (*TARGET.integer_variants, *TARGET.float_variants)
            if v.name == lowered.plan["variant"]
        )
        self.plan = lowered.plan
        prefix = self.plan["symbol_prefix"]
        self._kernels = [
            compiled_kernel(lowered.kernels[prefix + name], variant.capabilities.llvm_cpu)
            for name in self.plan["kernels"]
        ]
        self._params = [aligned(params[entry["name"]]) for entry in self.plan["params"]]
        size = max(function["arena_bytes"] for function in self.plan["functions"])
        self._arena = aligned(np.full(size, 0xFF, np.uint8))  # what nobody wrote reads as NaN
        self.layers: list[Array] = []
        self.reset_pages(pages)

    def reset_pages(self, pages: int) -> None:
        """Pages in which nothing is written: they read as NaN."""
        kv = self.plan["kv"]
        empty = np.full((pages, kv["page_bytes"]), 0xFF, np.uint8)
        self.layers = [aligned(empty) for _ in range(kv["layers"])]

    def run(
        self,
        name: str,
        inputs: list[Array],
        tables: Mapping[str, Array] | None = None,
        **values: int,
    ) -> list[Array]:
        """The outputs of one function for values of its shape variables and of meta tables."""
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
            elif kind == "meta":
                assert tables is not None
                assert list(tables[ref].shape) == dims, ref
                tensors.append(aligned(tables[ref].astype(dtype)))
            elif kind == "kv":
                assert offset == 0
                tensors.append(self.layers[ref].view(TABLE_DTYPES[dtype]).reshape(dims))
            else:
                assert kind == "arena"
                nbytes = int(np.prod(dims)) * np.dtype(dtype).itemsize
                assert offset % 64 == 0
                assert offset + nbytes <= function["arena_bytes"]
                part = self._arena[offset : offset + nbytes]
                tensors.append(part.view(TABLE_DTYPES[dtype]).reshape(dims))
        views = [as_tensor(tensor) for tensor in tensors]
        for kernel, args in function["calls"]:
            actual = [views[ref] if kind == "t" else sizes[ref] for kind, ref in args]
            self._kernels[kernel](*actual)
        return [tensors[index].copy() for index in function["outputs"]]


@dataclass
class Sequence:
    """The pages of one sequence and how many of its tokens are in them."""

    length: int = 0
    pages: list[int] = field(default_factory=list)
    dropped: int = 0  # pages behind the sink pages that are no longer in the list


class ModelRunner:
    """A whole model's plan: sequences in pages that are handed out and taken back."""

    def __init__(self, lowered: Lowered, params: Mapping[str, Array]) -> None:
        self._runner = PlanRunner(lowered, params)
        self.plan = lowered.plan
        self.free: list[int] = []
        self.sequences: dict[str, Sequence] = {}
        rope, bound = self.plan["rope"], self.plan["bounds"]["rope_positions"]
        angles = np.arange(bound)[:, None] * np.array(rope["inv_freq"], np.float64)
        cos_sin = np.concatenate([np.cos(angles), np.sin(angles)], 1)
        self._rope = (cos_sin * rope["attention_factor"]).astype(np.float32)

    def reset(self, pages: int | None = None) -> ModelRunner:
        """Forgets everything; as many pages as the plan allows unless told otherwise."""
        pages = self.plan["bounds"]["kv_pages"] if pages is None else pages
        self._runner.reset_pages(pages)
        self.free = list(range(pages))
        self.sequences = {}
        return self

    def step(self, work: Mapping[str, list[int]], drop: bool = True) -> dict[str, Array]:
        """Appends tokens to sequences; gives the logits [tokens, vocab] of each.

        With ``drop`` pages that no row of this or of a later step can see are taken back first.
        """
        kv = self.plan["kv"]
        size, window, sinks = kv["page_size"], kv["window"], kv["sinks"]
        columns: dict[str, list[int]] = {
            name: [] for name in ("positions", "slots", "page_begin", "page_values", "page_skip")
        }
        for name, tokens in work.items():
            sequence = self.sequences.setdefault(name, Sequence())
            sink_pages = -(-sinks // size)
            if drop and window:
                seen_from = max(sequence.length - window + 1, 0) // size
                count = max(0, seen_from - sink_pages - sequence.dropped)
                gone = sequence.pages[sink_pages : sink_pages + count]
                del sequence.pages[sink_pages : sink_pages + count]
                sequence.dropped += len(gone)
                self.free += gone
                for page in gone:  # whoever still reads them gets NaN
                    for layer in self._runner.layers:
                        layer[page] = 0xFF
            begin = len(columns["page_values"])
            for _ in tokens:
                if sequence.length % size == 0:
                    sequence.pages.append(self.free.pop())
                columns["positions"].append(sequence.length)
                columns["slots"].append(sequence.pages[-1] * size + sequence.length % size)
                columns["page_begin"].append(begin)
                columns["page_skip"].append(sequence.dropped)
                sequence.length += 1
            columns["page_values"] += sequence.pages
        tables = {name: np.array(values, np.int32) for name, values in columns.items()}
        tables["rope_cos_sin"] = self._rope
        ids = np.array([token for tokens in work.values() for token in tokens], np.int32)
        values = {
            "seq_len": len(ids),
            "logit_rows": len(ids),
            "kv_pages": len(self._runner.layers[0]),
            "kv_nnz": len(tables["page_values"]),
            "rope_positions": len(self._rope),
        }
        assert all(values[name] <= self.plan["bounds"][name] for name in values)
        (embeddings,) = self._runner.run("embed", [ids], tables, **values)
        positions = np.arange(len(ids), dtype=np.int32)
        inputs = [embeddings[None], positions]
        (logits,) = self._runner.run("batch_prefill", inputs, tables, **values)
        ends = np.cumsum([len(tokens) for tokens in work.values()])
        return dict(zip(work, np.split(logits[0], ends[:-1]), strict=True))

    def prefill(self, name: str, tokens: list[int], chunk: int, drop: bool = True) -> Array:
        """The logits of all tokens of a sequence, ``chunk`` rows at a time."""
        parts = [
            self.step({name: tokens[start : start + chunk]}, drop)[name]
            for start in range(0, len(tokens), chunk)
        ]
        return np.concatenate(parts)


def packed_float(values: Mapping[str, Array], plan: Mapping[str, Any]) -> dict[str, Array]:
    """Unquantized parameters in the plan's shapes: matrices as [rows/16, columns, 16]."""
    packed = {}
    for entry in plan["params"]:
        value = values[entry["name"]]
        if len(entry["shape"]) == 3:
            blocks, columns, lanes = entry["shape"]
            padded = np.zeros((blocks * lanes, columns), value.dtype)
            padded[: len(value)] = value
            value = padded.reshape(blocks, lanes, columns).transpose(0, 2, 1)
        packed[entry["name"]] = value.astype(entry["dtype"])
    return packed


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
