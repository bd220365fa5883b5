"""The search: spaces, candidates, the comparison with the default, failing candidates, RPC."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlcbuild.errors import StageError
from mlcbuild.kernels.cpu import space as cpu_space
from mlcbuild.kernels.cpu.families import AVX2
from mlcbuild.kernels.cpu.set import CpuKernels
from mlcbuild.pipeline.stages.runtime import COMPILE_FLAGS
from mlcbuild.pipeline.stages.runtime import ROOT as RUNTIME
from mlcbuild.pipeline.stages.tuning_harness import LINK_FLAGS, SOURCES
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.schedule_space import Workload
from mlcbuild.targets.linux_x86_64_cpu import TARGET
from mlcbuild.tuning.database import Database
from mlcbuild.tuning.job import KnownTrial, RpcDevice, TuningJob, TuningTask
from mlcbuild.tuning.record import CONFIRMED, TRIAL
from mlcbuild.tuning.run import JobResult, run_job
from tests.unit.kernel_runner import EMULATED, VARIANTS, aligned, loaded, skip_unless_runnable
from tests.unit.tuning_records import workload

ROOT = Path(__file__).parents[2]
INT4 = {"group_size": 32, "scale_dtype": "float16", "zero_point": 7}
ARGS: dict[str, dict[str, Any]] = {
    "linear_int4": {"out_features": 144, "in_features": 96, **INT4},
    "linear_int4_float": {"out_features": 144, "in_features": 96, **INT4},
    "linear_dense": {"out_features": 144, "in_features": 100, "weight_dtype": "float16"},
}
DEVICE = {"name": "test"}
TOOLS = {"apache-tvm": "0.27.0.post1"}

# -- spaces --------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [*VARIANTS, *EMULATED], ids=lambda v: v.isa)
@pytest.mark.parametrize("builder", ARGS)
def test_spaces_know_their_own_points(variant: Capabilities, builder: str) -> None:
    spaces = cpu_space.spaces(variant, builder, ARGS[builder])
    assert [space.form for space in spaces] == ["one", "few", "many"]
    rng = random.Random(1)
    for space in spaces:
        assert space.size() == math.prod(len(choice.values) for choice in space.choices) > 1
        index = tuple(rng.randrange(len(choice.values)) for choice in space.choices)
        decisions = space.decisions_at(index)
        assert space.index_of(decisions) == index
        assert space.index_of({**decisions, space.choices[0].names[0]: 999}) is None
        assert space.index_of({}) is None
        default = cpu_space.default_decisions(variant, builder, ARGS[builder], space.form)
        assert set(decisions) <= set(default)


def test_other_kernels_have_no_space() -> None:
    assert cpu_space.spaces(AVX2, "rms_norm", {"hidden_size": 64, "eps": 1e-5}) == ()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.isa)
def test_decisions_never_change_a_result(variant: Capabilities) -> None:
    """Any point of the space gives the bits of the default, for every number of rows."""
    skip_unless_runnable(variant)
    import tvm

    rng = random.Random(variant.isa)
    functions, kinds = {}, [b for b in ARGS if variant.int8_dot <= (b == "linear_int4")]
    for builder in kinds:
        args = ARGS[builder]
        decisions = {
            space.form: space.decisions_at(
                tuple(rng.randrange(len(choice.values)) for choice in space.choices)
            )
            for space in cpu_space.spaces(variant, builder, args)
        }
        tiles = cpu_space.tiles_from(variant, builder, args, decisions)
        for name, kernels in (
            ("default", CpuKernels(variant)),
            ("tuned", CpuKernels(variant, tiles)),
        ):
            func = getattr(kernels, builder)(**args)
            functions[f"{builder}_{name}"] = func.with_attr("global_symbol", f"{builder}_{name}")
    record: dict[str, Any] = {
        "kind": "llvm",
        "mtriple": "x86_64-linux-gnu",
        "mcpu": variant.llvm_cpu,
    }
    record["mattr"] = list(variant.llvm_features)
    compiled = loaded(tvm.compile(tvm.IRModule(functions), tvm.target.Target(record)))
    draw = np.random.default_rng(0)
    for builder in kinds:
        for rows in (1, 2, 5, 9, 23, 24, 50):
            inputs = arguments(functions[f"{builder}_default"], rows, draw)
            first, second = (
                compiled.run(f"{builder}_{name}", inputs, ((rows, 144), "float32"))[0]
                for name in ("default", "tuned")
            )
            assert first.tobytes() == second.tobytes(), (builder, rows)
            assert np.isfinite(first).all()


def arguments(func: Any, rows: int, draw: np.random.Generator) -> list[Any]:
    """Random inputs of a linear kernel."""
    found = []
    for parameter in list(func.params)[:-1]:
        shape = [
            int(d) if isinstance(d, int) or hasattr(d, "value") else rows
            for d in parameter.ty.shape
        ]
        dtype = str(parameter.ty.dtype)
        if dtype.startswith("float"):
            found.append(aligned(draw.random(shape, "float32").astype(dtype)))
        elif parameter.name == "w":
            found.append(aligned(draw.integers(-(2**31), 2**31, shape).astype(dtype)))
        else:
            found.append(aligned(draw.integers(-50, 50, shape).astype(dtype)))
    return found


# -- the comparison with the default -------------------------------------------------------------


def test_a_winner_is_faster_in_most_rounds() -> None:
    from mlcbuild.tuning.search import choose_winner

    slow_machine = [1.0, 2.0, 1.5, 3.0, 1.0, 1.2, 2.0]
    winner = choose_winner([[t, t / 1.3, t / 1.1] for t in slow_machine])
    assert winner is not None
    assert winner[0] == 1
    assert math.isclose(winner[1], 1.3)
    assert choose_winner([[t, t / 1.01] for t in slow_machine]) == (0, 1.0)  # noise
    # Faster on the whole, but slower in two rounds of seven.
    assert choose_winner([[1.0, 0.5]] * 5 + [[1.0, 1.2]] * 2) == (0, 1.0)
    assert choose_winner([[1.0, math.inf], [1.0, math.inf]]) == (0, 1.0)
    assert choose_winner([[math.inf, 1.0]]) is None
    failed_once = [[1.0, 0.5], [math.inf, 0.5], [1.0, 0.5]]
    assert choose_winner(failed_once) == (1, 2.0)
    assert choose_winner([*failed_once, [math.inf, 0.5]]) is None
    assert choose_winner([]) is None


def test_a_budget_is_shared_by_the_tasks_that_are_left() -> None:
    from mlcbuild.tuning.search import Budget

    now = 100.0
    budget = Budget(trials=10, deadline=160.0, tasks_left=3, clock=lambda: now)
    assert budget.share() == (3, 120.0)
    budget.trials, budget.tasks_left, now = 9, 2, 140.0
    assert budget.share() == (4, 150.0)
    assert Budget(trials=None, deadline=None, tasks_left=1).share()[1] is None


# -- searches ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def link(zig_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """As tuning links candidates, with the tests' cache."""
    folder = tmp_path_factory.mktemp("harness")
    variables = [f"ZIG_{kind}_CACHE_DIR={zig_cache}" for kind in ("GLOBAL", "LOCAL")]
    zig = ["env", *variables, sys.executable, "-m", "ziglang", "c++", "-target", TARGET.zig_triple]
    objects = []
    for number, source in enumerate(SOURCES):
        objects.append(str(folder / f"{number}.o"))
        command = [*zig, *COMPILE_FLAGS, "-O2", "-c", source, "-o", objects[-1]]
        subprocess.run(command, cwd=RUNTIME, check=True)
    return (*zig, *LINK_FLAGS, *objects)


