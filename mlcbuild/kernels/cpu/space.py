"""The search spaces of the CPU kernel templates. Nothing here imports TVM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from mlcbuild.kernels.cpu.tiles import RowsTile, RowTile, Tiles, blocks_of, default_tiles
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.schedule_space import Choice, Decisions, Space

# Part of a record's key: raise it when a template changes so much that old measurements mislead.
TEMPLATE_VERSION = 1

# Float vectors that a tile of several rows may hold: it needs as many again for the sums of a
# group, and some for weights and activations.
_VECTORS = {512: 14, 256: 6, 128: 6}

# Vectors of outputs in one turn of the loop for one row: more only makes the code long.
_TURN = 16

# At how many rows the forms are measured: a step of one sequence, of a few, a piece of a prompt.
_FEW, _MANY = 8, 128

_AHEAD = (0, 2, 4, 8, 16, 32)


def is_template(builder: str) -> bool:
    """Whether a kernel builder takes tiles."""
    return builder.startswith("linear_")


def template_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """A tag's arguments without those that change no schedule."""
    return {name: value for name, value in args.items() if name not in ("bias", "residual")}


def spaces(capabilities: Capabilities, builder: str, args: Mapping[str, Any]) -> tuple[Space, ...]:
    """What can be chosen for a kernel, one space for each of its forms; none for other kernels."""
    if not is_template(builder):
        return ()
    blocks = blocks_of(int(args["out_features"]))
    groups = max(1, int(args["in_features"]) // 32)
    per_block = 512 // capabilities.vector_bits
    streams = [
        (at_once, unroll)
        for at_once in _divisors(blocks, 8)
        for unroll in (1, 2, 4)
        if unroll <= groups and at_once * unroll * per_block <= _TURN
    ]
    one = Space(
        "one",
        1,
        True,
        (
            Choice(("blocks", "unroll"), tuple(streams)),
            _single("grain", (1, 2, 4)),
            _single("ahead", _AHEAD),
        ),
    )
    few = Space("few", _FEW, True, _several_rows(capabilities, blocks, _FEW))
    if capabilities.int8_tiles and builder.endswith(("int3", "int4", "int8")):
        # The products of tiles have their own shape; only the share of a task is open.
        many = Space("many", _MANY, False, (_single("blocks", _divisors(blocks, 32)),))
    else:
        many = Space("many", _MANY, False, _several_rows(capabilities, blocks, _MANY))
    return one, few, many


def _several_rows(capabilities: Capabilities, blocks: int, most: int) -> tuple[Choice, ...]:
    room = _VECTORS[capabilities.vector_bits]
    total = blocks * 16 // (capabilities.vector_bits // 32)
    tiles = [
        (rows, vectors)
        for rows in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
        for vectors in (1, 2, 3, 4)
        if rows <= most and rows * vectors <= room and total % vectors == 0
    ]
    return (
        Choice(("rows", "vectors"), tuple(tiles)),
        _single("blocks", _divisors(blocks, 32)),
        _single("ahead", (0, 4, 8, 16)),
    )


def _divisors(number: int, limit: int) -> list[int]:
    return [d for d in range(1, limit + 1) if number % d == 0]


def _single(name: str, values: Iterable[int]) -> Choice:
    return Choice((name,), tuple((value,) for value in values))


def default_decisions(
    capabilities: Capabilities, builder: str, args: Mapping[str, Any], form: str
) -> dict[str, int]:
    """What a kernel without a record has, for one of its forms."""
    tiles = default_tiles(capabilities, builder, int(args["out_features"]))
    return asdict(getattr(tiles, form))


def tiles_from(
    capabilities: Capabilities,
    builder: str,
    args: Mapping[str, Any],
    decisions: Mapping[str, Decisions],
) -> Tiles:
    """The tiles of a kernel with ``decisions`` by form; what they leave out is the default."""
    base = default_tiles(capabilities, builder, int(args["out_features"]))
    forms: dict[str, Any] = {field.name: getattr(base, field.name) for field in fields(base)}
    for form, chosen in decisions.items():
        kind = RowTile if form == "one" else RowsTile
        forms[form] = kind(**{**asdict(forms[form]), **chosen})
    return Tiles(**forms)
