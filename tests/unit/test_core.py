"""Canonical JSON, atomic files, the stat cache, locks, processes, hints."""

from __future__ import annotations

import errno
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mlcbuild.core import atomic, canonical_json, locks, stat_cache
from mlcbuild.core.process import ProcessRunner
from mlcbuild.core.progress import Progress
from mlcbuild.core.suggest import did_you_mean, suggestion_or_list
from mlcbuild.core.versions import installed_version
from mlcbuild.errors import InternalError, ResourceError, SourceError, StageError, ToolchainError

ROOT = Path(__file__).parents[2]


# -- canonical JSON ---------------------------------------------------------------------------


def test_canonical_json_does_not_depend_on_order() -> None:
    one = canonical_json.encode({"b": [1, 2.5, None, True], "a": "é"})
    two = canonical_json.encode({"a": "é", "b": (1, 2.5, None, True)})
    assert one == two == '{"a":"é","b":[1,2.5,null,true]}'.encode()


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": {"b": [0, math.nan]}}, "a.b[1]"),
        ([math.inf], "[0]"),
        ({"p": Path("/x")}, "p"),
        ({"s": {1, 2}}, "s"),
        ({1: 2}, "value"),
        ({"b": b"x"}, "b"),
    ],
)
def test_canonical_json_refuses_and_names_the_place(value: Any, place: str) -> None:
    with pytest.raises(InternalError) as caught:
        canonical_json.encode(value)
    assert caught.value.message.startswith(place)


# -- atomic files -----------------------------------------------------------------------------


def test_write_atomic_leaves_the_old_file_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    atomic.write_atomic(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError) as caught:
        atomic.write_atomic(path, b"new" * 1000)
    assert "3.0 kB" in str(caught.value.why)
    assert "free" in str(caught.value.why)
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_require_free_names_need_and_free(tmp_path: Path) -> None:
    with pytest.raises(ResourceError) as caught:
        atomic.require_free(tmp_path, 10**18, "a bundle")
    assert caught.value.exit_code == 7
    assert "1000000.0 TB" in str(caught.value.why)
    atomic.require_free(tmp_path / "not" / "there", 1, "a bundle")


