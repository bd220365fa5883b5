"""Write src/text/unicode_tables.cc: categories, case and normalization data as compact tables.

Usage: ``python make_unicode_tables.py ../src/text/unicode_tables.cc``

Categories follow Unicode 16.0.0, the version of the regular expressions in Hugging Face tokenizers
0.21 and later. Run it with a Python whose ``unicodedata`` has that version (3.14), or with
``unicodedata2==16.0.0`` installed. Case folding always comes from the interpreter's ``str``; the
written file names both versions.

The normalizers and some pre-tokenizers of that library know other versions of Unicode. What they
know is asked of the library itself: which characters decompose, are marks or punctuation, and
their small letters.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import unicodedata as _builtin
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers

UNICODE_VERSION = "16.0.0"
LIMIT = 0x110000
# The order is that of UnicodeCategory in unicode.h.
CATEGORY_NAMES = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn"
CATEGORIES = [CATEGORY_NAMES[i : i + 2] for i in range(0, len(CATEGORY_NAMES), 2)]
# Conjoining vowels and final consonants: composed by arithmetic, not by table.
HANGUL_SECONDS = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))


def load_database() -> Any:
    """Return a module with the interface of ``unicodedata`` at UNICODE_VERSION; exits if none."""
    if _builtin.unidata_version == UNICODE_VERSION:
        return _builtin
    try:
        database = importlib.import_module("unicodedata2")
    except ImportError:
        database = _builtin
    if database.unidata_version == UNICODE_VERSION:
        return database
    sys.exit(
        f"needs Unicode {UNICODE_VERSION}, this Python has {_builtin.unidata_version}\n\n"
        f"hint: pip install unicodedata2=={UNICODE_VERSION}"
    )


class Known:
    """What the reference library knows of one character."""

    def __init__(self) -> None:
        """Its normalizers and pre-tokenizers."""
        self._nfd = normalizers.NFD().normalize_str
        self._nfkd = normalizers.NFKD().normalize_str
        self._lower = normalizers.Lowercase().normalize_str
        self._no_marks = normalizers.StripAccents().normalize_str
        self._punctuation = pre_tokenizers.Punctuation("removed").pre_tokenize_str

    def decomposes(self, code: int) -> bool:
        """Whether NFD changes it."""
        return bool(self._nfd(chr(code)) != chr(code))

    def reorders(self, code: int) -> bool:
        """Whether it has a combining class other than 0: marks of class 1 and 220 change places."""
        before, after = chr(code) + "\u0334", "\u0316" + chr(code)
        return bool(self._nfd(before) != before or self._nfd(after) != after)

    def compatible(self, code: int) -> list[int]:
        """Its full compatibility decomposition, where that is not the canonical one; else []."""
        char = chr(code)
        found: str = self._nfkd(char)
        return [] if found == self._nfd(char) else [ord(part) for part in found]

    def lower(self, code: int) -> list[int]:
        """Its small letters."""
        return [ord(part) for part in self._lower(chr(code))]

    def is_mark(self, code: int) -> bool:
        """Whether StripAccents removes it."""
        return bool(self._no_marks(chr(code)) == "")

    def is_punctuation(self, code: int) -> bool:
        """Whether the pre-tokenizer Punctuation splits at it."""
        return not self._punctuation(chr(code))


def is_scalar(code: int) -> bool:
    """Return whether a code point is a character of its own (not a surrogate)."""
    return not 0xD800 <= code <= 0xDFFF


def to_ranges(codes: Iterable[int]) -> list[tuple[int, int]]:
    """Return the inclusive ranges of ascending code points."""
    ranges: list[tuple[int, int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return ranges


def category_table(database: Any) -> list[int]:
    """Return ``first code << 5 | category`` for each run of one category."""
    table: list[int] = []
    last = -1
    for code in range(LIMIT):
        category = CATEGORIES.index(database.category(chr(code)))
        if category != last:
            table.append(code << 5 | category)
            last = category
    return table


def simple_fold(code: int) -> int:
    """Return the simple case folding (one code point to one), from the full folding and lower()."""
    char = chr(code)
    for folded in (char.casefold(), char.lower()):
        if len(folded) == 1:
            return ord(folded)
    return code


def fold_table() -> list[tuple[int, int, int, int]]:
    """Return (first, count, stride, delta): first + i * stride folds to itself + delta."""
    return shift_table(
        (c, simple_fold(c)) for c in range(LIMIT) if is_scalar(c) and simple_fold(c) != c
    )


def shift_table(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """Return (first, count, stride, delta) for ascending pairs (code, what it becomes)."""
    table: list[tuple[int, int, int, int]] = []
    for code, folded in pairs:
        delta = folded - code
        if table:
            first, count, stride, last_delta = table[-1]
            step = code - (first + (count - 1) * stride)
            if last_delta == delta and count < 0xFFFF:
                if count == 1 and step <= 2:
                    table[-1] = (first, 2, step, delta)
                    continue
                if count > 1 and step == stride:
                    table[-1] = (first, count + 1, stride, delta)
                    continue
        table.append((code, 1, 1, delta))
    return table


def decomposition_table(database: Any, known: Known) -> list[tuple[int, int, int, bool]]:
    """Return (code, first, second or 0, composes) for each canonical decomposition but Hangul's."""
    table: list[tuple[int, int, int, bool]] = []
    for code in range(LIMIT):
        mapping = database.decomposition(chr(code)) if is_scalar(code) else ""
        if not mapping or mapping.startswith("<") or not known.decomposes(code):
            continue
        parts = [int(part, 16) for part in mapping.split()]
        composes = database.normalize("NFC", chr(code)) == chr(code)
        table.append((code, parts[0], parts[1] if len(parts) > 1 else 0, composes))
    return table


