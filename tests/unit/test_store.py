"""The store: blobs, trees, records, damage, garbage collection."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlcbuild.errors import ResourceError, StageError, UsageError
from mlcbuild.store.gc import collect
from mlcbuild.store.records import ActionRecord, Tree
from mlcbuild.store.store import LostOutputError, Store

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store")
    yield store
    store.close()


def put(store: Store, files: dict[str, bytes], executable: tuple[str, ...] = ()) -> Tree:
    """Store some files as a stage would."""
    folder = store.work_folder() / "out"
    folder.mkdir()
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if name in executable:
            path.chmod(0o755)
    return store.put_tree(folder)


def record(store: Store, key: str, tree: Tree, *, last: str | None = None) -> ActionRecord:
    """Record a result, and optionally make it the last build of a subject."""
    entry = ActionRecord(key, {"stage": "s", "inputs": {}}, tree, 0.1)
    store.records.write_action(entry)
    if last is not None:
        store.records.record_last(last, "s", entry)
    return entry


def blob_files(store: Store) -> list[Path]:
    return sorted(store.blobs.root.glob("??/*"))


def test_the_same_bytes_are_stored_once_and_read_only(store: Store) -> None:
    one = put(store, {"a": b"same", "b/c": b"same", "d": b"other"})
    two = put(store, {"a": b"same", "b/c": b"same", "d": b"other"})
    assert one == two
    assert len(blob_files(store)) == 2
    assert {oct(path.stat().st_mode & 0o777) for path in blob_files(store)} == {"0o444"}


def test_materialize_shows_links_and_exec_bits(store: Store) -> None:
    tree = put(store, {"bin/x": b"#!", "y": b"#!"}, executable=("bin/x",))
    folder = store.materialize(tree)
    assert (folder / "bin" / "x").stat().st_mode & 0o777 == 0o555
    assert (folder / "y").stat().st_mode & 0o777 == 0o444
    assert (folder / "y").stat().st_nlink == 2
    assert folder.stat().st_mode & 0o777 == 0o555
    assert store.materialize(tree) == folder


def test_a_tree_digest_covers_names_bytes_and_exec_bits(store: Store) -> None:
    digests = {
        put(store, {"a": b"1"}).digest,
        put(store, {"b": b"1"}).digest,
        put(store, {"a": b"2"}).digest,
        put(store, {"a": b"1"}, executable=("a",)).digest,
        put(store, {}).digest,
    }
    assert len(digests) == 5


def test_links_in_a_result_are_refused(store: Store) -> None:
    folder = store.work_folder() / "out"
    folder.mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(StageError, match="link"):
        store.put_tree(folder)


def test_damaged_and_missing_blobs_are_noticed(store: Store) -> None:
    tree = put(store, {"a": b"right", "b": b"bytes"})
    folder = store.materialize(tree)
    first, second = blob_files(store)
    first.chmod(0o644)
    first.write_bytes(b"wrong")
    with pytest.raises(LostOutputError) as caught:
        store.materialize(tree)
    assert len(caught.value.files) == 1
    assert not first.exists(), "damaged bytes must never be served"
    second.unlink()
    assert store.missing_files(tree) == ["a", "b"]
    assert put(store, {"a": b"right", "b": b"bytes"}) == tree
    assert store.materialize(tree) == folder
    assert (folder / "a").read_bytes() == b"right"
    assert (folder / "b").read_bytes() == b"bytes"


def test_a_record_that_does_not_read_is_missing(store: Store) -> None:
    entry = record(store, "ab" * 32, put(store, {"a": b"1"}), last="x/y/z")
    assert store.records.read_action(entry.key) == entry
    store.records.action_path(entry.key).write_text('{"record_version": 1, "key": ')
    assert store.records.read_action(entry.key) is None
    store.records.last_path("x/y/z", "s").write_text("[]")
    assert store.records.read_last("x/y/z", "s") is None


def test_last_actions_keep_what_was_before(store: Store) -> None:
    tree = put(store, {"a": b"1"})
    for key, value in (("1" * 64, 1), ("2" * 64, 2), ("2" * 64, 2)):
        store.records.record_last("x/y/z", "s", ActionRecord(key, {"v": value}, tree, 0))
    last = store.records.read_last("x/y/z", "s")
    assert last is not None
    assert last.fields == {"v": 2}
    assert last.previous == {"v": 1}


def test_leftovers_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from mlcbuild.store.store import Store\n"
        "folder = Store(Path(sys.argv[1])).work_folder(); (folder / 'half').write_text('x')\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], cwd=ROOT, check=False)
    tmp = tmp_path / "s" / "tmp"
    assert len(list(tmp.iterdir())) == 2
    mine = Store(tmp_path / "s")
    assert list(tmp.iterdir()) == []
    work = mine.work_folder()
    other = Store(tmp_path / "s")  # a second start must leave the first one's work alone
    assert work.is_dir()
    other.close()
    mine.close()
    assert list(tmp.iterdir()) == []


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="not a store"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("99\n")
    with pytest.raises(UsageError, match="version 99"):
        Store(tmp_path)


def test_disk_full_while_storing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ResourceError, match="disk is full"):
        put(store, {"a": b"1"})


# -- gc ---------------------------------------------------------------------------------------


def test_gc_keeps_last_builds_and_drops_the_rest(store: Store) -> None:
    kept = record(store, "1" * 64, put(store, {"a": b"k" * 100, "s": b"shared"}), last="x")
    gone = record(store, "2" * 64, put(store, {"a": b"g" * 200, "s": b"shared"}))
    put(store, {"orphan": b"o" * 50})
    store.materialize(gone.tree)
    dry = collect(store, dry_run=True)
    assert (dry.actions, dry.blobs, dry.bytes_freed) == (1, 2, 250)
    assert len(blob_files(store)) == 4
    report = collect(store)
    assert (report.actions, report.blobs, report.bytes_freed, report.bytes_kept) == (1, 2, 250, 106)
    assert store.records.read_action(gone.key) is None
    assert list((store.root / "trees").iterdir()) == []
    assert store.missing_files(kept.tree) == []


def test_gc_by_age_and_size(store: Store) -> None:
    old = record(store, "1" * 64, put(store, {"a": b"1" * 100}), last="old")
    young = record(store, "2" * 64, put(store, {"a": b"2" * 100}))
    long_ago = time.time() - 1000
    os.utime(store.records.last_path("old", "s"), (long_ago, long_ago))
    os.utime(store.records.action_path(old.key), (long_ago, long_ago))
    collect(store, older_than=500)
    assert store.records.read_action(old.key) is None
    assert store.records.read_last("old", "s") is None
    assert store.records.read_action(young.key) is not None
    rooted = record(store, "3" * 64, put(store, {"a": b"3" * 100}), last="new")
    collect(store, max_bytes=150)
    assert store.records.read_action(young.key) is None, "what no last build uses goes first"
    assert store.records.read_action(rooted.key) is not None
    collect(store, max_bytes=0)
    assert store.records.read_action(rooted.key) is None


def test_gc_waits_for_a_running_build(store: Store) -> None:
    other = Store(store.root)
    record(store, "1" * 64, put(store, {"a": b"1"}))
    heard: list[str] = []
    done = threading.Event()

    def clean() -> None:
        collect(other, on_wait=heard.append)
        done.set()

    with store.in_use(), store.in_use():
        thread = threading.Thread(target=clean)
        thread.start()
        assert not done.wait(0.3)
        assert store.records.read_action("1" * 64) is not None
    thread.join()
    assert len(heard) == 1
    assert store.records.read_action("1" * 64) is None
    other.close()
