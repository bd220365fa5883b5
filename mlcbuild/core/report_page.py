"""The frame of HTML reports: one file without scripts, for dark and light screens of any width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

# The two colours keep apart for readers who do not see red or green.
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2329; --soft: #6a737d;
  --line: #d8dee4; --bar: #cfe3f7; --one: #0b62b8; --two: #c35a00; --three: #5b6672; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181d; --ink: #e3e7eb; --soft: #98a2ad; --line: #323a43; --bar: #1f4468;
    --one: #6cb2ff; --two: #ff9d45; --three: #b3bdc7; } }
body { background: var(--paper); color: var(--ink); margin: 0 auto; max-width: 62rem;
  padding: 1rem; font: 1rem/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0.3rem 0; } h2 { font-size: 1.1rem; margin: 1.6rem 0 0.4rem; }
p, dl { margin: 0.4rem 0; } .soft { color: var(--soft); font-size: 0.9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 0.2rem 0.6rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th.name, td.name { text-align: left; }
tr.sum td { font-weight: 600; } th { color: var(--soft); font-weight: 500; }
td.bar { background: linear-gradient(var(--bar) 0 0) no-repeat left / var(--part) 100%; }
svg { display: block; width: 100%; min-width: 36rem; height: auto; }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
svg text.soft { fill: var(--soft); } svg text.end { text-anchor: end; }
svg text.middle { text-anchor: middle; }
svg .grid { stroke: var(--line); stroke-width: 1; } svg .limit { stroke: var(--ink);
  stroke-width: 2; fill: none; } svg .dashed { stroke-dasharray: 6 4; }
svg .one { fill: var(--one); } svg .two { fill: var(--two); } svg .three { fill: var(--three); }
svg .dot { fill-opacity: 0.65; stroke: var(--paper); } svg .faint { fill-opacity: 0.25; }
"""


def page(title: str, *body: str) -> str:
    """A whole HTML document; ``body`` is HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def paragraph(text: str, *, soft: bool = False) -> str:
    """A paragraph of plain text."""
    return f"<p{' class=soft' if soft else ''}>{escape(text)}</p>"


def scrolled(content: str) -> str:
    """Something wide, which scrolls by itself on a narrow screen."""
    return f'<div class="scroll">{content}</div>'


class Bar(str):
    """A cell's text with a bar behind it, ``part`` (0..1) of the cell wide."""

    part: float

    def __new__(cls, text: str, part: float) -> Bar:
        """The text, and the part."""
        made = super().__new__(cls, text)
        made.part = min(1.0, max(0.0, part))
        return made


def table(
    heading: Sequence[str], rows: Iterable[Sequence[str]], *, names: int = 1, sums: int = 0
) -> str:
    """A table of plain text: ``names`` columns to the left, the last ``sums`` rows bold."""
    listed = [list(row) for row in rows]
    head = "".join(_cell("th", text, number < names) for number, text in enumerate(heading))
    lines = []
    for index, row in enumerate(listed):
        cells = "".join(_cell("td", text, number < names) for number, text in enumerate(row))
        kind = ' class="sum"' if index >= len(listed) - sums else ""
        lines.append(f"<tr{kind}>{cells}</tr>")
    return scrolled(
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(lines)
        + "\n</tbody></table>"
    )


def _cell(tag: str, text: str, name: bool) -> str:
    kind = ' class="name"' if name else ""
    if isinstance(text, Bar):
        kind = f' class="bar" style="--part: {text.part:.1%}"'
    return f"<{tag}{kind}>{escape(text)}</{tag}>"
