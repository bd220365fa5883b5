"""Linear layers with int4 weights and float32 activations: the reference of linear_int4."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import (
    Expr,
    dynamic,
    f32,
    i32,
    index,
    keep,
    kernel,
    load,
    load_f32,
    local,
    splat,
    store,
    vector_type,
)
from mlcbuild.kernels.cpu._int4 import PACK, int4_weight, nibble_shift
from mlcbuild.kernels.cpu._linear import Outputs, OutputVector
from mlcbuild.kernels.cpu._vector import lanes_of
from mlcbuild.kernels.cpu.quantize import GROUP
from mlcbuild.kernels.cpu.tiles import Tiles
from mlcbuild.spec.capabilities import Capabilities


@lru_cache(maxsize=None)
def linear_int4_float(
    capabilities: Capabilities,
    tiles: Tiles,
    out_features: int,
    in_features: int,
    group_size: int,
    scale_dtype: str,
    zero_point: int,
    bias: bool,
    residual: bool,
) -> tirx.PrimFunc:
    """``(x f32[n,K], w, s, [bias], [residual]) -> y``.

    ``y = sum over groups of s_g * (sum over the group's columns of x * (code - zero_point))``,
    both sums in float32 and in the order of the columns, whatever the tile.
    """
    lanes = lanes_of(capabilities)
    with kernel("linear_int4_float") as writer:
        n = dynamic("n")
        x = writer.arg("x", (n, in_features), "float32")
        w, s = int4_weight(writer, out_features, in_features, group_size, scale_dtype)
        out = Outputs(writer, n, out_features, lanes, bias, residual)

        def tile(rows: Sequence[Expr], vectors: Sequence[OutputVector]) -> None:
            sums = local((len(rows) * len(vectors), lanes))
            cells = [(r, v) for r in range(len(rows)) for v in range(len(vectors))]
            for i in range(len(cells)):
                store(sums, f32(0.0, lanes), index(i), index(0), lanes=lanes)

            def add_group(group: Expr, columns: int) -> None:
                totals = {cell: f32(0.0, lanes) for cell in cells}
                packed: list[Expr] = []
                for column in range(columns):
                    if column % PACK == 0:
                        pack = group * 4 + index(column // PACK)
                        packed = [load(w, v.block, pack, v.offset, lanes=lanes) for v in vectors]
                    shift = i32(nibble_shift(column % PACK), lanes)
                    weights = [
                        keep(
                            ((p >> shift & i32(15, lanes)) - i32(zero_point, lanes)).astype(
                                vector_type("float32", lanes)
                            )
                        )
                        for p in packed
                    ]
                    for r, row in enumerate(rows):
                        value = splat(load(x, row, group * index(GROUP) + index(column)), lanes)
                        for v in range(len(vectors)):
                            totals[r, v] = T.bind(T.fma(value, weights[v], totals[r, v]))
                weight_group = group // index(group_size // GROUP)
                scales = [
                    load_f32(s, v.block, weight_group, v.offset, lanes=lanes) for v in vectors
                ]
                for i, (r, v) in enumerate(cells):
                    old = load(sums, index(i), index(0), lanes=lanes)
                    new = T.fma(totals[r, v], scales[v], old)
                    store(sums, new, index(i), index(0), lanes=lanes)

            full, rest = divmod(in_features, GROUP)
            if full:
                with T.serial(index(full)) as group:
                    add_group(group, GROUP)
            if rest:
                add_group(index(full), rest)
            for i, (r, v) in enumerate(cells):
                out.write(rows[r], vectors[v], load(sums, index(i), index(0), lanes=lanes))

        out.for_tiles(tiles.float_rows, tiles.float_vectors, tiles.blocks, tile)
    return writer.func
