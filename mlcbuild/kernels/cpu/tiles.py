"""Tile sizes of the CPU kernels: what a later search may change without changing a result."""

from __future__ import annotations

from dataclasses import dataclass

from mlcbuild.spec.capabilities import Capabilities


@dataclass(frozen=True, slots=True)
class Tiles:
    """Register and cache tiles of the linear kernels.

    ``rows`` are the row counts of the tiles, largest first and ending in 1: rows left over by one
    size go to the next. ``vectors`` is how many vectors of outputs a tile of several rows holds.
    ``blocks`` is how many blocks of 16 outputs one task computes for a row tile while the tile's
    activations are still in the cache. ``row_blocks`` is how many of them a single row computes at
    once: each is a stream of weights of its own, and more streams keep the memory busier. ``ahead``
    is how many groups of columns ahead int4 weights are asked for, 0 not at all: processors follow
    a stream by themselves, but not from one page of memory to the next.
    """

    int4_rows: tuple[int, ...]
    int4_vectors: int
    float_rows: tuple[int, ...]
    float_vectors: int
    dense_rows: tuple[int, ...]
    dense_vectors: int
    blocks: int
    row_blocks: int
    ahead: int


AVX512 = Tiles((14, 8, 4, 2, 1), 1, (8, 4, 2, 1), 1, (8, 4, 2, 1), 1, 4, 4, 8)
AVX2 = Tiles((4, 2, 1), 1, (4, 2, 1), 1, (4, 2, 1), 2, 4, 4, 8)


def default_tiles(capabilities: Capabilities) -> Tiles:
    """The tile sizes that fit the register file of an instruction set."""
    return AVX512 if capabilities.vector_bits >= 512 else AVX2
