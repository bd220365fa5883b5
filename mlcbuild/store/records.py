"""What the store remembers about actions: results by key, and the last action of each subject."""

from __future__ import annotations

import json
import os
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlcbuild.core import canonical_json
from mlcbuild.core.atomic import write_atomic
from mlcbuild.spec.digest import Descriptor, Digest

RECORD_VERSION = 1
_TOUCH_SECONDS = 3600  # how exact "last used" is


@dataclass(frozen=True, slots=True)
class Tree:
    """The files of one result, sorted by path; ``digest`` is over paths, bytes and exec bits."""

    files: tuple[Descriptor, ...]
    digest: str

    @classmethod
    def of(cls, files: Iterator[Descriptor] | list[Descriptor]) -> Tree:
        """The tree of some files."""
        ordered = tuple(sorted(files))
        return cls(ordered, canonical_json.digest_of([_file_row(file) for file in ordered]))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.digest.size for file in self.files)


def _file_row(file: Descriptor) -> list[Any]:
    return [file.path, file.digest.hash, file.digest.size, file.executable]


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """A finished action: every field of its key, its result and how long it took (seconds)."""

    key: str
    fields: Mapping[str, Any]
    tree: Tree
    seconds: float


@dataclass(frozen=True, slots=True)
class LastAction:
    """What a subject's stage was last built or found as, and what it was before that."""

    subject: str
    stage: str
    key: str
    fields: Mapping[str, Any]
    previous: Mapping[str, Any] | None  # the fields before the last change


class Records:
    """The record files below a store's root. A record that does not read counts as missing."""

    def __init__(self, root: Path) -> None:
        self._actions = root / "actions"
        self._last = root / "last"

    def action_path(self, key: str) -> Path:
        """Where the record of a key lies."""
        return self._actions / key[:2] / f"{key}.json"

    def last_path(self, subject: str, stage: str) -> Path:
        """Where the last action of a subject's stage lies."""
        return self._last / urllib.parse.quote(subject, safe="") / f"{stage}.json"

    def read_action(self, key: str) -> ActionRecord | None:
        """The result of a key, or None."""
        data = _read(self.action_path(key))
        if data is None or data.get("key") != key:
            return None
        try:
            return _action_of(data)
        except (KeyError, TypeError, ValueError):
            return None

    def write_action(self, record: ActionRecord) -> None:
        """Store a result under its key."""
        data = {
            "record_version": RECORD_VERSION,
            "key": record.key,
            "fields": record.fields,
            "files": [_file_row(file) for file in record.tree.files],
            "tree": record.tree.digest,
            "seconds": round(record.seconds, 3),
        }
        write_atomic(self.action_path(record.key), canonical_json.encode(data))

    def forget_action(self, key: str) -> None:
        """Drop a result, so that its action runs again."""
        self.action_path(key).unlink(missing_ok=True)

    def iter_actions(self) -> Iterator[tuple[ActionRecord, float]]:
        """Every result with the time it was last used (seconds since 1970)."""
        for path in sorted(self._actions.glob("??/*.json")):
            record = self.read_action(path.stem)
            if record is not None:
                yield record, path.stat().st_mtime

    def read_last(self, subject: str, stage: str) -> LastAction | None:
        """The last action of a subject's stage, or None if it was never built."""
        data = _read(self.last_path(subject, stage))
        try:
            return None if data is None else _last_of(data)
        except (KeyError, TypeError):
            return None

    def record_last(self, subject: str, stage: str, record: ActionRecord) -> None:
        """Remember that a subject's stage is now this action; called on cache hits too."""
        path = self.last_path(subject, stage)
        last = self.read_last(subject, stage)
        if last is not None and last.key == record.key:
            _touch(path)
            _touch(self.action_path(record.key))
            return
        data = {
            "record_version": RECORD_VERSION,
            "subject": subject,
            "stage": stage,
            "key": record.key,
            "fields": record.fields,
            "previous": last.fields if last is not None else None,
        }
        _touch(self.action_path(record.key))
        write_atomic(path, canonical_json.encode(data), durable=False)

    def iter_last(self) -> Iterator[tuple[LastAction, float, Path]]:
        """Every last action with the time it was last used and its file."""
        for path in sorted(self._last.glob("*/*.json")):
            data = _read(path)
            try:
                if data is not None:
                    yield _last_of(data), path.stat().st_mtime, path
            except (KeyError, TypeError):
                continue


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or data.get("record_version") != RECORD_VERSION:
        return None
    return data


def _action_of(data: Mapping[str, Any]) -> ActionRecord:
    files = [
        Descriptor(str(path), Digest(str(hash_), int(size)), executable=bool(executable))
        for path, hash_, size, executable in data["files"]
    ]
    return ActionRecord(
        data["key"], data["fields"], Tree(tuple(files), data["tree"]), float(data["seconds"])
    )


def _last_of(data: Mapping[str, Any]) -> LastAction:
    return LastAction(
        data["subject"], data["stage"], data["key"], data["fields"], data.get("previous")
    )


def _touch(path: Path) -> None:
    """Note a use, at most once an hour, so that a no-op build writes nothing."""
    try:
        if time.time() - path.stat().st_mtime > _TOUCH_SECONDS:
            os.utime(path)
    except OSError:
        return