def job(command: tuple[str, ...], *workloads: Workload, **changes: Any) -> TuningJob:
    """A short search on AVX2, which every machine of ours has."""
    settings: dict[str, Any] = {"trials": 8, "seconds": None, "rounds": 3, "batch": 4}
    return TuningJob(
        capabilities=AVX2,
        triple=TARGET.triple,
        link=command,
        tasks=tuple(TuningTask(w) for w in workloads),
        threads=1,
        **{**settings, **changes},
    )


def run(folder: Path, asked: TuningJob) -> JobResult:
    with Database(folder).writer() as segment:
        return run_job(asked, segment, DEVICE, TOOLS)


@pytest.fixture
def avx2() -> None:
    skip_unless_runnable(AVX2)


@pytest.mark.usefixtures("avx2")
def test_bad_candidates_cost_a_trial_each(tmp_path: Path, link: tuple[str, ...]) -> None:
    """A candidate that crashes, hangs, traps or does not link: the search goes on."""
    modes = "crash,hang,illegal,fail"
    linker = (sys.executable, str(ROOT / "tests" / "unit" / "bad_linker.py"), str(tmp_path / "n"))
    asked = job((*linker, modes, *link), workload(), run_timeout=3.0)
    (outcome,) = run(tmp_path / "db", asked).outcomes
    assert (outcome.trials, outcome.failed, outcome.error) == (8, 4, None)
    assert outcome.record is not None
    records = Database(tmp_path / "db").read().records
    assert [item.kind for item in records].count(TRIAL) == 4
    assert outcome.record in records
    for item in records:
        assert item.key.workload == workload().digest()
        assert item.kind == CONFIRMED or item.trace is not None
        assert all(0 < value < 1 for value in item.seconds)


