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
    """The tiles of one linear kernel for one row, for few and for many (``MANY_ROWS``).

    ``only`` is the name of the only form that the kernel gets, or None for all: a tuner calls a
    candidate with one number of rows, and should not wait for what it does not measure.
    """

    one: RowTile
    few: RowsTile
    many: RowsTile
    only: str | None = None


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of ``number`` that is at most ``limit``."""
    return max(d for d in range(1, max(1, limit) + 1) if number % d == 0)


# At least so many tasks for one row, if there are blocks enough: equal shares of the work.
_ROW_TASKS = 16

# Blocks that one row computes at once, and groups that it asks ahead. Blocks of ARM and WebAssembly
# are four vectors; WebAssembly has no prefetch.
_ONE_ROW = {"x86": (4, 8), "arm": (2, 8), "wasm": (2, 0)}

_NARROW = RowsTile(rows=4, vectors=1, blocks=4, ahead=8)
_ROWS = {
    # (kernel, register bits): what the registers hold
    ("linear_int4", 512): RowsTile(rows=14, vectors=1, blocks=4, ahead=8),
    ("linear_int4_float", 512): RowsTile(rows=8, vectors=1, blocks=4, ahead=8),
    ("linear_int8", 512): RowsTile(rows=14, vectors=1, blocks=4, ahead=8),
    ("linear_int8_float", 512): RowsTile(rows=8, vectors=1, blocks=4, ahead=8),
    # Three words stay there beside the sums.
    ("linear_int3", 512): RowsTile(rows=12, vectors=1, blocks=4, ahead=8),
    ("linear_int3_float", 512): RowsTile(rows=8, vectors=1, blocks=4, ahead=8),
    ("linear_dense", 512): RowsTile(rows=8, vectors=1, blocks=4, ahead=8),
    ("linear_dense", 256): RowsTile(rows=4, vectors=2, blocks=4, ahead=8),
}

# With vectors of 128 bits, for codes of any number of bits. ARM has 32 registers; of 16, a
# WebAssembly engine needs some itself.
_SHORT_ROWS = {
    ("linear_int", "arm"): RowsTile(rows=4, vectors=2, blocks=4, ahead=8),
    ("linear_int_float", "arm"): RowsTile(rows=8, vectors=2, blocks=4, ahead=8),
    ("linear_dense", "arm"): RowsTile(rows=4, vectors=4, blocks=4, ahead=8),
    ("linear_int", "wasm"): RowsTile(rows=2, vectors=2, blocks=4, ahead=0),
    ("linear_int_float", "wasm"): RowsTile(rows=4, vectors=1, blocks=4, ahead=0),
    ("linear_dense", "wasm"): RowsTile(rows=4, vectors=2, blocks=4, ahead=0),
}

# 8-bit codes without a dot-product instruction take two sums for each product (HalvedCodes).
_ROWS_WITHOUT_DOT = {
    ("linear_int8", 512): RowsTile(rows=8, vectors=1, blocks=4, ahead=8),
    ("linear_int8", 128): RowsTile(rows=2, vectors=2, blocks=4, ahead=0),
}


def blocks_of(out_features: int) -> int:
    """Blocks of 16 outputs, the last one padded."""
    return -(-out_features // 16)


def default_tiles(capabilities: Capabilities, kernel: str, out_features: int) -> Tiles:
    """The tiles of a kernel that nothing was measured for: they fit the register file."""
    blocks = blocks_of(out_features)
    most, ahead = _ONE_ROW[capabilities.architecture]
    at_once = largest_divisor(blocks, min(most, blocks // _ROW_TASKS))
    rows = _rows_tile(capabilities, kernel)
    return Tiles(RowTile(blocks=at_once, unroll=1, ahead=ahead, grain=1), rows, rows)


def _rows_tile(capabilities: Capabilities, kernel: str) -> RowsTile:
    key = (kernel, capabilities.vector_bits)
    if not capabilities.int8_dot and key in _ROWS_WITHOUT_DOT:
        return _ROWS_WITHOUT_DOT[key]
    any_bits = "".join(c for c in kernel if not c.isdigit())
    short = _SHORT_ROWS.get((any_bits, capabilities.architecture))
    return short or _ROWS.get(key, _NARROW)
