"""Bytes and operations of kernels against figures by hand; the profile of a run and its report."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner, Result

from mlcbuild.bundle.native import NativeBundle, NativeEngine
from mlcbuild.cli import bench_command
from mlcbuild.core.svg import Label, LogAxis, place_labels
from mlcbuild.engine.profile import KernelMeter, KernelTime, Phase, phase_record
from mlcbuild.engine.roofline import report, roofline
from mlcbuild.engine.work import PlanWork, Run, Step, Work
from mlcbuild.errors import InternalError, MlcbuildError, UsageError, VerificationError
from tests.unit import fake_bundle, stub_bundle
from tests.unit.fake_bundle import FakeLimits

LIMITS: dict[str, Any] = {
    "read_gbytes": 10.0,
    "int8": {"gops": 1000.0, "instructions": "avx512_vnni"},
    "float": {"gops": 100.0, "instructions": "avx512f"},
    "threads": 2,
}


@pytest.fixture(scope="module")
def bundle(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert pytestconfig.cache is not None
    folder = tmp_path_factory.mktemp("profile") / "bundle"
    fake_bundle.make_bundle(folder, fake_bundle.build_binaries(pytestconfig.cache))
    # What the runtime does without and this package's reader asks for.
    (folder / "include").mkdir()
    (folder / "include" / "mlcb.h").write_text("")
    runtime = {"library": "lib/libmlcb.so", "executable": "bin/mlcb", "header": "include/mlcb.h"}
    names = ("weights_bytes", "kv_bytes_per_token", "kv_bytes", "arena_bytes", "total_bytes")
    memory = dict.fromkeys(names, 0)
    fake_bundle.write_manifest(folder, {"runtime": runtime, "memory": memory})
    return folder


def invoke(*arguments: object) -> Result:
    command: click.Command = bench_command.command
    result = CliRunner().invoke(command, [str(item) for item in arguments])
    if isinstance(result.exception, MlcbuildError):
        raise result.exception
    return result


def test_three_rows_of_the_fake_model_by_hand() -> None:
    """Positions 5, 6, 7 of one sequence: 2 layers, hidden 32, 4 heads of 8, 2 of them for keys."""
    work = PlanWork(fake_bundle.make_plan(FakeLimits(), "fast", "int8"))
    row = 32 * 4  # bytes of a hidden state
    matrices = 2 * (2 * (3 * row + 32 * row + 3 * row) + 2 * (3 * row + 16 * row + 3 * 16 * 4))
    pages = 2 * (2 * 2 * 4 * 8 * 4)  # positions 0..7 in pages of 4: two of them
    assert work.step(Step((Run(5, 3),), logit_rows=1)) == {
        "embed": Work(1, 3 * 4 + 3 * row + 3 * row),
        "matmul": Work(
            9,
            matrices + row + 264 * row + 264 * 4,
            float_ops=2 * (2 * 2 * 3 * (32 * 32 + 16 * 32)) + 2 * 32 * 264,
        ),
        # Of the rope table, the rows of three positions.
        "rope": Work(4, 2 * (2 * 3 * row + 2 * 3 * 16 * 4 + 2 * (3 * 8 * 4 + 3 * 4))),
        "append": Work(2, 2 * (2 * 3 * 16 * 4 + 3 * 4 + 3 * (2 * 2 * 8 * 4))),
        # The rows see 6, 7 and 8 positions.
        "attention": Work(
            2, 2 * (2 * 3 * row + 2 * 3 * 4 + 2 * 4 + pages), float_ops=2 * 4 * 32 * (6 + 7 + 8)
        ),
        "add": Work(2, 2 * 3 * 3 * row),
        "take": Work(1, 4 + 2 * row),
    }


def test_packed_int8_layers_by_hand() -> None:
    """``y[n, 24] = x[n, 32] w``, packed in two blocks of 16 outputs, and the same as a table."""
    weight = [["param", 0, 0, "int32", [1, 2, 3]], ["param", 1, 0, "float16", [1, 4, 3]]]
    exprs: list[list[object]] = [["$0"], [2], [4], [16], [1], [32], [24]]
    linear = {
        "name": "linear",
        "vars": ["seq_len"],
        "exprs": exprs,
        "tensors": [
            ["arena", 0, 0, "int8", [0, 5]],
            ["arena", 0, 64, "float32", [0, 4]],
            ["arena", 0, 128, "int32", [0, 4]],
            *weight,
            ["arena", 0, 192, "float32", [0, 6]],
        ],
        "calls": [[0, [["t", i] for i in range(6)]]] * 2,
    }
    table = {
        "name": "embed",
        "vars": ["seq_len"],
        "exprs": exprs,
        "tensors": [["input", 0, 0, "int32", [0]], *weight, ["arena", 0, 0, "float32", [0, 5]]],
        "calls": [[1, [["t", i] for i in range(4)]]],
    }
    plan = {
        "bounds": {},
        "kv": {"kv_heads": 1, "head_dim": 8, "page_size": 4, "page_bytes": 64, "dtype": "int8"},
        "kernels": ["product", "lookup"],
        "params": [{"name": "m.0.up.q_weight"}, {"name": "m.0.up.q_scale"}],
        "functions": [linear, table],
    }
    work = PlanWork(plan)
    packed = 2 * 4 * 16 * 4 + 2 * 1 * 16 * 2
    rows = 5
    assert work.step(Step((Run(0, rows),), 1)) == {
        "product": Work(
            2, 2 * (rows * (32 + 4 + 4) + packed + rows * 24 * 4), int8_ops=2 * 2 * rows * 32 * 24
        ),
        # One of 32 rows is 16 bytes of codes and 2 of scales.
        "lookup": Work(1, rows * 4 + rows * 18 + rows * 32 * 4),
    }
    assert work.weights == {"product": ["up"], "lookup": ["up"]}


@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (4, 0), (4, 2), (8, 5)])
def test_attention_with_a_window_sees_what_the_definition_says(window: int, sinks: int) -> None:
    work = PlanWork(fake_bundle.make_plan(FakeLimits(window=window, sinks=sinks), "fast", "int8"))
    name = "window_attention" if window else "attention"
    for start, rows in ((0, 1), (3, 6), (10, 1), (21, 3)):
        seen = [
            (p, j)
            for p in range(start, start + rows)
            for j in range(p + 1)
            if not window or j < sinks or j > p - window
        ]
        found = work.step(Step((Run(start, rows),), 1))[name]
        assert found.float_ops == 2 * 4 * 32 * len(seen)
        # A sink page is read whole, so are the pages that it shares with nothing else.
        sink_pages = set(range(min(-(-sinks // 4), -(-(start + rows) // 4))))
        pages = {j // 4 for _, j in seen} | sink_pages
        skip = 3 if window else 2
        tables = skip * rows * 4 + 4 * len(pages)
        assert found.bytes == 2 * (2 * rows * 128 + tables + 512 * len(pages))


def test_sequences_of_a_step_add_up() -> None:
    work = PlanWork(fake_bundle.make_plan(FakeLimits(), "fast", "int8"))
    both = work.step(Step((Run(5, 1), Run(9, 1)), 2))["attention"]
    assert both.float_ops == 2 * 4 * 32 * (6 + 10)
    assert work.steps([Step((Run(5, 1),), 1)] * 3)["attention"].calls == 6


def test_a_plan_that_does_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.plan").write_text("{")
    with pytest.raises(VerificationError, match=r"a\.plan"):
        PlanWork.read(tmp_path / "a.plan")


def test_figures_of_a_phase_by_hand() -> None:
    work = PlanWork(fake_bundle.make_plan(FakeLimits(), "fast", "int8"))
    step = Step((Run(5, 3),), 1)
    due = work.step(step)
    kernels = {name: KernelTime(item.calls, 1e-5) for name, item in due.items()}
    record = phase_record(Phase([step], kernels, 1e-4), work, LIMITS)
    (matmul,) = (item for item in record["kernels"] if item["name"] == "matmul")
    moved, ops = due["matmul"].bytes, due["matmul"].float_ops
    assert (matmul["bytes"], matmul["ops"], matmul["bound"]) == (moved, ops, "memory")
    assert matmul["gbytes_per_s"] == pytest.approx(moved / 1e-5 / 1e9, rel=1e-4)
    assert matmul["gops_per_s"] == pytest.approx(ops / 1e-5 / 1e9, rel=1e-4)
    assert matmul["of_bound"] == pytest.approx(moved / 10e9 / 1e-5, abs=1e-4)
    assert matmul["weights"] == ["l0", "l1", "table"]
    assert record["total"]["calls"] == sum(item.calls for item in due.values())
    assert record["total"]["share"] == pytest.approx(0.7)
    assert record["outside_seconds"] == pytest.approx(3e-5)

    slow = {**LIMITS, "float": {"gops": 0.5, "instructions": "fma"}}
    record = phase_record(Phase([step], kernels, 1e-4), work, slow)
    bounds = {item["name"]: item["bound"] for item in record["kernels"]}
    assert bounds["matmul"] == bounds["attention"] == "float"
    assert bounds["add"] == "memory"


def test_other_calls_than_the_plans_are_refused() -> None:
    work = PlanWork(fake_bundle.make_plan(FakeLimits(), "fast", "int8"))
    with pytest.raises(InternalError, match="other kernels"):
        phase_record(Phase([Step((Run(0, 1),), 1)], {"embed": KernelTime(1, 0.1)}, 1), work, LIMITS)


def test_other_rows_than_due_are_refused(bundle: Path) -> None:
    with NativeBundle.open(bundle) as native, NativeEngine(native, profile=True) as engine:
        meter = KernelMeter(engine)
        meter.start()
        with pytest.raises(InternalError, match="ran 0 rows where 2 were due"):
            meter.stop([Step((Run(0, 2),), 1)], 0.1)


def test_limits_of_a_variant_without_loops_are_those_of_memory(bundle: Path) -> None:
    with NativeBundle.open(bundle) as native, NativeEngine(native, threads=2) as engine:
        limits = engine.limits()
        assert engine.limits() == limits  # measured once
    assert (limits["int8"], limits["float"], limits["threads"]) == (None, None, 2)
    assert limits["read_gbytes"] > 0.1


class Page(HTMLParser):
    """Collects the tags that are open, and what a page points to."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.tables = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Counts it, and remembers what it loads."""
        if tag not in self.VOID:
            self.open.append(tag)
        self.tables += tag == "table"
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        """Must close the last one."""
        assert self.open.pop() == tag


