"""Turns a checkpoint into params: quantized once for all targets, then packed for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlcbuild.core.progress import Progress
from mlcbuild.errors import InternalError
from mlcbuild.quant import dense, groupwise, pack
from mlcbuild.spec.layout import LAYOUTS, Layout, padded
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.weights.dtypes import numpy_dtype
from mlcbuild.weights.mapping import CheckpointLike, ParamRule, check_consumed, read_param
from mlcbuild.weights.reader import open_params
from mlcbuild.weights.shards import ALIGNMENT, ParamEntry, ShardWriter

NamedArray = tuple[str, npt.NDArray[Any], str]  # name, values, layout id


def quantize_checkpoint(
    checkpoint: CheckpointLike,
    rules: Sequence[ParamRule],
    scheme: QuantScheme,
    out_dir: Path,
    progress: Progress | None = None,
    *,
    threads: int = 2,
) -> tuple[ParamEntry, ...]:
    """Writes every parameter to ``out_dir`` in the target-independent layout "nk".

    A quantized ``X.weight`` becomes ``X.q_weight`` (uint32 [rows, columns * bits / 32]) and
    ``X.q_scale`` ([rows, groups]); other weights keep their name in the scheme's float type; norms
    and biases become float32. One tensor is in memory at a time. The bytes depend on the
    checkpoint, the rules and the scheme only. Raises SourceError for a checkpoint that does not
    fit or holds NaN, infinity or values beyond the scheme's range, ResourceError when the disk is
    full.
    """
    check_consumed(rules, checkpoint)
    progress = progress or Progress()
    total = sum(_elements(rule.shape) for rule in rules)
    expected = sum(_stored_bytes(rule, scheme) for rule in rules)
    with (
        ShardWriter(out_dir, pack.NK, expected_bytes=expected) as writer,
        progress.task(f"quantize to {scheme.name}", total, "weights") as task,
    ):
        for rule in rules:
            for name, values, layout in _store(rule, checkpoint, scheme, threads):
                writer.add(name, values, layout)
            task.advance(_elements(rule.shape))
    return writer.entries


def pack_params(
    nk_dir: Path,
    scheme: QuantScheme,
    layout: Layout,
    out_dir: Path,
    progress: Progress | None = None,
) -> tuple[ParamEntry, ...]:
    """Repacks the params of ``quantize_checkpoint`` from ``nk_dir`` into a target's layout.

    Codes, scales and dense weights get ``layout`` (dense weights of an integer scheme get the
    layout of the same lanes for their type); norms and biases stay as they are.
    """
    source = open_params(nk_dir)
    progress = progress or Progress()
    total = sum(entry.nbytes for entry in source.tensors.values())
    with (
        ShardWriter(out_dir, layout.id, expected_bytes=total) as writer,
        progress.task(f"pack as {layout.id}", total, "B") as task,
    ):
        for entry in source.tensors.values():
            values, layout_id = _pack(source.read(entry.name), entry, scheme, layout)
            writer.add(entry.name, values, layout_id)
            task.advance(entry.nbytes)
    return writer.entries


def is_quantized(rule: ParamRule, scheme: QuantScheme) -> bool:
    """Whether the scheme stores this parameter as integer codes."""
    if not scheme.is_integer:
        return False
    if rule.kind == "embedding":
        return scheme.quantize_embedding
    if rule.kind == "lm_head":
        return scheme.quantize_lm_head
    return rule.kind == "linear"


def layout_of(scheme: QuantScheme, lanes: int = 16) -> Layout:
    """The layout with ``lanes`` rows per block that packs the scheme's weights."""
    return _layout_for(scheme.weight_dtype, lanes)


def dense_dtype(scheme: QuantScheme) -> str:
    """The float type of weights that are not quantized."""
    return scheme.activation_dtype if scheme.is_integer else scheme.weight_dtype


def _store(
    rule: ParamRule, checkpoint: CheckpointLike, scheme: QuantScheme, threads: int
) -> Iterator[NamedArray]:
    values = read_param(rule, checkpoint)
    if rule.kind in ("norm", "bias"):
        yield rule.name, dense.to_float32(values, rule.name), pack.RAW
    elif is_quantized(rule, scheme):
        quantized = groupwise.quantize(values, scheme, name=rule.name, threads=threads)
        stem = rule.name.removesuffix("weight")
        yield stem + "q_weight", pack.pack_nk(quantized.codes, scheme.bits or 0), pack.NK
        yield stem + "q_scale", quantized.scales, pack.NK
    else:
        yield rule.name, dense.convert(values, dense_dtype(scheme), rule.name), pack.NK


def _pack(
    values: npt.NDArray[Any], entry: ParamEntry, scheme: QuantScheme, layout: Layout
) -> tuple[npt.NDArray[Any], str]:
    if entry.layout == pack.RAW:
        return values, pack.RAW
    if entry.layout != pack.NK:
        raise InternalError(f"tensor {entry.name} is already packed as {entry.layout}")
    if entry.dtype == "uint32":
        codes = pack.unpack_nk(values, scheme.bits or 0)
        return pack.pack_codes(codes, layout, scheme), layout.id
    if scheme.is_integer and entry.name.endswith(".q_scale"):
        return pack.pack_lanes(values, layout), layout.id
    own = _layout_for(entry.dtype, layout.lanes)
    return pack.pack_lanes(values, own), own.id


def _layout_for(weight_dtype: str, lanes: int) -> Layout:
    for layout in LAYOUTS.values():
        if layout.weight_dtype == weight_dtype and layout.lanes == lanes:
            return layout
    raise InternalError(f"no layout of {lanes} lanes packs {weight_dtype} weights")


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _stored_bytes(rule: ParamRule, scheme: QuantScheme) -> int:
    """An upper bound of what the parameter takes in the NK form."""
    if not is_quantized(rule, scheme):
        wide = rule.kind in ("norm", "bias")
        itemsize = 4 if wide else numpy_dtype(dense_dtype(scheme)).itemsize
        return _elements(rule.shape) * itemsize + ALIGNMENT
    rows, columns = rule.shape
    group = scheme.group_size or 1
    columns = padded(columns, group)
    scale_bytes = np.dtype(scheme.scale_dtype or "float32").itemsize
    return (
        rows * (columns * (scheme.bits or 0) // 8 + columns // group * scale_bytes) + 2 * ALIGNMENT
    )
