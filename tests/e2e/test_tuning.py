"""Tuning through the command line: records made, used by builds, carried in bundles."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlcbuild.engine.engine import Engine
from mlcbuild.kernels.cpu import space as cpu_space
from mlcbuild.kernels.cpu.families import AVX2
from mlcbuild.pipeline.stages.schedule import workloads_of
from mlcbuild.pipeline.tuning import record_key
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.targets.linux_x86_64_cpu import TARGET
from mlcbuild.tuning.database import Database
from mlcbuild.tuning.device import host_has
from mlcbuild.tuning.record import TuningRecord
from tests.conftest import ROOT, run_mlcbuild, write_recipe
from tests.parity import tiny_llama
from tests.unit.kernel_runner import skip_unless_runnable
from tests.unit.tuning_records import record

TinyBundle = Callable[[str, str], Path]
INT4 = {"group_size": 32, "scale_dtype": "float16", "zero_point": 7}
SHAPES = [(128, 64), (352, 64), (64, 64), (64, 176), (512, 64)]  # of the tiny model


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The tiny model, with its tuning records in the bundle."""
    tiny_llama.write_checkpoint(tmp_path / "model", "tied")
    path = write_recipe(tmp_path, "tiny-tied", str(tmp_path / "model"), "q4f16_1")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n[bundle]\ntuning_records = true\n")
    return path


def made_up_records(
    folder: Path, family: Capabilities = AVX2, *, leave_out: int = 0, **changes: Any
) -> list[TuningRecord]:
    """A database with a record of random decisions for the linear kernels of the model."""
    rng = random.Random(1)
    records = []
    for outputs, inputs in SHAPES:
        args = {"out_features": outputs, "in_features": inputs, **INT4}
        for space, workload in workloads_of(family, "linear_int4", args):
            index = tuple(rng.randrange(len(choice.values)) for choice in space.choices)
            decisions = tuple(sorted(space.decisions_at(index).items()))
            key = record_key(family, workload.digest())
            fields = {"decisions": decisions, "isa": family.isa, **changes}
            records.append(record(workload=workload, key=key, **fields))
    records = records[leave_out:]
    with Database(folder).writer() as segment:
        for item in records:
            segment.append(item)
    return records


def make(store: Path, recipe: Path, out: Path, db: Path) -> tuple[dict[str, Any], str]:
    """The bundle's row of ``make --json``, and what went to stderr."""
    result = run_mlcbuild("--store", store, "make", recipe, "--out", out, "--db", db, "--json")
    assert result.returncode == 0, result.stderr
    events = [json.loads(line) for line in result.stdout.splitlines()]
    notes = "\n".join(event["text"] for event in events if event["event"] == "note")
    return events[-1] if events[-1]["event"] == "bundle" else events[-2], notes


def answers(bundle: Path) -> Any:
    """Greedy texts with the probabilities of their tokens, prompts long and short, on AVX2."""
    with Engine(bundle, variant="avx2", threads=1) as engine:
        return [
            engine.completions.create(
                prompt=prompt, max_tokens=8, temperature=0, logprobs=5
            ).model_dump()["choices"]
            for prompt in ("a", "b c d e f g", "0123456789" * 6)
        ]


def test_records_change_the_kernels_and_no_result(
    tmp_path: Path, recipe: Path, bundle_store: Path, tiny_bundle: TinyBundle
) -> None:
    skip_unless_runnable(AVX2)
    untuned = tiny_bundle("tied", "q4f16_1")
    records = made_up_records(tmp_path / "db")
    row, notes = make(bundle_store, recipe, tmp_path / "out", tmp_path / "db")
    assert "left out" not in notes
    tuned = Path(row["path"])
    kernels = row["schedules"]["avx2"]
    used = {i for kernel in kernels.values() for i in kernel.get("records", ())}
    assert used == {item.id for item in records}
    assert {kernel["source"] for kernel in row["schedules"]["avx512vnni"].values()} == {"default"}
    manifest = json.loads((tuned / "bundle.json").read_bytes())
    counts = {variant["name"]: variant["schedules"] for variant in manifest["variants"]}
    assert counts["avx2"]["record"] >= 4
    assert counts["avx512vnni"]["record"] == 0
    library = "lib/kernels-avx2.so"
    assert (tuned / library).read_bytes() != (untuned / library).read_bytes()
    assert answers(tuned) == answers(untuned)
    # The bundle carries the records to whoever wants them.
    result = run_mlcbuild("db", "import", tuned, "--db", tmp_path / "other")
    assert result.returncode == 0, result.stderr
    assert {item.id for item in Database(tmp_path / "other").read().records} == used
    again, _ = make(bundle_store, recipe, tmp_path / "out", tmp_path / "other")
    assert again["changed"] is False


