"""The command line: make, plan, explain, list, gc, doctor, errors, exit codes, imports, kills."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import mlcbuild.cli.main as main_module
from mlcbuild.cli.live_display import LiveSink
from mlcbuild.cli.main import CommandFinder, group
from mlcbuild.core.progress import Progress
from mlcbuild.errors import StageError
from tests.unit import fake_graph

ROOT = Path(__file__).parents[2]
BUNDLE = Path("toy/q0f32/linux-x86_64-cpu")
RECIPE = """\
name = "toy"
[model]
source = "source.txt"
[quantization]
schemes = ["q0f32"]
[targets]
names = ["linux-x86_64-cpu"]
[targets.linux-x86_64-cpu]
delay = {delay}
blocks = {blocks}
[runtime]
max_batch_size = {batch}
"""


class Result(NamedTuple):
    """What a command line left behind."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Place:
    """A folder with a recipe, a store and an output folder."""

    folder: Path

    def recipe(self, *, batch: int = 8, delay: float = 0.0, blocks: int = 2) -> Path:
        path = self.folder / "toy.toml"
        path.write_text(RECIPE.format(batch=batch, delay=delay, blocks=blocks))
        (self.folder / "source.txt").write_text("hello")
        return path

    def command(self, *arguments: object) -> list[str]:
        return [
            *(sys.executable, "-m", "tests.unit.fake_cli", "--store", str(self.folder / "store")),
            *map(str, arguments),
        ]

    def run(self, *arguments: object, imports: bool = False) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=ROOT,
            env={**os.environ, **({"FAKE_CLI_IMPORTS": "1"} if imports else {})},
            capture_output=True,
            text=True,
            check=False,
        )

    def make(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.run("make", self.folder / "toy.toml", "--out", self.out, *arguments)

    def invoke(self, *arguments: object) -> Result:
        """As ``run``, in this process; the toy graph must be in place."""
        return Result(*invoke("--store", self.folder / "store", *arguments))

    def quick_make(self, *arguments: object) -> Result:
        """As ``make``, in this process."""
        return self.invoke("make", self.folder / "toy.toml", "--out", self.out, *arguments)

    @property
    def out(self) -> Path:
        return self.folder / "artifacts"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy graph in place of the real one, in this process."""
    monkeypatch.setattr("mlcbuild.pipeline.build.build_graph", fake_graph.build_graph)


def invoke(*arguments: object) -> tuple[int, str, str]:
    """Run a command line in this process: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main_module.run([str(item) for item in arguments])
    return code, out.getvalue(), err.getvalue()


# -- make, plan, explain, gc ------------------------------------------------------------------


@pytest.mark.usefixtures("toy")
def test_make_plan_explain_gc(place: Place) -> None:
    recipe = place.recipe()
    first = place.quick_make()
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"{place.out / BUNDLE}\n"
    assert sorted(path.name for path in (place.out / BUNDLE).iterdir()) == [
        "bin",
        "bundle.json",
        "left.bin",
        "right.bin",
    ]
    assert "5 stages ran, 0 were up to date" in first.stderr

    second = place.quick_make()
    assert second.stdout == first.stdout
    assert second.stderr == ""

    place.recipe(batch=4)
    plan = place.invoke("plan", recipe)
    assert plan.stdout.splitlines()[:-1] == [
        "cached    read toy",
        f"cached    left {BUNDLE}",
        f"will run  right {BUNDLE}: params.limits.max_batch_size: 8 -> 4",
        f"will run  bundle {BUNDLE}: upstream right {BUNDLE} will run",
        f"will run  verify {BUNDLE}: upstream bundle {BUNDLE} will run",
    ]
    assert plan.stdout.splitlines()[-1].startswith("3 to run, 2 cached")
    record = json.loads(place.invoke("plan", recipe, "--json").stdout)
    assert (record["run"], record["cached"]) == (3, 2)
    right = next(row for row in record["actions"] if row["stage"] == "right")
    assert right["changes"] == [{"field": "params.limits.max_batch_size", "old": "8", "new": "4"}]

    explain = place.invoke("explain", recipe).stdout.splitlines()
    assert explain[:2] == [f"changed: right {BUNDLE}", "  params.limits.max_batch_size: 8 -> 4"]
    assert explain[2] == f"follows: bundle {BUNDLE}"
    assert json.loads(place.invoke("--json", "explain", recipe).stdout)["root_causes"] == [
        f"right {BUNDLE}"
    ]

    third = place.quick_make()
    assert "1 stages ran, 4 were up to date" in third.stderr
    after = place.invoke("explain", recipe, "--stage", "right").stdout.splitlines()
    assert after == [
        f"up to date: right {BUNDLE}, since it was rebuilt for",
        "  params.limits.max_batch_size: 8 -> 4",
    ]

    report = json.loads(place.invoke("gc", "--json").stdout)
    assert report["actions"] == 1
    assert place.quick_make().stderr == "", "what the last build uses is kept"


@pytest.mark.usefixtures("toy")
def test_make_json_is_one_record_a_line(place: Place) -> None:
    place.recipe()
    events = [json.loads(line) for line in place.quick_make("--json").stdout.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds.count("stage_done") == 5
    assert events[kinds.index("bundle")]["path"] == str(place.out / BUNDLE)
    assert events[kinds.index("bundle")]["changed"] is True


@pytest.mark.usefixtures("toy")
def test_an_altered_bundle_is_repaired(place: Place) -> None:
    place.recipe()
    place.quick_make()
    victim = place.out / BUNDLE / "right.bin"
    data = victim.read_bytes()
    victim.write_bytes(data[:-1] + b"x")
    result = place.quick_make()
    assert victim.read_bytes() == data
    assert "altered" in result.stderr


def test_two_builders_at_once(place: Place) -> None:
    place.recipe(delay=0.3)
    command = place.command("make", place.folder / "toy.toml", "--out", place.out)
    pair = [
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate() for process in pair]
    assert [process.returncode for process in pair] == [0, 0], outputs
    assert {out for out, _ in outputs} == {f"{place.out / BUNDLE}\n"}
    ran = "".join(err for _, err in outputs).count("right toy/q0f32/linux-x86_64-cpu ...")
    assert ran == 1


def test_an_interrupted_make_exits_130_and_goes_on_later(place: Place) -> None:
    place.recipe(delay=20)
    process = subprocess.Popen(
        place.command("make", place.folder / "toy.toml", "--out", place.out),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background may have been told to ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("right"):
            break
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=20) == 130
    assert "interrupted" in rest
    assert not place.out.exists()
    assert list((place.folder / "store" / "tmp").iterdir()) == []
    place.recipe(delay=0)
    result = place.make()
    assert result.returncode == 0
    assert "2 were up to date" in result.stderr


# -- kills ------------------------------------------------------------------------------------


def test_kill_9_at_random_moments(place: Place) -> None:
    """Twenty builds are killed; each leaves nothing half-written, and the next one completes."""
    place.recipe()
    code = "import sys; from tests.unit.kill_builds import main; sys.exit(main(sys.argv[1], 20))"
    result = subprocess.run(
        [sys.executable, "-c", code, str(place.folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    killed = int(result.stdout.split()[0])
    assert killed >= 5, "kills must hit running builds"


# -- imports and time -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["make", "--help"],
        ["list", "recipes"],
        ["list", "targets"],
        ["list", "quantizations"],
        ["list", "architectures"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_light_commands_import_nothing_heavy(place: Place, arguments: Sequence[str]) -> None:
    result = place.run(*arguments, imports=True)
    assert result.stderr.splitlines()[-1] == "heavy:"


def test_plan_and_noop_make_import_nothing_heavy(place: Place) -> None:
    recipe = place.recipe()
    first = place.run("plan", recipe, imports=True)
    assert first.stderr.splitlines()[-1] == "heavy: pydantic"
    assert place.make().returncode == 0
    for arguments in (
        ["plan", recipe],
        ["explain", recipe],
        ["make", recipe, "--out", place.out],
    ):
        result = place.run(*arguments, imports=True)
        assert result.returncode == 0
        assert result.stderr == "heavy:\n"


def test_a_recipe_error_imports_no_compiler(place: Place) -> None:
    bad = ROOT / "tests" / "failing_recipes" / "unknown_names.toml"
    result = place.run("make", bad, imports=True)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == "heavy: pydantic"


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text", "hint"),
    [
        (["mak"], 'unknown command "mak"', 'did you mean "make"?'),
        (["make"], "Missing argument 'RECIPES...'", "mlcbuild make --help"),
        (["list", "recipe"], "'recipe' is not one of", "mlcbuild list --help"),
        (["gc", "--max-size", "lots"], "'lots' is not a size", "mlcbuild gc --help"),
        (["make", "no.toml"], "no.toml: there is no such recipe", ""),
        (["plan", "{recipe}", "-Q", "q4f61_1"], "--quantization: unknown", 'mean "q4f16_1"?'),
        (["plan", "{recipe}", "-T", "linux-cpu"], "--target: unknown", "linux-x86_64-cpu"),
    ],
)
def test_usage_errors(place: Place, arguments: list[str], text: str, hint: str) -> None:
    recipe = str(place.recipe())
    filled = [recipe if item == "{recipe}" else item for item in arguments]
    code, out, err = invoke("--store", place.folder / "store", *filled)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert text in err
    assert hint in err


def test_exit_codes_by_class(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise StageError("stage lower failed", why="because", hint="do this")

    monkeypatch.setattr(main_module.group, "main", lambda *_, **__: fail())
    code, _, err = invoke("make", "x")
    assert code == 5
    assert err == "error: stage lower failed\nwhy: because\n\nhint: do this\n"
    code, out, _ = invoke("make", "x", "--json")
    assert json.loads(out)["error"] == "stage"
    assert json.loads(out)["exit_code"] == 5


@pytest.mark.parametrize(
    ("number", "text"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "the file system is read-only")],
)
def test_what_the_machine_refuses_is_no_bug(
    place: Place, monkeypatch: pytest.MonkeyPatch, number: int, text: str
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number), "/some/folder")

    monkeypatch.setattr(main_module.group, "main", fail)
    code, _, err = invoke("make", "x")
    assert code == 7
    assert err.startswith(f"error: /some/folder: {text}\n")
    assert "--out" in err


def test_no_arguments_show_the_help(place: Place) -> None:
    code, out, err = invoke()
    assert (code, err) == (0, "")
    assert out.startswith("Usage: mlcbuild")


def test_json_may_stand_before_a_bundle_command(place: Place) -> None:
    code, out, err = invoke("--json", "inspect", place.folder / "none")
    assert code == 6
    assert json.loads(out)["why"] == "there is no such folder"
    assert "there is no such folder" in err


def test_a_bug_gives_one_line_and_a_log(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero\nmore")

    monkeypatch.setattr(main_module.group, "main", crash)
    monkeypatch.setenv("MLCBUILD_STORE", str(place.folder))
    (place.folder / "logs").mkdir()
    code, _, err = invoke("make", "x")
    assert code == 1
    lines = err.splitlines()
    assert lines[0] == "error: internal error: ZeroDivisionError: division by zero"
    log = Path(lines[-1].rpartition(" ")[2])
    assert log.parent == place.folder / "logs"
    assert "Traceback" in log.read_text()
    code, _, err = invoke("make", "x", "--verbose")
    assert "Traceback" in err


@pytest.mark.usefixtures("toy")
def test_an_unknown_stage_to_force(place: Place) -> None:
    place.recipe()
    result = place.quick_make("--force", "lefft")
    assert result.returncode == 2
    assert 'did you mean "left"?' in result.stderr


def test_a_broken_pipe_is_quiet(place: Place) -> None:
    process = subprocess.Popen(
        place.command("list", "quantizations"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()


# -- the rest ---------------------------------------------------------------------------------


def test_every_command_file_is_a_command_with_help() -> None:
    import click

    assert isinstance(group, CommandFinder)
    with click.Context(group) as context:
        names = group.list_commands(context)
        assert {"make", "plan", "explain", "list", "gc", "doctor"} <= set(names)
        for name in names:
            command = group.get_command(context, name)
            assert command is not None
            assert command.name == name
            assert command.help


@pytest.mark.parametrize("what", ["recipes", "targets", "quantizations", "architectures"])
def test_list(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code, out, _ = invoke("list", what)
    assert code == 0
    code, record, _ = invoke("list", what, "--json")
    rows = json.loads(record)
    assert [line.split()[0] for line in out.splitlines()] == [row["name"] for row in rows]
    expected = {
        "recipes": "smollm2-135m",
        "targets": "linux-x86_64-cpu",
        "quantizations": "q4f16_1",
        "architectures": "llama",
    }
    assert expected[what] in {row["name"] for row in rows}


def test_doctor(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = invoke("--store", place.folder / "s", "doctor", "--json")
    report = json.loads(out)
    assert code == 0, report["problems"]
    assert report["packages"]["click"]
    assert report["targets"][0]["missing"] == []
    assert not (place.folder / "s").exists(), "doctor only looks"
    import mlcbuild.cli.doctor_command as doctor

    monkeypatch.setattr(doctor, "installed_version", lambda name: None)
    code, out, _ = invoke("doctor")
    assert code == 4
    assert "problem: apache-tvm is not installed" in out


def test_global_options_may_follow_the_command(place: Place) -> None:
    recipe = place.recipe()
    store = place.folder / "elsewhere"
    assert invoke("list", "targets", "-q", "--no-color")[0] == 0
    code, out, err = invoke("gc", "--store", store, "--json")
    assert code == 0, err
    assert json.loads(out)["actions"] == 0
    assert (store / "version").exists()
    assert recipe.exists()


def test_the_live_display_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    sink = LiveSink(stream, color=False)
    progress = Progress(sink)
    progress.emit("stage_run", stage="quantize", subject="a/very/long/subject/that/does/not/fit")
    with progress.task("read", total=1000, unit="B") as task:
        task.advance(1000)
        progress.note("a warning")
    progress.emit(
        "stage_done",
        stage="quantize",
        subject="a/very/long/subject/that/does/not/fit",
        seconds=1.0,
        bytes=10,
    )
    progress.close()
    text = stream.getvalue()
    assert "a warning\n" in text
    assert "done quantize" in text
    assert "[====" in text
    moving = [line for line in text.split("\n") if "subject" in line and "done" not in line]
    assert all(len(line.rpartition("\x1b[J")[2]) <= 40 for line in moving)
