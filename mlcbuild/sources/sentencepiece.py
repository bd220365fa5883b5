"""Builds tokenizer.json from a SentencePiece model: tokenizer.model, or pieces of a GGUF file."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from mlcbuild.errors import SourceError

SPACE = "\u2581"  # how pieces spell a space
_HINT = "use a source that has a tokenizer.json"
_BPE = 2  # of TrainerSpec.model_type


class PieceType(IntEnum):
    """What a piece is for; the numbers are those of the file (GGUF has the same)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """One token; its id is its place in the list. A higher score is merged earlier."""

    text: str
    score: float
    kind: PieceType


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """What a tokenizer.model says."""

    pieces: tuple[Piece, ...]
    add_prefix: bool  # whether a space is put in front of a text
    bos_id: int  # -1: none
    eos_id: int


def read_model(data: bytes, where: str) -> SentencePieceModel:
    """The model in the bytes of a tokenizer.model.

    Raises SourceError for bytes that are none, and for what cannot be converted exactly: models
    other than BPE, and those that normalize text or squeeze its spaces.
    """
    pieces: list[Piece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for number, value in _fields(data):
            if number == 1:
                piece = dict(_fields(value))
                kind = PieceType(piece.get(3, PieceType.NORMAL))
                score = struct.unpack("<f", piece.get(2, bytes(4)))[0]
                pieces.append(Piece(piece[1].decode("utf-8"), score, kind))
            elif number == 2:
                trainer = dict(_fields(value))
            elif number == 3:
                normalizer = dict(_fields(value))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise SourceError(
            "the file is no SentencePiece model, or is damaged", where=where, why=str(error)
        ) from error
    unsupported = None
    if not pieces:
        raise SourceError("the SentencePiece model has no pieces", where=where)
    if trainer.get(3, 1) != _BPE:
        unsupported = "a model other than BPE"
    elif normalizer.get(2):
        unsupported = f"the normalization {normalizer.get(1, b'').decode('utf-8', 'replace')!r}"
    elif normalizer.get(4, 1):
        unsupported = "removing extra white space"
    elif not normalizer.get(5, 1):
        unsupported = "spaces that are not escaped"
    elif trainer.get(24, 0):
        unsupported = "white space as a suffix"
    if unsupported is not None:
        raise SourceError(
            f"{unsupported} is not supported in SentencePiece models", where=where, hint=_HINT
        )
    return SentencePieceModel(
        pieces=tuple(pieces),
        add_prefix=bool(normalizer.get(3, 1)),
        bos_id=_signed(trainer.get(41, 1)),
        eos_id=_signed(trainer.get(42, 2)),
    )


def convert_pieces(pieces: Sequence[Piece], *, add_prefix: bool, bos: int | None) -> dict[str, Any]:
    """tokenizer.json, decoded, for a BPE model with these pieces.

    ``bos``: the id of the token that is put in front of a text, if any. Raises SourceError.
    """
    vocab = {piece.text: number for number, piece in enumerate(pieces)}
    problem = None
    if len(vocab) != len(pieces):
        problem = "the same piece occurs twice"
    elif any(piece.kind == PieceType.UNUSED for piece in pieces):
        problem = "it has pieces that are marked as unused"
    elif any(piece.kind == PieceType.USER_DEFINED and SPACE in piece.text for piece in pieces):
        problem = "it has pieces with spaces that the user defined"
    unknown = [piece.text for piece in pieces if piece.kind == PieceType.UNKNOWN]
    if problem is None and len(unknown) != 1:
        problem = f"it has {len(unknown)} pieces for the unknown, not one"
    if problem is not None:
        raise SourceError(
            "the SentencePiece vocabulary cannot be converted", why=problem, hint=_HINT
        )
    added = [
        _added_token(number, piece)
        for number, piece in enumerate(pieces)
        if piece.kind in (PieceType.UNKNOWN, PieceType.CONTROL, PieceType.USER_DEFINED)
    ]
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if add_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [prepend, spaces] if add_prefix else [spaces],
        },
        "pre_tokenizer": None,
        "post_processor": None if bos is None else _begin_with(pieces[bos].text, bos),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown[0],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": any(piece.kind == PieceType.BYTE for piece in pieces),
            "ignore_merges": False,
            "vocab": vocab,
            "merges": _merges(pieces),
        },
    }


def model_to_tokenizer_json(data: bytes, where: str, config: Mapping[str, Any]) -> bytes:
    """tokenizer.json for the bytes of a tokenizer.model; ``config`` is its tokenizer_config.json.

    Equal input gives equal bytes. Raises SourceError.
    """
    model = read_model(data, where)
    bos = model.bos_id if 0 <= model.bos_id < len(model.pieces) else None
    if not config.get("add_bos_token", True):
        bos = None
    try:
        tokenizer = convert_pieces(model.pieces, add_prefix=model.add_prefix, bos=bos)
    except SourceError as error:
        raise SourceError(error.message, where=where, why=error.why, hint=error.hint) from None
    return json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _merges(pieces: Sequence[Piece]) -> list[list[str]]:
    """Every way to make a piece of two others; pieces with a higher score first."""
    scores = {piece.text: piece.score for piece in pieces if piece.kind == PieceType.NORMAL}
    found = [
        (-score, -split, text[:split], text[split:])
        for text, score in scores.items()
        for split in range(1, len(text))
        if text[:split] in scores and text[split:] in scores
    ]
    found.sort(key=lambda merge: merge[:2])
    return [[left, right] for _, _, left, right in found]


def _added_token(number: int, piece: Piece) -> dict[str, Any]:
    return {
        "id": number,
        "content": piece.text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": piece.kind != PieceType.USER_DEFINED,
    }


def _begin_with(token: str, number: int) -> dict[str, Any]:
    begin = {"SpecialToken": {"id": token, "type_id": 0}}
    again = {"SpecialToken": {"id": token, "type_id": 1}}
    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [begin, first],
        "pair": [begin, first, again, second],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of a protocol buffers message: integers, or bytes of any other field."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise ValueError("a number is too long")

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            if kind != 2:
                raise ValueError(f"byte {at} begins a field of unknown kind {kind}")
            size = varint()
        if at + size > len(data):
            raise ValueError(f"a field at byte {at} reaches beyond the end")
        yield key >> 3, data[at : at + size]
        at += size
