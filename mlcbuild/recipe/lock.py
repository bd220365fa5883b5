"""The lock file of a recipe: what each source resolved to, once, for everyone."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from mlcbuild.core import canonical_json
from mlcbuild.core.atomic import write_atomic
from mlcbuild.core.canonical_json import Json
from mlcbuild.errors import RecipeError

LOCK_VERSION = 1


def lock_path(recipe_path: Path) -> Path:
    """``recipes/NAME.lock`` beside ``recipes/NAME.toml``."""
    return recipe_path.with_suffix(".lock")


class RecipeLock:
    """Source string -> its resolution record (revision, file digests), kept in a JSON file.

    The file is written atomically and only when something changed. ``path`` None: memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._guard = threading.Lock()
        self._sources: dict[str, dict[str, Json]] = _read(path) if path is not None else {}

    def get(self, source: str) -> Mapping[str, Json] | None:
        """The record of a source, or None if it was never resolved."""
        with self._guard:
            return self._sources.get(source)

    def put(self, source: str, record: Mapping[str, Json]) -> None:
        """Keep the record of a source and write the file if it is new or different."""
        with self._guard:
            plain = json.loads(canonical_json.encode(record))
            if self._sources.get(source) == plain:
                return
            self._sources[source] = plain
            if self.path is not None:
                write_atomic(self.path, _render(self._sources))

    def sources(self) -> tuple[str, ...]:
        """The sources that have a record, sorted."""
        with self._guard:
            return tuple(sorted(self._sources))


def _render(sources: Mapping[str, Mapping[str, Json]]) -> bytes:
    """Indented so that a change shows as a small diff; sorted so that it is canonical."""
    document = {"lock_version": LOCK_VERSION, "sources": sources}
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8")


def _read(path: Path) -> dict[str, dict[str, Json]]:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, UnicodeDecodeError) as error:
        raise RecipeError(
            "the lock file does not read as JSON",
            where=str(path),
            why=str(error),
            hint="restore it from version control, or delete it to resolve the sources again",
        ) from error
    version = data.get("lock_version") if isinstance(data, dict) else None
    if version != LOCK_VERSION:
        raise RecipeError(
            f"the lock file has version {version!r}; this mlcbuild reads version {LOCK_VERSION}",
            where=str(path),
            hint="use the mlcbuild that wrote it, or delete it to resolve the sources again",
        )
    sources = data.get("sources")
    if not isinstance(sources, dict) or not all(isinstance(v, dict) for v in sources.values()):
        raise RecipeError(
            "the lock file has no table of sources",
            where=str(path),
            hint="restore it from version control, or delete it to resolve the sources again",
        )
    return sources