def combining_table(database: Any, known: Known) -> list[tuple[int, int, int]]:
    """Return (first, last, class) for runs of one non-zero canonical combining class."""
    table: list[tuple[int, int, int]] = []
    for code in range(LIMIT):
        combining = database.combining(chr(code)) if is_scalar(code) else 0
        if combining == 0 or not known.reorders(code):
            continue
        if table and table[-1][1] == code - 1 and table[-1][2] == combining:
            table[-1] = (table[-1][0], code, combining)
        else:
            table.append((code, code, combining))
    return table


def nfc_unsafe_ranges(
    database: Any,
    decompositions: Sequence[tuple[int, int, int, bool]],
    combining: Sequence[tuple[int, int, int]],
) -> list[tuple[int, int]]:
    """Return the ranges of characters that NFC may change, reorder or join to what precedes."""
    seconds = {second for _, _, second, composes in decompositions if composes}
    unsafe = seconds.union(HANGUL_SECONDS)
    for first, last, _ in combining:
        unsafe.update(range(first, last + 1))
    for code, _, _, _ in decompositions:
        if database.normalize("NFC", chr(code)) != chr(code):
            unsafe.add(code)
    return to_ranges(sorted(unsafe))


def compatibility_tables(
    known: Known,
) -> tuple[list[tuple[int, int, int, int]], list[tuple[int, int, int]], list[int]]:
    """Return what NFKD does beyond NFD.

    The characters that become one other (as ``shift_table``), then (code, offset, length) of those
    that become several, and the UTF-16 units that the offsets point into.
    """
    pairs: list[tuple[int, int]] = []
    sequences: list[tuple[int, int, int]] = []
    units: list[int] = []
    places: dict[tuple[int, ...], int] = {}
    for code in range(LIMIT):
        parts = known.compatible(code) if is_scalar(code) else []
        if len(parts) == 1:
            pairs.append((code, parts[0]))
        elif parts:
            if max(parts) > 0xFFFF:
                sys.exit(f"U+{code:04X} becomes characters beyond 16 bits: widen kCompatibleUnits")
            key = tuple(parts)
            if key not in places:
                places[key] = len(units)
                units += parts
            sequences.append((code, places[key], len(parts)))
    return shift_table(pairs), sequences, units


def lower_table(known: Known) -> list[tuple[int, int, int, int]]:
    """Return the small letters, as ``shift_table``; U+0130 alone becomes two, and is left out."""
    pairs = []
    for code in range(LIMIT):
        small = known.lower(code) if is_scalar(code) else [code]
        if len(small) == 1 and small != [code]:
            pairs.append((code, small[0]))
        elif len(small) > 1 and code != 0x130:
            sys.exit(f"U+{code:04X} has several small letters: unicode.cc knows one such character")
    return shift_table(pairs)


