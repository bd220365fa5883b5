"""The runtime's tokenizer against Hugging Face tokenizers, on small tokenizers trained here."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from tests.unit.cpp_driver import build_cpp
from tests.unit.text_driver import Driver, DriverError

BUNDLE, UNSUPPORTED, ARGUMENT = 20, 5, 1

# Scripts, emoji, code, combining marks, odd white space (CRLF too: read it as bytes).
SAMPLE = (Path(__file__).parents[1] / "data" / "tokenizer_sample.txt").read_bytes().decode("utf-8")

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(**options: Any) -> Any:
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False, **options})


def split(pattern: str, behavior: str = "isolated", invert: bool = False) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def sequence(*steps: Any) -> Any:
    return pre_tokenizers.Sequence(list(steps))


# name -> (normalizer, pre-tokenizer): the shapes that real tokenizers have, and odd ones.
PIPELINES = {
    "gpt2": (None, byte_level(use_regex=True)),
    "gpt2-prefix-space": (None, byte_level(use_regex=True, add_prefix_space=True)),
    "smollm2": (None, sequence(pre_tokenizers.Digits(True), byte_level(use_regex=True))),
    "llama3": (None, sequence(split(LLAMA3), byte_level())),
    "qwen2": (
        normalizers.NFC(),
        sequence(split(LLAMA3.replace("{1,3}", "")), byte_level()),
    ),
    "o200k": (None, sequence(split(O200K, "removed", invert=True), byte_level())),
    "deepseek": (
        normalizers.Sequence([]),
        sequence(
            split(r"\p{N}{1,3}"),
            split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
            split(
                r"[!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            byte_level(),
        ),
    ),
    "merged-previous": (
        normalizers.Sequence([normalizers.NFC()]),
        sequence(split(r"\s", "merged_with_previous"), byte_level()),
    ),
    "merged-next": (None, sequence(split(r"\p{Lu}", "merged_with_next"), byte_level())),
    "contiguous": (
        None,
        sequence(pre_tokenizers.Digits(False), split(r"\w", "contiguous"), byte_level()),
    ),
    "empty-matches": (None, sequence(split(r"(?=[A-Z])"), byte_level(add_prefix_space=True))),
    "literal": (
        None,
        sequence(pre_tokenizers.Split(" ", "merged_with_next"), byte_level()),
    ),
}


def train(name: str) -> Any:
    normalizer, pre_tokenizer = PIPELINES[name]
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SAMPLE.split("\n") * 2, trainer)
    tokenizer.add_special_tokens(["<|im_start|>", AddedToken("<|im_end|>", normalized=False)])
    tokenizer.add_tokens(
        [
            AddedToken("<tool_call>", normalized=False),
            AddedToken("</tool_call>", normalized=True),
            AddedToken("<|im_start|><tool", normalized=False),
            AddedToken("\u212b", normalized=True),
        ]
    )
    return tokenizer


@pytest.fixture(scope="module")
def driver(pytestconfig: pytest.Config) -> Iterator[Driver]:
    with Driver(build_cpp(pytestconfig, "text_driver")) as driver:
        yield driver


def random_texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    pools = [
        "abcXYZ019 .,'!?-_/\n\t\r",
        " \n\t\r  aA1.'\u2019<|>/\u00a0\u3000\u2028\u0085",
        "éß\u017fKǅʰ中かナ한\u0430\u0301\u0473e\u0301\u0327\u0345안①½Ⅷ٣हिन\u200d\ufe0f\U0001f468\U0001f1e9",
    ]
    texts = []
    for index in range(count):
        size = rng.randrange(1, 50)
        if index % 4 < 3:
            texts.append("".join(rng.choices(pools[index % 4], k=size)))
        else:
            # Assigned characters only: of others the two sides may know different versions.
            chars = (chr(rng.randrange(0x20, 0x1F000)) for _ in range(size))
            texts.append("".join(c for c in chars if unicodedata.category(c) not in ("Cn", "Cs")))
    return texts


@pytest.mark.parametrize("name", PIPELINES)
def test_ids_equal_the_reference(name: str, driver: Driver) -> None:
    reference = train(name)
    driver("load", text=reference.to_str())
    texts = [SAMPLE, "", *SAMPLE.split("\n"), *random_texts(len(name), 200)]
    for text in texts:
        for special in (True, False):
            reference.encode_special_tokens = not special
            expected = reference.encode(text, add_special_tokens=False).ids
            found = driver("encode", text=text, special=special)
            assert found == expected, (text, special)
        for special in (True, False):
            decoded = bytes.fromhex(driver("decode", ids=expected, special=special))
            assert decoded.decode("utf-8", "replace") == reference.decode(
                expected, skip_special_tokens=not special
            )
            assert bytes.fromhex(driver("token_bytes", ids=expected, special=special)) == decoded


def test_any_bytes_survive_a_round_trip(driver: Driver) -> None:
    driver("load", text=train("llama3").to_str())
    rng = random.Random(1)
    for size in [1, 2, 7, 300]:
        data = bytes(rng.randrange(256) for _ in range(size))
        ids = driver("encode", hex=data, special=True)
        assert bytes.fromhex(driver("decode", ids=ids, special=True)) == data


def test_long_runs_take_linear_time(driver: Driver) -> None:
    reference = train("llama3")
    driver("load", text=reference.to_str())
    for text in ["a", " ", "\n", "\u4e2d", "a" + " " * 3000 + "b"]:
        repeat = 1_000_000 // len(text.encode())
        summary = driver("encode_summary", text=text, repeat=repeat)
        assert summary["round_trip"]
        assert summary["seconds"] < 20  # quadratic: hours
        part = text * (2000 // len(text) + 1)
        assert driver("encode", text=part) == reference.encode(part).ids


def test_special_tokens_and_lookups(driver: Driver) -> None:
    reference = train("gpt2")
    driver("load", text=reference.to_str())
    start = reference.token_to_id("<|im_start|>")
    tool = reference.token_to_id("<tool_call>")
    assert driver("find", text="<|im_start|>") == start
    assert driver("find", text="\u0120the") == reference.token_to_id("\u0120the")
    assert driver("find", text="no such token") == -1
    assert driver("vocab_size") == reference.get_vocab_size()
    assert driver("is_special", id=start) is True
    assert driver("is_special", id=tool) is False
    assert driver("is_special", id=10**6) is False
    assert bytes.fromhex(driver("decode", ids=[start, tool], special=False)) == b"<tool_call>"
    assert driver("encode", text="<|im_start|>", special=True) == [start]
    assert start not in driver("encode", text="<|im_start|>", special=False)
    assert driver("encode", text="<tool_call>", special=False) == [tool]
    with pytest.raises(DriverError, match="out of range") as error:
        driver("token_bytes", ids=[reference.get_vocab_size()], special=True)
    assert error.value.status == ARGUMENT
    # Rows that pad the vocabulary have no token: they decode to nothing.
    assert driver("decode", ids=[reference.get_vocab_size(), -1], special=True) == ""


def test_strip_and_single_word_tokens(driver: Driver) -> None:
    reference = train("gpt2")
    reference.add_tokens(
        [
            AddedToken("[L]", lstrip=True, normalized=False),
            AddedToken("[R]", rstrip=True, normalized=False),
            AddedToken("word", single_word=True, normalized=False),
        ]
    )
    driver("load", text=reference.to_str())
    for text in [
        "a \n[L] b",
        "[R] \u3000 c [L][L]",
        "x [R] [L] y",
        "word sword words word.",
        "_word é" + "word wordé 9word (word)",
        "Ⓐword \u200dword",
    ]:
        assert driver("encode", text=text) == reference.encode(text).ids, text


def test_many_threads_share_one_tokenizer(driver: Driver) -> None:
    driver("load", text=train("smollm2").to_str())
    assert driver("encode_threads", texts=SAMPLE.split("\n")[:6]) is True


def edit(tokenizer: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for key in parents:
        tokenizer = tokenizer[key]
    tokenizer[last] = value


@pytest.mark.parametrize(
    ("path", "value", "status", "message"),
    [
        ("model.type", "WordPiece", UNSUPPORTED, "model 'WordPiece'"),
        ("model.type", "Unigram", BUNDLE, "vocabulary of the wrong shape"),
        ("model.dropout", 0.1, UNSUPPORTED, "dropout"),
        ("model.continuing_subword_prefix", "##", UNSUPPORTED, "continuing_subword_prefix"),
        ("model.end_of_word_suffix", "</w>", UNSUPPORTED, "end_of_word_suffix"),
        ("model.unk_token", "<unk>", BUNDLE, 'unk_token "<unk>" is not in the vocabulary'),
        ("model.vocab", {"a": 0, "b": 0}, BUNDLE, "belongs to another token too"),
        ("model.vocab", {"a": -1}, BUNDLE, "out of range"),
        ("model.merges", ["a b c"], BUNDLE, "merge 0 .* not two tokens"),
        ("model.merges", [["a", "b", "c"]], BUNDLE, "merge 0 .* not a pair"),
        ("model.merges", ["q \u0143\u0143"], BUNDLE, "merge 0 .* not in the vocabulary"),
        ("normalizer", {"type": "Nmt"}, UNSUPPORTED, "normalizer 'Nmt'"),
        ("normalizer", {"type": "BertNormalizer"}, UNSUPPORTED, "normalizer 'BertNormalizer'"),
        (
            "normalizer",
            {"type": "Replace", "pattern": {"String": ""}, "content": "x"},
            UNSUPPORTED,
            "Replace of an empty text",
        ),
        (
            "normalizer",
            {"type": "Precompiled", "precompiled_charsmap": "AAA"},
            BUNDLE,
            "precompiled_charsmap is too short",
        ),
        (
            "normalizer",
            {"type": "Precompiled", "precompiled_charsmap": "//8AAAAA"},
            BUNDLE,
            "trie of a wrong size",
        ),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "?"}, BUNDLE, "not base64"),
        ("decoder", {"type": "WordPiece"}, UNSUPPORTED, "decoder 'WordPiece'"),
        ("decoder", {"type": "CTC"}, UNSUPPORTED, "decoder 'CTC'"),
        ("decoder", None, UNSUPPORTED, "without a decoder"),
        (
            "decoder",
            {"type": "Strip", "content": "ab", "start": 1, "stop": 0},
            UNSUPPORTED,
            "not one character",
        ),
        ("decoder", {"type": "Strip", "content": " ", "start": -1, "stop": 0}, BUNDLE, "start"),
        (
            "pre_tokenizer",
            {"type": "BertPreTokenizer"},
            UNSUPPORTED,
            "pre_tokenizer 'BertPreTokenizer'",
        ),
        (
            "pre_tokenizer",
            {"type": "Metaspace", "replacement": "__"},
            UNSUPPORTED,
            "not one character",
        ),
        (
            "pre_tokenizer",
            {"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"},
            UNSUPPORTED,
            "prepend_scheme 'last'",
        ),
        (
            "pre_tokenizer",
            {"type": "Punctuation", "behavior": "Odd"},
            UNSUPPORTED,
            "behavior 'Odd'",
        ),
        (
            "pre_tokenizer",
            {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]},
            UNSUPPORTED,
            "'Digits' behind ByteLevel",
        ),
        ("pre_tokenizer.type", 5, BUNDLE, "expected a string"),
        ("added_tokens", [{"id": 1, "content": "<new>"}], BUNDLE, "contradicts another token"),
        ("added_tokens", [{"id": 1 << 24, "content": "<new>"}], BUNDLE, "out of range"),
        ("added_tokens", [{"id": 5000, "content": "<new>"}], BUNDLE, "would number it 700"),
        ("added_tokens", [{"id": 700, "content": "x" * 513}], UNSUPPORTED, "of 513 bytes"),
        (
            "added_tokens",
            [{"id": 700, "content": "\u212b"}, {"id": 701, "content": "A\u030a"}],
            UNSUPPORTED,
            "the same once normalized",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    path: str, value: Any, status: int, message: str, driver: Driver
) -> None:
    tokenizer = json.loads(train("gpt2").to_str())
    tokenizer["normalizer"] = {"type": "NFC"}
    edit(tokenizer, path, value)
    with pytest.raises(DriverError, match=message) as error:
        driver("load", text=json.dumps(tokenizer))
    assert error.value.status == status


def test_merges_as_text_and_unknown_bytes(driver: Driver, tmp_path: Path) -> None:
    tokenizer = json.loads(train("gpt2").to_str())
    tokenizer["added_tokens"] = []
    pairs = tokenizer["model"]["merges"]
    tokenizer["model"]["merges"] = [" ".join(pair) for pair in pairs]
    path = tmp_path / "tokenizer.json"
    for unknown in (None, "!"):
        for fuse in (False, True):
            for name in "zQ":  # these two have no token of their own then
                merges = tokenizer["model"]["merges"]
                tokenizer["model"]["merges"] = [m for m in merges if name not in m]
                vocab = tokenizer["model"]["vocab"]
                tokenizer["model"]["vocab"] = {k: v for k, v in vocab.items() if name not in k}
            tokenizer["model"].update(unk_token=unknown, fuse_unk=fuse)
            path.write_text(json.dumps(tokenizer), encoding="utf-8")
            driver("load", file=str(path))
            reference = Tokenizer.from_file(str(path))
            for text in ["lazy zzQ dog Qz", "zQ", "the zz"]:
                assert driver("encode", text=text) == reference.encode(text).ids
