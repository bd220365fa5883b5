"""The tuning database: records, damage, several writers, merging, pruning, choosing."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mlcbuild.cli.main import run
from mlcbuild.errors import SourceError
from mlcbuild.kernels.cpu import space as cpu_space
from mlcbuild.kernels.cpu.families import ARM, WASM, X86
from mlcbuild.pipeline.tuning import record_key
from mlcbuild.tuning.database import (
    KEPT_TRIALS,
    SHIPPED,
    Contents,
    Database,
    best_records,
    encode_records,
    read_file,
)
from mlcbuild.tuning.record import TRIAL, RecordError, TuningRecord, capabilities_digest
from tests.unit.tuning_records import record, workload

ROOT = Path(__file__).parents[2]


def write(folder: Path, *records: TuningRecord) -> Path:
    """One segment with these records."""
    with Database(folder).writer() as segment:
        for item in records:
            segment.append(item)
    return segment.path


def ids(folder: Path) -> set[str]:
    return {item.id for item in Database(folder).read().records}


# -- records -------------------------------------------------------------------------------------


def test_a_record_is_read_as_it_was_written() -> None:
    item = record(3)
    assert TuningRecord.from_json(json.loads(item.line())) == item


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": 2}, "version 2, not 1"),
        ({"speedup": 9.0}, "not what its id names"),
        ({"decisions": 3}, "not a record"),
        ({"workload": {}}, "not a record"),
    ],
)
def test_a_changed_record_is_refused(change: dict[str, Any], message: str) -> None:
    data = {**record().to_json(), **change}
    with pytest.raises(RecordError, match=message):
        TuningRecord.from_json(data)


def test_a_record_of_another_workload_than_its_key_is_refused() -> None:
    item = record(workload=workload(64))
    other = record(workload=workload(128))
    mixed = TuningRecord(
        **{f: getattr(item, f) for f in TuningRecord.__slots__ if f != "key"}, key=other.key
    )
    with pytest.raises(RecordError, match="key is not its workload's"):
        TuningRecord.from_json(json.loads(mixed.line()))


# -- reading what was damaged --------------------------------------------------------------------


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path = write(tmp_path, record(1), record(2))
    data = path.read_bytes()
    for cut in random.Random(1).sample(range(1, len(data)), 40):
        path.write_bytes(data[:cut])
        contents = Database(tmp_path).read()
        whole = data[:cut].count(b"\n")
        torn = data[:cut].rpartition(b"\n")[2]
        assert len(contents.records) == whole or (not torn.endswith(b"\n") and len(torn) > 100)
        assert len(contents.bad) <= 1


def test_bad_lines_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, record(1), record(2))
    lines = path.read_bytes().splitlines(keepends=True)
    flipped = lines[0].replace(b'"rounds":7', b'"rounds":8')
    path.write_bytes(flipped + b"[1]\n\xff\n" + lines[1][:50])
    contents = Database(tmp_path).read()
    assert contents.records == ()
    assert [str(line).partition(":")[2] for line in contents.bad] == [
        "1: a record whose content is not what its id names",
        "2: not a record",
        "3: not JSON",
        "4: cut off in the middle",
    ]


def test_kill_9_in_mid_write_loses_nothing_that_was_written(tmp_path: Path) -> None:
    rng = random.Random(7)
    written: set[str] = set()
    for attempt in range(6):
        command = [sys.executable, "-m", "tests.unit.tuning_records", str(tmp_path)]
        writer = subprocess.Popen(
            [*command, str(attempt * 100_000)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(rng.random() * 0.2)
        writer.kill()
        said = (first + writer.stdout.read()).split("\n")
        writer.wait()
        writer.stdout.close()
        written.update(line for line in said if len(line) == 16)
        contents = Database(tmp_path).read()
        assert written <= {item.id for item in contents.records}
        assert len(contents.bad) <= attempt + 1
    assert len(written) >= 6


def test_two_writers_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.tuning_records", str(tmp_path)]
    writers = [
        subprocess.Popen([*command, str(first)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for first in (0, 1_000_000)
    ]
    said: set[str] = set()
    for writer in writers:
        assert writer.stdout is not None
        said.update(writer.stdout.readline().strip() for _ in range(20))
    contents = Database(tmp_path).read()  # while both are writing
    assert said <= {item.id for item in contents.records}
    for writer in writers:
        writer.kill()
        writer.communicate()
    assert len(Database(tmp_path).segments()) == 2


# -- merging, exporting, pruning -----------------------------------------------------------------


def test_merging_again_changes_nothing(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write(ours, record(1), record(2))
    write(theirs, record(2), record(3))
    first = Database(ours).merge(Database(theirs).read())
    assert (first.added, first.known) == (1, 1)
    state = {path.name: path.read_bytes() for path in ours.iterdir()}
    again = Database(ours).merge(Database(theirs).read())
    assert (again.added, again.known) == (0, 2)
    assert {path.name: path.read_bytes() for path in ours.iterdir()} == state
    Database(theirs).merge(Database(ours).read())
    assert ids(ours) == ids(theirs) == {record(n).id for n in (1, 2, 3)}


@pytest.mark.parametrize("name", ["records.jsonl", "records.jsonl.zst"])
def test_an_exported_file_holds_the_records(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    records = [record(n) for n in range(5)]
    file.write_bytes(encode_records(records, compress=name.endswith(".zst")))
    assert {item.id for item in read_file(file).records} == {item.id for item in records}
    shuffled = encode_records(reversed(records), compress=name.endswith(".zst"))
    assert shuffled == file.read_bytes()


def test_a_file_that_cannot_be_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl.zst"
    file.write_bytes(b"no zstd frame")
    with pytest.raises(SourceError, match="cannot be unpacked"):
        read_file(file)


def test_prune_keeps_what_builds_and_searches_need(tmp_path: Path) -> None:
    old = record(1, date="2026-11-01T00:00:00Z")
    new = record(2, date="2026-11-02T00:00:00Z")
    other = record(3, device=(("name", "Another"),), date="2026-10-01T00:00:00Z")
    trials = [record(n, kind=TRIAL, speedup=None) for n in range(10, 40)]
    write(tmp_path, old, new, *trials)
    write(tmp_path, other)
    report = Database(tmp_path).prune()
    assert (report.kept, report.dropped, report.busy) == (2 + KEPT_TRIALS, 1 + 14, 0)
    fastest = {item.id for item in trials[:KEPT_TRIALS]}
    assert ids(tmp_path) == {new.id, other.id} | fastest
    assert Database(tmp_path).prune().dropped == 0
    assert len(Database(tmp_path).segments()) == 1


def test_prune_leaves_a_running_writer_alone(tmp_path: Path) -> None:
    write(tmp_path, record(1))
    with Database(tmp_path).writer() as segment:
        segment.append(record(2))
        report = Database(tmp_path).prune()
        assert report.busy == 1
        segment.append(record(3))
    assert ids(tmp_path) == {record(n).id for n in (1, 2, 3)}


# -- choosing ------------------------------------------------------------------------------------


def test_the_newest_of_a_device_and_the_fastest_device_are_used() -> None:
    day = "2026-11-{:02d}T00:00:00Z".format
    records = [
        record(1, speedup=1.9, date=day(1)),
        record(2, speedup=1.2, date=day(2)),  # the same device, measured again
        record(3, speedup=1.1, date=day(9), device=(("name", "B"),)),
        record(4, kind=TRIAL, speedup=None, date=day(9)),
    ]
    for seed in range(5):
        shuffled = random.Random(seed).sample(records, len(records))
        (chosen,) = best_records(shuffled).values()
        assert chosen.id == records[1].id
    (chosen,) = best_records(records, device="b").values()
    assert chosen.id == records[2].id


def test_an_empty_database(tmp_path: Path) -> None:
    assert Database(tmp_path / "none").read() == Contents()
    assert Database(tmp_path / "none").prune().kept == 0
    assert not (tmp_path / "none").exists()


# -- the command ---------------------------------------------------------------------------------


def db(folder: Path, *arguments: str | Path) -> int:
    return run(["db", *map(str, arguments), "--db", str(folder)])


def test_list_show_and_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, record(1), record(2, kind=TRIAL, speedup=None))
    assert db(tmp_path, "list", "--isa", "avx2", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert TuningRecord.from_json(row) == record(1)
    assert db(tmp_path, "list", "--isa", "avx2", "--all") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert db(tmp_path, "best", "--kernel", "64x64", "--isa", "avx2", "--json") == 0
    assert [r["id"] for r in json.loads(capsys.readouterr().out)] == [record(1).id]
    assert db(tmp_path, "best", "--device", "no such", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert db(tmp_path, "show", record(1).id[:8]) == 0
    shown = capsys.readouterr().out
    assert "1.250" in shown
    assert "A processor" in shown
    assert db(tmp_path, "show", "zzz") == 2
    assert "no record" in capsys.readouterr().err


def test_export_import_merge_prune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write(theirs, record(1), record(2))
    file = tmp_path / "out.jsonl.zst"
    assert db(theirs, "export", file) == 0
    assert db(ours, "import", file, "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["added"] == 2
    assert db(ours, "import", file) == 0
    assert capsys.readouterr().out == "0 records added, 2 were there\n"
    assert db(ours, "merge", theirs) == 0
    assert db(ours, "prune", "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report == {"kept": 1, "dropped": 1, "busy": 0}
    assert db(ours, "prune", "--outdated") == 0
    assert "0 records dropped" in capsys.readouterr().out


def test_what_is_no_database_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello\n", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        (("import", text), "holds no tuning records"),
        (("import", tmp_path / "empty"), "tuning_records = true"),
        (("import", tmp_path / "none"), "cannot be read"),
        (("merge", tmp_path / "empty"), "no tuning database"),
        (("merge", tmp_path / "none"), "no such folder"),
    ):
        assert db(tmp_path / "db", *arguments) == 3
        assert message in capsys.readouterr().err
    assert not (tmp_path / "db").exists()


def test_a_damaged_line_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, record(1))
    with path.open("ab") as file:
        file.write(b'{"v":1')
    assert db(tmp_path, "list", "--isa", "avx2", "--json") == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 1
    assert f"{path}:2: cut off in the middle" in captured.err
    assert os.path.getsize(path) > 0


# -- what comes with mlcbuild --------------------------------------------------------------------


def test_shipped_records_apply() -> None:
    """Every one of them is whole, and of use to the templates of this version."""
    contents = Database(SHIPPED).read()
    assert contents.records
    assert not contents.bad
    families = {capabilities_digest(family): family for family in (*X86, *ARM, *WASM)}
    for item in contents.records:
        family = families[item.key.capabilities]
        assert item.key == record_key(family, item.key.workload)
        args = dict(item.workload.args)
        spaces = {s.form: s for s in cpu_space.spaces(family, item.workload.builder, args)}
        space = spaces[item.workload.form]
        assert space.rows == item.workload.rows
        default = cpu_space.default_decisions(family, item.workload.builder, args, space.form)
        decisions = dict(item.decisions)
        assert decisions == default or space.index_of(decisions) is not None
