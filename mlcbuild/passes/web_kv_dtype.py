"""Attention over a cache of another dtype than the layers compute with, in a web module."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import TensorLoad

from mlcbuild.nn.attention import ATTENTION_CALL
from mlcbuild.passes.editor import Emitter, FunctionEditor, op_name, shape_of, tensor_type


def set_kv_dtype(mod: tvm.IRModule, dtype: str) -> tvm.IRModule:
    """Attention over a cache of ``dtype``; what the layers compute with stays float32.

    What attention gets is converted where it is computed, not where it is reshaped, so that fusion
    makes one kernel of both. A kernel that reads what attention gives converts it itself.
    """
    if dtype == "float32":
        return mod
    builder = relax.BlockBuilder(mod)
    kernels = _Kernels(mod, builder, dtype)
    edited = {
        gvar: _edit(func, kernels)
        for gvar, func in mod.functions.items()
        if isinstance(func, relax.Function)
    }
    out = builder.get()
    for gvar, func in edited.items():
        out.update_func(gvar, func)
    return relax.transform.Normalize()(out)


class _Kernels:
    """Kernels whose first argument is of another dtype, added once each."""

    def __init__(self, mod: tvm.IRModule, builder: Any, dtype: str) -> None:
        self.dtype = dtype
        self._mod = mod
        self._builder = builder
        self._made: dict[Any, Any] = {}

    def reading(self, gvar: Any) -> Any:
        """The kernel ``gvar`` with a first argument of ``dtype``."""
        if gvar not in self._made:
            func = _converting(self._mod[gvar], self.dtype)
            name = f"{gvar.name_hint}_{self.dtype}"
            self._made[gvar] = self._builder.add_func(func, name)
        return self._made[gvar]


def _converting(func: tirx.PrimFunc, dtype: str) -> tirx.PrimFunc:
    """A kernel that converts its first argument from ``dtype`` as it reads it."""
    old = func.params[0]
    new = tirx.decl_buffer(old.ty.shape, dtype, str(old.name))

    def load(node: Any) -> Any:
        if not (node.source.same_as(old) or node.source.same_as(new)):
            return node
        return tirx.BufferLoad(new, node.indices).astype(str(old.ty.dtype))

    def variable(var: Any) -> Any:
        return new if var.same_as(old) else var

    return tvm_ffi.structural_map(func, [(TensorLoad, load), (tirx.Var, variable)])


def _edit(func: Any, kernels: _Kernels) -> Any:
    editor, emitter = FunctionEditor(func), Emitter("kv")
    narrow: dict[Any, Any] = {}  # what attention gives, by the variable of the old body
    for var, value in editor.bindings:
        if op_name(value) == "relax.call_dps_packed" and _is_attention(value):
            value, narrow[var] = _attention(value, editor, emitter, kernels.dtype)
        elif op_name(value) == "relax.call_tir":
            value = _linear(value, editor, emitter, narrow, kernels)
        emitter.bindings.append((var, value))
    return editor.build(emitter.bindings)


def _is_attention(value: Any) -> bool:
    return str(value.args[0].global_symbol) == ATTENTION_CALL


def _attention(value: Any, editor: FunctionEditor, emitter: Emitter, dtype: str) -> Any:
    """The converted result of attention, and what it is converted from."""
    *head, qkv = value.args[1].fields
    base = editor.through_reshapes(qkv)
    shape = shape_of(base)
    cast = emitter.emit(relax.op.astype(base, dtype), tensor_type(shape, dtype))
    out_ty = value.ty_args[0]
    narrow_ty = tensor_type(list(out_ty.shape.values), dtype)
    args = [*head, emitter.reshape(cast, shape_of(qkv), dtype)]
    out = emitter.emit(relax.call_dps_packed(ATTENTION_CALL, args, out_ty=narrow_ty), narrow_ty)
    return relax.op.astype(out, str(out_ty.dtype)), out


def _linear(
    value: Any, editor: FunctionEditor, emitter: Emitter, narrow: dict[Any, Any], kernels: _Kernels
) -> Any:
    """A kernel call that takes what attention gives as it is, if its first argument is that."""
    x, *rest = value.args[1].fields
    base = editor.through_reshapes(x) if isinstance(x, relax.Var) else x
    if base not in narrow:
        return value
    shaped = emitter.reshape(narrow[base], shape_of(x), kernels.dtype)
    gvar = kernels.reading(value.args[0])
    return relax.call_tir(gvar, relax.Tuple([shaped, *rest]), value.ty_args[0])