def exceptions(database: Any, major: str, known: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the ranges where ``known`` differs from the category being ``major``."""
    return to_ranges(
        code
        for code in range(LIMIT)
        if is_scalar(code) and known[code] != (database.category(chr(code))[0] == major)
    )


def format_rows(rows: Sequence[str], width: int = 100) -> str:
    """Return the rows as lines of at most width columns, indented by four."""
    lines: list[str] = []
    line = "   "
    for row in rows:
        if len(line) + len(row) + 2 > width:
            lines.append(line)
            line = "   "
        line += f" {row},"
    lines.append(line)
    return "\n".join(lines)


def range_rows(ranges: Sequence[tuple[int, int]]) -> list[str]:
    """Return CodeRange initializers."""
    return [f"{{0x{first:x}, 0x{last:x}}}" for first, last in ranges]


def shift_rows(table: Sequence[tuple[int, int, int, int]]) -> list[str]:
    """Return ShiftRange initializers."""
    return [f"{{0x{f:x}, {delta}, {count}, {stride}}}" for f, count, stride, delta in table]


def array(declaration: str, rows: Sequence[str]) -> str:
    """Return one table and its length as C++."""
    name = declaration.split()[-1]
    return (
        f"const {declaration}[] = {{\n{format_rows(rows)}\n}};\n"
        f"const size_t {name}Size = sizeof({name}) / sizeof({name}[0]);\n"
    )


def render(database: Any) -> str:
    """Return the text of unicode_tables.cc."""
    known = Known()
    decompositions = decomposition_table(database, known)
    combining = combining_table(database, known)
    singles, sequences, units = compatibility_tables(known)
    scalars = [code for code in range(LIMIT) if is_scalar(code)]
    marks, punctuation = [False] * LIMIT, [False] * LIMIT
    for code in scalars:
        marks[code] = known.is_mark(code)
        punctuation[code] = known.is_punctuation(code) and code >= 128
    for code in range(128):
        punctuation[code] = database.category(chr(code))[0] == "P"  # ASCII is asked elsewhere
    ordered = sorted(
        (index for index, row in enumerate(decompositions) if row[3]),
        key=lambda index: decompositions[index][1:3],
    )
    head = (
        "// Generated by tools/make_unicode_tables.py: do not edit.\n"
        f"// Unicode {UNICODE_VERSION}; case folding of Unicode {_builtin.unidata_version}; "
        f"normalization as in tokenizers {tokenizers.__version__}.\n"
        '#include "text/unicode_tables.h"\n\n// clang-format off\nnamespace mlcb {\n\n'
        f'const char kUnicodeVersion[] = "{UNICODE_VERSION}";\n'
    )
    parts = [
        head,
        array("uint32_t kCategories", [f"0x{x:x}" for x in category_table(database)]),
        array("ShiftRange kFolds", shift_rows(fold_table())),
        array("ShiftRange kLowers", shift_rows(lower_table(known))),
        array(
            "CombiningRange kCombining",
            [f"{{0x{a:x}, {b - a + 1}, {c}}}" for a, b, c in combining],
        ),
        array(
            "CodeRange kNfcUnsafe",
            range_rows(nfc_unsafe_ranges(database, decompositions, combining)),
        ),
        array(
            "Decomposition kDecompositions",
            [f"{{0x{c:x}, 0x{a:x}, 0x{b:x}}}" for c, a, b, _ in decompositions],
        ),
        array("uint16_t kCompositions", [str(index) for index in ordered]),
        array("ShiftRange kCompatibleChars", shift_rows(singles)),
        array(
            "CompatibleSequence kCompatibleSequences",
            [f"{{0x{c:x}, {offset}, {size}}}" for c, offset, size in sequences],
        ),
        array("uint16_t kCompatibleUnits", [f"0x{unit:x}" for unit in units]),
        array("CodeRange kMarkExceptions", range_rows(exceptions(database, "M", marks))),
        array(
            "CodeRange kPunctuationExceptions",
            range_rows(exceptions(database, "P", punctuation)),
        ),
        "}  // namespace mlcb\n",
    ]
    return "\n".join(parts)


def main() -> None:
    """Write the file named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    output: Path = parser.parse_args().output
    output.write_text(render(load_database()), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
