"""File digests remembered by stat, so that unchanged files cost a system call."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mlcbuild.errors import SourceError

_CHUNK = 4 << 20
_FINE_GUARD_NS = 50_000_000  # file clocks tick every few ms
_COARSE_GUARD_NS = 2_000_000_000  # FAT, HFS+: 1-2 s
_T = TypeVar("_T")


def hash_file(path: Path) -> str:
    """sha256 of a file, 64 hex digits, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while data := file.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()


def _identity(info: os.stat_result) -> str:
    return f"{info.st_dev}:{info.st_ino}"


def _stamp(info: os.stat_result, use_ctime: bool) -> str:
    changed = info.st_ctime_ns if use_ctime else 0
    return f"{info.st_size}:{info.st_mtime_ns}:{changed}"


def _guard_end_ns(info: os.stat_result, use_ctime: bool) -> int:
    """When a further change is sure to give the file another time stamp (ns since 1970)."""
    newest = max(info.st_mtime_ns, info.st_ctime_ns if use_ctime else 0)
    coarse = newest % 1_000_000_000 == 0
    return newest + (_COARSE_GUARD_NS if coarse else _FINE_GUARD_NS)


class StatCache:
    """Values computed from file contents, persisted in SQLite; without a path, in memory.

    A file touched so recently that another change could leave the same time stamp is computed
    but not remembered. A damaged database is dropped and started anew: it is only a cache.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        target = str(self._path) if self._path is not None else ":memory:"
        connection = sqlite3.connect(
            target, timeout=10, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS stat (kind TEXT, file TEXT, stamp TEXT, value TEXT,"
                " PRIMARY KEY (kind, file)) WITHOUT ROWID"
            )
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _drop_database(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
        if self._path is not None:
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{self._path}{suffix}")

    def _with_database(self, action: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Run ``action``; None when the database is locked for too long or cannot be used."""
        with self._lock:
            for _ in range(2):
                try:
                    return action(self._connect())
                except sqlite3.OperationalError as error:
                    if "locked" in str(error) or "busy" in str(error):
                        return None
                    if "malformed" not in str(error):
                        return None  # read-only or full disk: go on without the cache
                    self._drop_database()
                except sqlite3.DatabaseError:
                    self._drop_database()
            return None

    def lookup(self, kind: str, info: os.stat_result, *, use_ctime: bool = True) -> str | None:
        """The remembered value of a file with this stat, or None."""

        def select(connection: sqlite3.Connection) -> str | None:
            row = connection.execute(
                "SELECT stamp, value FROM stat WHERE kind = ? AND file = ?",
                (kind, _identity(info)),
            ).fetchone()
            if row is None or row[0] != _stamp(info, use_ctime):
                return None
            return str(row[1])

        return self._with_database(select)

    def record(
        self,
        kind: str,
        info: os.stat_result,
        value: str,
        *,
        use_ctime: bool = True,
        settle: bool = False,
        private: bool = False,
    ) -> None:
        """Remember ``value``, unless the file is too young to be told from a later change.

        ``settle`` waits (50 ms at most) until a fine-grained time stamp is old enough;
        ``private`` is for read-only files of our own, which nobody is about to change.
        """
        wait = _guard_end_ns(info, use_ctime) - time.time_ns()
        if wait > 0 and not private:
            if not settle or wait > 2 * _FINE_GUARD_NS:
                return
            time.sleep(wait / 1e9)
        self._with_database(
            lambda connection: connection.execute(
                "INSERT OR REPLACE INTO stat VALUES (?, ?, ?, ?)",
                (kind, _identity(info), _stamp(info, use_ctime), value),
            )
        )

    def compute(self, kind: str, path: Path, function: Callable[[Path], str]) -> str:
        """``function(path)``, remembered under ``kind`` as long as the file's stat stays."""
        before = os.stat(path)
        known = self.lookup(kind, before)
        if known is not None:
            return known
        value = function(path)
        after = os.stat(path)
        if _stamp(before, True) != _stamp(after, True) or _identity(before) != _identity(after):
            raise SourceError(
                f"{path.name} changed while it was read",
                where=str(path),
                hint="wait until whatever writes it is done, then run again",
            )
        self.record(kind, after, value)
        return value

    def file_digest(self, path: Path) -> str:
        """sha256 of a file (64 hex digits). Raises ``OSError`` if it cannot be read."""
        return self.compute("sha256", path, hash_file)

    def trim(self, keep: int = 200_000) -> None:
        """Forget everything once there are more than ``keep`` rows (inodes of deleted files)."""

        def run(connection: sqlite3.Connection) -> None:
            (count,) = connection.execute("SELECT count(*) FROM stat").fetchone()
            if count > keep:
                connection.execute("DELETE FROM stat")

        self._with_database(run)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
