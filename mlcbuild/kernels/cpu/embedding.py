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
    load,
    splat,
    store,
)
from mlcbuild.kernels.cpu._floats import Floats
from mlcbuild.kernels.cpu._int4 import BLOCK, PACK, int4_weight, nibble_shift
from mlcbuild.spec.capabilities import Capabilities


@cache
def embedding_int4(
    capabilities: Capabilities,
    vocab_size: int,
    hidden_size: int,
    group_size: int,
    scale_dtype: str,
    zero_point: int,
) -> tirx.PrimFunc:
    """``(ids i32[n], w i32[NB,Hw/8,16], s[NB,Hw/group,16]) -> f32[n,H]``."""
    # Plain 8-lane code on all devices: the table is read one row at a time.
    floats = Floats(capabilities)
    with kernel("embedding_int4") as writer:
        rows = dynamic("n")
        ids = writer.arg("ids", (rows,), "int32")
        w, s = int4_weight(writer, vocab_size, hidden_size, group_size, scale_dtype)
        y = writer.arg("y", (rows, hidden_size), "float32")
        # The 8 columns of an int32, in order: the low nibbles, then the high ones.
        shifts = T.Shuffle([i32(nibble_shift(k)) for k in range(PACK)], list(range(PACK)))

        def expand(row: Expr, block: Expr, lane: Expr, pack: Expr) -> Expr:
            code = splat(load(w, block, pack, lane), PACK) >> shifts & i32(15, PACK)
            group = pack // index(group_size // PACK)
            scale = splat(floats.load(s, block, group, lane), PACK)
            return keep((code - i32(zero_point, PACK)).astype("float32x8") * scale)

        def embed_row(row: Expr) -> None:
            token = T.bind(ids[row].astype("int64"))
            block, lane = token // index(BLOCK), token % index(BLOCK)
            with T.serial(index(hidden_size // PACK)) as pack:
                values = expand(row, block, lane, pack)
                store(y, values, row, pack * index(PACK), lanes=PACK)
            for column in range(hidden_size // PACK * PACK, hidden_size):
                pack = index(column // PACK)
                values = expand(row, block, lane, pack)
                store(y, tirx.Shuffle([values], [column % PACK]), row, index(column))

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