def test_profile_of_a_run(bundle: Path, tmp_path: Path) -> None:
    """The runtime's calls and rows are those that the plan says, or run_bench would have failed."""
    html = tmp_path / "report.html"
    options = ("--prefill", "20", "--decode", 3, "--batch", "1,2", "--depth", "5", "--repeat", 2)
    record = json.loads(invoke(bundle, *options, "--html", html, "--json").stdout)
    prefill, alone, batch = (result["profile"] for result in record["results"])
    assert (prefill["steps"], prefill["rows"]) == (4, 40)  # two runs of 16 + 4 rows
    assert (alone["steps"], alone["rows"]) == (6, 6)
    assert (batch["steps"], batch["rows"]) == (6, 12)
    work = PlanWork.read(bundle / "lib" / "fast.plan")
    for profile, steps in (
        (prefill, [Step((Run(0, 16),), 0), Step((Run(16, 4),), 1)] * 2),
        # The first token came with the prompt of 5; it is fed back at position 5.
        (alone, [Step((Run(position, 1),), 1) for position in (5, 6, 7)] * 2),
    ):
        due = work.steps(steps)
        found = {item["name"]: (item["calls"], item["bytes"]) for item in profile["kernels"]}
        assert found == {name: (item.calls, item.bytes) for name, item in due.items() if item.calls}
        shares = sum(item["share"] for item in profile["kernels"])
        assert shares == pytest.approx(profile["total"]["share"], abs=1e-3)
        assert 0 < profile["total"]["seconds"] <= profile["seconds"]
    parser = Page()
    text = html.read_text(encoding="utf-8")
    parser.feed(text)
    parser.close()
    assert (parser.open, parser.links) == ([], [])
    assert parser.tables == 4
    assert "<script" not in text
    drawing = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    circles = [item for item in drawing.iter() if item.tag.endswith("circle")]
    assert len(circles) == 3 * 2  # matmul and attention of each phase

    lines = invoke(bundle, *options, "--profile").stdout.splitlines()
    assert sum(line.split()[:1] == ["matmul"] for line in lines) == 3
    assert sum(line.startswith("  outside kernels") for line in lines) == 3
    assert any("no limit of arithmetic" in line for line in lines)


