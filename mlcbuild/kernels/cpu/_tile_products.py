"""Integer weights times int8 activations for 16 rows and more, by products of AMX tiles."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._amx import LEFT, RIGHT, SUMS, TILE_ROWS, Tiles
from mlcbuild.kernels.cpu._builder import (
    Buffer,
    Expr,
    Registers,
    index,
    load,
    load_f32,
    local,
    splat,
    store,
    vector_type,
)
from mlcbuild.kernels.cpu._codes import BLOCK, CodeFormat
from mlcbuild.kernels.cpu._linear import Outputs, OutputVector
from mlcbuild.kernels.cpu.quantize import GROUP, QuantizedRows
from mlcbuild.kernels.cpu.tiles import largest_divisor

# Bytes of 4 columns of a block of 16 outputs, and of a group of 32 columns.
_STEP = 4 * BLOCK
_GROUP_BYTES = GROUP * BLOCK

_HALF = TILE_ROWS // 2


@dataclass(frozen=True, slots=True)
class TileProducts:
    """``y = sum over groups g of dot_g * (s_g * xs_g)``: what the vector kernels sum, bit for bit.

    The arguments of ``linear_int``, of which there are at least 16 rows. It is worth it from
    ``tiles.MANY_ROWS`` on: a block's weights are unpacked first, and rows are computed 16 at a
    time; below, a vector kernel is faster.
    """

    x: QuantizedRows
    w: Buffer
    s: Buffer
    out: Outputs
    code: CodeFormat
    group_size: int
    zero_point: int

    @property
    def _groups(self) -> int:
        return int(self.x.codes.shape[1]) // GROUP

    def write(self, blocks: int) -> None:
        """Compute all outputs, about ``blocks`` blocks of 16 in a task.

        A task unpacks the weights of a block once and then goes over all tiles of rows; the last
        tile begins where it still has 16 rows, and so computes some of them twice.
        """
        total = int(self.w.shape[0])
        steps = largest_divisor(total, blocks)
        rows = self.x.rows
        with T.parallel(index(total // steps)) as task, T.sblock("tiles"):
            tiles = Tiles()
            codes = local((self._groups * _GROUP_BYTES,), "int8")
            with T.serial(index(steps)) as step:
                block = T.bind(task * index(steps) + step)
                self._unpack(block, codes)
                with T.serial((rows + index(TILE_ROWS - 1)) // index(TILE_ROWS)) as row_tile:
                    first = T.bind(T.min(row_tile * index(TILE_ROWS), rows - index(TILE_ROWS)))
                    self._write_tile(tiles, codes, first, block)
            tiles.release()

    def _unpack(self, block: Expr, codes: Buffer) -> None:
        """``code - zero_point`` of a block as RIGHT tiles, one behind another.

        The difference is an int8 for every format: of 8-bit codes the zero point is 128.
        """
        steps = len(self.code.steps)
        zero = splat(T.uint8(self.zero_point), _STEP)
        with T.serial(index(self._groups * self.code.packs)) as pack:
            words = self.code.load_pack(self.w, block, pack, index(0), BLOCK)
            for step in range(steps):
                unsigned = T.reinterpret(
                    vector_type("uint8", _STEP), self.code.step(words, step, BLOCK)
                )
                signed = T.reinterpret(vector_type("int8", _STEP), unsigned - zero)
                at = (pack * index(steps) + index(step)) * index(_STEP)
                store(codes, signed, at, lanes=_STEP)

    def _write_tile(self, tiles: Tiles, codes: Buffer, first: Expr, block: Expr) -> None:
        """Rows ``first`` and up, outputs of ``block``.

        Products are stored one group ahead of where they are added: a vector load that waits for
        a tile's store would hold up everything behind it.
        """
        groups = self._groups
        products = [local((TILE_ROWS, BLOCK), "int32") for _ in SUMS]
        # In two halves: TVM puts buffers of 1024 bytes and more on the heap.
        sums = [Registers(_HALF, BLOCK), Registers(_HALF, BLOCK)]
        for half in sums:
            half.clear()

        def multiply(slot: int, group: Expr) -> None:
            stride = groups * GROUP
            tiles.load(LEFT[slot], self.x.codes, first, group * index(GROUP), stride=stride)
            tiles.load(RIGHT[slot], codes, group * index(_GROUP_BYTES), stride=_STEP)
            tiles.multiply(slot)
            tiles.store(SUMS[slot], products[slot], index(0), index(0), stride=_STEP)

        def add(slot: int, group: Expr) -> None:
            weight_group = group // index(self.group_size // GROUP)
            scales = load_f32(self.s, block, weight_group, index(0), lanes=BLOCK)
            for r in range(TILE_ROWS):
                factor = scales * splat(load(self.x.scales, first + index(r), group), BLOCK)
                value = load_f32(products[slot], index(r), index(0), lanes=BLOCK)
                own, place = sums[r // _HALF], r % _HALF
                own.set(place, T.fma(value, factor, own.get(place)))

        multiply(0, index(0))
        pairs = (groups - 1) // 2
        if pairs:
            with T.serial(index(pairs)) as pair:
                group = T.bind(pair * index(2))
                multiply(1, group + index(1))
                add(0, group)
                multiply(0, group + index(2))
                add(1, group + index(1))
        last = 2 * pairs
        if last + 1 < groups:
            multiply(1, index(last + 1))
        add(0, index(last))
        if last + 1 < groups:
            add(1, index(last + 1))
        for r in range(TILE_ROWS):
            total = sums[r // _HALF].get(r % _HALF)
            self.out.write(first + index(r), OutputVector(block, index(0)), total)
