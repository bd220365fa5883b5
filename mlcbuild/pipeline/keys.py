"""The fields of an action's key, and how they differ from an older action's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mlcbuild.core import canonical_json
from mlcbuild.core.stat_cache import StatCache
from mlcbuild.errors import SourceError
from mlcbuild.pipeline.action import Action, FileInput
from mlcbuild.pipeline.code_digest import CodeIndex
from mlcbuild.store.store import scan_files

_MISSING = "(none)"


@dataclass(frozen=True, slots=True)
class Change:
    """One field of a key that differs; ``old`` or ``new`` is ``(none)`` where it was absent."""

    field: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.field}: {self.old} -> {self.new}"

    def to_json(self) -> dict[str, str]:
        """For ``--json``."""
        return {"field": self.field, "old": self.old, "new": self.new}


def own_module(run: Callable[..., object]) -> str | None:
    """The module below our package in which a stage's function is written, if it is one."""
    while isinstance(run, functools.partial):
        run = run.func
    module = str(getattr(run, "__module__", ""))
    return module if module.startswith("mlcbuild.") else None


class KeyMaker:
    """Computes keys; digests of files and code are looked up once per run."""

    def __init__(self, stats: StatCache, code: CodeIndex | None = None) -> None:
        self._stats = stats
        self._code = code if code is not None else CodeIndex(stats)
        self._code_fields: dict[tuple[str, ...], dict[str, str]] = {}

    def fields(self, action: Action, inputs: Mapping[str, str]) -> dict[str, Any]:
        """Everything that can change the result; ``inputs`` are tree digests by name."""
        module = own_module(action.run)
        names = tuple(sorted({*action.code, *([module] if module else [])}))
        if names not in self._code_fields:
            self._code_fields[names] = self._code.fields(names)
        return {
            "stage": action.stage,
            "version": action.version,
            "inputs": dict(inputs),
            "params": dict(action.params),
            "tools": dict(action.tools),
            "code": self._code_fields[names],
        }

    def file_digest(self, item: FileInput) -> str:
        """The digest of a file or folder outside the store.

        Raises ``SourceError`` when it is not there or holds no file that ``include`` names.
        """
        path = item.path
        try:
            if path.is_dir():
                rows = list(scan_files(path, self._stats, _matcher(item.include)))
            else:
                info = path.stat()
                rows = [("", self._stats.file_digest(path), info.st_size, False)]
        except OSError as error:
            raise SourceError(
                f"{path.name} cannot be read", where=str(path), why=error.strerror or str(error)
            ) from error
        if not rows:
            raise SourceError(
                "the folder holds none of the files that are needed",
                where=str(path),
                why=f"looked for: {', '.join(item.include) or 'any file'}",
            )
        return canonical_json.digest_of([[row[0], row[1], row[2]] for row in rows])


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    if not patterns:
        return lambda path: True
    return lambda path: any(fnmatchcase(path, pattern) for pattern in patterns)


def diff_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What differs between two actions' fields; own fields before inputs, then by name."""
    flat_old, flat_new = _flatten(old), _flatten(new)
    changed = [
        name
        for name in sorted({*flat_old, *flat_new})
        if flat_old.get(name, _MISSING) != flat_new.get(name, _MISSING)
    ]
    changed.sort(key=lambda name: (name.startswith("inputs."), name))
    return [
        Change(name, _shorten(flat_old.get(name, _MISSING)), _shorten(flat_new.get(name, _MISSING)))
        for name in changed
    ]


def _flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Leaves by dotted name, as text; empty containers have no leaves."""
    if isinstance(value, Mapping):
        flat: dict[str, str] = {}
        for key, item in value.items():
            flat.update(_flatten(item, f"{prefix}.{key}" if prefix else str(key)))
        return flat
    text = value if isinstance(value, str) else canonical_json.encode(value).decode("utf-8")
    return {prefix: text or '""'}


def _shorten(text: str) -> str:
    is_hash = len(text) == 64 and all(char in "0123456789abcdef" for char in text)
    return text[:12] if is_hash else text
