"""Replaces norms, gated activations, row selection and additions by the kernel set's kernels."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm_ffi import structural_equal

from mlcbuild.kernels.tagged import KernelTag
from mlcbuild.passes.editor import (
    Emitter,
    FunctionEditor,
    ModuleEditor,
    int_of,
    op_name,
    shape_of,
    tensor_type,
)


def lower_nn_ops(mod: tvm.IRModule, kernels: Any) -> tvm.IRModule:
    """What no kernel fits stays as it is, for the generic legalization behind this pass."""
    module = ModuleEditor(mod, kernels)

    def rewrite(func: FunctionEditor) -> list[tuple[Any, Any]]:
        out = Emitter("lower")
        for var, value in func.bindings:
            new = _lower(module, func, out, value)
            out.bindings.append((var, value if new is None else new))
        return out.bindings

    return module.edit(rewrite)


def _rows(out: Emitter, x: Any) -> tuple[Any, Any, int] | None:
    """X [n, k], [1, n, k] or [b, 1, k] as [rows, k]; None for other shapes."""
    shape = shape_of(x)
    columns = int_of(shape[-1]) if len(shape) > 1 else None
    if columns is None or x.ty.dtype != "float32":
        return None
    free = [dim for dim in shape[:-1] if int_of(dim) != 1]
    if len(free) > 1:
        return None
    rows = free[0] if free else shape[0]
    return out.reshape(x, [rows, columns], "float32"), rows, columns


def _lower(module: ModuleEditor, func: FunctionEditor, out: Emitter, value: Any) -> Any:
    name = op_name(value)
    if name == "relax.nn.rms_norm":
        return _rms_norm(module, out, value)
    if name == "relax.multiply":
        return _silu_mul(module, func, out, value)
    if name == "relax.add":
        return _add(module, out, value)
    if name == "relax.take":
        return _take_rows(module, out, value)
    return None


def _finish(out: Emitter, call: Any, ty: Any, like: Any) -> Any:
    rows = out.emit(call, ty)
    return relax.op.reshape(rows, relax.ShapeExpr(shape_of(like)))


def _rms_norm(module: ModuleEditor, out: Emitter, value: Any) -> Any:
    x, weight = value.args[0], value.args[1]
    axes = [int(axis) for axis in value.attrs.axes]
    if axes not in ([-1], [len(shape_of(x)) - 1]):
        return None
    flat = _rows(out, x)
    if flat is None:
        return None
    rows, count, columns = flat
    if weight.ty.dtype != "float32" or [int_of(dim) for dim in shape_of(weight)] != [columns]:
        return None
    tag = KernelTag("rms_norm", (("eps", float(value.attrs.epsilon)), ("hidden_size", columns)))
    ty = tensor_type([count, columns], "float32")
    return _finish(out, module.call(tag, [rows, weight], ty), ty, value)


def _silu_mul(module: ModuleEditor, func: FunctionEditor, out: Emitter, value: Any) -> Any:
    """multiply(silu(split(x)[0]), split(x)[1]), either way round, with a split in two halves."""
    for gate, other in ((value.args[0], value.args[1]), (value.args[1], value.args[0])):
        split = _gated_split(func, gate, other)
        if split is not None:
            break
    else:
        return None
    source = split.args[0]
    axis = int(split.attrs.axis)
    if axis not in (-1, len(shape_of(source)) - 1) or len(split.ty.fields) != 2:
        return None
    flat = _rows(out, source)
    if flat is None or flat[2] % 2:
        return None
    rows, count, columns = flat
    tag = KernelTag("silu_mul", (("intermediate_size", columns // 2),))
    ty = tensor_type([count, columns // 2], "float32")
    return _finish(out, module.call(tag, [rows], ty), ty, value)


def _gated_split(func: FunctionEditor, gate_expr: Any, up_expr: Any) -> Any:
    """The split of which ``gate_expr`` is silu of the first part and ``up_expr`` the second."""
    silu, up = func.definition(gate_expr), func.definition(up_expr)
    if op_name(silu) != "relax.nn.silu" or not isinstance(up, relax.TupleGetItem):
        return None
    gate = func.definition(silu.args[0])
    if not isinstance(gate, relax.TupleGetItem) or (gate.index, up.index) != (0, 1):
        return None
    if not gate.tuple_value.same_as(up.tuple_value):
        return None
    split = func.definition(gate.tuple_value)
    return split if op_name(split) == "relax.split" else None


def _add(module: ModuleEditor, out: Emitter, value: Any) -> Any:
    left, right = value.args
    if not structural_equal(left.ty.shape, right.ty.shape):
        return None
    flat_left, flat_right = _rows(out, left), _rows(out, right)
    if flat_left is None or flat_right is None:
        return None
    tag = KernelTag("add", (("width", flat_left[2]),))
    ty = tensor_type([flat_left[1], flat_left[2]], "float32")
    return _finish(out, module.call(tag, [flat_left[0], flat_right[0]], ty), ty, value)


def _take_rows(module: ModuleEditor, out: Emitter, value: Any) -> Any:
    x, index = value.args
    shape = shape_of(x)
    if len(shape_of(index)) != 1:
        return None
    axis = int(value.attrs.axis) if value.attrs.axis is not None else None
    if len(shape) != 3 or axis != 1 or int_of(shape[0]) != 1 or index.ty.dtype != "int32":
        return None
    flat = _rows(out, x)
    if flat is None:
        return None
    tag = KernelTag("take_rows", (("width", flat[2]),))
    ty = tensor_type([shape_of(index)[0], flat[2]], "float32")
    return _finish(out, module.call(tag, [flat[0], index], ty), ty, value)
