"""Every kind of tokenizer component in the runtime, against Hugging Face tokenizers."""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from mlcbuild.bundle.tokenizer_pack import pack_tokenizer
from mlcbuild.errors import SourceError
from tests.unit.cpp_driver import build_cpp
from tests.unit.text_corpus import generated_text
from tests.unit.text_driver import Driver, DriverError

BUNDLE, VERSION, UNSUPPORTED = 20, 21, 5
SAMPLE = (Path(__file__).parents[1] / "data" / "tokenizer_sample.txt").read_bytes().decode("utf-8")
SPACE = "\u2581"

REPLACE_SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
PREPEND = {"type": "Prepend", "prepend": SPACE}
LLAMA2_DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


@pytest.fixture(scope="module")
def driver(pytestconfig: pytest.Config) -> Iterator[Driver]:
    with Driver(build_cpp(pytestconfig, "text_driver")) as driver:
        yield driver


def added(content: str, number: int, **options: bool) -> dict[str, Any]:
    token = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": number, "content": content, **token, **options}


def tokenizer_json(model: dict[str, Any], **parts: Any) -> dict[str, Any]:
    empty = dict.fromkeys(
        ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    )
    return {"version": "1.0", "added_tokens": [], **empty, **parts, "model": model}


def train_bpe(extra: int = 500) -> dict[str, Any]:
    """A model over characters, as SentencePiece ones are: words begin with U+2581."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=300 + extra,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
        limit_alphabet=150,
    )
    tokenizer.train_from_iterator([line for line in SAMPLE.split("\n") for _ in range(2)], trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return {**model, "byte_fallback": True, "fuse_unk": True}


def train_unigram() -> dict[str, Any]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=600, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([line for line in SAMPLE.split("\n") for _ in range(3)], trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def without(model: dict[str, Any], tokens: set[str]) -> dict[str, Any]:
    """The model without some tokens and the merges that need them; ids stay dense."""
    kept = [token for token in model["vocab"] if token not in tokens]
    vocab = {token: number for number, token in enumerate(kept)}
    merges = [
        pair
        for pair in model["merges"]
        if pair[0] in vocab and pair[1] in vocab and "".join(pair) in vocab
    ]
    return {**model, "vocab": vocab, "merges": merges}


def sentencepiece(model: dict[str, Any], **parts: Any) -> dict[str, Any]:
    number = len(model["vocab"])
    tokens = [
        added(token, model["vocab"][token], special=True)
        for token in ("<unk>", "<s>", "</s>")
        if token in model["vocab"]
    ]
    tokens += [
        added("<|user|>", number, special=True, rstrip=True),
        added("[x y]", number + 1, normalized=True),
        added("\n\n", number + 2),
        added("the", number + 3, single_word=True),
        added(f"{SPACE}{SPACE}", number + 4, lstrip=True),
    ]
    tokens = [t for t in tokens if t["id"] < number or t["content"] not in model["vocab"]]
    for index, token in enumerate(t for t in tokens if t["id"] >= number):
        token["id"] = number + index
    defaults = {
        "normalizer": {"type": "Sequence", "normalizers": [PREPEND, REPLACE_SPACE]},
        "decoder": LLAMA2_DECODER,
        "added_tokens": tokens,
    }
    return tokenizer_json(model, **{**defaults, **parts})


def as_unigram(model: dict[str, Any], **parts: Any) -> dict[str, Any]:
    defaults = {
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always"},
        "decoder": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always"},
        "added_tokens": [added("<unk>", 0, special=True), added("</s>", 1, special=True)],
    }
    return tokenizer_json(model, **{**defaults, **parts})


def metaspace(scheme: str, split: bool = True) -> dict[str, Any]:
    return {
        "type": "Metaspace",
        "replacement": SPACE,
        "prepend_scheme": scheme,
        "split": split,
    }


BYTES_THEN_SPACES = {
    "type": "Sequence",
    "decoders": [{"type": "ByteFallback"}, metaspace("never")],
}
BYTES = {f"<0x{byte:02X}>" for byte in range(256)}


def all_kinds() -> dict[str, dict[str, Any]]:
    bpe = train_bpe()
    unigram = train_unigram()
    with_bytes = [*unigram["vocab"], *([token, -20.0] for token in sorted(BYTES))]
    return {
        "llama2": sentencepiece(bpe),
        "no-space-in-front": sentencepiece(bpe, normalizer=REPLACE_SPACE),
        "metaspace-first": sentencepiece(
            bpe, normalizer=None, pre_tokenizer=metaspace("first", False)
        ),
        "metaspace-words": sentencepiece(bpe, normalizer=None, pre_tokenizer=metaspace("always")),
        "gemma": sentencepiece(
            bpe,
            normalizer=REPLACE_SPACE,
            pre_tokenizer={
                "type": "Split",
                "pattern": {"String": " "},
                "behavior": "MergedWithPrevious",
                "invert": False,
            },
        ),
        "no-bytes": sentencepiece(without(bpe, BYTES)),
        "no-bytes-no-fuse": sentencepiece({**without(bpe, BYTES), "fuse_unk": False}),
        "some-bytes": sentencepiece(without(bpe, {"<0xE2>", "<0xCC>", "<0x0A>", "<0xF0>"})),
        "some-bytes-no-fuse": sentencepiece(
            {**without(bpe, {"<0xE2>", "<0xD0>"}), "fuse_unk": False}
        ),
        "no-unknown": sentencepiece({**without(bpe, BYTES), "unk_token": None}),
        "ignore-merges": sentencepiece({**bpe, "ignore_merges": True}),
        "no-space-token": sentencepiece(without(bpe, {SPACE})),
        "unigram": as_unigram(unigram),
        "unigram-bytes": as_unigram(
            {**unigram, "vocab": with_bytes, "byte_fallback": True},
            decoder=BYTES_THEN_SPACES,
        ),
        "unigram-long": as_unigram(unigram, pre_tokenizer=metaspace("first", False)),
        "unigram-words": as_unigram(
            unigram,
            normalizer={
                "type": "Sequence",
                "normalizers": [
                    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
                    {"type": "NFD"},
                    {"type": "Lowercase"},
                    {"type": "StripAccents"},
                    {"type": "Strip", "strip_left": True, "strip_right": False},
                ],
            },
            pre_tokenizer={
                "type": "Sequence",
                "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace("first")],
            },
        ),
    }


@pytest.fixture(scope="module")
def kinds() -> dict[str, dict[str, Any]]:
    return all_kinds()


NAMES = (
    "llama2",
    "no-space-in-front",
    "metaspace-first",
    "metaspace-words",
    "gemma",
    "no-bytes",
    "no-bytes-no-fuse",
    "some-bytes",
    "some-bytes-no-fuse",
    "no-unknown",
    "ignore-merges",
    "no-space-token",
    "unigram",
    "unigram-bytes",
    "unigram-long",
    "unigram-words",
)


def random_texts(seed: int, count: int, size: int) -> list[str]:
    rng = random.Random(seed)
    pool = ["a", "e", "the", "<s>", "[x y]", "<|user|>", "\n", "  ", " ", " ", SPACE, "\u00e9", "z"]
    pool += ["e\u0301", "\u4e2d", "\U0001f600", "\u0430", "<0x0A>", "\u3000", "s", "\t", "\uff21"]
    return ["".join(rng.choices(pool, k=rng.randrange(1, size))) for _ in range(count)]


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_texts_equal_the_reference(
    name: str, driver: Driver, kinds: dict[str, dict[str, Any]]
) -> None:
    content = json.dumps(kinds[name])
    reference = Tokenizer.from_str(content)
    generated = generated_text(3, 6000)
    texts = ["", " ", *SAMPLE.split("\n"), SAMPLE, generated]
    texts += [generated[i : i + 60] for i in range(0, len(generated), 60)]
    texts += random_texts(5, 150, 25)
    packed = pack_tokenizer(content.encode())
    for data in (content.encode(), packed):
        driver("load", hex=data)
        assert driver("vocab_size") == reference.get_vocab_size()
        for text in texts if data is packed else texts[:50]:
            expected = reference.encode(text, add_special_tokens=False).ids
            assert driver("encode", text=text, special=True) == expected, text
            decoded = bytes.fromhex(driver("decode", ids=expected, special=True))
            assert decoded.decode() == reference.decode(expected, skip_special_tokens=False), text
    rng = random.Random(9)
    for _ in range(200):  # bytes that are no text, special tokens in odd places
        ids = [rng.randrange(reference.get_vocab_size()) for _ in range(rng.randrange(12))]
        decoded = bytes.fromhex(driver("decode", ids=ids, special=True))
        assert decoded.decode() == reference.decode(ids, skip_special_tokens=False), ids


def test_all_kinds_are_tested(kinds: dict[str, dict[str, Any]]) -> None:
    assert tuple(kinds) == NAMES


def test_special_tokens_can_be_left_out(driver: Driver, kinds: dict[str, dict[str, Any]]) -> None:
    content = json.dumps(kinds["llama2"])
    reference = Tokenizer.from_str(content)
    driver("load", text=content)
    ids = reference.encode("a<s> b<|user|>  c", add_special_tokens=False).ids
    decoded = bytes.fromhex(driver("decode", ids=ids, special=False)).decode()
    assert decoded == reference.decode(ids)
    reference.encode_special_tokens = True
    for text in ("a<s> b<|user|>  c", "<s>", "x</s>\n\n<unk>"):
        expected = reference.encode(text, add_special_tokens=False).ids
        assert driver("encode", text=text, special=False) == expected


def test_a_token_inside_a_text_keeps_its_space(
    driver: Driver, kinds: dict[str, dict[str, Any]]
) -> None:
    content = kinds["llama2"]
    driver("load", text=json.dumps(content))
    vocab = content["model"]["vocab"]
    ids = [vocab[f"{SPACE}the"], vocab["<0xE4>"], vocab["<0xB8>"], vocab["<0xAD>"]]
    assert bytes.fromhex(driver("token_bytes", ids=ids)) == " the\u4e2d".encode()
    assert bytes.fromhex(driver("decode", ids=ids)) == "the\u4e2d".encode()
    assert driver("token_bytes", ids=[vocab["<s>"]]) == ""
    assert bytes.fromhex(driver("token_bytes", ids=[vocab["<s>"]], special=True)) == b"<s>"


def test_bytes_that_are_no_text_fall_back(driver: Driver, kinds: dict[str, dict[str, Any]]) -> None:
    for name in ("llama2", "unigram-bytes"):
        driver("load", text=json.dumps(kinds[name]))
        ids = driver("encode", hex=b"a\xff\xc3b", special=True)
        inside = bytes.fromhex(driver("token_bytes", ids=ids, special=True))
        assert inside == b" a\xff\xc3b"


# ---- components alone ------------------------------------------------------------------------


NORMALIZERS = (
    PREPEND,
    REPLACE_SPACE,
    {"type": "Replace", "pattern": {"String": "aa"}, "content": ""},
    {"type": "Replace", "pattern": {"Regex": "a*"}, "content": "-"},
    {"type": "Replace", "pattern": {"Regex": r"\s+$|^\s+"}, "content": ""},
    {"type": "Replace", "pattern": {"Regex": "[^a-z]{2}"}, "content": "\u00e9x"},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Strip", "strip_left": True, "strip_right": False},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Strip", "strip_left": False, "strip_right": False},
    {"type": "Sequence", "normalizers": []},
    {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "Lowercase"}, PREPEND]},
)


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=json.dumps)
def test_normalizer(normalizer: dict[str, Any], driver: Driver) -> None:
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    reference = Tokenizer.from_str(json.dumps(tokenizer_json(model, normalizer=normalizer)))
    for text in ["", " ", "\u3000", "aaa", " aa a", *random_texts(1, 80, 12)]:
        found = bytes.fromhex(driver("normalize", normalizer=normalizer, text=text)).decode()
        assert found == reference.normalizer.normalize_str(text), text


def charsmap(replacements: dict[str, str]) -> bytes:
    """The table of a SentencePiece normalizer: a double-array trie, then the replacements."""
    units = [0] * (1 << 14)
    used = {0}
    texts = b""
    values: dict[bytes, int] = {}
    for key, replacement in replacements.items():
        values[key.encode()] = len(texts)
        texts += replacement.encode() + b"\0"

    def place(node: int, keys: list[bytes], depth: int) -> None:
        labels = sorted({key[depth] if depth < len(key) else 0 for key in keys})
        offset = next(
            offset
            for offset in range(1, 1 << 13)
            if not any((node ^ offset ^ label) in used for label in labels)
        )
        units[node] |= offset << 10
        used.update(node ^ offset ^ label for label in labels)
        for label in labels:
            child = node ^ offset ^ label
            if label == 0:
                units[node] |= 1 << 8
                units[child] = values[keys[0]] | 1 << 31
                continue
            units[child] = label
            below = [key for key in keys if key[depth : depth + 1] == bytes([label])]
            place(child, sorted(below), depth + 1)

    place(0, sorted(values), 0)
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts


def test_precompiled_normalizer(driver: Driver) -> None:
    table = charsmap(
        {
            "A": "a",
            "A\u0301": "\u00e1",
            "\uff21": "A",
            "\r\n": "\n",
            "\r": " ",
            "\u00ad": "",
            "fi": "F",
        }
    )
    normalizer = {
        "type": "Precompiled",
        "precompiled_charsmap": base64.b64encode(table).decode(),
    }
    reference = normalizers.Precompiled(table)
    codes = [*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE0200)]
    texts = ["A".join(map(chr, codes)), "\u0301".join(map(chr, codes))]
    rng = random.Random(8)
    pool = [
        "A",
        "\u0301",
        "\uff21",
        "\r",
        "\n",
        "\u00ad",
        "fi",
        "\u0600",
        "\u200d",
        "\u0e33",
        "x",
        "\x00",
    ]
    texts += ["".join(rng.choices(pool, k=12)) for _ in range(200)]
    for text in texts:
        found = bytes.fromhex(driver("normalize", normalizer=normalizer, text=text)).decode()
        assert found == reference.normalize_str(text), text[:40]
    broken = b"A\xffA\xcc\x81\xcc"
    assert driver("normalize", normalizer=normalizer, hex=broken) == b"a\xffa\xcc".hex()


def split(pattern: dict[str, str], behavior: str, invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
PRE_TOKENIZERS = (
    {"type": "Whitespace"},
    {"type": "WhitespaceSplit"},
    {"type": "Digits", "individual_digits": True},
    {"type": "Digits", "individual_digits": False},
    *({"type": "Punctuation", "behavior": behavior} for behavior in BEHAVIORS),
    *(metaspace(scheme, part) for scheme in ("always", "first", "never") for part in (True, False)),
    *(
        split(pattern, behavior, invert)
        for pattern in ({"String": " "}, {"Regex": r"\d|[a-c]+"})
        for behavior in BEHAVIORS
        for invert in (False, True)
    ),
    {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Punctuation", "behavior": "Isolated"},
            {"type": "WhitespaceSplit"},
            metaspace("first"),
        ],
    },
    {
        "type": "Sequence",
        "pretokenizers": [
            metaspace("always"),
            {"type": "Digits", "individual_digits": False},
            metaspace("always"),
        ],
    },
)


@pytest.mark.parametrize("pre_tokenizer", PRE_TOKENIZERS, ids=json.dumps)
def test_pre_tokenizer(pre_tokenizer: dict[str, Any], driver: Driver) -> None:
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    reference = Tokenizer.from_str(json.dumps(tokenizer_json(model, pre_tokenizer=pre_tokenizer)))
    texts = ["", " ", "  a  b", "a1b22,c.", "don't stop?! ok", "\u0663\u00bd\u2167x", SPACE * 3]
    texts += [generated_text(2, 4000), *random_texts(2, 40, 14)]
    for text in texts:
        expected = [piece for piece, _ in reference.pre_tokenizer.pre_tokenize_str(text)]
        pieces = driver("pre_tokenize", pre_tokenizer=pre_tokenizer, text=text)
        assert [bytes.fromhex(piece).decode() for piece in pieces] == expected, text


@pytest.mark.parametrize("kind", ["Digits", "Punctuation", "Whitespace", "WhitespaceSplit"])
def test_pre_tokenizers_know_all_characters(kind: str, driver: Driver) -> None:
    reference = getattr(pre_tokenizers, kind)()
    codes = [*range(0xD800), *range(0xE000, 0x32000), *range(0xE0000, 0xE0200)]
    text = "a".join(map(chr, codes))
    expected = [piece for piece, _ in reference.pre_tokenize_str(text)]
    pieces = driver("pre_tokenize", pre_tokenizer={"type": kind}, text=text)
    assert [bytes.fromhex(piece).decode() for piece in pieces] == expected


BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": False,
    "use_regex": False,
}
DECODERS = (
    BYTE_LEVEL,
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": "a", "start": 2, "stop": 0},
    {"type": "Strip", "content": " ", "start": 0, "stop": 1},
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": "a+|<0x4."}, "content": "\u00e9"},
    metaspace("always"),
    metaspace("first"),
    metaspace("never"),
    LLAMA2_DECODER,
    {"type": "Sequence", "decoders": [BYTE_LEVEL, metaspace("always")]},
    BYTES_THEN_SPACES,
)


@pytest.mark.parametrize("decoder", DECODERS, ids=json.dumps)
def test_decoder(decoder: dict[str, Any], driver: Driver) -> None:
    tokens = ["a", "aab", f"{SPACE}a", SPACE, f"{SPACE}{SPACE}b{SPACE}", "\u4e2d", "\u0120x", " b "]
    tokens += ["<0x41>", "<0xE4>", "<0xb8>", "<0xAD>", "<0xG0>", "<0x4>", "\u00e9", " ", "\u00c3"]
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}
    content = json.dumps(
        tokenizer_json(
            model,
            decoder=decoder,
            added_tokens=[added("\u00a9 x", len(tokens)), added("<|\u00ff|>", len(tokens) + 1)],
        )
    )
    reference = Tokenizer.from_str(content)
    driver("load", text=content)
    rng = random.Random(4)
    for _ in range(300):
        ids = rng.choices(range(len(tokens) + 3), k=rng.randrange(1, 7))  # one id is unknown
        decoded = bytes.fromhex(driver("decode", ids=ids, special=True))
        assert decoded.decode("utf-8", "replace") == reference.decode(ids), ids


# ---- random tokenizers -----------------------------------------------------------------------


def random_tokenizer(rng: random.Random) -> dict[str, Any]:
    """A small tokenizer of any kind, over few characters so that much happens."""
    letters = ["a", "b", SPACE, " ", "\u00e9", "\u4e2d"]
    known = rng.sample(letters, rng.randint(2, len(letters)))
    vocab = ["<unk>", *known]
    merges: list[list[str]] = []
    for _ in range(rng.randrange(12)):
        left, right = rng.choice(vocab[1:]), rng.choice(vocab[1:])
        if len(left + right) <= 6 and [left, right] not in merges:
            merges.append([left, right])
            if left + right not in vocab:
                vocab.append(left + right)
    vocab += rng.choice(([], sorted(BYTES), sorted(BYTES)[:200]))
    flags = {name: rng.random() < 0.5 for name in ("byte_fallback", "fuse_unk", "ignore_merges")}
    model: dict[str, Any] = {
        "type": "BPE",
        "unk_token": rng.choice((None, "<unk>")),
        **flags,
        "vocab": {token: number for number, token in enumerate(vocab)},
        "merges": merges,
    }
    if rng.random() < 0.4:
        model = {
            "type": "Unigram",
            "unk_id": 0,
            "byte_fallback": flags["byte_fallback"],
            "vocab": [[token, -rng.randrange(1, 40) / 4] for token in vocab],
        }
    pre_tokenizer = rng.choice((None, None, *PRE_TOKENIZERS))
    # With characters put in front or between others, several words would be the first one.
    plain = [step for step in NORMALIZERS if "prepend" not in str(step) and "a*" not in str(step)]
    first = "first" in str(pre_tokenizer)
    normalizer = rng.choice((None, None, *(plain if first else NORMALIZERS)))
    tokens: list[dict[str, Any]] = []
    for content in rng.sample(["ab", "<x>", ". ", "b b", "\n.", "\u00e9a", "<x>b"], 3):
        if content not in vocab:
            names = ("single_word", "lstrip", "rstrip", "normalized", "special")
            options = {name: rng.random() < 0.4 for name in names}
            tokens.append(added(content, len(vocab) + len(tokens), **options))
    return tokenizer_json(
        model,
        added_tokens=tokens,
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizer,
        decoder=rng.choice(DECODERS),
    )


def refusal(driver: Driver, data: bytes) -> DriverError | None:
    """Loads a tokenizer; returns the error if it is refused."""
    try:
        driver("load", hex=data)
    except DriverError as error:
        return error
    return None


def ask(method: Any, *arguments: Any, **options: Any) -> Any:
    """What the reference says; None where it panics, as it does on some odd combinations."""
    try:
        return method(*arguments, **options)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None


def test_random_tokenizers_equal_the_reference(driver: Driver) -> None:
    rng = random.Random(12)
    compared = 0
    for _ in range(150):
        tokenizer = random_tokenizer(rng)
        content = json.dumps(tokenizer)
        reference = Tokenizer.from_str(content)
        refused = refusal(driver, pack_tokenizer(content.encode()))
        if refused is not None:
            assert "the same once normalized" in str(refused)
            continue
        for _ in range(12):
            pool = [
                "a",
                "b",
                " ",
                "  ",
                SPACE,
                "\u00e9",
                "\u4e2d",
                "e\u0301",
                "<x>",
                "\n",
                "7",
                ".",
                ". ",
                "\n.",
            ]
            text = "".join(rng.choices(pool, k=rng.randrange(14)))
            for special in (True, False):
                reference.encode_special_tokens = not special
                encoded = ask(reference.encode, text, add_special_tokens=False)
                if encoded is None:
                    continue
                found = driver("encode", text=text, special=special)
                assert found == encoded.ids, (content, text, special)
                compared += 1
                shown = ask(reference.decode, found, skip_special_tokens=False)
                if shown is not None:
                    decoded = bytes.fromhex(driver("decode", ids=found, special=True))
                    assert decoded.decode("utf-8", "replace") == shown, (content, text)
    assert compared > 2500


# ---- packed files and hostile input ----------------------------------------------------------


def test_packing_is_stable_and_keeps_what_matters(kinds: dict[str, dict[str, Any]]) -> None:
    content = json.dumps(kinds["llama2"]).encode()
    packed = pack_tokenizer(content)
    assert packed == pack_tokenizer(content)
    assert packed.startswith(b"MLCBTOK\0\x01\0\0\0")
    assert len(packed) < len(content)
    assert b'"byte_fallback":true' in packed
    assert b'"vocab"' not in packed


@pytest.mark.parametrize("name", ["llama2", "unigram"])
def test_damaged_packed_files_are_refused(
    name: str, driver: Driver, kinds: dict[str, dict[str, Any]]
) -> None:
    packed = pack_tokenizer(json.dumps(kinds[name]).encode())
    for size in [*range(8, 100, 7), *range(100, len(packed), 2999), len(packed) - 1]:
        with pytest.raises(DriverError) as error:
            driver("load", hex=packed[:size])
        assert error.value.status == BUNDLE
    with pytest.raises(DriverError, match="bytes after the end"):
        driver("load", hex=packed + b"x")
    with pytest.raises(DriverError, match=r"version 2 .* reads version 1") as error:
        driver("load", hex=packed[:8] + b"\x02" + packed[9:])
    assert error.value.status == VERSION
    rng = random.Random(6)
    loaded = 0
    for _ in range(100):  # whatever is altered, it loads or is refused, and works if it loads
        data = bytearray(packed)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(8, len(data))] = rng.randrange(256)
        refused = refusal(driver, bytes(data))
        if refused is None:
            driver("encode", text="a the <s> \u4e2d\U0001f600 xyz", special=True)
            loaded += 1
        else:
            assert refused.status in (BUNDLE, VERSION, UNSUPPORTED)
    assert loaded > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "JSONDecodeError"),
        (b"[]", "TypeError"),
        (b"{}", "KeyError: 'model'"),
        (b'{"model": {"vocab": {"a": 0, "a": 1}, "merges": []}}', "given twice"),
        (b'{"model": {"vocab": {"a": 0}, "merges": ["a b"]}}', "KeyError: 'b'"),
        (b'{"model": {"vocab": {"a": 0}, "merges": ["a"]}}', "ValueError"),
        (b'{"model": {"vocab": {"a": -1}, "merges": []}}', "-1 is not a token id"),
        (b'{"model": {"vocab": {"a": 16777216}, "merges": []}}', "beyond 16777215"),
        (b'{"model": {"vocab": {"a": true}, "merges": []}}', "True is not a token id"),
        (b'{"model": {"vocab": {"a": 0, "b": 1.5}, "merges": []}}', "1.5 is not a token id"),
        (b'{"model": {"vocab": {}, "merges": []}, "added_tokens": 5}', "TypeError"),
        (b'{"model": {"vocab": {}, "merges": []}, "added_tokens": [5]}', "AttributeError"),
        (b'{"model": {"vocab": [["a", "x"]]}}', "could not convert"),
        (b'{"model": {"vocab": {"\\ud800": 1}, "merges": []}}', "UnicodeEncodeError"),
    ],
)
def test_packing_refuses(text: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        pack_tokenizer(text)


def test_long_texts_take_linear_time(driver: Driver, kinds: dict[str, dict[str, Any]]) -> None:
    for name in ("llama2", "gemma", "unigram-long", "no-bytes"):
        driver("load", text=json.dumps(kinds[name]))
        for text in ["a", " ", "\n", "\u4e2d", "the ", "\U0001f600", "a" + " " * 3000 + "b"]:
            repeat = 600_000 // len(text.encode())
            summary = driver("encode_summary", text=text, repeat=repeat)
            assert summary["seconds"] < 20  # quadratic: hours


def test_hostile_tokenizers_cost_linear_time(driver: Driver) -> None:
    long = "a" * 512
    model = {
        "type": "Unigram",
        "unk_id": 0,
        "vocab": [["<unk>", 0.0], *(["a" * size, -1.0] for size in range(1, 513))],
    }
    tokens = [added(long[:-1] + "b", 513), added("\n", 514, rstrip=True, lstrip=True)]
    content = as_unigram(model, pre_tokenizer=None, added_tokens=tokens)
    driver("load", text=json.dumps(content))
    for text in ("a", "\n"):
        assert driver("encode_summary", text=text, repeat=100_000)["seconds"] < 20
    model = {**model, "vocab": [["<unk>", 0.0], ["a" * 513, -1.0]]}
    with pytest.raises(DriverError, match="a unigram token of 513 bytes"):
        driver("load", text=json.dumps(as_unigram(model, added_tokens=[])))
