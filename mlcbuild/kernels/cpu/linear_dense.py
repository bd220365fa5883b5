"""Linear layers with float16 or float32 weights: ``y = x w^T [+ bias] [+ residual]``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import (
    Expr,
    dynamic,
    f32,
    index,
    kernel,
    load,
    load_f32,
    local,
    splat,
    store,
)
from mlcbuild.kernels.cpu._int4 import BLOCK
from mlcbuild.kernels.cpu._linear import Outputs, OutputVector
from mlcbuild.kernels.cpu._vector import lanes_of
from mlcbuild.kernels.cpu.tiles import Tiles
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.layout import padded

# Columns summed before their sum is added to the total: shorter chains lose fewer bits.
_CHUNK = 32


@lru_cache(maxsize=None)
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
    lanes = lanes_of(capabilities)
    with kernel("linear_dense") as writer:
        n = dynamic("n")
        x = writer.arg("x", (n, in_features), "float32")
        blocks = padded(out_features, BLOCK) // BLOCK
        w = writer.arg("w", (blocks, in_features, BLOCK), weight_dtype)
        out = Outputs(writer, n, out_features, lanes, bias, residual)

        def tile(rows: Sequence[Expr], vectors: Sequence[OutputVector]) -> None:
            sums = local((len(rows) * len(vectors), lanes))
            cells = [(r, v) for r in range(len(rows)) for v in range(len(vectors))]
            for i in range(len(cells)):
                store(sums, f32(0.0, lanes), index(i), index(0), lanes=lanes)

            def add_chunk(start: Expr, columns: int) -> None:
                totals = {cell: f32(0.0, lanes) for cell in cells}
                for i in range(columns):
                    column = T.bind(start + index(i))
                    weights = [
                        load_f32(w, v.block, column, v.offset, lanes=lanes) for v in vectors
                    ]
                    for r, row in enumerate(rows):
                        value = splat(load(x, row, column), lanes)
                        for v in range(len(vectors)):
                            totals[r, v] = T.bind(T.fma(value, weights[v], totals[r, v]))
                for i, cell in enumerate(cells):
                    old = load(sums, index(i), index(0), lanes=lanes)
                    store(sums, old + totals[cell], index(i), index(0), lanes=lanes)

            full, rest = divmod(in_features, _CHUNK)
            if full:
                with T.serial(index(full)) as chunk:
                    add_chunk(chunk * index(_CHUNK), _CHUNK)
            if rest:
                add_chunk(index(full * _CHUNK), rest)
            for i, (r, v) in enumerate(cells):
                out.write(rows[r], vectors[v], load(sums, index(i), index(0), lanes=lanes))

        out.for_tiles(tiles.dense_rows, tiles.dense_vectors, tiles.blocks, tile)
    return writer.func
