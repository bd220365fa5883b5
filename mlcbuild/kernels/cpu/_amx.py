"""AMX: tile registers of 16 rows of 64 bytes, and products of int8 tiles."""

from __future__ import annotations

from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import Buffer, Expr, index, local, store

# Rows of a tile, and of activations that a tile product takes.
TILE_ROWS = 16

# Numbers of the tile registers: two sets, so that one product need not wait for the one before.
SUMS, LEFT, RIGHT = (0, 1), (2, 3), (4, 5)


def _call(name: str, *args: Expr) -> None:
    T.evaluate(T.call_llvm_intrin("void", f"llvm.x86.{name}", *args))


class Tiles:
    """The tile registers of the current task, shaped for products ``[16, 32] x [32, 16]``.

    ``LEFT`` tiles are 16 rows of 32 int8, ``RIGHT`` tiles 8 rows of 16 x 4 int8 (row k holds
    columns 4k..4k+3 of all 16 outputs), ``SUMS`` 16 rows of 16 int32.
    """

    def __init__(self) -> None:
        """Configures them: palette 1, bytes per row from byte 16 on, rows from byte 48 on."""
        config = local((16,), "int32")
        words = {0: 1, 4: 64 | 64 << 16, 5: 32 | 32 << 16, 6: 64 | 64 << 16}
        words |= {12: 16 | 16 << 8 | 16 << 16 | 16 << 24, 13: 8 | 8 << 8}
        for number in range(16):
            store(config, T.int32(words.get(number, 0)), index(number))
        _call("ldtilecfg", T.address_of(config[index(0)]))

    def release(self) -> None:
        """Gives them back, so that a context switch has less to save."""
        _call("tilerelease")

    def load(self, tile: int, buffer: Buffer, *where: Expr, stride: int) -> None:
        """Rows of a tile from ``buffer`` at ``where``, ``stride`` bytes apart."""
        _call("tileloadd64", T.int8(tile), T.address_of(buffer[where]), index(stride))

    def store(self, tile: int, buffer: Buffer, *where: Expr, stride: int) -> None:
        """Rows of a tile into ``buffer`` at ``where``, ``stride`` bytes apart."""
        _call("tilestored64", T.int8(tile), T.address_of(buffer[where]), index(stride))

    def multiply(self, slot: int) -> None:
        """``SUMS = LEFT x RIGHT``, signed, of one set of registers."""
        _call("tilezero", T.int8(SUMS[slot]))
        _call("tdpbssd", T.int8(SUMS[slot]), T.int8(LEFT[slot]), T.int8(RIGHT[slot]))