@pytest.mark.parametrize("has_range", [True, False])
def test_copy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_range: bool) -> None:
    if not has_range:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    data = os.urandom(3 << 20)
    (tmp_path / "a").write_bytes(data)
    atomic.copy_file(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == data


@pytest.mark.parametrize("can_exchange", [True, False])
def test_replace_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda first, second: False)
    for name, text in (("new", "2"), ("final", "1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(text)
    old = atomic.replace_directory(tmp_path / "new", tmp_path / "final")
    assert (tmp_path / "final" / "f").read_text() == "2"
    assert old is not None
    assert (old / "f").read_text() == "1"


def test_remove_tree_takes_read_only_folders(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "f").write_text("x")
    (folder / "b").chmod(0o555)
    folder.chmod(0o555)
    atomic.remove_tree(folder)
    assert not folder.exists()
    atomic.remove_tree(folder)


# -- stat cache -------------------------------------------------------------------------------


def _age(path: Path, seconds: float = 10) -> None:
    then = time.time_ns() - int(seconds * 1e9) + 1
    os.utime(path, ns=(then, then))
    time.sleep(0.06)  # the change time cannot be set


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were really read."""
    names: list[str] = []
    original = stat_cache.hash_file

    def count(path: Path) -> str:
        names.append(path.name)
        return original(path)

    monkeypatch.setattr(stat_cache, "hash_file", count)
    return names


def test_stat_cache_reads_once_and_persists(tmp_path: Path, counted: list[str]) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"one")
    _age(file)
    cache = stat_cache.StatCache(tmp_path / "db")
    first = cache.file_digest(file)
    assert cache.file_digest(file) == first
    cache.close()
    again = stat_cache.StatCache(tmp_path / "db")
    assert again.file_digest(file) == first
    assert counted == ["f"]
    again.close()


def test_stat_cache_sees_a_change_that_keeps_size_and_mtime(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"one")
    _age(file)
    info = file.stat()
    cache = stat_cache.StatCache()
    first = cache.file_digest(file)
    file.write_bytes(b"two")
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert cache.file_digest(file) != first
    cache.close()


def test_stat_cache_does_not_trust_a_file_that_is_too_young(
    tmp_path: Path, counted: list[str]
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"one")
    cache = stat_cache.StatCache()
    cache.file_digest(file)
    cache.file_digest(file)
    assert counted == ["f", "f"]
    cache.close()


def test_stat_cache_survives_a_damaged_database(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"this is no database" * 1000)
    file = tmp_path / "f"
    file.write_bytes(b"one")
    _age(file)
    cache = stat_cache.StatCache(tmp_path / "db")
    assert cache.file_digest(file) == cache.file_digest(file)
    cache.close()
    connection = sqlite3.connect(tmp_path / "db")
    assert connection.execute("SELECT count(*) FROM stat").fetchone() == (1,)
    connection.close()


def test_a_file_that_changes_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"one")

    def grow(path: Path) -> str:
        path.write_bytes(b"one and more")
        return "digest"

    monkeypatch.setattr(stat_cache, "hash_file", grow)
    cache = stat_cache.StatCache()
    with pytest.raises(SourceError, match="changed while"):
        cache.file_digest(file)
    cache.close()


# -- locks ------------------------------------------------------------------------------------


def test_a_lock_dies_with_its_holder_and_waiting_is_announced(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, time; from pathlib import Path; from mlcbuild.core.locks import hold_lock\n"
        "with hold_lock(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert locks.try_acquire(path) is None
    heard: list[str] = []
    killer = threading.Timer(0.2, holder.kill)
    killer.start()
    with locks.hold_lock(path, on_wait=heard.append, remove=True):
        assert heard == [f"process {holder.pid}"]
    assert not path.exists()
    holder.wait()
    holder.stdout.close()


def test_a_waiter_notices_that_the_lock_file_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    order: list[str] = []

    def wait() -> None:
        with locks.hold_lock(path, remove=True):
            order.append("second")

    with locks.hold_lock(path, remove=True):
        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.1)
        order.append("first")
    waiter.join()
    assert order == ["first", "second"]


def test_shared_locks_share(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        locks.hold_lock(path, exclusive=False),
        locks.hold_lock(path, exclusive=False),
    ):
        assert locks.try_acquire(path) is None


def test_a_cancelled_wait_ends(tmp_path: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with (
        locks.hold_lock(tmp_path / "lock"),
        pytest.raises(KeyboardInterrupt),
        locks.hold_lock(tmp_path / "lock", cancelled=cancelled),
    ):
        pass


# -- processes --------------------------------------------------------------------------------


def test_a_failing_tool_shows_command_code_and_tail(tmp_path: Path) -> None:
    script = "import sys; [print('line', i, file=sys.stderr) for i in range(50)]; sys.exit(3)"
    log = tmp_path / "log"
    with pytest.raises(StageError) as caught:
        ProcessRunner().run([sys.executable, "-c", script], log=log)
    text = str(caught.value)
    assert "exit code 3" in text
    assert "line 49" in text
    assert "line 10\n" not in text
    assert sys.executable in str(caught.value.hint)
    assert "line 10" in log.read_text()


def test_a_missing_tool_is_a_toolchain_error() -> None:
    with pytest.raises(ToolchainError) as caught:
        ProcessRunner().run(["/no/such/tool"])
    assert caught.value.exit_code == 4


def test_tools_do_not_see_the_users_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAGS", "-O0")
    done = ProcessRunner().run([sys.executable, "-c", "import os; print('CFLAGS' in os.environ)"])
    assert done.stdout == "False\n"


def test_cancel_kills_the_whole_group(tmp_path: Path) -> None:
    runner = ProcessRunner()
    mark = tmp_path / "pid"
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(mark)!r}, 'w').write(str(child.pid))\n"
        "child.wait()"
    )
    outcome: list[type[BaseException]] = []

    def work() -> None:
        try:
            runner.run([sys.executable, "-c", script])
        except BaseException as error:
            outcome.append(type(error))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(200):
        if mark.exists() and mark.read_text():
            break
        time.sleep(0.02)
    child = int(mark.read_text())
    runner.cancel()
    thread.join(timeout=10)
    assert outcome == [KeyboardInterrupt]
    for _ in range(100):
        if not _alive(child):
            break
        time.sleep(0.02)
    assert not _alive(child)
    with pytest.raises(KeyboardInterrupt):
        runner.run(["true"])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_tool_killed_by_a_signal_says_which() -> None:
    code = f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})"
    with pytest.raises(StageError, match="SIGSEGV"):
        ProcessRunner().run([sys.executable, "-c", code])


# -- the rest ---------------------------------------------------------------------------------


def test_suggestions() -> None:
    assert did_you_mean("q4f61_1", ["q4f16_1", "q0f32"]) == 'did you mean "q4f16_1"?'
    assert did_you_mean("xyz", ["q4f16_1"]) is None
    assert suggestion_or_list("xyz", ["b", "a"]) == "known: a, b"


def test_installed_version_agrees_with_the_standard_library() -> None:
    from importlib.metadata import version

    for name in ("click", "pydantic", "apache-tvm", "huggingface_hub"):
        assert installed_version(name) == version(name)
    assert installed_version("no-such-package") is None


def test_progress_counts_from_several_threads() -> None:
    events: list[dict[str, object]] = []

    class Sink:
        def emit(self, event: Any) -> None:
            events.append(dict(event))

        def close(self) -> None:
            pass

    progress = Progress(Sink())
    with progress.task("read", total=4000, unit="B") as task:

        def work() -> None:
            for _ in range(1000):
                task.advance()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert events[0]["event"] == "task"
    assert events[-1]["event"] == "task_done"
    assert max(event["done"] for event in events if event["event"] == "advance") == 4000  # type: ignore[type-var]
