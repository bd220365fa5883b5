"""The report of `mlcbuild bench --profile`: text tables, and a roofline as one HTML file.

The picture is that of Williams, Waterman and Patterson, "Roofline: an insightful visual performance
model for multicore architectures", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlcbuild.core.report_page import Bar, page, paragraph, scrolled, table
from mlcbuild.core.svg import Label, LogAxis, element, number_text, place_labels

HEADING = ("kernel", "weights", "calls", "ms", "share", "GB/s", "Gop/s", "limit", "of limit")
_BOUNDS = {"memory": "memory", "int8": "int8 ops", "float": "float ops"}
_WIDTH, _HEIGHT = 760.0, 470.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 740.0, 16.0, 420.0
_LEGEND = (
    "A dot is a kernel, its area the share of the phase's time; prefill is blue, decode orange, "
    "faint dots are of further phases. The closer to the roof above it, the less is left to gain. "
    "Kernels without counted operations are in the tables only. Bytes are those of the tensors, "
    "wherever they lie: a kernel whose data is in a cache may pass the roof."
)
_LABELLED_SHARE = 0.03  # of a phase's time


def phase_title(result: Mapping[str, Any]) -> str:
    """What a result of the bench measures."""
    if result["kind"] == "prefill":
        return f"prefill {result['tokens']}"
    return f"decode {result['tokens']}, batch {result['batch']}, depth {result['depth']}"


def profile_rows(profile: Mapping[str, Any]) -> list[list[str]]:
    """The table of a phase under ``HEADING``; the last two rows: all kernels, and the rest."""
    rows = []
    for kernel in profile["kernels"]:
        first, *others = kernel["weights"] or [""]
        more = f" +{len(others)}" if others else ""
        rows.append([kernel["name"], first + more, *_cells(kernel, _BOUNDS[kernel["bound"]])])
    rows.append(["all kernels", "", *_cells(profile["total"], "each its own")])
    outside = profile["outside_seconds"]
    share = outside / profile["seconds"] if profile["seconds"] else 0.0
    rows.append(["outside kernels", "", "", f"{outside * 1e3:.3f}", f"{share:.1%}", *[""] * 4])
    return rows


def _cells(figures: Mapping[str, Any], bound: str) -> list[str]:
    return [
        str(figures["calls"]),
        f"{figures['seconds'] * 1e3:.3f}",
        f"{figures['share']:.1%}",
        f"{figures['gbytes_per_s']:.2f}",
        f"{figures['gops_per_s']:.1f}" if figures["ops"] else "-",
        bound,
        f"{figures['of_bound']:.0%}",
    ]


def limits_text(limits: Mapping[str, Any]) -> str:
    """The measured limits in one line."""
    parts = [f"memory {limits['read_gbytes']:.1f} GB/s"]
    for name in ("int8", "float"):
        if limits[name] is not None:
            parts.append(
                f"{name} {limits[name]['gops']:.0f} Gop/s ({limits[name]['instructions']})"
            )
    if limits["float"] is None:
        parts.append("no limit of arithmetic is known for this variant")
    return f"limits of {limits['threads']} threads: {', '.join(parts)}"


def text_tables(record: Mapping[str, Any]) -> Iterator[str]:
    """The lines that the terminal gets below the speeds."""
    yield limits_text(record["limits"])
    for result in record["results"]:
        profile = result["profile"]
        yield ""
        yield f"{phase_title(result)}: {profile['steps']} steps, {profile['seconds'] * 1e3:.1f} ms"
        yield from _aligned([HEADING, *profile_rows(profile)])


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def report(record: Mapping[str, Any]) -> str:
    """The HTML document for a record of ``run_bench`` with a profile."""
    parts = [
        *_heading(record),
        paragraph(limits_text(record["limits"]) + "."),
        scrolled(roofline(record)),
        paragraph(_LEGEND, soft=True),
        "<h2>Speed</h2>",
        table(
            ("phase", "tok/s", "slowest", "fastest", "in kernels", "of limit"),
            [
                (
                    phase_title(result),
                    *(f"{result[name]:.1f}" for name in ("tok_s", "tok_s_min", "tok_s_max")),
                    f"{result['profile']['total']['share']:.1%}",
                    _bar(result["profile"]["total"]),
                )
                for result in record["results"]
            ],
        ),
    ]
    for result in record["results"]:
        rows = profile_rows(result["profile"])
        figures = [*result["profile"]["kernels"], result["profile"]["total"]]
        cells = [[*row[:-1], _bar(item)] for row, item in zip(rows, figures, strict=False)]
        parts += [f"<h2>{phase_title(result)}</h2>"]
        parts += [table(HEADING, [*cells, rows[-1]], names=2, sums=2)]
    return page(f"{record['bundle']} {record['scheme']}: profile", *parts)


def _heading(record: Mapping[str, Any]) -> Iterator[str]:
    machine = record["machine"]
    load = machine["load_average"]
    yield paragraph(
        f"{record['target']}, variant {record['variant']}, {record['activations']} activations, "
        f"{record['threads']} threads. Speeds are medians of {record['repeat']} runs, kernels the "
        "sums of all runs."
    )
    yield paragraph(
        f"{machine['date']}. {machine['cpu']}, {machine['cpus']} CPUs, {machine['system']}. "
        f"Load averages {', '.join(map(str, load)) if load else 'unknown'}. "
        f"mlcbuild {machine['mlcbuild']}, Python {machine['python']}, "
        f"bundle {record['tree_digest'][:19]}.",
        soft=True,
    )


def _bar(figures: Mapping[str, Any]) -> Bar:
    return Bar(f"{figures['of_bound']:.0%}", figures["of_bound"])


def _dots(record: Mapping[str, Any]) -> Iterator[tuple[str, bool, Mapping[str, Any]]]:
    """(colour class, whether it is of the first phase of its kind, figures) of every dot."""
    seen: set[str] = set()
    for result in record["results"]:
        first = result["kind"] not in seen
        seen.add(result["kind"])
        for kernel in result["profile"]["kernels"]:
            if kernel["ops"] and kernel["bytes"] and kernel["seconds"]:
                yield ("one" if result["kind"] == "prefill" else "two"), first, kernel


def roofline(record: Mapping[str, Any]) -> str:
    """The picture as an SVG element."""
    limits = record["limits"]
    bandwidth = limits["read_gbytes"]
    roofs = [(name, limits[name]["gops"]) for name in ("int8", "float") if limits[name] is not None]
    dots = list(_dots(record))
    intensities = [dot["ops"] / dot["bytes"] for _, _, dot in dots] or [1.0]
    rates = [dot["gops_per_s"] for _, _, dot in dots] or [bandwidth]
    ridges = [gops / bandwidth for _, gops in roofs]
    x_low, x_high = min(intensities) / 3, max([*intensities, *ridges]) * 3
    top = max([*rates, *(gops for _, gops in roofs), *([] if roofs else [x_high * bandwidth])])
    x = LogAxis(x_low, x_high, _LEFT, _RIGHT)
    y = LogAxis(min([*rates, x_low * bandwidth]) / 1.5, top * 2, _BOTTOM, _TOP)
    parts = [*_axes(x, y), *_roofs(x, y, bandwidth, roofs)]
    labels = []
    # Large dots first, so that none hides another.
    for colour, first, dot in sorted(dots, key=lambda item: -item[2]["share"]):
        px, py = x.at(dot["ops"] / dot["bytes"]), y.at(dot["gops_per_s"])
        radius = 3 + 17 * math.sqrt(min(1.0, dot["share"]))
        name = f"{dot['name']} {' '.join(dot['weights'])}".strip()
        title = (
            f"{name}: {dot['share']:.1%} of the time, {dot['gops_per_s']:.1f} Gop/s, "
            f"{dot['gbytes_per_s']:.2f} GB/s, {dot['of_bound']:.0%} of the limit"
        )
        kind = f"dot {colour}" if first else f"dot {colour} faint"
        parts.append(
            element("circle", element("title", text=title), cx=px, cy=py, r=radius, class_=kind)
        )
        if first and dot["share"] >= _LABELLED_SHARE:
            text = dot["weights"][0] if dot["weights"] else dot["name"]
            labels.append(Label(px + radius + 3, py + 4, text))
    taken = [(_RIGHT - 140, _RIGHT, y.at(gops) - 6) for _, gops in roofs]
    parts += place_labels(labels, 15, 7.5, taken)
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        role="img",
        aria_label="Roofline: operations per second over operations per byte, by kernel",
        xmlns="http://www.w3.org/2000/svg",
    )


def _axes(x: LogAxis, y: LogAxis) -> Iterator[str]:
    for tick in x.ticks():
        at = x.at(tick)
        yield element("line", x1=at, x2=at, y1=_TOP, y2=_BOTTOM, class_="grid")
        yield element("text", text=number_text(tick), x=at, y=_BOTTOM + 18, class_="soft middle")
    for tick in y.ticks():
        at = y.at(tick)
        yield element("line", x1=_LEFT, x2=_RIGHT, y1=at, y2=at, class_="grid")
        yield element("text", text=number_text(tick), x=_LEFT - 6, y=at + 4, class_="soft end")
    middle = (_LEFT + _RIGHT) / 2
    yield element(
        "text", text="operations per byte", x=middle, y=_BOTTOM + 40, class_="soft middle"
    )
    turned = f"rotate(-90 14 {(_TOP + _BOTTOM) / 2:.0f})"
    yield element(
        "text",
        text="Gop/s",
        x=14.0,
        y=(_TOP + _BOTTOM) / 2,
        transform=turned,
        class_="soft middle",
    )


def _roofs(
    x: LogAxis, y: LogAxis, bandwidth: float, roofs: Sequence[tuple[str, float]]
) -> Iterator[str]:
    """The slope of memory up to the highest roof, then flat lines to the right edge."""
    peak = max([gops for _, gops in roofs], default=x.high * bandwidth)
    end = min(x.high, peak / bandwidth)
    points = (x.low, y.at(x.low * bandwidth)), (end, y.at(end * bandwidth))
    (low, low_y), (high, high_y) = points
    yield element("line", x1=x.at(low), y1=low_y, x2=x.at(high), y2=high_y, class_="limit")
    slope = math.degrees(math.atan2(high_y - low_y, x.at(high) - x.at(low)))
    at_x, at_y = x.at(low) + 6, low_y - 12
    yield element(
        "text",
        text=f"memory {bandwidth:.1f} GB/s",
        x=at_x,
        y=at_y,
        transform=f"rotate({slope:.1f} {at_x:.1f} {at_y:.1f})",
    )
    for name, gops in roofs:
        kind = "limit" if gops == peak else "limit dashed"
        at = y.at(gops)
        yield element("line", x1=x.at(gops / bandwidth), y1=at, x2=_RIGHT, y2=at, class_=kind)
        yield element("text", text=f"{name} {gops:.0f} Gop/s", x=_RIGHT, y=at - 6, class_="end")
