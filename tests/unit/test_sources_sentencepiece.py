"""SentencePiece models become tokenizer.json: the same ids as the sentencepiece library gives."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from mlcbuild.arch.llama.config import tiny_config
from mlcbuild.errors import SourceError
from mlcbuild.sources.checkpoint import open_checkpoint
from mlcbuild.sources.gguf_tokenizer import build_tokenizer_json
from mlcbuild.sources.sentencepiece import PieceType, model_to_tokenizer_json, read_model
from tests.unit.text_corpus import fetch_wheel, generated_text
from tests.unit.tiny_checkpoint import random_tensors, save_folder

SPACE = "\u2581"
PIECES: list[tuple[str, float, PieceType]] = [
    ("<unk>", 0.0, PieceType.UNKNOWN),
    ("<s>", 0.0, PieceType.CONTROL),
    ("</s>", 0.0, PieceType.CONTROL),
    *((f"<0x{byte:02X}>", 0.0, PieceType.BYTE) for byte in range(256)),
    *(
        (text, -float(rank), PieceType.NORMAL)
        for rank, text in enumerate((f"{SPACE}a", "ab", "bb", f"{SPACE}ab", "abb"))
    ),
    *((text, -100.0 - rank, PieceType.NORMAL) for rank, text in enumerate(f"{SPACE}ab\u00e9")),
    ("[tool]", 0.0, PieceType.USER_DEFINED),
]


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value & ((1 << 64) - 1))


def block(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def piece(text: str, score: float, kind: PieceType) -> bytes:
    message = block(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score)
    return block(1, message if kind == PieceType.NORMAL else message + number(3, kind))


def model_bytes(
    pieces: list[tuple[str, float, PieceType]] = PIECES,
    trainer: bytes = number(3, 2),
    normalizer: bytes = number(4, 0),
) -> bytes:
    return b"".join(piece(*entry) for entry in pieces) + block(2, trainer) + block(3, normalizer)


def ids(data: bytes, text: str, **config: Any) -> list[int]:
    converted = model_to_tokenizer_json(data, "tokenizer.model", config)
    assert converted == model_to_tokenizer_json(data, "tokenizer.model", config)
    found: list[int] = Tokenizer.from_str(converted.decode()).encode(text).ids
    return found


def test_merges_follow_the_scores() -> None:
    number_of = {text: index for index, (text, _, _) in enumerate(PIECES)}
    expected = ["<s>", f"{SPACE}a", "bb", SPACE, "\u00e9", "[tool]", SPACE, "b", "<0x0A>"]
    data = model_bytes()
    assert ids(data, "abb \u00e9[tool]b\n") == [number_of[text] for text in expected]
    assert ids(data, "a", add_bos_token=False) == [number_of[f"{SPACE}a"]]
    plain = model_bytes(normalizer=number(3, 0) + number(4, 0))  # no space in front
    assert ids(plain, "ab") == [1, number_of["ab"]]
    decoder = Tokenizer.from_str(model_to_tokenizer_json(data, "m", {}).decode())
    assert decoder.decode(ids(data, "a \u00e9\U0001f600b")) == "a \u00e9\U0001f600b"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no pieces"),
        (b"\x0a\xff", "no SentencePiece model, or is damaged"),
        (b"\x0b\x00", "damaged"),
        (b"\xff" * 12, "damaged"),
        (b"GGUF" * 5, "damaged"),
        (block(1, number(3, 77)), "damaged"),
        (block(1, number(3, 1)), "damaged"),
        (model_bytes(trainer=number(3, 1)), "a model other than BPE is not supported"),
        (model_bytes(normalizer=block(1, b"nfkc") + block(2, b"x")), "the normalization 'nfkc'"),
        (model_bytes(normalizer=b""), "removing extra white space"),
        (model_bytes(normalizer=number(4, 0) + number(5, 0)), "spaces that are not escaped"),
        (model_bytes(trainer=number(3, 2) + number(24, 1)), "white space as a suffix"),
        (model_bytes([*PIECES, PIECES[-1]]), "the same piece occurs twice"),
        (model_bytes(PIECES[1:]), "has 0 pieces for the unknown"),
        (model_bytes([*PIECES, ("x", 0.0, PieceType.UNUSED)]), "marked as unused"),
        (model_bytes([*PIECES, (SPACE * 2, 0.0, PieceType.USER_DEFINED)]), "pieces with spaces"),
    ],
)
def test_what_cannot_be_converted_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(SourceError) as error:
        model_to_tokenizer_json(data, "tokenizer.model", {})
    assert message in str(error.value)
    assert error.value.where == "tokenizer.model"


def test_gguf_pieces_give_the_same_file() -> None:
    texts, scores, types = zip(*PIECES, strict=True)
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(texts),
        "tokenizer.ggml.scores": list(scores),
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.bos_token_id": 1,
    }
    expected = model_to_tokenizer_json(model_bytes(), "tokenizer.model", {})
    assert build_tokenizer_json(metadata, "x.gguf") == expected
    metadata["tokenizer.ggml.add_bos_token"] = False
    assert json.loads(build_tokenizer_json(metadata, "x.gguf"))["post_processor"] is None
    metadata["tokenizer.ggml.scores"] = [0.0]
    with pytest.raises(SourceError, match="tokens have 1 scores"):
        build_tokenizer_json(metadata, "x.gguf")
    metadata["tokenizer.ggml.scores"] = list(scores)
    metadata["tokenizer.ggml.token_type"] = [9, *types[1:]]
    with pytest.raises(SourceError, match="a type that is not known"):
        build_tokenizer_json(metadata, "x.gguf")
    metadata["tokenizer.ggml.model"] = "t5"
    with pytest.raises(SourceError, match=r"of kind 't5', which is not known"):
        build_tokenizer_json(metadata, "x.gguf")


REFERENCE = """
import json, sys, sentencepiece
model = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
print(json.dumps([model.encode(text) for text in json.load(sys.stdin)]))
"""


def test_ids_equal_sentencepiece(pytestconfig: pytest.Config) -> None:
    """Mistral's own models against the library that they were made for."""
    import zipfile

    assert pytestconfig.cache is not None
    cache = pytestconfig.cache.mkdir("text_corpus")
    library = cache / "sentencepiece"
    if not library.exists():
        wheel = fetch_wheel("sentencepiece==0.2.3", cache)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(library)
    text = generated_text(8, 30_000).replace("\x00", "")  # the library ends a text there
    texts = [text[i : i + 400] for i in range(0, len(text), 400)]
    wheel = fetch_wheel("mistral-common==1.13.1", cache)
    for name in ("mistral_instruct_tokenizer_240323.model.v3",):
        model = cache / name
        with zipfile.ZipFile(wheel) as archive:
            model.write_bytes(archive.read(f"mistral_common/data/{name}"))
        result = subprocess.run(
            [sys.executable, "-c", REFERENCE, str(model)],
            input=json.dumps(texts),
            env={**os.environ, "PYTHONPATH": str(library)},
            capture_output=True,
            text=True,
            check=True,
        )
        converted = model_to_tokenizer_json(model.read_bytes(), name, {})
        tokenizer = Tokenizer.from_str(converted.decode())
        tokenizer.encode_special_tokens = True  # the library takes "<s>" for text
        for given, expected in zip(texts, json.loads(result.stdout), strict=True):
            assert tokenizer.encode(given, add_special_tokens=False).ids == expected, given
        assert read_model(model.read_bytes(), name).bos_id == 1


def test_a_folder_with_tokenizer_model_only(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "tiny", random_tensors(tiny_config()))
    (folder / "tokenizer.model").write_bytes(model_bytes())
    expected = model_to_tokenizer_json(model_bytes(), "", {})
    assert open_checkpoint(folder).tokenizer_json() == expected
    (folder / "tokenizer.json").write_bytes(b"{}")
    assert open_checkpoint(folder).tokenizer_json() == b"{}"