def test_a_job_survives_being_written_down() -> None:
    asked = job(("cc",), workload(), rpc=RpcDevice("host", 9190, "board"))
    known = TuningTask(workload(128), (KnownTrial({"blocks": 1}, 1e-5),))
    asked = TuningJob(**{**vars(asked), "tasks": (*asked.tasks, known)})
    assert TuningJob.from_json(asked.to_json()) == asked


def test_a_broken_process_says_why(tmp_path: Path) -> None:
    """No search space: the process ends with an error; its words are shown."""
    unknown = Workload("linear_int4", workload().args, "several", 1)
    with pytest.raises(StageError, match="broke down") as caught:
        run(tmp_path, job(("cc",), unknown))
    assert "no search space" in str(caught.value.why)


@pytest.fixture
def tracker() -> Iterator[tuple[str, int]]:
    """An RPC tracker with one server on this machine."""
    from tvm.rpc.server import Server
    from tvm.rpc.tracker import Tracker

    place = Tracker(host="127.0.0.1", port=9190, port_end=9299, silent=True)
    server = Server(
        host="127.0.0.1",
        port=9090,
        port_end=9189,
        key="board",
        tracker_addr=("127.0.0.1", place.port),
        silent=True,
    )
    yield "127.0.0.1", place.port
    server.terminate()
    place.terminate()


@pytest.mark.usefixtures("avx2")
def test_tuning_over_a_tracker(
    tmp_path: Path, link: tuple[str, ...], tracker: tuple[str, int]
) -> None:
    rpc = RpcDevice(*tracker, key="board")
    asked = job(link, workload(form="few", rows=8), trials=4, rpc=rpc)
    (outcome,) = run(tmp_path, asked).outcomes
    assert (outcome.trials, outcome.failed, outcome.error) == (4, 0, None)
    assert outcome.record is not None


@pytest.mark.usefixtures("avx2")
def test_a_device_that_is_not_there(tmp_path: Path, link: tuple[str, ...]) -> None:
    rpc = RpcDevice("127.0.0.1", 1, "board")
    asked = job(link, workload(), trials=2, batch=2, rounds=1, rpc=rpc, run_timeout=2.0)
    (outcome,) = run(tmp_path, asked).outcomes
    assert outcome.failed == outcome.trials > 0
    assert outcome.record is None
    assert outcome.error
