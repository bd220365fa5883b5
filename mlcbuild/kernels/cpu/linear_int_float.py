"""Linear layers with integer weights and float32 activations: the reference of linear_int."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import (
    Expr,
    Registers,
    dynamic,
    i32,
    index,
    keep,
    kernel,
    load,
    splat,
    vector_type,
)
from mlcbuild.kernels.cpu._codes import code_format, code_weight
from mlcbuild.kernels.cpu._floats import Floats
from mlcbuild.kernels.cpu._linear import Outputs, OutputVector, for_steps, prefetch_group
from mlcbuild.kernels.cpu._vector import lanes_of
from mlcbuild.kernels.cpu.quantize import GROUP
from mlcbuild.kernels.cpu.tiles import RowsTile, RowTile, Tiles
from mlcbuild.spec.capabilities import Capabilities


@cache
def linear_int_float(
    capabilities: Capabilities,
    tiles: Tiles,
    bits: int,
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
    code = code_format(bits)
    lanes, floats = lanes_of(capabilities), Floats(capabilities)
    with kernel(f"linear_int{bits}_float") as writer:
        n = dynamic("n")
        x = writer.arg("x", (n, in_features), "float32")
        w, s = code_weight(
            writer, bits, out_features, in_features, group_size, scale_dtype, zero_point
        )
        out = Outputs(writer, n, out_features, lanes, bias, residual)

        def tile(
            rows: Sequence[Expr], vectors: Sequence[OutputVector], size: RowTile | RowsTile
        ) -> None:
            cells = [(r, v) for r in range(len(rows)) for v in range(len(vectors))]
            sums = Registers(len(cells), lanes)
            sums.clear()

            def add_pack(totals: Registers, pack: Expr, columns: int) -> None:
                packed = [code.load_pack(w, v.block, pack, v.offset, lanes) for v in vectors]
                for column in range(columns):
                    codes = [code.column(words, column, lanes) for words in packed]
                    weights = [
                        keep((c - i32(zero_point, lanes)).astype(vector_type("float32", lanes)))
                        for c in codes
                    ]
                    values = [
                        load(x, row, pack * index(code.columns) + index(column)) for row in rows
                    ]
                    for i, (r, v) in enumerate(cells):
                        total = T.fma(splat(values[r], lanes), weights[v], totals.get(i))
                        totals.set(i, total)

            def add_group(group: Expr, columns: int) -> None:
                prefetch_group(w, vectors, lanes, group, bits, size.ahead)
                totals = Registers(len(cells), lanes)
                totals.clear()
                full, rest = divmod(columns, code.columns)
                first = group * index(code.packs)
                if full:
                    with T.serial(index(full)) as pack:
                        add_pack(totals, first + pack, code.columns)
                if rest:
                    add_pack(totals, first + index(full), rest)
                weight_group = group // index(group_size // GROUP)
                scales = [
                    floats.load(s, v.block, weight_group, v.offset, lanes=lanes) for v in vectors
                ]
                for i, (_, v) in enumerate(cells):
                    sums.set(i, T.fma(totals.get(i), scales[v], sums.get(i)))

            full, rest = divmod(in_features, GROUP)
            unroll = size.unroll if isinstance(size, RowTile) else 1
            for_steps(full, unroll, lambda group: add_group(group, GROUP))
            if rest:
                add_group(index(full), rest)
            for i, (r, v) in enumerate(cells):
                out.write(rows[r], vectors[v], sums.get(i))

        out.for_tiles(tiles, tile)
    return writer.func
