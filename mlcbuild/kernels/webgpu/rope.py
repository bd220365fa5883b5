"""Splits fused queries, keys and values and turns the first two by their positions."""

from __future__ import annotations

from functools import cache

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.webgpu.builder import Expr, dynamic, kernel, select, store
from mlcbuild.kernels.webgpu.trig import cosine_and_sine
from mlcbuild.spec.attention import AttentionSpec


@cache
def split_rotary(spec: AttentionSpec, dtype: str) -> tirx.PrimFunc:
    """``(qkv [n, heads + 2 kv, d], positions i32[n], q, k, v, inv_freq f32[rotary_dim / 2])``.

    Rotary embedding (Su et al., 2021) in halves, as Hugging Face checkpoints have it. The inverse
    frequencies are an argument, so that every kind of scaling is the same kernel. The loops are
    plain: a device's generic schedule fits.
    """
    heads, kv_heads, dim, rotary = spec.heads, spec.kv_heads, spec.head_dim, spec.rotary_dim
    half = rotary // 2
    with kernel("split_rotary") as writer:
        rows, offset = dynamic("seq_len"), dynamic("position_offset")
        qkv = writer.tensor("qkv", (rows, heads + 2 * kv_heads, dim), dtype)
        positions = writer.tensor("positions", (rows,), "int32", offset)
        q = writer.tensor("q", (rows, heads, dim), dtype)
        k = writer.tensor("k", (rows, kv_heads, dim), dtype)
        v = writer.tensor("v", (rows, kv_heads, dim), dtype)
        inv_freq = writer.tensor("inv_freq", (half,), "float32")

        def turned(row: Expr, head: Expr, column: Expr) -> Expr:
            angle = T.bind(positions[row].astype("float32") * inv_freq[column % half])
            cosine, sine = cosine_and_sine(angle)
            factor = T.float32(spec.attention_factor)
            other = select(
                column < half,
                T.float32(0) - qkv[row, head, column + half].astype("float32"),
                qkv[row, head, column - half].astype("float32"),
            )
            value = qkv[row, head, column].astype("float32") * (cosine * factor)
            value = value + other * (sine * factor)
            return select(column < rotary, value.astype(dtype), qkv[row, head, column])

        with T.grid(rows, heads + 2 * kv_heads, dim) as (i, j, d), T.sblock("rotary"):
            row, head, column = T.axis.remap("SSS", [i, j, d])
            with T.If(head < heads):
                with T.Then():
                    store(q, turned(row, head, column), row, head, column)
                with T.Else(), T.If(head < heads + kv_heads):
                    with T.Then():
                        store(k, turned(row, head, column), row, head - heads, column)
                    with T.Else():
                        value = qkv[row, head, column]
                        store(v, value, row, head - heads - kv_heads, column)
    return writer.func.without_attr("tirx.is_scheduled")
