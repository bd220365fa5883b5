"""The functions behind the logits that a browser's client looks up: softmax, sorting, a draw."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from mlcbuild.kernels.webgpu import logits, sample, sort
from mlcbuild.kernels.webgpu.builder import divide_up
from mlcbuild.passes.editor import tensor_type

SAMPLING_FUNCTIONS = ("softmax_with_temperature", "argsort_probs", "sample_with_top_p")
INPLACE_FUNCTIONS = ("apply_logit_bias_inplace", "apply_penalty_inplace", "apply_bitmask_inplace")


def add_sampling(mod: tvm.IRModule, vocab_size: int) -> tvm.IRModule:
    """Adds the functions for one row of ``vocab_size`` logits.

    ``softmax_with_temperature(f32[1,1,V], f32[1]) -> f32[1,1,V]``; ``argsort_probs(f32[1,V]) ->
    (sorted f32[1,V], order i32[1,V])``, largest first; ``sample_with_top_p(sorted, order, uniform
    f32[1], row i32[1], top_p f32[1]) -> i32[1]``; and those of ``kernels.webgpu.logits`` in place.
    """
    builder = _Builder(mod, vocab_size)
    builder.add_softmax()
    builder.add_argsort()
    builder.add_sample()
    out = builder.finish()
    for func in (
        logits.apply_logit_bias(vocab_size),
        logits.apply_penalty(vocab_size),
        logits.apply_bitmask(vocab_size),
    ):
        out[str(func.attrs["global_symbol"])] = func
    return out


class _Builder:
    """Adds straight-line functions of kernel calls to a module."""

    def __init__(self, mod: tvm.IRModule, size: int) -> None:
        self._builder = relax.BlockBuilder(mod)
        self._size = size
        self._kernels: dict[str, Any] = {}

    def finish(self) -> tvm.IRModule:
        """The module with everything in it."""
        return self._builder.finalize()

    def _call(
        self, func: tirx.PrimFunc, args: list[Any], outs: list[Any], scalar: int | None = None
    ) -> Any:
        """Emits a kernel call, ``scalar`` behind ``args``; one tensor, or a tuple of them."""
        name = str(func.attrs["mlcb.name"])
        if name not in self._kernels:
            self._kernels[name] = self._builder.add_func(func, name)
        given = args if scalar is None else [*args, relax.prim_value(scalar)]
        out_ty = outs if len(outs) > 1 else outs[0]
        call = relax.call_tir(self._kernels[name], relax.Tuple(given), out_ty)
        return self._builder.emit(call)

    def add_softmax(self) -> None:
        """``softmax_with_temperature``."""
        size = self._size
        tiles = sample.softmax_tiles(size)
        row_type, partial = tensor_type([1, 1, size], "float32"), tensor_type([tiles], "float32")
        x = relax.Var("logits", row_type)
        temperature = relax.Var("temperature", tensor_type([1], "float32"))
        with self._builder.function("softmax_with_temperature", [x, temperature]):
            with self._builder.dataflow():
                reduced = self._call(
                    _named(sample.softmax_reduce(size), "softmax_reduce"),
                    [x, temperature],
                    [partial, partial],
                )
                row = self._call(
                    _named(sample.softmax_combine(size), "softmax_combine"),
                    [self._item(reduced, 0), self._item(reduced, 1), temperature],
                    [tensor_type([2], "float32")],
                )
                y = self._call(
                    _named(sample.softmax_apply(size), "softmax_apply"),
                    [x, row, temperature],
                    [row_type],
                )
                out = self._builder.emit_output(y)
            self._builder.emit_func_output(out)

    def add_argsort(self) -> None:
        """``argsort_probs``."""
        size = self._size
        count = sort.DIGITS * sort.tiles(size)
        row_type = tensor_type([1, size], "float32")
        key_type, index_type = tensor_type([size], "uint32"), tensor_type([size], "int32")
        count_type = tensor_type([count], "int32")
        probs = relax.Var("probs", row_type)
        with self._builder.function("argsort_probs", [probs]):
            with self._builder.dataflow():
                pair = self._call(
                    _named(sort.sort_keys(size), "sort_keys"), [probs], [key_type, index_type]
                )
                for number in range(sort.PASSES):
                    shift = number * sort.DIGIT_BITS
                    keys, indices = self._item(pair, 0), self._item(pair, 1)
                    counts = self._call(
                        _named(sort.sort_count(size), "sort_count"), [keys], [count_type], shift
                    )
                    places = self._call(
                        _named(sort.exclusive_scan(count), "sort_scan"), [counts], [count_type]
                    )
                    pair = self._call(
                        _named(sort.sort_scatter(size), "sort_scatter"),
                        [keys, indices, places],
                        [key_type, index_type],
                        shift,
                    )
                result = self._call(
                    _named(sort.gather_row(size), "sort_gather"),
                    [probs, self._item(pair, 1)],
                    [row_type, tensor_type([1, size], "int32")],
                )
                out = self._builder.emit_output(result)
            self._builder.emit_func_output(out)

    def add_sample(self) -> None:
        """``sample_with_top_p``."""
        size = self._size
        middle_count = divide_up(size, sample.STEP)
        coarse_count = divide_up(middle_count, sample.STEP)
        one_int, one_float = tensor_type([1], "int32"), tensor_type([1], "float32")
        args = [
            relax.Var("sorted_probs", tensor_type([1, size], "float32")),
            relax.Var("sorted_indices", tensor_type([1, size], "int32")),
            relax.Var("uniform_samples", one_float),
            relax.Var("sample_indices", one_int),
            relax.Var("top_p", one_float),
        ]
        with self._builder.function("sample_with_top_p", args):
            with self._builder.dataflow():
                middle = self._call(
                    _named(sample.step_sums(2, size), "sample_middle"),
                    [args[0]],
                    [tensor_type([middle_count], "float32")],
                )
                coarse = self._call(
                    _named(sample.step_sums(1, middle_count), "sample_coarse"),
                    [middle],
                    [tensor_type([coarse_count], "float32")],
                )
                token = self._call(
                    _named(sample.draw_top_p(size), "sample_draw"),
                    [*args, middle, coarse],
                    [one_int],
                )
                out = self._builder.emit_output(token)
            self._builder.emit_func_output(out)

    def _item(self, pair: Any, index: int) -> Any:
        return self._builder.emit(relax.TupleGetItem(pair, index))


def _named(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    return func.with_attr("mlcb.name", name)
