"""Actions, keys, the scheduler, explain and export, on a toy graph."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlcbuild.core.progress import Progress
from mlcbuild.core.stat_cache import StatCache
from mlcbuild.errors import (
    InternalError,
    ResourceError,
    SourceError,
    StageError,
    UsageError,
    VerificationError,
)
from mlcbuild.pipeline.action import Action, ActionContext, FileInput
from mlcbuild.pipeline.code_digest import CodeIndex, imported_modules, strip_source
from mlcbuild.pipeline.explain import Finding, survey
from mlcbuild.pipeline.export import export_tree
from mlcbuild.pipeline.graph import topological
from mlcbuild.pipeline.scheduler import BuildResult, Scheduler
from mlcbuild.store.store import Store
from tests.unit.fake_graph import SUBJECT, Trace, toy_graph

ROOT = Path(__file__).parents[2]
ALL = ["read", "left", "right", "bundle", "verify"]


class Events:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def emit(self, event: Any) -> None:
        self.seen.append(dict(event))

    def close(self) -> None:
        pass

    def notes(self) -> list[str]:
        return [event["text"] for event in self.seen if event["event"] == "note"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.txt"
    path.write_text("hello")
    return path


def build(
    store: Store, *roots: Action, events: Events | None = None, **options: Any
) -> BuildResult:
    return Scheduler(store, Progress(events), **options).run(roots)


def tree_of(result: BuildResult, index: int = 0) -> Any:
    record = result.records[index]
    assert record is not None
    return record.tree


def make(store: Store, source: Path, **parameters: Any) -> list[str]:
    """Build the toy and return what ran."""
    trace = Trace()
    result = build(store, toy_graph(source, trace=trace, **parameters).verify)
    assert result.first_error is None, result.first_error
    return trace.ran


def texts(findings: list[Finding]) -> dict[str, tuple[str, ...]]:
    return {finding.stage: finding.reasons for finding in findings if not finding.cached}


# -- running ----------------------------------------------------------------------------------


def test_topological_order_has_each_action_once(source: Path) -> None:
    graph = toy_graph(source)
    order = [action.stage for action in topological([graph.verify, graph.bundle])]
    assert order == ALL


def test_a_second_build_runs_nothing(store: Store, source: Path) -> None:
    assert make(store, source) == ALL
    assert make(store, source) == []


def test_only_what_depends_on_a_change_runs(store: Store, source: Path) -> None:
    make(store, source)
    assert make(store, source, batch=4) == ["right"], "its output is the same: the rest is cut off"
    assert make(store, source, tool="2.0") == ["right"]
    assert make(store, source, scale=2) == ["left"]
    assert make(store, source, scale=20) == ["left", "bundle", "verify"]
    assert make(store, source) == [], "going back finds the old results"
    source.write_text("hello, world")
    assert make(store, source) == ALL


def test_a_touched_file_changes_nothing(store: Store, source: Path) -> None:
    make(store, source)
    os.utime(source)
    assert make(store, source) == []


def test_force_runs_a_stage_again_once(store: Store, source: Path) -> None:
    make(store, source)
    trace = Trace()
    graphs = [toy_graph(source, trace=trace) for _ in range(2)]
    build(store, *(graph.verify for graph in graphs), force=["left"])
    assert trace.ran == ["left"]


def test_builds_share_equal_actions(store: Store, source: Path) -> None:
    trace = Trace()
    graphs = [toy_graph(source, trace=trace, batch=batch) for batch in (1, 2)]
    build(store, *(graph.verify for graph in graphs))
    assert sorted(trace.ran) == sorted([*ALL, "right"])


def test_jobs_give_the_same_result(tmp_path: Path, source: Path) -> None:
    digests = set()
    for jobs in (1, 3):
        store = Store(tmp_path / f"store{jobs}")
        trace = Trace()
        result = build(store, toy_graph(source, trace=trace).bundle, jobs=jobs)
        digests.add(tree_of(result).digest)
        assert sorted(trace.ran) == sorted(ALL[:-1])
        store.close()
    assert len(digests) == 1


def test_jobs_run_at_once(store: Store, source: Path) -> None:
    """Two actions that wait for each other end only if both run."""
    barrier = threading.Barrier(2, timeout=10)

    def meet(context: ActionContext) -> None:
        barrier.wait()
        (context.out / "x").write_text(str(context.params["name"]))

    actions = [Action(name, 1, "toy", meet, params={"name": name}) for name in ("a", "b")]
    assert build(store, *actions, jobs=2).first_error is None


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failing_stage_names_itself_and_its_log(store: Store, source: Path, jobs: int) -> None:
    result = build(store, toy_graph(source, broken="left").verify, jobs=jobs)
    error = result.first_error
    assert isinstance(error, StageError)
    assert error.exit_code == 5
    assert error.message == "stage left failed: ValueError: the stage is broken"
    assert error.where == SUBJECT
    log = Path(str(error.hint).removeprefix("the whole story is in "))
    assert "Traceback" in log.read_text()
    assert list((store.root / "tmp").glob("*/*")) == [], "nothing half-written is left"
    trace = Trace()
    build(store, toy_graph(source, trace=trace).verify)
    assert "read" not in trace.ran, "what was finished is kept"


def test_keep_going_finishes_what_does_not_depend_on_the_failure(
    store: Store, source: Path
) -> None:
    trace = Trace()
    bad = toy_graph(source, trace=trace, broken="left")
    good = toy_graph(source, trace=trace, scale=50)
    result = build(store, bad.verify, good.verify, keep_going=True)
    assert isinstance(result.errors[0], StageError)
    assert result.errors[1] is None
    assert result.records[0] is None
    assert result.records[1] is not None


def test_errors_with_a_class_keep_it(store: Store, source: Path) -> None:
    source.write_text("bad")
    result = build(store, toy_graph(source).verify)
    assert isinstance(result.first_error, VerificationError)


def test_disk_full_in_a_stage(store: Store) -> None:
    def full(context: ActionContext) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    error = build(store, Action("big", 1, "toy", full)).first_error
    assert isinstance(error, ResourceError)
    assert error.exit_code == 7
    assert "are free" in str(error.why)


def test_a_missing_input_is_a_source_error(store: Store, tmp_path: Path) -> None:
    error = build(store, toy_graph(tmp_path / "nothing").verify).first_error
    assert isinstance(error, SourceError)
    assert error.exit_code == 3


def test_an_input_that_changes_during_the_build_is_noticed(store: Store, source: Path) -> None:
    def read(context: ActionContext) -> None:
        source.write_text("changed under our feet")
        (context.out / "x").write_text("x")

    action = Action("read", 1, "toy", read, inputs={"source": FileInput(source)})
    error = build(store, action).first_error
    assert isinstance(error, SourceError)
    assert "changed while read" in error.message


def test_a_stage_that_is_not_deterministic_is_reported(store: Store) -> None:
    values = iter("ab")

    def roll(context: ActionContext) -> None:
        (context.out / "x").write_text(next(values))

    build(store, Action("roll", 1, "toy", roll))
    events = Events()
    build(store, Action("roll", 1, "toy", roll), events=events, force=["roll"])
    assert any("not deterministic" in note for note in events.notes())


def test_a_folder_input_is_keyed_by_the_files_it_includes(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    ran: list[int] = []

    def read(context: ActionContext) -> None:
        ran.append(1)
        (context.out / "x").write_bytes((context.inputs["m"] / "config.json").read_bytes())

    def action() -> Action:
        return Action("read", 1, "toy", read, inputs={"m": FileInput(folder, ("*.json",))})

    build(store, action())
    (folder / "notes.txt").write_text("nothing to do with it")
    build(store, action())
    assert len(ran) == 1
    (folder / "tokenizer.json").write_text("{}")
    build(store, action())
    assert len(ran) == 2


def test_long_actions_keep_a_journal_until_they_succeed(store: Store) -> None:
    seen: list[list[str]] = []

    def work(context: ActionContext) -> None:
        assert context.journal is not None
        seen.append(sorted(path.name for path in context.journal.iterdir()))
        (context.journal / "step1").write_text("done")
        if len(seen) == 1:
            raise StageError("the power went out")
        (context.out / "x").write_text("x")

    for _ in range(2):
        build(store, Action("tune", 1, "toy", work, long=True))
    assert seen == [[], ["step1"]]
    assert list((store.root / "journal").iterdir()) == []


def test_tools_get_a_private_cache_and_the_session_lock(store: Store) -> None:
    def work(context: ActionContext) -> None:
        cache = context.tool_cache("zig")
        (cache / "hit").write_text("1")
        done = context.run_process([sys.executable, "-c", "import os; print(os.getcwd())"])
        (context.out / "cwd").write_text(str(Path(done.stdout.strip()) == context.scratch))

    result = build(store, Action("cc", 1, "toy", work))
    folder = store.materialize(tree_of(result))
    assert (folder / "cwd").read_text() == "True"
    assert (store.root / "tools" / "zig" / "hit").exists()


# -- damage -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["right", "bundle"])
@pytest.mark.parametrize("how", ["altered", "missing"])
def test_lost_results_are_made_again(store: Store, source: Path, stage: str, how: str) -> None:
    """``right`` is only read when ``bundle`` runs again; the bundle itself is always needed."""
    graph = toy_graph(source)
    result = build(store, graph.bundle)
    wanted = tree_of(result)
    actions = {action.stage: action for action in topological([graph.bundle])}
    tree = tree_of(build(store, actions[stage]))
    for file in tree.files:
        path = store.blobs.path(file)
        if how == "missing":
            path.unlink()
        else:
            path.chmod(0o644)
            path.write_bytes(b"x" * file.digest.size)
    trace, events = Trace(), Events()
    again = build(store, toy_graph(source, trace=trace).bundle, events=events, force=["bundle"])
    assert again.first_error is None
    assert tree_of(again) == wanted
    assert store.missing_files(wanted) == []
    if stage == "right":
        assert "right" in trace.ran
        assert any("damaged or gone" in note for note in events.notes())


def test_an_unneeded_intermediate_result_may_be_gone(store: Store, source: Path) -> None:
    graph = toy_graph(source)
    build(store, graph.bundle)
    actions = {action.stage: action for action in topological([graph.bundle])}
    for file in tree_of(build(store, actions["read"])).files:
        store.blobs.path(file).unlink()
    trace = Trace()
    build(store, toy_graph(source, trace=trace).bundle)
    assert trace.ran == []


# -- explain ----------------------------------------------------------------------------------


def test_plan_before_the_first_build(store: Store, source: Path) -> None:
    findings = survey(store, [toy_graph(source).verify])
    assert texts(findings) == dict.fromkeys(ALL, ("never built",))


def test_plan_names_fields_and_root_causes(store: Store, source: Path) -> None:
    make(store, source)
    assert texts(survey(store, [toy_graph(source).verify])) == {}
    findings = survey(store, [toy_graph(source, batch=4, tool="2.0", scale=2).verify])
    assert texts(findings) == {
        "left": ("params.scale: 1 -> 2",),
        "right": ("params.limits.max_batch_size: 8 -> 4", "tools.zig: 1.0 -> 2.0"),
        "bundle": (f"upstream left {SUBJECT} will run (and 1 more)",),
        "verify": (f"upstream bundle {SUBJECT} will run",),
    }
    assert [finding.stage for finding in findings if finding.is_root_cause] == ["left", "right"]


def test_plan_sees_source_changes_force_and_lost_results(store: Store, source: Path) -> None:
    make(store, source)
    found = texts(survey(store, [toy_graph(source).verify], force=["left"]))
    assert found["left"] == ("forced",)
    graph = toy_graph(source)
    tree = tree_of(build(store, graph.bundle))
    store.blobs.path(tree.files[0]).unlink()
    found = texts(survey(store, [toy_graph(source).bundle]))
    assert found == {"bundle": ("its stored result is damaged or gone",)}
    source.write_text("other")
    (reason,) = texts(survey(store, [toy_graph(source).verify]))["read"]
    assert reason.startswith("inputs.source: ")
    assert " -> " in reason


def test_planning_changes_nothing(store: Store, source: Path) -> None:
    make(store, source)

    def snapshot() -> list[str]:
        return sorted(str(p) for p in store.root.rglob("*") if "sqlite" not in p.name)

    before = snapshot()
    survey(store, [toy_graph(source, batch=4).verify])
    assert snapshot() == before


def test_explain_tells_the_last_change_after_the_build(store: Store, source: Path) -> None:
    make(store, source)
    make(store, source, batch=4)
    findings = {f.stage: f for f in survey(store, [toy_graph(source, batch=4).verify])}
    assert [str(change) for change in findings["right"].history] == [
        "params.limits.max_batch_size: 8 -> 4"
    ]
    make(store, source)  # a hit is recorded too, or the next comparison would lie
    findings = {f.stage: f for f in survey(store, [toy_graph(source, batch=2).verify])}
    assert findings["right"].reasons == ("params.limits.max_batch_size: 8 -> 2",)


# -- two builders, kills ----------------------------------------------------------------------


def test_a_second_builder_waits_and_then_hits(store: Store, source: Path) -> None:
    other = Store(store.root)
    traces, events = [Trace(), Trace()], [Events(), Events()]
    graphs = [toy_graph(source, trace=trace, delay=0.4) for trace in traces]
    results: list[BuildResult | None] = [None, None]

    def work(index: int, place: Store) -> None:
        results[index] = build(place, graphs[index].verify, events=events[index])

    threads = [
        threading.Thread(target=work, args=(index, place))
        for index, place in enumerate((store, other))
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    assert sorted(traces[0].ran + traces[1].ran) == sorted(ALL)
    assert any("waiting for" in note for event in events for note in event.notes())
    assert list((store.root / "locks").iterdir()) == []
    other.close()


def test_an_interrupt_stops_the_build_and_leaves_nothing(store: Store, source: Path) -> None:
    def interrupted(context: ActionContext) -> None:
        (context.out / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(store, Action("stop", 1, "toy", interrupted))
    assert list((store.root / "tmp").glob("*/*")) == []
    assert list(store.blobs.root.glob("*/*")) == []


# -- code -------------------------------------------------------------------------------------


def test_comments_docstrings_and_blank_lines_do_not_count() -> None:
    one = '"""Doc."""\n\nX = "#no comment"  # comment\n\n\ndef f():\n    "é doc"; return 1\n'
    two = 'X = "#no comment"\ndef f():\n    ; return 1\n'
    assert strip_source(one) == two.rstrip()
    assert strip_source("x = 1\n") != strip_source("x = 2\n")


def test_imports_are_found_inside_functions() -> None:
    text = (
        "import os, mlcbuild.core.suggest\nfrom mlcbuild.spec import limits\n"
        "def f():\n    from mlcbuild.quant.pack import pack\n"
    )
    assert imported_modules(text) == [
        "mlcbuild.core.suggest",
        "mlcbuild.quant.pack",
        "mlcbuild.quant.pack.pack",
        "mlcbuild.spec",
        "mlcbuild.spec.limits",
    ]


def test_code_fields_follow_imports_but_not_the_machinery(tmp_path: Path) -> None:
    root = tmp_path / "mlcbuild"
    for name, text in {
        "__init__.py": "",
        "quant/__init__.py": "",
        "quant/pack.py": "from mlcbuild.spec import layout\n",
        "spec/__init__.py": "",
        "spec/layout.py": "X = 1\n",
        "spec/unused.py": "Y = 1\n",
        "store/__init__.py": "",
        "store/gc.py": "",
        "pipeline/stages/__init__.py": "",
        "pipeline/stages/pack.py": "import mlcbuild.store.gc\nimport mlcbuild.quant.pack\n",
        "native/a.cc": "int a;",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    stats = StatCache()

    def fields() -> dict[str, str]:
        return CodeIndex(stats, root).fields(["mlcbuild.pipeline.stages.pack", "mlcbuild.native"])

    first = fields()
    assert sorted(first) == [
        "native/a.cc",
        "pipeline/stages/pack.py",
        "quant/__init__.py",
        "quant/pack.py",
        "spec/__init__.py",
        "spec/layout.py",
    ]
    (root / "spec/layout.py").write_text("X = 1  # the same\n")
    assert fields() == first
    (root / "spec/layout.py").write_text("X = 2\n")
    assert fields() != first
    with pytest.raises(InternalError, match=r"mlcbuild\.nothing"):
        CodeIndex(stats, root).fields(["mlcbuild.nothing"])
    stats.close()


# -- export -----------------------------------------------------------------------------------


@pytest.fixture
def bundle(store: Store, source: Path) -> Any:
    return tree_of(build(store, toy_graph(source).bundle))


def test_export_writes_once_and_repairs(store: Store, bundle: Any, tmp_path: Path) -> None:
    target, events = tmp_path / "out" / "toy", Events()
    progress = Progress(events)
    assert export_tree(store, bundle, target, progress)
    assert os.access(target / "bin" / "tool", os.X_OK)
    assert not export_tree(store, bundle, target, progress)
    inode = (target / "left.bin").stat().st_ino
    assert inode != store.blobs.path(bundle.files[2]).stat().st_ino, "a copy, never a link"
    (target / "left.bin").write_bytes(b"hacked")
    assert export_tree(store, bundle, target, progress)
    assert (target / "left.bin").read_bytes() != b"hacked"
    assert any("altered" in note for note in events.notes())
    (target / "right.bin").unlink()
    assert export_tree(store, bundle, target, progress)
    assert (target / "right.bin").exists()
    assert [path.name for path in target.parent.iterdir()] == ["toy"]


def test_export_keeps_foreign_files(store: Store, bundle: Any, tmp_path: Path) -> None:
    target, events = tmp_path / "out" / "toy", Events()
    export_tree(store, bundle, target, Progress(events))
    (target / "notes.txt").write_text("mine")
    export_tree(store, bundle, target, Progress(events))
    assert (target.parent / "toy.kept" / "notes.txt").read_text() == "mine"
    assert not (target / "notes.txt").exists()


def test_export_refuses_to_replace_something_else(
    store: Store, bundle: Any, tmp_path: Path
) -> None:
    target = tmp_path / "thesis"
    target.mkdir()
    (target / "chapter1").write_text("mine")
    with pytest.raises(UsageError, match="something else"):
        export_tree(store, bundle, target, Progress())
    assert (target / "chapter1").read_text() == "mine"


def test_export_says_when_the_disk_is_too_small(
    store: Store, bundle: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out" / "toy"
    monkeypatch.setattr("mlcbuild.core.atomic.free_bytes", lambda path: 100)
    with pytest.raises(ResourceError, match="not enough disk space") as caught:
        export_tree(store, bundle, target, Progress())
    assert "100 B are free" in str(caught.value.why)
    assert not target.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_really_full_disk(store: Store, bundle: Any, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not let us mount")
    try:
        place = Store(small / "store")
        source = tmp_path / "source.txt"
        error = build(place, toy_graph(source, blocks=64).verify).first_error
        assert isinstance(error, ResourceError)
        assert error.exit_code == 7
        assert list(small.rglob("right.bin")) == []
        place.close()
    finally:
        subprocess.run(["umount", str(small)], check=False)
