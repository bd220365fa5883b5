"""Rows of an embedding table that is packed as the weight of a linear layer."""

from __future__ import annotations

from functools import cache

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import (
    Expr,
    dynamic,
    for_rows,
    i32,
    index,
    keep,
    kernel,
    splat,
    store,
)
from mlcbuild.kernels.cpu._codes import BLOCK, STEP, code_format, code_weight
from mlcbuild.kernels.cpu._floats import Floats
from mlcbuild.spec.capabilities import Capabilities


@cache
def embedding_int(
    capabilities: Capabilities,
    bits: int,
    vocab_size: int,
    hidden_size: int,
    group_size: int,
    scale_dtype: str,
    zero_point: int,
) -> tirx.PrimFunc:
    """``(ids i32[n], w i32[NB,Hw*bits/32,16], s[NB,Hw/group,16]) -> f32[n,H]``."""
    # Plain 4-lane code on all devices: the table is read one row at a time.
    code, floats = code_format(bits), Floats(capabilities)
    with kernel(f"embedding_int{bits}") as writer:
        rows = dynamic("n")
        ids = writer.arg("ids", (rows,), "int32")
        w, s = code_weight(
            writer, bits, vocab_size, hidden_size, group_size, scale_dtype, zero_point
        )
        y = writer.arg("y", (rows, hidden_size), "float32")

        def embed_pack(row: Expr, block: Expr, lane: Expr, pack: Expr, columns: int) -> None:
            words = code.load_pack(w, block, pack, lane, 1)
            group = pack * index(code.columns) // index(group_size)
            scale = splat(floats.load(s, block, group, lane), STEP)
            for first in range(0, columns, STEP):
                codes = code.step_of_lane(words, first // STEP)
                values = keep((codes - i32(zero_point, STEP)).astype("float32x4") * scale)
                start = pack * index(code.columns) + index(first)
                if first + STEP <= columns:
                    store(y, values, row, start, lanes=STEP)
                else:
                    for i in range(columns - first):
                        store(y, tirx.Shuffle([values], [i]), row, start + index(i))

        def embed_row(row: Expr) -> None:
            token = T.bind(ids[row].astype("int64"))
            block, lane = token // index(BLOCK), token % index(BLOCK)
            full, rest = divmod(hidden_size, code.columns)
            if full:
                with T.serial(index(full)) as pack:
                    embed_pack(row, block, lane, pack, code.columns)
            if rest:
                embed_pack(row, block, lane, index(full), rest)

        for_rows(rows, embed_row)
    return writer.func


@cache
def embedding_dense(
    capabilities: Capabilities, vocab_size: int, hidden_size: int, weight_dtype: str
) -> tirx.PrimFunc:
    """``(ids i32[n], w[NB,H,16]) -> f32[n,H]``."""
    floats = Floats(capabilities)  # the rest is a strided copy
    with kernel("embedding_dense") as writer:
        rows = dynamic("n")
        blocks = -(-vocab_size // BLOCK)
        ids = writer.arg("ids", (rows,), "int32")
        w = writer.arg("w", (blocks, hidden_size, BLOCK), weight_dtype)
        y = writer.arg("y", (rows, hidden_size), "float32")

        def embed_row(row: Expr) -> None:
            token = T.bind(ids[row].astype("int64"))
            with T.serial(index(hidden_size)) as column:
                value = floats.load(w, token // index(BLOCK), column, token % index(BLOCK))
                store(y, value, row, column)

        for_rows(rows, embed_row)
    return writer.func
