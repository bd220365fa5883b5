"""Quantizes activations where they are made: norm + quantize and silu_mul + quantize."""

from __future__ import annotations

from typing import Any

import tvm

from mlcbuild.kernels.tagged import KernelTag
from mlcbuild.passes.editor import Emitter, FunctionEditor, ModuleEditor

# producer: (the fused kernel, the producer's argument that says how wide its rows are)
FUSED = {
    "rms_norm": ("rms_norm_quantize", "hidden_size"),
    "silu_mul": ("silu_mul_quantize", "intermediate_size"),
}


def fuse_activation_quantize(mod: tvm.IRModule, kernels: Any) -> tvm.IRModule:
    """quantize_rows(producer(x)) -> producer_quantize(x) where nothing else reads the floats."""
    module = ModuleEditor(mod, kernels)

    def rewrite(func: FunctionEditor) -> list[tuple[Any, Any]]:
        out = Emitter("quantized")
        for var, value in func.bindings:
            fused = _fuse(module, func, value)
            out.bindings.append((var, value if fused is None else fused))
        return out.bindings

    return module.edit(rewrite)


def _fuse(module: ModuleEditor, func: FunctionEditor, value: Any) -> Any:
    tag = module.tag_of(value)
    if tag is None or tag.builder != "quantize_rows":
        return None
    source = func.through_reshapes(value.args[1].fields[0], single_use=True)
    if func.uses[source] != 1:
        return None
    producer = func.definition(source)
    producer_tag = module.tag_of(producer)
    if producer_tag is None or producer_tag.builder not in FUSED:
        return None
    name, width = FUSED[producer_tag.builder]
    if producer_tag.get(width) != tag.get("in_features"):
        return None  # the reshape between them cuts rows: other columns share a scale
    fused = KernelTag(name, producer_tag.args)
    return module.call(fused, list(producer.args[1].fields), list(value.ty.fields))
