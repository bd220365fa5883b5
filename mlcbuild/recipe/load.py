"""Loads a recipe: reads, merges, validates; says everything that is wrong at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlcbuild.core import canonical_json
from mlcbuild.core.atomic import write_atomic
from mlcbuild.core.stat_cache import StatCache
from mlcbuild.core.versions import installed_version
from mlcbuild.errors import InternalError
from mlcbuild.recipe.problems import RecipeProblems
from mlcbuild.recipe.read_toml import Document, read_document
from mlcbuild.recipe.recipe import KnownNames, Recipe


class ValidationCache:
    """Remembers which merged recipes were valid, so that pydantic need not be imported again.

    ``folder`` holds one file per recipe content, known names and version of this code.
    """

    def __init__(self, folder: Path, stats: StatCache) -> None:
        self._folder = folder
        self._stats = stats

    def path(self, document: Document, known: KnownNames) -> Path | None:
        """Where the validated values of a document lie; None for values that JSON cannot hold."""
        here = Path(__file__).parent
        try:
            name = canonical_json.digest_of(
                {
                    "tables": document.tables,
                    "schemes": known.schemes,
                    "targets": known.targets,
                    "pydantic": installed_version("pydantic"),
                    "code": [self._stats.file_digest(path) for path in sorted(here.glob("*.py"))],
                }
            )
        except InternalError:
            return None
        return self._folder / f"{name}.json"


def load_recipe(path: Path, known: KnownNames, cache: ValidationCache | None = None) -> Recipe:
    """The recipe at ``path``. Raises ``RecipeProblems`` with every problem that it has."""
    document = read_document(path)
    place = cache.path(document, known) if cache is not None else None
    if place is not None:
        values = _read_values(place)
        if values is not None:
            return Recipe(path, values)
    from mlcbuild.recipe.validate import validate

    values, problems = validate(document, known)
    if problems:
        raise RecipeProblems(problems, str(path))
    if place is not None:
        write_atomic(place, canonical_json.encode(values), durable=False)
    return Recipe(path, values)


def _read_values(path: Path) -> Mapping[str, Any] | None:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None
