"""Write src/jinja/case_tables.cc: upper, lower and title case as compact tables.

Usage: ``python make_case_tables.py ../src/jinja/case_tables.cc``

The mappings are those of this Python's ``str``, whose methods the templates' ones follow; the
written file names the version of Unicode.
"""

from __future__ import annotations

import argparse
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

LIMIT = 0x110000


def single_mappings(convert: Callable[[str], str]) -> list[tuple[int, int]]:
    """(character, delta) of every character that becomes one other, ascending."""
    result = []
    for code in range(0x80, LIMIT):
        if 0xD800 <= code <= 0xDFFF:
            continue
        text = convert(chr(code))
        if len(text) == 1 and ord(text) != code:
            result.append((code, ord(text) - code))
    return result


def to_ranges(mappings: Iterable[tuple[int, int]]) -> list[list[int]]:
    """[first, delta, count, stride] for runs of equal deltas with stride 1 or 2."""
    ranges: list[list[int]] = []
    for code, delta in mappings:
        if ranges:
            first, known, count, stride = ranges[-1]
            step = code - (first + (count - 1) * stride)
            if known == delta and (step == stride or (count == 1 and step <= 2)):
                ranges[-1] = [first, delta, count + 1, step]
                continue
        ranges.append([code, delta, 1, 1])
    return ranges


def specials(convert: Callable[[str], str], unless: Callable[[int], bool]) -> list[list[int]]:
    """[character, up to three others] where ``unless`` does not hold."""
    result = []
    for code in range(0x80, LIMIT):
        if 0xD800 <= code <= 0xDFFF or unless(code):
            continue
        to = [ord(c) for c in convert(chr(code))]
        if max(code, *to) > 0xFFFF or len(to) > 3:
            raise SystemExit(f"U+{code:04X} does not fit the table")
        result.append([code, *to, *[0] * (3 - len(to))])
    return result


def main() -> None:
    """Writes the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    output: Path = parser.parse_args().output
    lines = [
        f"// Written by tools/make_case_tables.py from Unicode {unicodedata.unidata_version};",
        "// do not edit.",
        '#include "jinja/case_tables.h"',
        "",
        "namespace mlcb::jinja {",
    ]
    for name, mappings in (
        ("kLowerRanges", single_mappings(str.lower)),
        ("kUpperRanges", single_mappings(str.upper)),
    ):
        ranges = to_ranges(mappings)
        lines += ["", "// clang-format off", f"const CaseRange {name}[] = {{"]
        lines += [f"    {{{first:#x}, {delta}, {n}, {by}}}," for first, delta, n, by in ranges]
        lines += ["};", "// clang-format on", f"const size_t {name}Size = {len(ranges)};"]
    for name, rows in (
        ("kUpperSpecials", specials(str.upper, lambda code: len(chr(code).upper()) == 1)),
        (
            "kTitleSpecials",
            specials(str.title, lambda code: chr(code).title() == chr(code).upper()),
        ),
    ):
        lines += ["", "// clang-format off", f"const CaseSpecial {name}[] = {{"]
        lines += [f"    {{{a:#x}, {{{b:#x}, {c:#x}, {d:#x}}}}}," for a, b, c, d in rows]
        lines += ["};", "// clang-format on", f"const size_t {name}Size = {len(rows)};"]
    lines += ["", "}  // namespace mlcb::jinja", ""]
    output.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