def test_without_profile_there_is_none(bundle: Path) -> None:
    record = json.loads(
        invoke(bundle, "--prefill", 4, "--decode", 0, "--repeat", 1, "--json").stdout
    )
    assert "limits" not in record
    assert "profile" not in record["results"][0]


def test_a_report_that_cannot_be_written(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        invoke(bundle, "--html", tmp_path / "none" / "report.html")
    assert invoke(bundle, "--html", tmp_path).exit_code == 2


def test_an_older_runtime_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    library = stub_bundle.compile_stub(tmp_path).read_bytes()
    stub_bundle.make_bundle(tmp_path / "old", library)
    with pytest.raises(UsageError, match="no mlcb_engine_limits") as error:
        invoke(tmp_path / "old", "--prefill", 4, "--profile")
    assert error.value.hint == "build the bundle again"


def test_the_compiler_is_not_loaded() -> None:
    modules = "mlcbuild.engine.bench, mlcbuild.engine.roofline"
    code = f"import sys, {modules}; sys.exit('tvm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_are_escaped() -> None:
    kernel = {
        "name": "<b>",
        "weights": ['"&"'],
        "calls": 1,
        "seconds": 0.5,
        "share": 0.5,
        "bytes": 10,
        "ops": 20,
        "gbytes_per_s": 1.0,
        "gops_per_s": 2.0,
        "bound": "memory",
        "of_bound": 0.1,
    }
    profile = {"steps": 1, "seconds": 1.0, "outside_seconds": 0.5, "kernels": [kernel]}
    profile["total"] = kernel
    result = {"kind": "prefill", "tokens": 4, "tok_s": 1, "tok_s_min": 1, "tok_s_max": 1}
    machine = {"date": "d", "cpu": "<i>", "cpus": 1, "system": "s", "load_average": None}
    record = {
        "bundle": "<u>",
        "scheme": "s",
        "target": "t",
        "variant": "v",
        "activations": "int8",
        "threads": 1,
        "repeat": 1,
        "tree_digest": "sha256:0",
        "limits": LIMITS,
        "machine": {**machine, "mlcbuild": "0", "python": "3"},
        "results": [{**result, "profile": profile}],
    }
    text = report(record)
    assert not [tag for tag in ("<b>", "<i>", "<u>") if tag in text]
    assert "Load averages unknown" in text
    ElementTree.fromstring(roofline(record))


def test_axes_and_labels() -> None:
    axis = LogAxis(1, 1000, 0, 300)
    assert axis.at(10) == pytest.approx(100)
    assert axis.ticks() == [1, 10, 100, 1000]
    assert LogAxis(1, 30, 0, 100).ticks() == [1, 2, 5, 10, 20]
    upper, lower, apart = place_labels(
        [Label(0, 10, "one"), Label(5, 12, "two"), Label(90, 12, "three")], line=14, letter=7
    )
    assert ('y="10"' in upper, 'y="24"' in lower, 'y="12"' in apart) == (True, True, True)
