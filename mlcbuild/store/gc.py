"""Garbage collection: what the last builds use is kept, the rest goes, oldest first."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from mlcbuild.core.atomic import remove_tree
from mlcbuild.store.records import ActionRecord
from mlcbuild.store.store import Store

_LOG_SECONDS = 30 * 86400


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a collection removed, or with a dry run would remove; sizes in bytes."""

    actions: int
    blobs: int
    bytes_freed: int
    bytes_kept: int
    tool_cache_bytes: int  # kept unless asked for; not in bytes_kept
    dry_run: bool


@dataclass(frozen=True, slots=True)
class _Candidate:
    record: ActionRecord
    used: float  # seconds since 1970
    rooted: bool  # the last build of some subject uses it


def collect(
    store: Store,
    *,
    older_than: float | None = None,
    max_bytes: int | None = None,
    tool_caches: bool = False,
    dry_run: bool = False,
    on_wait: Callable[[str], None] | None = None,
) -> GcReport:
    """Remove results that no last build uses, waiting until no build runs.

    ``older_than`` (seconds): results used since then stay, and a last build not used since then
    protects nothing. ``max_bytes``: results go, oldest first and last builds after all others,
    only until the contents fit. ``tool_caches`` drops the tools' private caches as well.
    """
    if dry_run:
        with store.in_use(on_wait):
            return _collect(store, older_than, max_bytes, tool_caches, dry_run=True)
    with store.alone(on_wait):
        return _collect(store, older_than, max_bytes, tool_caches, dry_run=False)


def _collect(
    store: Store,
    older_than: float | None,
    max_bytes: int | None,
    tool_caches: bool,
    *,
    dry_run: bool,
) -> GcReport:
    limit = time.time() - older_than if older_than is not None else None
    old_roots: list[Path] = []
    roots: set[str] = set()
    for last, used, path in store.records.iter_last():
        if limit is not None and used < limit:
            old_roots.append(path)
        else:
            roots.add(last.key)
    candidates = [
        _Candidate(record, used, record.key in roots)
        for record, used in store.records.iter_actions()
    ]
    sizes = _blob_sizes(store)
    doomed = _choose(store, candidates, sizes, limit, max_bytes)
    kept = [entry.record for entry in candidates if entry.record.key not in doomed]
    wanted = _blob_names(store, kept)
    lost = {path: size for path, size in sizes.items() if path not in wanted}
    tool_bytes = sum(_file_sizes(store.root / "tools"))
    if not dry_run:
        for path in old_roots:
            path.unlink(missing_ok=True)
        for key in doomed:
            store.records.forget_action(key)
        _remove_trees(store, {record.tree.digest for record in kept})
        for path in lost:
            path.unlink(missing_ok=True)
        _remove_old_files(store.root / "logs", time.time() - (older_than or _LOG_SECONDS))
        _remove_journals(store, time.time() - (older_than or _LOG_SECONDS))
        if tool_caches:
            remove_tree(store.root / "tools")
        store.stats.trim()
    freed = sum(lost.values()) + (tool_bytes if tool_caches else 0)
    return GcReport(
        actions=len(doomed),
        blobs=len(lost),
        bytes_freed=freed,
        bytes_kept=sum(sizes.values()) - sum(lost.values()),
        tool_cache_bytes=0 if tool_caches else tool_bytes,
        dry_run=dry_run,
    )


def _choose(
    store: Store,
    candidates: list[_Candidate],
    sizes: dict[Path, int],
    limit: float | None,
    max_bytes: int | None,
) -> set[str]:
    """Keys of the results to drop."""
    if max_bytes is None:
        return {
            entry.record.key
            for entry in candidates
            if not entry.rooted and (limit is None or entry.used < limit)
        }
    doomed: set[str] = set()
    users: dict[Path, int] = {}
    for entry in candidates:
        for path in _blob_names(store, [entry.record]):
            users[path] = users.get(path, 0) + 1
    total = sum(sizes.get(path, 0) for path in users)
    for entry in sorted(candidates, key=lambda item: (item.rooted, item.used)):
        expired = limit is not None and entry.used < limit and not entry.rooted
        if total <= max_bytes and not expired:
            continue
        doomed.add(entry.record.key)
        for path in _blob_names(store, [entry.record]):
            users[path] -= 1
            if users[path] == 0:
                total -= sizes.get(path, 0)
    return doomed


def _blob_names(store: Store, records: Iterable[ActionRecord]) -> set[Path]:
    return {store.blobs.path(file) for record in records for file in record.tree.files}


def _blob_sizes(store: Store) -> dict[Path, int]:
    return {path: path.stat().st_size for path in store.blobs.root.glob("??/*")}


def _file_sizes(folder: Path) -> Iterable[int]:
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(base, name)).st_size
            except OSError:
                continue


def _remove_trees(store: Store, wanted: set[str]) -> None:
    folder = store.root / "trees"
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name not in wanted:
                remove_tree(path)


def _remove_old_files(folder: Path, before: float) -> None:
    if folder.is_dir():
        for path in folder.iterdir():
            if path.stat().st_mtime < before:
                path.unlink(missing_ok=True)


def _remove_journals(store: Store, before: float) -> None:
    folder = store.root / "journal"
    if folder.is_dir():
        for path in folder.iterdir():
            if path.stat().st_mtime < before:
                remove_tree(path)
