"""Drawings as SVG text: elements, logarithmic axes, labels that keep off each other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr


def element(tag: str, *content: str, text: str = "", **attributes: object) -> str:
    """One element of XML.

    ``content``: elements inside, as they are; ``text`` is escaped. In names of attributes ``_``
    stands for ``-`` and an ``_`` at the end for nothing (``class_``). Numbers get two decimals.
    """
    written = "".join(
        f" {name.rstrip('_').replace('_', '-')}={quoteattr(_value(value))}"
        for name, value in attributes.items()
    )
    return f"<{tag}{written}>{''.join(content)}{escape(text)}</{tag}>"


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class LogAxis:
    """Maps values from ``low`` to ``high``, both above 0, to pixels; decades are equally long."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a value."""
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + part * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Powers of ten within; with less than three of them also twice and five times those."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        found: list[float] = []
        for steps in ((1,), (1, 2, 5)):
            found = [
                step * 10.0**power
                for power in range(first, last + 1)
                for step in steps
                if self.low <= step * 10.0**power <= self.high
            ]
            if len(found) >= 3:
                break
        return found


@dataclass(frozen=True, slots=True)
class Label:
    """A text to the right of a point."""

    x: float
    y: float
    text: str
    class_: str = "label"


Taken = tuple[float, float, float]  # left, right, y of the line


def place_labels(
    labels: list[Label], line: float, letter: float, taken: Iterable[Taken] = ()
) -> list[str]:
    """Text elements for the labels, moved down where they would cover others or what is taken.

    ``line`` and ``letter``: height of a line and width of a letter in pixels.
    """
    placed = list(taken)
    found = []
    for label in sorted(labels, key=lambda label: (label.y, label.x)):
        right = label.x + letter * len(label.text)
        y = label.y
        for other_left, other_right, other_y in sorted(placed, key=lambda item: item[2]):
            if label.x < other_right and other_left < right and abs(y - other_y) < line:
                y = other_y + line
        placed.append((label.x, right, y))
        found.append(element("text", text=label.text, x=label.x, y=y, class_=label.class_))
    return found


def number_text(value: float) -> str:
    """A number for an axis: 0.5, 20, 3k, 12M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
