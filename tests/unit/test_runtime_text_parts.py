"""The runtime's JSON reader, regular expressions, NFC and text stream."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers

from tests.unit.cpp_driver import build_cpp
from tests.unit.text_driver import Driver, DriverError

ARGUMENT, UNSUPPORTED, BUNDLE, VERSION = 1, 5, 20, 21


@pytest.fixture(scope="module")
def driver(pytestconfig: pytest.Config) -> Iterator[Driver]:
    with Driver(build_cpp(pytestconfig, "text_driver")) as driver:
        yield driver


# ---- JSON ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "null",
        " [1, -0, 2.5e3, 1E-2, 0.1, 9007199254740991, 123456789.125, 1e308, 5e-324, true, false] ",
        r'{"a\"\\\/\b\f\n\r\t": "\u00e9\ud83d\ude00", "": [], "o": {"x": {}}}',
        '"' + "é中\U0001f600\x7f" * 100 + '"',
        "[" * 128 + "]" * 128,
        json.dumps({f"key{i}": i for i in range(1000)}),
        "3." + "1" * 500 + "e-3",
        "0." + "0" * 400 + "1e400",
    ],
)
def test_json_reads_what_python_reads(text: str, driver: Driver) -> None:
    assert driver("json", text=text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "byte 0: .* a value is missing"),
        (b"[1,]", "byte 3: .* expected a value"),
        (b"[1 2]", "byte 3: .* expected ',' or ']'"),
        (b'{"a" 1}', "byte 5: .* expected ':'"),
        (b'{"a":1,}', "byte 7: .* expected a key"),
        (b'{"a":1,"b":2,"a":3}', 'key "a" occurs twice'),
        (json.dumps({f"k{i}": 1 for i in range(99)})[:-1].encode() + b', "k7":1}', '"k7" occurs'),
        (b'"\xc3"', "byte 1: .* invalid UTF-8"),
        (b'"\xed\xa0\x80"', "invalid UTF-8"),
        (b'"\xc0\x80"', "invalid UTF-8"),
        (rb'"\ud800"', "lone surrogate"),
        (rb'"\udc00"', "lone surrogate"),
        (rb'"\ud800\u0041"', "lone surrogate"),
        (rb'"\u12g4"', "four hexadecimal digits"),
        (rb'"\x41"', "unknown escape"),
        (b'"a\nb"', "byte 2: .* control character"),
        (b'"abc', "unexpected end inside a string"),
        (b"01", "must not start with 0"),
        (b"1.", "digit after the point"),
        (b"-", "needs a digit"),
        (b"1e999", "byte 0: .* beyond the range"),
        (b"nul", "expected a value"),
        (b"1 1", "byte 2: .* after the end"),
        (b"NaN", "expected a value"),
        (b"[" * 129 + b"]" * 129, "byte 128: .* nested deeper than 128"),
        (b"[" * 100_000, "nested deeper"),
        (b"\xef\xbb\xbf1", "byte 0: .* expected a value"),
    ],
)
def test_json_refuses(text: bytes, message: str, driver: Driver) -> None:
    with pytest.raises(DriverError, match=r"^input: byte [0-9]+: invalid JSON") as error:
        driver("json", hex=text)
    assert re.search(message, str(error.value))
    assert error.value.status == BUNDLE


# ---- regular expressions and normalization -----------------------------------------------------


def cut(spans: list[int], size: int) -> list[tuple[int, int]]:
    pieces = []
    done = 0
    for begin, end in zip(spans[::2], spans[1::2], strict=True):
        pieces += [(done, begin), (begin, end)]
        done = end
    return [piece for piece in [*pieces, (done, size)] if piece[0] != piece[1]]


@pytest.mark.parametrize(
    "pattern",
    [
        r"a|ab|abc",
        r"(?:a|ab)(?:c|bcd)(?:d*)",
        r"a{2}|b{1,2}|c{,2}d|e{2,}",
        r"a{1,2}+b|a{2}?c",
        r"a*?b|a+?c|a??d",
        r"a++b|a*+c|[ab]?+b",
        r"(?>a+|b)c",
        r"(?i:straße|k|é)",
        r"(?i:[a-c]|[^\WK])",
        r"[^\s\p{L}]|\P{N}",
        r"[\p{Lu}\p{Mn}]+|\p{^L}",
        r"[a-c\-\]\\.]+|[]x]",
        r"[^(\s|[.,])]+",
        r"^a|b$|\Ac|d\z|\bx\b|\By",
        r"(?=[A-Z])|(?!b)a",
        r"(?:(?=a)[ab]c?)+",
        r"\x41|\x{e9}|\u4e2d|\t|\v",
        r"\w+|\W",
        r"\d+|\D",
        r"a{,x}|{",
        r".",
        r"(?:ab?)+?c",
        r"",
    ],
)
def test_regex_matches_as_oniguruma_does(pattern: str, driver: Driver) -> None:
    reference = pre_tokenizers.Split(Regex(pattern), "isolated")
    rng = random.Random(7)
    for _ in range(150):
        text = "".join(
            rng.choices("aaabbccdeABKx1 .,-\n\t_{é²ſ\u212a\u0301中ß", k=rng.randrange(16))
        )
        expected = [span for _, span in reference.pre_tokenize_str(text)]
        assert cut(driver("regex", pattern=pattern, text=text), len(text)) == expected, text


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"(a)\1", r"character 4: the escape '\\1'"),
        (r"(?<=a)b", r"this kind of group"),
        (r"(?<name>a)", r"this kind of group"),
        (r"(?i)a", r"this kind of group"),
        (r"\p{Han}", r"\\p\{Han\}"),
        (r"[[:alpha:]]", "POSIX classes"),
        (r"[a&&b]", "intersections"),
        (r"(?:a?)*", "repeating something that can be empty"),
        (r"(?:a{900}){900}", "too long"),
        (r"a{2000}", "more than 1000 repetitions"),
        (r"(a", r"a '\)' is missing"),
        (r"a)", r"a '\)' too many"),
        (r"[a", r"a '\]' is missing"),
        (r"*a", "nothing to repeat"),
        (r"[b-a]", "ends in the wrong order"),
        (r"\X", r"the escape '\\X'"),
        ("(" * 60 + "a" + ")" * 60, "nest too deeply"),
        ("a" + "{1}" * 200_000, "repetitions of one another"),
        ("(?:" * 5 + "(?:)" + "{1000})" * 5, "too long when its repetitions"),
    ],
)
def test_regex_refuses_by_name(pattern: str, message: str, driver: Driver) -> None:
    with pytest.raises(DriverError, match=message) as error:
        driver("regex", pattern=pattern, text="a")
    assert error.value.status == UNSUPPORTED


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"\s*[\r\n]+", " "),
        (r"(?:a+a+)+b", "a"),
        (r"(?:a|a|ab)*c", "ab"),
        (r"a*a*a*a*b", "a"),
        (r"(?=a*b)a", "a"),
        (r"a++b", "a"),
    ],
)
def test_regex_takes_linear_time(pattern: str, text: str, driver: Driver) -> None:
    assert driver("regex", pattern=pattern, text=text, repeat=100_000) == []


def test_regex_gives_up_on_hopeless_atomic_groups(driver: Driver) -> None:
    with pytest.raises(DriverError, match="takes too long"):
        driver("regex", pattern="(?:(?>a+)c|a)b", text="a", repeat=20_000)


FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@pytest.mark.parametrize("kind", [*FORMS, "Lowercase", "StripAccents"])
def test_normalizers_equal_the_reference_on_all_characters(kind: str, driver: Driver) -> None:
    reference = getattr(normalizers, kind)()
    # Nothing is assigned in the planes between but characters for private use.
    codes = [*range(0xD800), *range(0xE000, 0x32000), *range(0xE0000, 0xE0200)]
    text = "|".join(map(chr, codes))
    found = driver("normalize", normalizer={"type": kind}, text=text)
    assert bytes.fromhex(found) == reference.normalize_str(text).encode()


@pytest.mark.parametrize("form", FORMS)
def test_normal_forms_equal_the_reference(form: str, driver: Driver) -> None:
    reference = getattr(normalizers, form)()
    chars = [chr(c) for c in range(0x30000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    moving = [c for c in chars if unicodedata.decomposition(c) or unicodedata.combining(c)]
    rng = random.Random(2)
    texts = ["|".join(unicodedata.normalize("NFD", c) for c in moving)]
    texts += ["".join(rng.choices([*moving, "a", "e", "\u1161"], k=20)) for _ in range(300)]
    for text in texts:
        expected = reference.normalize_str(text).encode()
        found = driver("normalize", normalizer={"type": form}, text=text)
        assert bytes.fromhex(found) == expected, text


def test_normalization_keeps_what_is_not_utf8(driver: Driver) -> None:
    def normalize(data: bytes, **normalizer: Any) -> bytes:
        return bytes.fromhex(driver("normalize", normalizer=normalizer, hex=data))

    broken = b"e\xcc\x81\xff\xcc\x81a\xcc\xe4\xb8"
    assert normalize(broken, type="NFC") == b"\xc3\xa9\xff\xcc\x81a\xcc\xe4\xb8"
    assert normalize(broken, type="StripAccents") == b"e\xffa\xcc\xe4\xb8"
    assert normalize(b" \xffA\xc3 ", type="Lowercase") == b" \xffa\xc3 "
    assert normalize(b" \xff ", type="Strip", strip_left=True, strip_right=True) == b"\xff"
    replace = {"type": "Replace", "pattern": {"Regex": "."}, "content": "-"}
    assert normalize(b"a\xff", **replace) == b"--"


# ---- text stream -----------------------------------------------------------------------------


def push_all(driver: Driver, chunks: list[bytes], stop: list[str]) -> tuple[list[str], bool]:
    *parts, stopped = driver("stream", chunks=[c.hex() for c in chunks], stop=stop)
    return [bytes.fromhex(part).decode() for part in parts], stopped


def test_stream_shows_whole_characters_only(driver: Driver) -> None:
    smile = "\U0001f600".encode()
    parts, stopped = push_all(driver, [b"a" + smile[:1], smile[1:3], smile[3:] + b"b"], [])
    assert parts == ["a", "", "\U0001f600b", ""]
    assert not stopped


@pytest.mark.parametrize("data", [b"\xff", b"\xe4\xb8", b"a\xf0\x9f\x98b\xc0\x80", b"\xed\xa0\x80"])
def test_stream_replaces_what_is_not_utf8(data: bytes, driver: Driver) -> None:
    for chunks in ([data], [data[i : i + 1] for i in range(len(data))]):
        parts, _ = push_all(driver, chunks, [])
        assert "".join(parts) == data.decode("utf-8", "replace")


def test_stream_holds_back_a_stop_string(driver: Driver) -> None:
    parts, stopped = push_all(driver, [b"one <", b"/s", b"> two"], ["</s>"])
    assert (parts, stopped) == (["one ", "", "", ""], True)
    parts, stopped = push_all(driver, [b"one <", b"/s", b"X two <"], ["</s>"])
    assert (parts, stopped) == (["one ", "", "</sX two ", "<"], False)


@pytest.mark.parametrize(
    "stop",
    [["STOP"], ["aab", "\u00e9"], ["ab", "abab"], ["aSTOb", "S", "aS"], [""], ["\U0001f600"]],
)
def test_stream_does_not_depend_on_the_chunks(stop: list[str], driver: Driver) -> None:
    rng = random.Random(3)
    for _ in range(60):
        text = "".join(rng.choices(["a", "b", "S", "STO", "P", "\u00e9", "\U0001f600"], k=12))
        ends = sorted((text.find(s) + len(s), text.find(s)) for s in stop if s and s in text)
        expected = text[: ends[0][1]] if ends else text
        data = text.encode()
        cuts = sorted(rng.choices(range(len(data) + 1), k=6))
        chunks = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        parts, stopped = push_all(driver, chunks, stop)
        assert "".join(parts) == expected
        assert stopped == bool(ends)
