"""Linear layers with integer weights and int8 activations: ``y = x w^T [+ bias] [+ residual]``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from mlcbuild.kernels.cpu._dot import int8_dot
from mlcbuild.kernels.cpu._floats import Floats
from mlcbuild.kernels.cpu._int8_dot import GroupOperands
from mlcbuild.kernels.cpu._linear import Outputs, OutputVector, for_steps, prefetch_group
from mlcbuild.kernels.cpu._tile_products import TileProducts
from mlcbuild.kernels.cpu._vector import lanes_of
from mlcbuild.kernels.cpu.quantize import GROUP, QuantizedRows
from mlcbuild.kernels.cpu.tiles import MANY_ROWS, RowsTile, RowTile, Tiles
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.layout import padded


@cache
def linear_int(
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
    """``(xq, xs, xz, w, s, [bias], [residual]) -> y``, from quantize_rows' three tensors.

    ``y = sum over groups g of (dot_g - zero_point * xz_g) * (s_g * xs_g)``: the integer part is
    exact, the float32 sum runs over the groups in order, whatever the tile.
    """
    code = code_format(bits)
    lanes = lanes_of(capabilities)
    dot, floats = int8_dot(capabilities, bits), Floats(capabilities)
    groups = padded(in_features, GROUP) // GROUP
    with kernel(f"linear_int{bits}") as writer:
        rows = dynamic("n")
        x = QuantizedRows(writer, rows, in_features)
        w, s = code_weight(
            writer, bits, out_features, in_features, group_size, scale_dtype, zero_point
        )
        out = Outputs(writer, rows, out_features, lanes, bias, residual)

        def tile(
            rows: Sequence[Expr], vectors: Sequence[OutputVector], size: RowTile | RowsTile
        ) -> None:
            cells = [(r, v) for r in range(len(rows)) for v in range(len(vectors))]
            sums = Registers(len(cells), lanes)
            sums.clear()

            def add_group(group: Expr) -> None:
                prefetch_group(w, vectors, lanes, group, bits, size.ahead)
                row_sums, corrections = [], []
                for row in rows:
                    row_sums.append(load(x.sums, row, group))
                    corrections.append(keep(row_sums[-1] * i32(-zero_point)))

                def steps() -> Iterator[list[Expr]]:
                    for number in range(code.packs):
                        pack = group * index(code.packs) + index(number)
                        packed = [
                            code.load_pack(w, v.block, pack, v.offset, lanes) for v in vectors
                        ]
                        for step in range(len(code.steps)):
                            yield [keep(code.step(words, step, lanes)) for words in packed]

                first = group * index(GROUP)
                totals = dot.group(
                    GroupOperands(x.codes, rows, first, steps, len(vectors), row_sums, corrections)
                )
                weight_group = group // index(group_size // GROUP)
                scales = [
                    floats.load(s, v.block, weight_group, v.offset, lanes=lanes) for v in vectors
                ]
                for i, (r, v) in enumerate(cells):
                    factor = scales[v] * splat(load(x.scales, rows[r], group), lanes)
                    value = totals[r][v].astype(vector_type("float32", lanes))
                    sums.set(i, T.fma(value, factor, sums.get(i)))

            for_steps(groups, size.unroll if isinstance(size, RowTile) else 1, add_group)
            for i, (r, v) in enumerate(cells):
                out.write(rows[r], vectors[v], sums.get(i))

        def products() -> None:
            tile_products = TileProducts(x, w, s, out, code, group_size, zero_point)
            tile_products.write(tiles.many.blocks)

        if not capabilities.int8_tiles or tiles.only in ("one", "few"):
            out.for_tiles(tiles, tile)
        elif tiles.only == "many":
            products()
        else:
            with T.If(rows < index(MANY_ROWS)):
                with T.Then():
                    out.for_tiles(replace(tiles, many=tiles.few), tile)
                with T.Else():
                    products()
    return writer.func
