"""Lets a matrix product add the residual itself: one pass over memory less per layer half."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm_ffi import structural_equal

from mlcbuild.passes.editor import Emitter, FunctionEditor, ModuleEditor, shape_of

LINEAR_BUILDERS = (
    *(f"linear_int{bits}{kind}" for bits in (3, 4, 8) for kind in ("", "_float")),
    "linear_dense",
)


def fuse_residual(mod: tvm.IRModule, kernels: Any) -> tvm.IRModule:
    """add(residual, linear(x)) -> linear(x, residual) where the product has no other use."""
    module = ModuleEditor(mod, kernels)

    def rewrite(func: FunctionEditor) -> list[tuple[Any, Any]]:
        out = Emitter("residual")
        for var, value in func.bindings:
            fused = _fuse(module, func, out, value)
            out.bindings.append((var, value if fused is None else fused))
        return out.bindings

    return module.edit(rewrite)


def _fuse(module: ModuleEditor, func: FunctionEditor, out: Emitter, value: Any) -> Any:
    tag = module.tag_of(value)
    if tag is None or tag.builder != "add":
        return None
    operands = list(value.args[1].fields)
    for own, other in ((1, 0), (0, 1)):
        linear_var = func.through_reshapes(operands[own], single_use=True)
        linear = func.definition(linear_var)
        linear_tag = module.tag_of(linear)
        if linear_tag is None or linear_tag.builder not in LINEAR_BUILDERS:
            continue
        if linear_tag.get("residual") or func.uses[linear_var] != 1:
            continue
        shape = shape_of(linear_var)
        residual = out.reshape(operands[other], shape, "float32")
        args = [*linear.args[1].fields, residual]
        call = module.call(linear_tag.with_args(residual=True), args, linear_var.ty)
        if structural_equal(relax.ShapeExpr(shape), value.ty.shape):
            return call
        rows = out.emit(call, linear_var.ty)
        return relax.op.reshape(rows, value.ty.shape)
    return None
