"""Rotary embedding of queries and keys, and the append of keys and values to their pages."""

from __future__ import annotations

from functools import cache

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.errors import InternalError
from mlcbuild.kernels.cpu._builder import (
    Buffer,
    Expr,
    dynamic,
    for_columns,
    for_rows,
    index,
    kernel,
    load,
    local,
    store,
)
from mlcbuild.kernels.cpu._kv_pages import KvPages
from mlcbuild.kernels.cpu._vector import lanes_of
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.kv import KvPageShape


@cache
def rope_append(
    capabilities: Capabilities,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    page_size: int,
    kv_dtype: str,
) -> tirx.PrimFunc:
    """``(qkv, positions, slots, rope_cos_sin, pages) -> q``, changing pages in place.

    qkv is f32[n,(H+2KV)*D], positions and slots i32[n], rope_cos_sin f32[P,R], pages as KvPages
    takes them, q f32[n,H*D]. The first R columns of every query and key head are rotated as two
    halves, ``(x1 cos - x2 sin, x2 cos + x1 sin)``, as GPT-NeoX and Llama do; the rest passes. A
    key goes into column ``slot % page`` of its page's ``[D, page]``, a value into row
    ``slot % page`` of ``[page, D]``. In int8 pages each key and value is stored as
    ``round(x / scale)`` (half to even) with ``scale = absmax / 127``.
    """
    if rotary_dim % 2 or rotary_dim > head_dim:
        raise InternalError(f"rotary_dim {rotary_dim} does not fit head_dim {head_dim}")
    lanes = lanes_of(capabilities)
    half = rotary_dim // 2
    with kernel("rope_append") as writer:
        n, table_rows = dynamic("n"), dynamic("rope_positions")
        qkv = writer.arg("qkv", (n, (heads + 2 * kv_heads) * head_dim), "float32")
        positions = writer.arg("positions", (n,), "int32")
        slots = writer.arg("slots", (n,), "int32")
        table = writer.arg("rope_cos_sin", (table_rows, rotary_dim), "float32")
        pages = KvPages(writer, KvPageShape(kv_heads, head_dim, page_size, kv_dtype), capabilities)
        q = writer.arg("q", (n, heads * head_dim), "float32")

        def rotate(row: Expr, position: Expr, source: Expr, target: Buffer, *to: Expr) -> None:
            """A head at column ``source`` of the row, rotated, into ``target[to...]``."""

            def rotate_columns(column: Expr, width: int) -> None:
                first = load(qkv, row, source + column, lanes=width)
                second = load(qkv, row, source + column + index(half), lanes=width)
                cos = load(table, position, column, lanes=width)
                sin = load(table, position, column + index(half), lanes=width)
                low = T.fma(first, cos, -(second * sin))
                high = T.fma(second, cos, first * sin)
                start = to[-1] + column
                store(target, low, *to[:-1], start, lanes=width)
                store(target, high, *to[:-1], start + index(half), lanes=width)

            def pass_columns(column: Expr, width: int) -> None:
                start = column + index(rotary_dim)
                value = load(qkv, row, source + start, lanes=width)
                store(target, value, *to[:-1], to[-1] + start, lanes=width)

            for_columns(half, lanes, rotate_columns)
            for_columns(head_dim - rotary_dim, lanes, pass_columns)

        def append_row(row: Expr) -> None:
            position = T.bind(positions[row].astype("int64"))
            slot = T.bind(slots[row].astype("int64"))
            page = T.bind(slot // index(page_size))
            offset = T.bind(slot % index(page_size))
            with T.serial(index(heads)) as head:
                start = T.bind(head * index(head_dim))
                rotate(row, position, start, q, row, start)
            with T.serial(index(kv_heads)) as head, T.sblock("key_value"):
                key = local((head_dim,))
                key_start = T.bind((head + index(heads)) * index(head_dim))
                rotate(row, position, key_start, key, index(0))
                value_start = T.bind((head + index(heads + kv_heads)) * index(head_dim))

                def value_at(column: Expr, width: int) -> Expr:
                    return load(qkv, row, value_start + column, lanes=width)

                pages.append(page, head, offset, key, value_at, lanes)

        for_rows(n, append_row)
    return writer.func
