"""A model as the module of virtual-machine functions that the browser's client looks up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn.llm.kv_cache import RopeMode, TIRPagedKVCache

from mlcbuild.errors import InternalError, StageError
from mlcbuild.kernels.webgpu.merge import merge_state
from mlcbuild.kernels.webgpu.rope import split_rotary
from mlcbuild.passes.compile_web import check_kernels
from mlcbuild.passes.editor import FunctionEditor, op_name
from mlcbuild.passes.export_model import export_model
from mlcbuild.passes.sampling_functions import add_sampling
from mlcbuild.passes.web_kv_dtype import set_kv_dtype
from mlcbuild.spec.attention import AttentionSpec
from mlcbuild.spec.limits import Limits

MODEL_FUNCTIONS = ("embed", "batch_prefill", "batch_decode")
# The client runs one sequence, and wants the logits of its last row.
_SIZES = {"batch_size": 1, "logit_rows": 1}
CREATE_CACHE = "create_tir_paged_kv_cache"
# Arguments of the call that makes a cache: kernels for sliding windows and trees, and for latent
# attention.
_WINDOW_AND_TREE_KERNELS = (18, 19, 20, 21)
_LATENT_APPEND = 14
# TVM's kernels that ours take the place of. Its merge has a race: on a GPU whose threads do not run
# in step by 32, some read a sum that others have changed.
_TVM_ROTARY, _TVM_MERGE = "fused_rope", "tir_attention_merge_state"
_TVM_DECODE = "batch_decode_paged_kv"
_DECODE_THREADS = (256, 128, 64)  # of a workgroup: as many as every device has, then fewer


@dataclass(frozen=True)
class WebInput:
    """A model whose layers are rewritten, and what its library tells the client."""

    model: Any
    attention: AttentionSpec
    limits: Limits
    model_type: str
    scheme: str
    vocab_size: int
    window_is_asked_for: bool = False  # by the recipe; else it is the model's own


def build_web_module(source: WebInput, target: Any) -> tvm.IRModule:
    """The functions of ``MODEL_FUNCTIONS``, the cache's, ``_metadata`` and, on a GPU, sampling.

    ``target`` is TVM's; the module is not lowered yet. Raises StageError for attention that TVM's
    paged cache does not do.
    """
    attention, limits = source.attention, source.limits
    if attention.window.size:
        size = attention.window.size
        raise StageError(
            f"the recipe asks for a window of {size} tokens"
            if source.window_is_asked_for
            else f"the model attends to a window of {size} tokens",
            why="the browser's client has no windows that end before the context does",
            hint="leave out runtime.sliding_window_size"
            if source.window_is_asked_for
            else f"set runtime.context_window_size to {size} or less",
        )
    if limits.kv_dtype not in ("float16", "float32"):
        raise StageError(
            f"the browser's runtime has no KV cache of {limits.kv_dtype}",
            hint='set runtime.kv_dtype to "float16" or "float32"',
        )
    mod, names = export_model(source.model, MODEL_FUNCTIONS, _SIZES)
    params = _params(mod, names)
    mod = set_kv_dtype(mod, limits.kv_dtype)
    mod.update(build_cache(attention, limits.kv_dtype, target))
    if target.kind.name != "llvm":
        mod = add_sampling(mod, source.vocab_size)
    mod = _add_metadata(mod, _metadata(source, params))
    return _with_bounds(mod, limits)


def _params(mod: tvm.IRModule, names: Sequence[str]) -> list[dict[str, Any]]:
    """Name, shape and dtype of every parameter, in the order of the packed tuple."""
    fields = mod["batch_prefill"].params[-1].ty.fields
    return [
        {
            "name": name,
            "shape": [int(size) for size in ty.shape.values],
            "dtype": str(ty.dtype),
            "preprocs": [],
        }
        for name, ty in zip(names, fields, strict=True)
    ]


def _metadata(source: WebInput, params: list[dict[str, Any]]) -> dict[str, Any]:
    """What the client reads, and what tells this library from another."""
    limits = source.limits
    return {
        "model_type": source.model_type,
        "quantization": source.scheme,
        "context_window_size": limits.context_window_size,
        "sliding_window_size": -1,
        "attention_sink_size": -1,
        "prefill_chunk_size": limits.prefill_chunk_size,
        "tensor_parallel_shards": 1,
        "kv_state_kind": "kv_cache",
        "max_batch_size": 1,
        "params": params,
        "memory_usage": {},
    }


class _CacheMaker(nn.Module):  # type: ignore[misc]
    """Nothing but the function that makes a cache."""

    def __init__(self, attention: AttentionSpec, dtype: str, target: Any) -> None:
        super().__init__()
        self._attention = attention
        self._dtype = dtype
        self._target = target

    def create_tir_paged_kv_cache(
        self,
        max_batch_size: Any,
        max_total_seq_len: Any,
        prefill_chunk_size: Any,
        page_size: Any,
        support_sliding_window: Any,
    ) -> Any:
        """Five shapes of one number each -> the cache."""
        spec = self._attention
        # Inverse frequencies go where TVM expects the factors of another kind of scaling: the
        # rotary kernel is ours, and takes them as they are.
        inv_freq = relax.const(np.array(spec.inv_freq, np.float32))
        return TIRPagedKVCache(
            attn_kind="mha",
            max_batch_size=max_batch_size,
            max_total_seq_len=max_total_seq_len,
            prefill_chunk_size=prefill_chunk_size,
            page_size=page_size,
            support_sliding_window=support_sliding_window,
            layer_partition=relax.ShapeExpr([0, spec.layers]),
            num_hidden_layers=spec.layers,
            num_attention_heads=spec.heads,
            num_key_value_heads=spec.kv_heads,
            qk_head_dim=spec.head_dim,
            v_head_dim=spec.head_dim,
            mla_original_qk_head_dim=0,
            mla_original_v_head_dim=0,
            rope_mode=RopeMode.NORMAL,
            rope_scale=1,
            rope_theta=1,
            rope_scaling={},
            rope_ext_factors=inv_freq,
            rotary_dim=spec.rotary_dim,
            enable_disaggregation=False,
            dtype=self._dtype,
            target=self._target,
        )


def _cache_kernels(attention: AttentionSpec, dtype: str, target: Any) -> tvm.IRModule:
    """TVM's kernels of a cache, with tiles that fit the memory of the target's workgroups.

    TVM fits the tiles of prefill for one kind of device alone; for WebGPU they are larger than what
    every device has. The kernels are the same: they are made for that kind and compiled for
    ``target``. Those of decoding are not fitted at all: fewer threads take less memory.
    """
    if target.kind.name == "llvm":
        return _make_cache(attention, dtype, target)
    memory = target.attrs["max_shared_memory_per_block"]
    for threads in _DECODE_THREADS:
        limits = {"max_num_threads": threads, "max_threads_per_block": threads}
        tiles = {"kind": "metal", "max_shared_memory_per_block": memory, **limits}
        mod = _make_cache(attention, dtype, tvm.target.Target(tiles))
        decode = {g: f for g, f in mod.functions.items() if g.name_hint == _TVM_DECODE}
        try:
            check_kernels(tvm.IRModule(decode), target)
        except StageError:
            if threads == _DECODE_THREADS[-1]:
                raise
        else:
            break
    return mod


def _make_cache(attention: AttentionSpec, dtype: str, target: Any) -> tvm.IRModule:
    module = _CacheMaker(attention, dtype, target)
    sizes = (
        "max_batch_size",
        "max_total_seq_len",
        "prefill_chunk_size",
        "page_size",
        "support_sliding_window",
    )
    plain = {"param_mode": "none", "effect_mode": "none"}
    spec = nn.spec.ModuleSpec.from_raw(
        {CREATE_CACHE: {**dict.fromkeys(sizes, int), "$": plain}}, module
    )
    try:
        mod, _ = module.export_tvm(spec=spec)
    except ValueError as error:  # TVM's, where no tile fits
        raise StageError(
            f"attention over heads of {attention.head_dim} does not fit a browser's device",
            why=str(error),
            hint='set runtime.kv_dtype to "float16"' if dtype == "float32" else None,
        ) from error
    return mod


def build_cache(attention: AttentionSpec, dtype: str, target: Any) -> tvm.IRModule:
    """The function that makes a cache, and the kernels that the cache calls."""
    mod = _cache_kernels(attention, dtype, target)
    _replace(mod, _TVM_ROTARY, split_rotary(attention, dtype))
    if target.kind.name != "llvm":
        _replace(mod, _TVM_MERGE, merge_state(attention.heads, attention.head_dim, dtype))
    unused: list[Any] = []
    mod[CREATE_CACHE] = _edit_cache(mod[CREATE_CACHE], unused)
    functions = {
        gvar: _without_inline_rotation(func) if isinstance(func, tirx.PrimFunc) else func
        for gvar, func in mod.functions.items()
        if gvar not in unused
    }
    return relax.transform.Normalize()(tvm.IRModule(functions))


def _replace(mod: tvm.IRModule, name: str, func: tirx.PrimFunc) -> None:
    """Puts a kernel of our own in the place of TVM's."""
    found = [gvar for gvar in mod.functions if gvar.name_hint == name]
    if len(found) != 1:
        raise InternalError(f"TVM's paged cache has no kernel {name}")
    mod[found[0]] = func.with_attr("global_symbol", name)


