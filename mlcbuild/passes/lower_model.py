"""From a model definition to an execution plan and scheduled kernels, in named phases."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, tirx

from mlcbuild.errors import InternalError
from mlcbuild.kernels.tagged import KernelTag, build, read_tag
from mlcbuild.nn.attention import ATTENTION_CALL
from mlcbuild.passes.editor import op_name, single_block
from mlcbuild.passes.fuse_activation_quantize import fuse_activation_quantize
from mlcbuild.passes.fuse_residual import fuse_residual
from mlcbuild.passes.lower_nn_ops import lower_nn_ops
from mlcbuild.passes.plan_function import (
    AttentionKernels,
    Numbered,
    PlanFunction,
    attention_tags,
    page_shape,
)
from mlcbuild.passes.schedule_elementwise import schedule_elementwise
from mlcbuild.spec.attention import AttentionSpec
from mlcbuild.spec.kv import Window
from mlcbuild.spec.limits import Limits

PLAN_VERSION = 1
NATIVE_FUNCTIONS = ("embed", "batch_prefill")

Phase = tuple[str, Callable[[tvm.IRModule], tvm.IRModule]]


@dataclass(frozen=True)
class LoweringInput:
    """One variant's exported model and all that its plan needs besides.

    ``param_names`` are in the order of the packed tuple; ``vocab_size`` is the width of a row of
    logits; ``capability`` are the CPU flags that the loader asks for.
    """

    mod: tvm.IRModule
    param_names: list[str]
    kernels: Any
    attention: AttentionSpec
    limits: Limits
    target: str
    variant: str
    activations: str
    capability: tuple[str, ...]
    layout: str
    vocab_size: int


@dataclass
class Lowered:
    """A plan (JSON), the kernels as one TIR module, and the tag of each kernel.

    None is the tag of a kernel that no builder made: it has a generic schedule.
    """

    plan: dict[str, Any]
    kernels: tvm.IRModule
    tags: dict[str, KernelTag | None] = field(default_factory=dict)


def native_phases(kernels: Any) -> list[Phase]:
    """The phases of a native build, in order; each maps a module to a module."""
    keep = list(NATIVE_FUNCTIONS)
    transform = relax.transform

    return [
        ("select", lambda mod: transform.DeadCodeElimination(keep)(_select(mod, keep))),
        ("convert", lambda mod: lower_nn_ops(mod, kernels)),
        (
            "fuse",
            lambda mod: fuse_activation_quantize(fuse_residual(mod, kernels), kernels),
        ),
        (
            "legalize",
            tvm.ir.transform.Sequential(
                [
                    transform.LegalizeOps(skip_ops=["relax.reshape"]),
                    transform.AnnotateTIROpPattern(),
                    transform.FuseOps(),
                    transform.FuseTIR(),
                    transform.DeadCodeElimination(keep),
                ]
            ),
        ),
        ("schedule", lambda mod: schedule_elementwise(mod)),
    ]


def _select(mod: tvm.IRModule, keep: list[str]) -> tvm.IRModule:
    functions = {
        gvar: func
        for gvar, func in mod.functions.items()
        if gvar.name_hint in keep or not isinstance(func, relax.Function)
    }
    return tvm.IRModule(functions, attrs=mod.attrs)


def plan_bounds(limits: Limits, window: Window) -> dict[str, int]:
    """Upper bound of every shape variable."""
    pages = window.pages(
        limits.page_size,
        limits.context_window_size,
        limits.max_batch_size,
        limits.prefill_chunk_size,
    )
    return {
        "seq_len": limits.prefill_chunk_size,
        "logit_rows": limits.logit_rows,
        "kv_pages": pages,
        "kv_nnz": pages,
        "rope_positions": limits.context_window_size,
    }


def lower_model(source: LoweringInput, dump_dir: Path | None = None) -> Lowered:
    """Runs every phase and emits the plan; with ``dump_dir`` the IR after each phase as text."""
    mod = source.mod
    dump_module(dump_dir, 0, "export", mod)
    for index, (name, phase) in enumerate(native_phases(source.kernels), 1):
        mod = phase(mod)
        dump_module(dump_dir, index, name, mod)
    return _emit(source, mod)


def dump_module(dump_dir: Path | None, index: int, name: str, mod: tvm.IRModule) -> None:
    """Writes a module's text to a file in ``dump_dir``, which is made; nothing without one."""
    if dump_dir is None:
        return
    dump_dir.mkdir(parents=True, exist_ok=True)
    (dump_dir / f"{index:02d}-{name}.py").write_text(mod.script() + "\n", encoding="utf-8")


