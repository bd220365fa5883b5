"""Copies a result out of the store: whole or not at all, and only when something differs."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlcbuild.core import canonical_json
from mlcbuild.core.atomic import (
    copy_file,
    fsync_directory,
    remove_tree,
    replace_directory,
    require_free,
    temporary_name,
    write_atomic,
)
from mlcbuild.core.progress import Progress
from mlcbuild.errors import ResourceError, UsageError
from mlcbuild.store.records import Tree
from mlcbuild.store.store import LostOutputError, Store, scan_files


def export_tree(store: Store, tree: Tree, target: Path, progress: Progress) -> bool:
    """Make ``target`` hold exactly the tree's files; False if it already did.

    An altered or missing file is noticed and the folder replaced as a whole. Files in it that
    mlcbuild did not put there are kept beside it. Raises ``UsageError`` when ``target`` is
    something else than a folder that was exported before, ``LostOutputError`` when bytes of the
    tree are gone.
    """
    with _export_lock(store, target, progress):
        return _export(store, tree, target, progress)


def _export(store: Store, tree: Tree, target: Path, progress: Progress) -> bool:
    known = _exported_before(store, target)
    found = _state(store, target)
    wanted = {file.path: (file.digest.hash, file.executable) for file in tree.files}
    try:
        _sweep(target)
        if found == wanted:
            if known != set(wanted):
                _remember(store, target, tree)
            return False
        _check_replaceable(target, known, found)
        strangers = sorted(set(found) - known - set(wanted))
        altered = [path for path in sorted(known & set(wanted)) if found.get(path) is not None]
        altered = [path for path in altered if found[path][0] != wanted[path][0]]
        _write(store, tree, target, strangers, progress)
    except PermissionError as error:
        raise ResourceError(
            "the output folder cannot be written", where=str(target), why=str(error)
        ) from error
    if altered and _recorded_digest(store, target) == tree.digest:
        progress.note(f"{target}: {altered[0]} had been altered; the bundle was written again")
    _remember(store, target, tree)
    return True


def _write(
    store: Store, tree: Tree, target: Path, strangers: list[str], progress: Progress
) -> None:
    missing = store.missing_files(tree)
    if missing:
        raise LostOutputError(tree, missing)
    target.parent.mkdir(parents=True, exist_ok=True)
    require_free(target.parent, tree.size, target.name)
    temporary = temporary_name(target)
    with _owned(temporary):
        try:
            with progress.task(f"export {target.name}", tree.size, "B") as task:
                for file in tree.files:
                    copy = temporary / file.path
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy_file(store.blobs.path(file), copy)
                    copy.chmod(0o755 if file.executable else 0o644)
                    task.advance(file.digest.size)
            for folder, _, _ in os.walk(temporary):
                fsync_directory(Path(folder))
            old = replace_directory(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                remove_tree(temporary)
            raise
        for file in tree.files:
            copy = target / file.path
            store.stats.record("sha256", os.stat(copy), file.digest.hash, settle=True)
        if old is not None:
            _keep_strangers(old, target, strangers, progress)
            remove_tree(old)


def _keep_strangers(old: Path, target: Path, strangers: list[str], progress: Progress) -> None:
    if not strangers:
        return
    keep = target.with_name(f"{target.name}.kept")
    count = 1
    while keep.exists():
        count += 1
        keep = target.with_name(f"{target.name}.kept-{count}")
    for path in strangers:
        place = keep / path
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(old / path, place)
    progress.note(f"{len(strangers)} files that are not part of the bundle are now in {keep}")


def _state(store: Store, target: Path) -> dict[str, tuple[str, bool]]:
    """Path -> (sha256, executable) of what lies in the target folder."""
    if not target.is_dir():
        return {}
    return {
        path: (digest, executable)
        for path, digest, _, executable in scan_files(target, store.stats)
    }


def _check_replaceable(target: Path, known: set[str], found: dict[str, tuple[str, bool]]) -> None:
    """A folder that we never wrote is somebody's own, unless it holds a bundle."""
    if (target.exists() and not target.is_dir()) or target.is_symlink():
        raise UsageError(
            "the output is not a folder",
            where=str(target),
            hint="move it away or use another --out",
        )
    if found and not known and "bundle.json" not in found:
        raise UsageError(
            "the output folder exists and holds something else than a bundle",
            where=str(target),
            hint="move it away or use another --out",
        )


# -- what was exported before, by absolute path ------------------------------------------------


def _record_path(store: Store, target: Path) -> Path:
    name = hashlib.sha256(os.fsencode(target.absolute())).hexdigest()
    return store.root / "exports" / f"{name}.json"


def _recorded(store: Store, target: Path) -> dict[str, object]:
    try:
        data = json.loads(_record_path(store, target).read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _recorded_digest(store: Store, target: Path) -> object:
    return _recorded(store, target).get("tree")


def _exported_before(store: Store, target: Path) -> set[str]:
    """Paths that we wrote, by this store's record or else by the bundle's own list."""
    paths = _recorded(store, target).get("paths")
    if isinstance(paths, list):
        return set(paths)
    try:
        rows = json.loads((target / "bundle.json").read_bytes())["files"]
        return {"bundle.json", *(str(row["path"]) for row in rows)}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _remember(store: Store, target: Path, tree: Tree) -> None:
    record = {"tree": tree.digest, "paths": [file.path for file in tree.files]}
    write_atomic(_record_path(store, target), canonical_json.encode(record), durable=False)


# -- folders of killed exports -----------------------------------------------------------------


@contextmanager
def _export_lock(store: Store, target: Path, progress: Progress) -> Iterator[None]:
    def announce(holder: str) -> None:
        progress.note(f"waiting for {holder or 'another process'}, which writes {target}")

    with store.lock_key(f"export-{_record_path(store, target).stem}", announce):
        yield


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Make a folder and lock it while the block runs, so that no sweep takes it."""
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sweep(target: Path) -> None:
    """Remove hidden folders beside ``target`` that a killed export left (their lock is free)."""
    try:
        names = os.listdir(target.parent)
    except FileNotFoundError:
        return
    for name in names:
        if not (name.startswith(f".{target.name}.") and name.endswith(".tmp")):
            continue
        folder = target.parent / name
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        finally:
            os.close(descriptor)
        remove_tree(folder)
