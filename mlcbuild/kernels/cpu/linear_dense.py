"""Linear layers with float16, bfloat16 or float32 weights: ``y = x w^T [+ bias] [+ residual]``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import (
    Expr,
    Registers,
    dynamic,
    index,
    kernel,
    load,
    prefetch,
    splat,
)
from mlcbuild.kernels.cpu._codes import BLOCK
from mlcbuild.kernels.cpu._floats import Floats
from mlcbuild.kernels.cpu._linear import Outputs, OutputVector, for_steps
from mlcbuild.kernels.cpu._vector import lanes_of
from mlcbuild.kernels.cpu.tiles import RowsTile, RowTile, Tiles
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.layout import padded

# Columns summed before their sum is added to the total: shorter chains lose fewer bits.
_CHUNK = 32

# Lines of 64 bytes for each group that a tile asks for ahead: that of 4-bit codes.
_GROUP_LINES = 4

# Columns of one turn of the innermost loop.
_UNROLL = 8


@cache
def linear_dense(
    capabilities: Capabilities,
    tiles: Tiles,
    out_features: int,
    in_features: int,
    weight_dtype: str,
    bias: bool,
    residual: bool,
) -> tirx.PrimFunc:
    """``(x f32[n,K], w[NB,K,16], [bias f32[O]], [residual f32[n,O]]) -> y f32[n,O]``.

    float32 sums over 32 columns, then over those sums, in order, whatever the tile.
    """
    lanes, floats = lanes_of(capabilities), Floats(capabilities)
    with kernel("linear_dense") as writer:
        n = dynamic("n")
        x = writer.arg("x", (n, in_features), "float32")
        blocks = padded(out_features, BLOCK) // BLOCK
        w = writer.arg("w", (blocks, in_features, BLOCK), weight_dtype)
        out = Outputs(writer, n, out_features, lanes, bias, residual)

        def tile(
            rows: Sequence[Expr], vectors: Sequence[OutputVector], size: RowTile | RowsTile
        ) -> None:
            cells = [(r, v) for r in range(len(rows)) for v in range(len(vectors))]
            sums = Registers(len(cells), lanes)
            sums.clear()

            line = 1 if weight_dtype == "float32" else 2  # columns of a block in 64 bytes
            ahead = size.ahead * _GROUP_LINES * line

            def add_columns(totals: Registers, start: Expr, columns: int) -> None:
                for i in range(columns):
                    column = start + index(i)
                    if ahead and i % line == 0:
                        for vector in vectors[:: BLOCK // lanes]:
                            prefetch(w, vector.block, column + index(ahead), index(0))
                    weights = [
                        floats.load(w, v.block, column, v.offset, lanes=lanes) for v in vectors
                    ]
                    values = [load(x, row, column) for row in rows]
                    for cell, (r, v) in enumerate(cells):
                        total = T.fma(splat(values[r], lanes), weights[v], totals.get(cell))
                        totals.set(cell, total)

            def add_chunk(start: Expr, columns: int) -> None:
                totals = Registers(len(cells), lanes)
                totals.clear()
                full, rest = divmod(columns, _UNROLL)
                if full:
                    with T.serial(index(full)) as step:
                        add_columns(totals, start + step * index(_UNROLL), _UNROLL)
                if rest:
                    add_columns(totals, start + index(full * _UNROLL), rest)
                for cell in range(len(cells)):
                    sums.set(cell, sums.get(cell) + totals.get(cell))

            full, rest = divmod(in_features, _CHUNK)
            unroll = size.unroll if isinstance(size, RowTile) else 1
            for_steps(full, unroll, lambda chunk: add_chunk(chunk * index(_CHUNK), _CHUNK))
            if rest:
                add_chunk(index(full * _CHUNK), rest)
            for cell, (r, v) in enumerate(cells):
                out.write(rows[r], vectors[v], sums.get(cell))

        out.for_tiles(tiles, tile)
    return writer.func
