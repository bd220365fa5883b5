"""What all linear kernels share: tiling of rows and outputs, bias, residual, ragged outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import Buffer, Expr, KernelWriter, index, load, prefetch, store
from mlcbuild.kernels.cpu._codes import BLOCK
from mlcbuild.kernels.cpu.tiles import (
    MANY_ROWS,
    RowsTile,
    RowTile,
    Tiles,
    blocks_of,
    largest_divisor,
)
from mlcbuild.spec.layout import padded


@dataclass(frozen=True, slots=True)
class OutputVector:
    """One vector of outputs: lanes ``offset`` and up of weight block ``block``."""

    block: Expr
    offset: Expr


# Computes and stores the outputs of some rows times some output vectors, as a tile asks for it.
TileBody = Callable[[Sequence[Expr], Sequence[OutputVector], RowTile | RowsTile], None]


def prefetch_group(
    weights: Buffer,
    vectors: Sequence[OutputVector],
    lanes: int,
    group: Expr,
    lines: int,
    ahead: int,
) -> None:
    """Ask for the codes of the group of 32 columns that comes ``ahead`` groups later.

    A group of a block is ``lines`` cache lines, one for each bit of a code. Nothing for ``ahead``
    0.
    """
    if ahead:
        for vector in vectors[:: BLOCK // lanes]:
            for line in range(lines):
                at = (group + index(ahead)) * index(lines) + index(line)
                prefetch(weights, vector.block, at, index(0))


class Outputs:
    """The result ``[n, O]`` with optional bias and residual, as the last kernel arguments."""

    def __init__(
        self,
        writer: KernelWriter,
        rows: Expr,
        out_features: int,
        lanes: int,
        bias: bool,
        residual: bool,
    ) -> None:
        shape = (rows, out_features)
        self._rows = rows
        self._out_features = out_features
        self._lanes = lanes
        self._bias: Buffer | None = writer.arg("bias", shape[1:], "float32") if bias else None
        self._residual: Buffer | None = (
            writer.arg("residual", shape, "float32") if residual else None
        )
        self._y = writer.arg("y", shape, "float32")

    def write(self, row: Expr, vector: OutputVector, value: Expr) -> None:
        """Store one vector of results; lanes beyond the last output are left out."""
        column = T.bind(vector.block * index(BLOCK) + vector.offset)
        if self._out_features % BLOCK == 0:
            self._store(row, column, value, self._lanes)
            return
        with T.If(column + index(self._lanes) <= index(self._out_features)):
            with T.Then():
                self._store(row, column, value, self._lanes)
            with T.Else():
                for lane in range(self._lanes):
                    with T.If(column + index(lane) < index(self._out_features)), T.Then():
                        scalar = tirx.Shuffle([value], [lane])
                        self._store(row, column + index(lane), scalar, 1)

    def _store(self, row: Expr, column: Expr, value: Expr, lanes: int) -> None:
        if self._bias is not None:
            value = value + load(self._bias, column, lanes=lanes)
        if self._residual is not None:
            value = value + load(self._residual, row, column, lanes=lanes)
        store(self._y, value, row, column, lanes=lanes)

    def for_tiles(self, tiles: Tiles, body: TileBody) -> None:
        """Run ``body`` over all rows and outputs, parallel over the outputs.

        Which of the tiles runs depends on the number of rows.
        """
        if tiles.only == "one":
            self._for_one_row(tiles.one, body)
        elif tiles.only is not None:
            self._for_rows("", getattr(tiles, tiles.only), body)
        else:
            self._for_any_rows(tiles, body)

    def _for_any_rows(self, tiles: Tiles, body: TileBody) -> None:
        with T.If(self._rows == index(1)):
            with T.Then():
                self._for_one_row(tiles.one, body)
            with T.Else():
                if tiles.few == tiles.many:
                    self._for_rows("", tiles.few, body)
                else:
                    with T.If(self._rows < index(MANY_ROWS)):
                        with T.Then():
                            self._for_rows("few_", tiles.few, body)
                        with T.Else():
                            self._for_rows("many_", tiles.many, body)

    def _for_one_row(self, tile: RowTile, body: TileBody) -> None:
        """Whole blocks of weights, ``tile.blocks`` at a time, each read once."""
        per_block = BLOCK // self._lanes
        all_blocks = blocks_of(self._out_features)
        blocks = largest_divisor(all_blocks, tile.blocks)
        grain = largest_divisor(all_blocks // blocks, tile.grain)
        with T.parallel(index(all_blocks // (blocks * grain))) as task, T.sblock("one_row"):
            if grain == 1:
                body([index(0)], self._vectors(task, per_block * blocks), tile)
            else:
                with T.serial(index(grain)) as step:
                    number = task * index(grain) + step
                    body([index(0)], self._vectors(number, per_block * blocks), tile)

    def _for_rows(self, prefix: str, tile: RowsTile, body: TileBody) -> None:
        """Tiles of rows times output vectors; every task goes over all rows."""
        per_block = BLOCK // self._lanes
        total = padded(self._out_features, BLOCK) // self._lanes
        vectors = largest_divisor(total, tile.vectors)
        steps = largest_divisor(total // vectors, max(1, tile.blocks * per_block // vectors))
        with T.parallel(index(total // (vectors * steps))) as task, T.sblock(f"{prefix}task"):
            begin, left = index(0), self._rows
            for size in tile.row_counts():
                with (
                    T.serial(left // index(size)) as row_tile,
                    T.serial(index(steps)) as step,
                    T.sblock(f"{prefix}rows_{size}"),
                ):
                    first = begin + row_tile * index(size)
                    rows = [T.bind(first + index(i)) for i in range(size)]
                    body(rows, self._vectors(task * index(steps) + step, vectors), tile)
                begin = begin + left // index(size) * index(size)
                left = left % index(size)

    def _vectors(self, tile: Expr, count: int) -> list[OutputVector]:
        """The ``count`` output vectors of the tile with this number."""
        per_block = BLOCK // self._lanes
        positions = [tile * index(count) + index(i) for i in range(count)]
        if per_block == 1:
            return [OutputVector(position, index(0)) for position in positions]
        return [
            OutputVector(
                T.bind(position // index(per_block)),
                T.bind(position % index(per_block) * index(self._lanes)),
            )
            for position in positions
        ]


def for_steps(count: int, unroll: int, body: Callable[[Expr], None]) -> None:
    """Run ``body(number)`` for 0 .. count - 1 in order, ``unroll`` of them in a turn of a loop."""
    turns, rest = divmod(count, unroll)
    if turns:
        with T.serial(index(turns)) as turn:
            for i in range(unroll):
                body(turn if unroll == 1 else turn * index(unroll) + index(i))
    for i in range(rest):
        body(index(turns * unroll + i))