def _edit_cache(func: Any, unused: list[Any]) -> Any:
    editor = FunctionEditor(func)
    return editor.build([(var, _without_unused(value, unused)) for var, value in editor.bindings])


def _without_unused(value: Any, unused: list[Any]) -> Any:
    """The call that makes a cache, without kernels that this client never comes to.

    A browser compiles every shader of a library when it loads it. ``unused`` gets the kernels.
    """
    if op_name(value) != "relax.call_pure_packed":
        return value
    name, *args = value.args
    for index in _WINDOW_AND_TREE_KERNELS:
        unused.extend(field for field in args[index].fields if isinstance(field, tvm.ir.GlobalVar))
        args[index] = relax.Tuple([])
    unused.append(args[_LATENT_APPEND])
    args[_LATENT_APPEND] = relax.prim_value(0)
    return relax.call_pure_packed(str(name.global_symbol), *args, ty_args=relax.AnyType())


def _without_inline_rotation(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """An attention kernel that takes queries and keys as they come: they are turned before.

    What only the rotation reads is no buffer of the shader then: 8 are left of 10, the number
    that every WebGPU device has.
    """
    modes = [param for param in func.params if param.name == "rotary_mode"]
    if not modes:
        return func
    fixed = func.specialize({modes[0]: tirx.const(0, str(modes[0].ty.dtype))})
    # The caller gives a mode all the same.
    rest = iter(fixed.params)
    params = [param if param.same_as(modes[0]) else next(rest) for param in func.params]
    return tirx.PrimFunc(params, fixed.body, fixed.ret_type, fixed.attrs)


def _add_metadata(mod: tvm.IRModule, record: Mapping[str, Any]) -> tvm.IRModule:
    builder = relax.BlockBuilder(mod)
    with builder.function("_metadata", params=[]):
        builder.emit_func_output(tvm.ir.StringImm(json.dumps(record, sort_keys=True)))
    return builder.finalize()


def _with_bounds(mod: tvm.IRModule, limits: Limits) -> tvm.IRModule:
    """Tells the memory planner the largest chunk, so that buffers are allocated once."""
    out = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs)
    for gvar, func in mod.functions.items():
        if isinstance(func, relax.Function) and gvar.name_hint in MODEL_FUNCTIONS:
            bound = {"seq_len": tirx.IntImm("int64", limits.prefill_chunk_size)}
            out[gvar] = func.with_attr("tir_var_upper_bound", bound)
    return out


__all__ = ["CREATE_CACHE", "MODEL_FUNCTIONS", "WebInput", "build_cache", "build_web_module"]
