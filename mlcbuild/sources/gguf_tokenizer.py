"""Builds tokenizer.json and tokenizer_config.json from the vocabulary in a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mlcbuild.errors import SourceError
from mlcbuild.sources.sentencepiece import Piece, PieceType, convert_pieces

# Token types of GGUF.
_CONTROL = 3
_USER_DEFINED = 4

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


# GGUF's name of the pre-tokenizer -> how text is cut before the merges.
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "default": _byte_level(True),
    "gpt-2": _byte_level(True),
    "smollm": _sequence({"type": "Digits", "individual_digits": True}, _byte_level(True)),
    "llama-bpe": _sequence(_split(_LLAMA3_SPLIT), _byte_level(False)),
    "llama3": _sequence(_split(_LLAMA3_SPLIT), _byte_level(False)),
    "qwen2": _sequence(_split(_QWEN2_SPLIT), _byte_level(False)),
}
# Vocabularies in which a whole word that is a token is never split further.
_IGNORE_MERGES = frozenset({"llama-bpe", "llama3"})
_NFC = frozenset({"qwen2"})


def build_tokenizer_json(metadata: Mapping[str, Any], where: str) -> bytes:
    """tokenizer.json of the file's vocabulary; ``metadata`` holds its ``tokenizer.`` keys.

    Read are byte-level BPE ("gpt2") and SentencePiece BPE ("llama"). Equal metadata gives equal
    bytes. Raises SourceError for other kinds of vocabularies.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "llama":
        return _sentencepiece_json(metadata, where)
    if kind != "gpt2":
        raise SourceError(
            f"the GGUF file's vocabulary is of kind {kind!r}, which is not known",
            where=where,
            why="known: gpt2 (byte-level BPE), llama (SentencePiece BPE)",
            hint="use the model's Hugging Face folder, which has a tokenizer.json",
        )
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in _PRE_TOKENIZERS:
        raise SourceError(
            f"the GGUF file's pre-tokenizer {pre!r} is not known",
            where=where,
            why=f"known: {', '.join(_PRE_TOKENIZERS)}",
            hint="use the model's Hugging Face folder, which has a tokenizer.json",
        )
    tokens = _list(metadata, "tokenizer.ggml.tokens", where)
    types = _list(metadata, "tokenizer.ggml.token_type", where)
    merges = [merge.split(" ") for merge in _list(metadata, "tokenizer.ggml.merges", where)]
    if len(types) != len(tokens):
        raise SourceError(f"{len(tokens)} tokens have {len(types)} types", where=where)
    if any(len(merge) != 2 for merge in merges):
        raise SourceError("a merge of the vocabulary is not a pair of tokens", where=where)
    vocab = {token: number for number, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise SourceError("the vocabulary holds the same token twice", where=where)
    added = [
        _added_token(number, token, special=token_type == _CONTROL)
        for number, (token, token_type) in enumerate(zip(tokens, types, strict=True))
        if token_type in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre in _NFC else None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": _post_processor(metadata, tokens),
        "decoder": _byte_level(True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _IGNORE_MERGES,
            "vocab": vocab,
            "merges": merges,
        },
    }
    return json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _sentencepiece_json(metadata: Mapping[str, Any], where: str) -> bytes:
    texts = _list(metadata, "tokenizer.ggml.tokens", where)
    scores = _list(metadata, "tokenizer.ggml.scores", where)
    types = _list(metadata, "tokenizer.ggml.token_type", where)
    if not len(texts) == len(scores) == len(types):
        raise SourceError(
            f"{len(texts)} tokens have {len(scores)} scores and {len(types)} types", where=where
        )
    if metadata.get("tokenizer.ggml.remove_extra_whitespaces", False):
        raise SourceError("removing extra white space is not supported", where=where)
    number = metadata.get("tokenizer.ggml.bos_token_id")
    known = isinstance(number, int) and 0 <= number < len(texts)
    try:
        pieces = [
            Piece(text, float(score), PieceType(kind))
            for text, score, kind in zip(texts, scores, types, strict=True)
        ]
        tokenizer = convert_pieces(
            pieces,
            add_prefix=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
            bos=number if known and adds_bos(metadata) else None,
        )
    except ValueError as error:
        raise SourceError("a token has a type that is not known", where=where) from error
    except SourceError as error:
        raise SourceError(error.message, where=where, why=error.why, hint=error.hint) from None
    return json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def build_tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json: special tokens, whether BOS is added, and the chat template."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": bool(metadata.get("tokenizer.ggml.add_space_prefix", False)),
        "add_bos_token": adds_bos(metadata),
        "add_eos_token": bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
        "clean_up_tokenization_spaces": False,
    }
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    for key, name in (
        ("bos_token", "bos_token_id"),
        ("eos_token", "eos_token_id"),
        ("unk_token", "unknown_token_id"),
        ("pad_token", "padding_token_id"),
    ):
        number = metadata.get(f"tokenizer.ggml.{name}")
        if isinstance(number, int) and 0 <= number < len(tokens):
            config[key] = tokens[number]
    template = metadata.get("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    return config


def adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether BOS is put in front; SentencePiece and Llama 3 files do so without saying it."""
    stated = metadata.get("tokenizer.ggml.add_bos_token")
    if stated is None and metadata.get("tokenizer.ggml.model") == "llama":
        return True
    if stated is None:
        return metadata.get("tokenizer.ggml.pre") in ("llama-bpe", "llama3")
    return bool(stated)


def _added_token(number: int, token: str, *, special: bool) -> dict[str, Any]:
    return {
        "id": number,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def _post_processor(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any] | None:
    number = metadata.get("tokenizer.ggml.bos_token_id")
    if not adds_bos(metadata) or not isinstance(number, int) or not 0 <= number < len(tokens):
        return None
    bos = tokens[number]
    begin = {"SpecialToken": {"id": bos, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            begin,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": bos, "type_id": 1}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {bos: {"id": bos, "ids": [number], "tokens": [bos]}},
    }


def _list(metadata: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = metadata.get(key)
    if not isinstance(value, list):
        raise SourceError(f"the GGUF file lacks {key}", where=where)
    return value