def test_a_record_that_does_not_apply_is_reported(
    tmp_path: Path, recipe: Path, bundle_store: Path
) -> None:
    strange = (("ahead", 3), ("blocks", 77), ("rows", 1), ("vectors", 1))
    made_up_records(tmp_path / "db", decisions=strange)
    (path,) = Database(tmp_path / "db").segments()
    with path.open("ab") as file:
        file.write(b'{"v":1,"id"')
    row, notes = make(bundle_store, recipe, tmp_path / "out", tmp_path / "db")
    assert {kernel["source"] for kernel in row["schedules"]["avx2"].values()} == {"default"}
    assert "its decisions are not among this template's" in notes
    assert f"{path}:16: cut off in the middle" in notes


def test_tune_learns_once(tmp_path: Path, recipe: Path, bundle_store: Path) -> None:
    skip_unless_runnable(AVX2)
    database = Database(tmp_path / "records")
    tune = ("--store", bundle_store, "tune", recipe, "--db", database.folder, "--json")
    one = (*tune, "--trials", "4", "--variant", "avx2", "--kernel", "64x64, 1 row")
    few = run_mlcbuild(*one)
    assert few.returncode == 0, few.stderr
    (row,) = json.loads(few.stdout.splitlines()[-1])
    assert row["kind"] == "confirmed"
    assert row["workload"]["args"]["out_features"] == 64
    assert row["device"]["name"]
    before = {item.id for item in database.read().records}
    assert row["id"] in before
    nothing = run_mlcbuild(*one)
    assert json.loads(nothing.stdout.splitlines()[-1]) == []
    assert "all 1 workloads have a record" in nothing.stdout
    assert {item.id for item in database.read().records} == before


def test_make_tunes_what_has_no_record(tmp_path: Path, recipe: Path, bundle_store: Path) -> None:
    """Of all workloads of the variant that runs here one has none; the second time none is left."""
    variant = next(v for v in TARGET.integer_variants if host_has(v.capabilities))
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(f'{text}\n[tuning]\ntrials = 4\ndatabase = "records"\n', encoding="utf-8")
    known = made_up_records(tmp_path / "records", variant.capabilities, leave_out=1)
    row, notes = make(bundle_store, recipe, tmp_path / "out", tmp_path / "unused")
    assert f"{variant.name}: tuning 1 workloads, {len(known)} have a record" in notes
    after = {item.id for item in Database(tmp_path / "records").read().records}
    used = {i for k in row["schedules"][variant.name].values() for i in k.get("records", ())}
    assert len(used) == len(known) + 1
    assert used <= after
    again, notes = make(bundle_store, recipe, tmp_path / "out", tmp_path / "unused")
    assert f"{variant.name}: all {len(used)} workloads have a record" in notes
    assert {item.id for item in Database(tmp_path / "records").read().records} == after
    assert again["changed"] is False
    assert not (tmp_path / "unused").exists()


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, recipe: Path, bundle_store: Path) -> None:
    skip_unless_runnable(AVX2)
    command = [sys.executable, "-m", "mlcbuild", "--store", bundle_store, "tune", recipe]
    command += ["--variant", "avx2", "--minutes", "5", "--db", tmp_path / "db"]
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while not Database(tmp_path / "db").read().records:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "what was finished is kept" in err
    contents = Database(tmp_path / "db").read()
    assert contents.records
    assert not contents.bad
    assert not workers_of(tmp_path)


def workers_of(folder: Path) -> list[str]:
    """Processes that still have to do with ``folder``."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path("/proc", entry, "cmdline").read_bytes().decode()
            except OSError:
                continue
            if str(folder) in line and int(entry) != os.getpid():
                found.append(line)
    return found


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--trials", "3", "--minutes", "1"), 2, "either --trials or --minutes"),
        (("--variant", "avx9"), 2, "has no variant avx9"),
        (("--rpc", "host"), 2, "is not HOST:PORT"),
        (("--rpc", "host:9190"), 2, "needs --rpc-key"),
        (("--rpc", "host:9190", "--rpc-key", "k"), 2, "needs --variant"),
        (("--rpc-key", "k"), 2, "needs --rpc"),
        (("--trials", "0"), 2, "--trials"),
    ],
)
def test_what_tune_cannot_do(
    recipe: Path, bundle_store: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = run_mlcbuild("--store", bundle_store, "tune", recipe, *arguments)
    assert result.returncode == code
    assert message in result.stderr


def test_the_spaces_fit_the_tiny_model() -> None:
    """What this file makes up is what the model has."""
    for outputs, inputs in SHAPES:
        args = {"out_features": outputs, "in_features": inputs, **INT4}
        assert len(cpu_space.spaces(AVX2, "linear_int4", args)) == 3
