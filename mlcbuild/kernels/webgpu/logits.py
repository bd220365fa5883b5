"""Changes of logits in place: biases, penalties, grammar masks."""

from __future__ import annotations

from functools import cache

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.webgpu.builder import (
    Local,
    divide_up,
    dynamic,
    kernel,
    launch,
    select,
    store,
    when,
)

_THREADS = 64
MASKED = -3.4e38  # what a forbidden token's logit becomes


@cache
def apply_logit_bias(size: int) -> tirx.PrimFunc:
    """``(logits f32[b,V], rows i32[t], tokens i32[t], bias f32[t])``: adds each bias."""
    with kernel("apply_logit_bias_inplace", public=True) as writer:
        batch, count = dynamic("batch_size"), dynamic("num_tokens")
        logits = writer.tensor("logits", (batch, size), "float32")
        rows = writer.tensor("rows", (count,), "int32")
        tokens = writer.tensor("tokens", (count,), "int32")
        bias = writer.tensor("bias", (count,), "float32")
        with launch((count + _THREADS - 1) // _THREADS, _THREADS) as (group, thread):
            at = group * _THREADS + thread
            with when(at < count):
                row, token = Local("int32", rows[at]), Local("int32", tokens[at])
                value = logits[row.value, token.value] + bias[at]
                store(logits, value, row.value, token.value)
    return writer.func


@cache
def apply_penalty(size: int) -> tirx.PrimFunc:
    """``(logits f32[b,V], sequences i32[s], positions, tokens, counts i32[t], penalties [s,3])``.

    ``positions`` point into ``sequences``, these to rows of logits. Every token that appeared
    ``count`` times loses presence + count * frequency; then its logit is divided by the repetition
    penalty if positive, multiplied by it if not (Keskar et al., 2019).
    """
    with kernel("apply_penalty_inplace", public=True) as writer:
        batch, listed, count = dynamic("batch_size"), dynamic("num_seq"), dynamic("num_tokens")
        logits = writer.tensor("logits", (batch, size), "float32")
        sequences = writer.tensor("sequences", (listed,), "int32")
        positions = writer.tensor("positions", (count,), "int32")
        tokens = writer.tensor("tokens", (count,), "int32")
        counts = writer.tensor("counts", (count,), "int32")
        penalties = writer.tensor("penalties", (listed, 3), "float32")
        with launch((count + _THREADS - 1) // _THREADS, _THREADS) as (group, thread):
            at = group * _THREADS + thread
            with when(at < count):
                position, token = Local("int32", positions[at]), Local("int32", tokens[at])
                row = Local("int32", sequences[position.value])
                presence, frequency, repetition = (penalties[position.value, i] for i in range(3))
                value = Local("float32", logits[row.value, token.value])
                value.set(value.value - (presence + counts[at].astype("float32") * frequency))
                positive = value.value > T.float32(0)
                scaled = select(positive, value.value / repetition, value.value * repetition)
                store(logits, scaled, row.value, token.value)
    return writer.func


@cache
def apply_bitmask(size: int) -> tirx.PrimFunc:
    """``(logits f32[b,V], rows i32[s], mask i32[b, V / 32])``: tokens whose bit is 0 are out."""
    with kernel("apply_bitmask_inplace", public=True) as writer:
        batch, listed = dynamic("batch_size"), dynamic("num_seq")
        logits = writer.tensor("logits", (batch, size), "float32")
        rows = writer.tensor("rows", (listed,), "int32")
        mask = writer.tensor("mask", (batch, divide_up(size, 32)), "int32")
        groups = divide_up(size, _THREADS)
        with launch(listed * groups, _THREADS) as (group, thread):
            token = group % groups * _THREADS + thread
            with when(token < size):
                row = Local("int32", rows[group // groups])
                word = tirx.shift_right(mask[row.value, token // 32], token % 32)
                with when(tirx.bitwise_and(word, 1) == 0):
                    store(logits, T.float32(MASKED), row.value, token)
    return writer.func
