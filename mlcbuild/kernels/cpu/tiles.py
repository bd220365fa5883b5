"""Tile sizes of the linear kernels: what tuning may change without changing a result.

Nothing here imports TVM: a build chooses tile sizes without compiling anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlcbuild.spec.capabilities import Capabilities

# Calls with fewer rows than this, but more than one, run the tiles for few rows.
MANY_ROWS = 24


@dataclass(frozen=True, slots=True)
class RowTile:
    """How a single row is computed.

    ``blocks`` of 16 outputs at once: each is a stream of weights of its own, and more streams keep
    the memory busier. ``unroll`` groups of 32 columns in one turn of the loop. ``ahead`` is how
    many groups ahead weights are asked for, 0 not at all: processors follow a stream by
    themselves, but not from one page of memory to the next. ``grain`` such tiles make a task.
    """

    blocks: int
    unroll: int
    ahead: int
    grain: int


@dataclass(frozen=True, slots=True)
class RowsTile:
    """How several rows are computed.

    A tile holds ``rows`` rows (what is left over goes to smaller tiles) times ``vectors`` vectors
    of outputs. A task computes ``blocks`` blocks of 16 outputs for a tile of rows while the rows'
    activations are still in the cache. ``ahead`` as for one row.
    """

    rows: int
    vectors: int
    blocks: int
    ahead: int

    def row_counts(self) -> tuple[int, ...]:
        """Row counts of the tiles, largest first and ending in 1."""
        powers = [1 << bit for bit in reversed(range(self.rows.bit_length()))]
        return (self.rows, *(power for power in powers if power < self.rows))


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of one linear kernel for one row, for few and for many (``MANY_ROWS``)."""

    one: RowTile
    few: RowsTile
    many: RowsTile


def _same(one: RowTile, rows: RowsTile) -> Tiles:
    return Tiles(one, rows, rows)


_ONE = RowTile(blocks=4, unroll=1, ahead=8, grain=1)
_NARROW = _same(_ONE, RowsTile(rows=4, vectors=1, blocks=4, ahead=8))
_DEFAULTS = {
    # (kernel, register bits)
    ("linear_int4", 512): _same(_ONE, RowsTile(rows=14, vectors=1, blocks=4, ahead=8)),
    ("linear_int4_float", 512): _same(_ONE, RowsTile(rows=8, vectors=1, blocks=4, ahead=8)),
    ("linear_int8", 512): _same(_ONE, RowsTile(rows=14, vectors=1, blocks=4, ahead=8)),
    ("linear_int8_float", 512): _same(_ONE, RowsTile(rows=8, vectors=1, blocks=4, ahead=8)),
    # Three words stay in registers beside the sums.
    ("linear_int3", 512): _same(_ONE, RowsTile(rows=12, vectors=1, blocks=4, ahead=8)),
    ("linear_int3_float", 512): _same(_ONE, RowsTile(rows=8, vectors=1, blocks=4, ahead=8)),
    ("linear_dense", 512): _same(_ONE, RowsTile(rows=8, vectors=1, blocks=4, ahead=8)),
    ("linear_dense", 256): _same(_ONE, RowsTile(rows=4, vectors=2, blocks=4, ahead=8)),
}

# 8-bit codes without a dot-product instruction take two sums for each product (_code_dot).
_WITHOUT_DOT = {
    ("linear_int8", 512): _same(_ONE, RowsTile(rows=8, vectors=1, blocks=4, ahead=8)),
}


def default_tiles(capabilities: Capabilities, kernel: str) -> Tiles:
    """The tile sizes of a kernel that fit the register file of an instruction set."""
    key = (kernel, capabilities.vector_bits)
    if not capabilities.int8_dot and key in _WITHOUT_DOT:
        return _WITHOUT_DOT[key]
    return _DEFAULTS.get(key, _NARROW)