def _attention_scales(mod: tvm.IRModule) -> set[float]:
    scales = set()
    for func in mod.functions.values():
        if not isinstance(func, relax.Function):
            continue
        for binding in single_block(func).bindings:
            value = binding.value
            if op_name(value) != "relax.call_dps_packed":
                continue
            if str(value.args[0].global_symbol) == ATTENTION_CALL:
                scale = value.args[1].fields[2]
                scales.add(float(getattr(scale, "value", scale)))
    return scales


def _emit(source: LoweringInput, mod: tvm.IRModule) -> Lowered:
    limits, spec = source.limits, source.attention
    functions: dict[str, tirx.PrimFunc] = {
        gvar.name_hint: func
        for gvar, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
    }
    scales = _attention_scales(mod)
    if len(scales) > 1:
        raise InternalError(f"layers with different attention scales: {sorted(scales)}")
    attention: AttentionKernels | None = None
    for scale in scales:
        rope_tag, attention_tag = attention_tags(spec, limits, scale)
        attention = AttentionKernels(rope_tag.builder, attention_tag.builder)
        functions[rope_tag.builder] = build(source.kernels, rope_tag)
        functions[attention_tag.builder] = build(source.kernels, attention_tag)
    bounds = plan_bounds(limits, spec.window)
    kernels: Numbered[str] = Numbered()
    plans: list[PlanFunction] = []
    params: list[dict[str, Any]] = []
    for name in NATIVE_FUNCTIONS:
        plan = PlanFunction(name, spec, limits, kernels, attention)
        found = plan.lower(mod[name], source.param_names)
        entries = [{"name": n, "dtype": dtype, "shape": shape} for n, dtype, shape in found]
        if params and entries != params:
            raise InternalError(f"{name} takes other parameters than {NATIVE_FUNCTIONS[0]}")
        params = entries
        plans.append(plan)
    output_bytes = [plan.output_bytes(bounds) for plan in plans]
    temporary_base = sum(output_bytes)
    functions_json = [
        plan.finish(bounds, sum(output_bytes[:index]), temporary_base)
        for index, plan in enumerate(plans)
    ]
    names = list(kernels)
    pages = page_shape(spec, limits)
    document = {
        "plan_version": PLAN_VERSION,
        "target": source.target,
        "variant": source.variant,
        "activations": source.activations,
        "capability": list(source.capability),
        "layout": source.layout,
        "vocab_size": source.vocab_size,
        "kv": {
            "layers": spec.layers,
            "kv_heads": spec.kv_heads,
            "head_dim": spec.head_dim,
            "page_size": limits.page_size,
            "dtype": limits.kv_dtype,
            "layout": pages.layout,
            "page_bytes": pages.page_bytes,
            "window": spec.window.size,
            "sinks": spec.window.sinks,
        },
        "rope": {
            "rotary_dim": spec.rotary_dim,
            "inv_freq": list(spec.inv_freq),
            "attention_factor": spec.attention_factor,
        },
        "bounds": bounds,
        "params": params,
        "kernels": names,
        "functions": functions_json,
    }
    used = {name: functions[name] for name in names}
    prefix = _symbol_prefix(document, used)
    document["symbol_prefix"] = prefix
    tir = tvm.IRModule(
        {
            tvm.ir.GlobalVar(prefix + name): func.with_attr("global_symbol", prefix + name)
            for name, func in used.items()
        }
    )
    return Lowered(document, tir, {name: read_tag(func) for name, func in used.items()})


def _symbol_prefix(document: Mapping[str, Any], functions: Mapping[str, tirx.PrimFunc]) -> str:
    """A prefix from the content: kernels of several bundles can live in one binary."""
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode())
    for name, func in functions.items():
        digest.update(name.encode())
        digest.update(func.script().encode())
    return f"m{digest.hexdigest()[:12]}_"


__all__ = ["KernelTag", "Lowered", "LoweringInput", "lower_model", "native_phases", "plan_bounds"]
