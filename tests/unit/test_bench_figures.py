"""The arithmetic of the benches, on numbers that can be checked by hand."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest

from tests.bench import bench_table, machine
from tests.bench.bench_quality import Figures, divergence, log_softmax, measure
from tests.bench.bench_speed import compare
from tests.bench.bench_table import Row, Sizes, make_groups, make_rows
from tests.bench.table_engines import FIRST_TOKEN, MEMORY, OURS
from tests.bench.table_page import plot, write_page


def test_log_softmax_of_large_logits() -> None:
    rows = log_softmax(np.array([[1000.0, 1000.0], [0.0, math.log(3)]], np.float32))
    assert np.allclose(np.exp(rows), [[0.5, 0.5], [0.25, 0.75]])


def test_divergence_of_two_coins() -> None:
    fair, bent = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert divergence(fair, bent) == pytest.approx([expected])
    assert divergence(fair, fair) == pytest.approx([0.0])


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary() -> None:
    figures = Figures()
    uniform = np.full((3, 8), -math.log(8))
    figures.add(uniform, uniform, np.array([1, 5]))
    assert figures.summary()["ppl"] == pytest.approx(8)
    assert figures.summary()["top1"] == 1


def test_chunks_are_fresh_sequences() -> None:
    seen: list[tuple[int, int]] = []

    def model(begin: int, part: object) -> npt.NDArray[np.float32]:
        assert isinstance(part, list)
        seen.append((begin, len(part)))
        return np.eye(10, dtype=np.float32)[part]

    figures = measure({"a": model, "b": model}, list(range(10)), 4)
    assert seen == [(0, 4), (0, 4), (4, 4), (4, 4), (8, 2), (8, 2)]
    assert figures["b"]["mean_kld"] == 0
    # Every row prefers its own token, so the next one is one of nine equal others.
    assert figures["a"]["ppl"] == pytest.approx(math.e + 9)


def test_ratios_are_of_medians() -> None:
    def record(rate: float) -> dict[str, object]:
        return {"results": [{"kind": "prefill", "tokens": 128, "tok_s": rate}]}

    rounds = {
        "mlcbuild": [record(rate) for rate in (10, 30, 20)],
        "llama.cpp": [record(rate) for rate in (40, 1, 50)],
    }
    (row,) = compare(rounds)
    assert row["ratio"] == pytest.approx(0.5)


def test_different_measurements_are_not_compared() -> None:
    ours = {"results": [{"kind": "prefill", "tokens": 128, "tok_s": 1.0}]}
    peer = {"results": [{"kind": "prefill", "tokens": 512, "tok_s": 1.0}]}
    with pytest.raises(SystemExit, match="different"):
        compare({"mlcbuild": [ours], "llama.cpp": [peer]})


SPEED: tuple[str, int, int, int] = ("decode", 1, 128, 32)


def round_of(rate: float, memory: float, foreign: float = 0.0) -> dict[str, Any]:
    """A round in which a process decoded 32 tokens at depth 128."""
    speed = {"kind": "decode", "batch": 1, "depth": 128, "tokens": 32, "tok_s": rate}
    return {"results": [speed], MEMORY: memory, FIRST_TOKEN: 0.4, "foreign": foreign}


def table_of_two() -> list[dict[str, Any]]:
    """A speed that is 1.5 times the peer's, and memory that is half of it."""
    rounds = {
        "g": {
            "peer": [round_of(rate, 200.0) for rate in (10, 99, 20)],
            OURS: [round_of(rate, 100.0, foreign=0.2) for rate in (30, 1, 40)],
        }
    }
    rows = [Row("fast", "g", SPEED, 1.4), Row("slow", "g", SPEED, 1.6), Row("small", "g", MEMORY)]
    return bench_table.compare(rows, rounds, "peer", {MEMORY: 99.0})


def test_a_row_is_held_against_its_goal() -> None:
    fast, slow, small = table_of_two()
    assert (fast["ratio"][OURS], fast["ratio"]["peer"]) == (1.5, 1)
    assert fast["spread"]["peer"] == [10, 99]
    assert small["ratio"][OURS] == 2  # half the memory is twice as good
    assert [row["met"] for row in (fast, slow, small)] == [True, False, False]
    assert fast["foreign"] == 0.2


def test_the_table_marks_what_was_disturbed_and_missed(tmp_path: Path) -> None:
    table = table_of_two()
    lines = bench_table.cells(table, "peer")
    assert lines[0] == ["row", "peer", OURS, "ours to peer", "goal", "met"]
    assert lines[1] == ["fast !", "20.0", "30.0", "1.50", "1.40", "yes"]
    assert lines[3] == ["small !", "0 MiB", "0 MiB", "2.00", "<= 0 MiB", "NO"]
    rule = bench_table.markdown(lines)[1]
    assert set(rule) == {"|", "-"}
    drawing = ElementTree.fromstring(plot(table, OURS, "peer"))
    bars = [item for item in drawing.iter() if item.tag.endswith("rect")]
    assert len(bars) == 3 + 1  # a bar for each row, and the legend
    write_page(tmp_path / "page.html", table, lines, ["<notes>"], OURS, "peer")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;notes&gt;" in text
    assert "<script" not in text


@pytest.mark.parametrize("threads", [1, 2])
def test_every_row_has_a_group_that_measures_it(threads: int) -> None:
    groups = {group.name: group for group in make_groups(Sizes(), threads)}
    rows = make_rows(Sizes(), threads)
    assert {row.group for row in rows} == set(groups)
    for row in rows:
        if isinstance(row.what, str):
            continue
        kind, batch, depth, tokens = row.what
        spec = f"prefill:{tokens}" if kind == "prefill" else f"decode:{batch}:{depth}:{tokens}"
        assert spec in groups[row.group].specs()


def test_children_are_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine.own_seconds()
    code = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert machine.own_seconds() - before >= 0.3

    clocks = {"busy_seconds": iter((100.0, 104.0)), "own_seconds": iter((10.0, 11.0))}
    for name, values in clocks.items():
        monkeypatch.setattr(machine, name, values.__next__)
    monkeypatch.setattr("tests.bench.machine.time.monotonic", iter((50.0, 52.0)).__next__)
    monkeypatch.setattr("tests.bench.machine.os.cpu_count", lambda: 2)
    # Of 4 CPU seconds in 2 s on 2 CPUs, 1 was our own.
    assert machine.Others().share() == pytest.approx(0.75)
