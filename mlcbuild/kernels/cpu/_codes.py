"""Integer weight layouts (mlcbuild.spec.layout) as the kernels read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from tvm.tirx.script import builder as T

from mlcbuild.errors import InternalError
from mlcbuild.kernels.cpu._builder import Buffer, Expr, KernelWriter, i32, index, load, splat
from mlcbuild.spec.layout import I4X16, padded

# Rows of a block: the lanes of the layouts.
BLOCK = I4X16.lanes

# Columns of a step: one code in each byte of an int32.
STEP = 4

_GROUP = 32
_EVERY_BYTE = 0x01010101


@dataclass(frozen=True, slots=True)
class Field:
    """Bits of a code: what is left of ``word`` shifted right by ``shift``, in every byte."""

    word: int
    shift: int
    mask: int


@dataclass(frozen=True, slots=True)
class CodeFormat:
    """How codes of ``bits`` bits lie in a pack of ``words`` int32 of one lane.

    A pack holds one step of 4 columns after another, each in the bytes of its fields. Packs
    follow each other, 32 columns of a lane take ``bits`` words in all.
    """

    bits: int
    words: int
    steps: tuple[tuple[Field, ...], ...]

    @property
    def columns(self) -> int:
        """Columns of a pack."""
        return STEP * len(self.steps)

    @property
    def packs(self) -> int:
        """Packs of a group of 32 columns."""
        return _GROUP // self.columns

    def load_pack(
        self, weights: Buffer, block: Expr, pack: Expr, lane: Expr, lanes: int
    ) -> list[Expr]:
        """The words of one pack, ``lanes`` neighbouring lanes of each."""
        first = pack * index(self.words)
        return [
            load(weights, block, first + index(word), lane, lanes=lanes)
            for word in range(self.words)
        ]

    def step(self, words: Sequence[Expr], step: int, lanes: int) -> Expr:
        """The codes of one step of a pack, one in every byte of int32 lanes."""
        return _join(self.steps[step], words, 0, lanes, _EVERY_BYTE)

    def column(self, words: Sequence[Expr], column: int, lanes: int) -> Expr:
        """The codes of one column of a pack, as int32."""
        fields = self.steps[column // STEP]
        return _join(fields, words, 8 * (column % STEP), lanes, 1)

    def step_of_lane(self, words: Sequence[Expr], step: int) -> Expr:
        """The codes of one step of a single lane's pack, as int32x4."""
        parts = []
        for field in self.steps[step]:
            places = [i32(8 * column + field.shift) for column in range(STEP)]
            value = splat(words[field.word], STEP) >> T.Shuffle(places, list(range(STEP)))
            parts.append(value & i32(field.mask, STEP))
        return reduce(or_, parts)


def _join(
    fields: Sequence[Field], words: Sequence[Expr], shift: int, lanes: int, every: int
) -> Expr:
    parts = []
    for field in fields:
        value = words[field.word]
        if shift + field.shift:
            value = value >> i32(shift + field.shift, lanes)
        whole = field.mask == 0xFF and every == _EVERY_BYTE
        parts.append(value if whole else value & i32(field.mask * every, lanes))
    return reduce(or_, parts)


_FORMATS = {
    8: CodeFormat(8, 1, ((Field(0, 0, 0xFF),),)),
    4: CodeFormat(4, 1, ((Field(0, 0, 15),), (Field(0, 4, 15),))),
    3: CodeFormat(
        3,
        3,
        (
            *((Field(word, shift, 7),) for word in range(3) for shift in (0, 3)),
            (Field(0, 6, 3), Field(2, 4, 4)),
            (Field(1, 6, 3), Field(2, 5, 4)),
        ),
    ),
}


def code_format(bits: int) -> CodeFormat:
    """The format of codes of ``bits`` bits."""
    if bits not in _FORMATS:
        raise InternalError(f"codes of {bits} bits")
    return _FORMATS[bits]


def code_weight(
    writer: KernelWriter,
    bits: int,
    out_features: int,
    in_features: int,
    group_size: int,
    scale_dtype: str,
    zero_point: int,
) -> tuple[Buffer, Buffer]:
    """The next two arguments: codes int32 ``[NB, Kw*bits/32, 16]``, scales ``[NB, Kw/group, 16]``.

    ``Kw`` is K padded to ``group_size``.
    """
    if group_size % _GROUP:
        raise InternalError(
            f"a group of {group_size} columns", why="the CPU kernels need a multiple of 32"
        )
    if not 2**bits - 128 <= zero_point <= 128:
        raise InternalError(
            f"{bits}-bit codes with the zero point {zero_point}",
            why="code - zero point has to be an int8",
        )
    blocks = padded(out_features, BLOCK) // BLOCK
    columns = padded(in_features, group_size)
    w = writer.arg("w", (blocks, columns * bits // 32, BLOCK), "int32")
    s = writer.arg("s", (blocks, columns // group_size, BLOCK), scale_dtype)
    return w, s
