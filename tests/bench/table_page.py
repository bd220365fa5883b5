"""The table of goals as a page with a plot of its ratios."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlcbuild.core.report_page import page, paragraph, scrolled, table
from mlcbuild.core.svg import LogAxis, element, number_text

LABELS, RIGHT, TOP, BAR, GAP = 300.0, 705.0, 24.0, 13.0, 12.0
COLOURS = ("two", "three")


def write_page(
    path: Path,
    rows: list[dict[str, Any]],
    lines: list[list[str]],
    notes: list[str],
    ours: str,
    baseline: str,
) -> None:
    """Writes the page; ``rows`` and ``lines`` are the table as figures and as text."""
    text = page(
        "mlcbuild beside other engines",
        *(paragraph(note, soft=True) for note in notes),
        scrolled(plot(rows, ours, baseline)),
        paragraph(f"Times better than {baseline}: bars to the right of 1. A line is a goal."),
        table(lines[0], lines[1:]),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def plot(rows: list[dict[str, Any]], ours: str, baseline: str) -> str:
    """Bars of every engine's ratio to the baseline, from 1 on a logarithmic axis."""
    others = [name for name in rows[0]["ratio"] if name not in (ours, baseline)]
    names = [ours, *others]
    values = [row["ratio"][name] for row in rows for name in names]
    goals = [row["goal"] for row in rows if row["goal"] is not None]
    x = LogAxis(min([*values, 0.5]) / 1.1, max([*values, *goals, 2.0]) * 1.25, LABELS, RIGHT)
    block = BAR * len(names) + GAP
    bottom = TOP + block * len(rows)
    parts = []
    for tick in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0):
        if x.low <= tick <= x.high:
            at = x.at(tick)
            kind = "limit" if tick == 1 else "grid"
            parts.append(element("line", x1=at, x2=at, y1=TOP, y2=bottom, class_=kind))
            label = number_text(tick)
            parts.append(element("text", text=label, x=at, y=bottom + 18, class_="soft middle"))
    for number, row in enumerate(rows):
        parts += _bars(row, names, x, TOP + number * block)
    for number, name in enumerate(names):
        left = LABELS + number * 150
        parts.append(
            element("rect", x=left, y=4.0, width=11.0, height=11.0, class_=_colour(number))
        )
        parts.append(element("text", text=name, x=left + 16, y=14.0))
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 760 {bottom + 26:.0f}",
        role="img",
        aria_label=f"Ratios to {baseline}, row by row",
        xmlns="http://www.w3.org/2000/svg",
    )


def _colour(number: int) -> str:
    return "one" if number == 0 else COLOURS[(number - 1) % len(COLOURS)]


def _bars(row: dict[str, Any], names: list[str], x: LogAxis, top: float) -> Iterator[str]:
    height = BAR * len(names)
    yield element("text", text=row["row"], x=LABELS - 8, y=top + height / 2 + 10, class_="end")
    for number, name in enumerate(names):
        ratio = row["ratio"][name]
        left, right = sorted((x.at(1.0), x.at(ratio)))
        y = top + 6 + number * BAR
        title = element("title", text=f"{row['row']}: {name} {ratio:.2f}")
        yield element(
            "rect",
            title,
            x=left,
            y=y,
            width=max(1.0, right - left),
            height=BAR - 2,
            class_=_colour(number),
        )
        # Behind the bar's end, where nothing is drawn.
        yield element("text", text=f"{ratio:.2f}", x=right + 4, y=y + 10)
    if row["goal"] is not None:
        at = x.at(row["goal"])
        yield element("line", x1=at, x2=at, y1=top + 3, y2=top + height + 7, class_="limit dashed")
