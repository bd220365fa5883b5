"""The store: blobs, trees, action results, locks and scratch space under one folder."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mlcbuild.core.atomic import disk_guard, remove_tree, write_atomic
from mlcbuild.core.locks import hold_lock, try_acquire
from mlcbuild.core.stat_cache import StatCache
from mlcbuild.errors import InternalError, ResourceError, StageError, UsageError
from mlcbuild.store.blobs import BlobStore
from mlcbuild.store.records import Records, Tree

STORE_VERSION = "1"


class LostOutputError(InternalError):
    """Bytes of a recorded result are gone or damaged; whoever made them must run again."""

    def __init__(self, tree: Tree, files: list[str]) -> None:
        super().__init__(
            "a result in the store is incomplete or damaged",
            where=files[0],
            hint="run the build again",
        )
        self.tree = tree
        self.files = files


class Store:
    """One store on a local disk, shared by any number of processes.

    ``blobs/`` contents · ``trees/`` results as read-only folders of hard links · ``actions/``
    and ``last/`` records · ``locks/`` · ``tmp/`` running work · ``journal/`` · ``tools/`` private
    caches of tools · ``logs/``. Nothing appears under a final name before it is whole.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        _open_folder(self.root)
        self.stats = StatCache(self.root / "stat.sqlite")
        self.blobs = BlobStore(self.root / "blobs", self.stats)
        self.records = Records(self.root)
        self._session: tuple[Path, int] | None = None
        self._guard = threading.RLock()
        self._uses = 0
        self._use_stack = contextlib.ExitStack()
        self._sweep()

    # -- sharing -------------------------------------------------------------------------------

    @contextmanager
    def in_use(self, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
        """Keep gc away while the block runs; nests, and any number of builds may hold it."""
        with self._guard:
            if self._uses == 0:
                self._use_stack.enter_context(
                    hold_lock(self.root / "use.lock", exclusive=False, on_wait=on_wait)
                )
            self._uses += 1
        try:
            yield
        finally:
            with self._guard:
                self._uses -= 1
                if self._uses == 0:
                    self._use_stack.close()

    @contextmanager
    def alone(self, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
        """Wait until no build uses the store, and keep new ones waiting while the block runs."""
        with hold_lock(self.root / "use.lock", on_wait=on_wait):
            yield

    @contextmanager
    def lock_key(
        self,
        key: str,
        on_wait: Callable[[str], None] | None = None,
        cancelled: threading.Event | None = None,
    ) -> Iterator[None]:
        """The right to build one key; a second builder waits here and then finds the result."""
        folder = self.root / "locks"
        folder.mkdir(exist_ok=True)
        with hold_lock(folder / key, on_wait=on_wait, cancelled=cancelled, remove=True):
            yield

    # -- scratch space ---------------------------------------------------------------------------

    @property
    def session_descriptor(self) -> int | None:
        """The open lock of this process's scratch space; a child that inherits it keeps it."""
        return self._session[1] if self._session is not None else None

    def work_folder(self) -> Path:
        """A new private folder; it is removed by its user, or by the next start after a kill."""
        with self._guard:
            if self._session is None:
                base = self.root / "tmp"
                base.mkdir(exist_ok=True)
                while True:
                    name = f"{os.getpid()}-{secrets.token_hex(6)}"
                    descriptor = try_acquire(base / f"{name}.lock")
                    if descriptor is not None:
                        break
                self._session = (base / name, descriptor)
            folder = self._session[0] / secrets.token_hex(6)
        folder.mkdir(parents=True)
        return folder

    def _sweep(self) -> None:
        """Drop what killed processes left: their lock is free, so nobody works there any more."""
        base = self.root / "tmp"
        try:
            names = os.listdir(base)
        except FileNotFoundError:
            names = []
        for name in names:
            if not name.endswith(".lock"):
                continue
            lock = base / name
            descriptor = try_acquire(lock)
            if descriptor is None:
                continue
            try:
                remove_tree(lock.with_suffix(""))
                lock.unlink(missing_ok=True)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Remove this process's scratch space and close the stat cache."""
        with self._guard:
            if self._session is not None:
                folder, descriptor = self._session
                self._session = None
                remove_tree(folder)
                folder.with_name(f"{folder.name}.lock").unlink(missing_ok=True)
                os.close(descriptor)
        self.stats.close()

    # -- private folders of tools and long actions -----------------------------------------------

    def tool_cache(self, name: str) -> Path:
        """A folder that persists for a tool's own cache; it is part of no result."""
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
            raise InternalError(f"{name!r} cannot name a tool's cache")
        folder = self.root / "tools" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def journal(self, key: str) -> Path:
        """A folder that lasts until the action of ``key`` succeeds."""
        folder = self.root / "journal" / key
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def drop_journal(self, key: str) -> None:
        """Remove the journal of a finished action."""
        remove_tree(self.root / "journal" / key)

    def log_path(self, stage: str, key: str) -> Path:
        """Where tool output of one action goes."""
        folder = self.root / "logs"
        folder.mkdir(exist_ok=True)
        return folder / f"{stage}-{key[:12]}.log"

    # -- trees -----------------------------------------------------------------------------------

    def put_tree(self, folder: Path) -> Tree:
        """Move every file of ``folder`` into the store. Links and special files are refused."""
        found = list(_walk(folder))
        for path, relative in found:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise StageError(
                    f"the result holds {relative}, which is not a regular file",
                    why="results are files only, so that they are the same everywhere",
                )
        with disk_guard(self.root, "a result"):
            return Tree.of([self.blobs.adopt(path, relative) for path, relative in found])

    def missing_files(self, tree: Tree) -> list[str]:
        """Paths of a tree whose bytes are gone or damaged."""
        return [file.path for file in tree.files if not self.blobs.intact(file)]

    def materialize(self, tree: Tree) -> Path:
        """A read-only folder with the tree's files. Raises ``LostOutputError`` if some are gone."""
        missing = self.missing_files(tree)
        if missing:
            raise LostOutputError(tree, missing)
        final = self.root / "trees" / tree.digest
        if self._matches(final, tree):
            return final
        final.parent.mkdir(exist_ok=True)
        temporary = self.work_folder() / "tree"
        temporary.mkdir()
        try:
            with disk_guard(self.root, "a result"):
                for file in tree.files:
                    target = temporary / file.path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self.blobs.link(file, target)
            self._publish_tree(temporary, final, tree)
        except FileNotFoundError as error:
            raise LostOutputError(tree, self.missing_files(tree) or [tree.digest]) from error
        finally:
            remove_tree(temporary.parent)
        return final

    def _publish_tree(self, temporary: Path, final: Path, tree: Tree) -> None:
        with self.lock_key(f"tree-{tree.digest}"):
            if self._matches(final, tree):
                return
            if final.exists():
                old = temporary.with_name("old")
                final.chmod(stat.S_IRWXU)
                os.rename(final, old)
            os.rename(temporary, final)
            for folder, _, _ in os.walk(final):
                os.chmod(folder, 0o555)

    def _matches(self, folder: Path, tree: Tree) -> bool:
        """Whether a materialized folder still shows the blobs themselves."""
        try:
            for file in tree.files:
                shown, blob = os.stat(folder / file.path), os.stat(self.blobs.path(file))
                linked = (shown.st_dev, shown.st_ino) == (blob.st_dev, blob.st_ino)
                if not linked and self.stats.file_digest(folder / file.path) != file.digest.hash:
                    return False
        except OSError:
            return False
        return bool(tree.files) or folder.is_dir()


def _walk(folder: Path) -> Iterator[tuple[Path, str]]:
    """Everything but real folders below ``folder``, with POSIX paths relative to it, sorted."""
    for base, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        folders[:] = sorted(set(folders) - set(links))
        for name in sorted([*names, *links]):
            path = Path(base) / name
            yield path, path.relative_to(folder).as_posix()


def scan_files(
    folder: Path, stats: StatCache, wanted: Callable[[str], bool] = lambda path: True
) -> Iterator[tuple[str, str, int, bool]]:
    """(path, sha256, size, executable) of the files below a folder outside the store, sorted."""
    for path, relative in _walk(folder):
        if wanted(relative) and path.is_file():
            info = path.stat()
            executable = bool(info.st_mode & 0o111)
            yield relative, stats.file_digest(path), info.st_size, executable


def _read_version(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise ResourceError(
            "the store cannot be read", where=str(path.parent), why=str(error)
        ) from error


def _open_folder(root: Path) -> None:
    """Make a new store or check the version of an old one; any foreign folder is refused."""
    version = root / "version"
    try:
        if not _read_version(version):
            root.mkdir(parents=True, exist_ok=True)
            strangers = [name for name in os.listdir(root) if not name.startswith(".version.")]
            if strangers and not _read_version(version):  # unless another start was faster
                raise UsageError(
                    "the folder is not a store and not empty",
                    where=str(root),
                    hint="choose an empty or new folder for --store",
                )
            write_atomic(version, f"{STORE_VERSION}\n".encode())
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise ResourceError("the store cannot be written", where=str(root), why=str(error)) from (
            error
        )
    found = _read_version(version)
    if found != STORE_VERSION:
        raise UsageError(
            f"the store has version {found}; this mlcbuild uses version {STORE_VERSION}",
            where=str(root),
            hint="choose another --store, or delete this one (it only holds what can be rebuilt)",
        )
