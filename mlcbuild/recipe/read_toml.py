"""Reads a recipe and what it extends into one table that remembers where each key came from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli

from mlcbuild.recipe.locate import KeyPath, find_lines
from mlcbuild.recipe.problems import Problem, RecipeProblems

# Keys whose values are paths relative to the file that they stand in.
_PATH_KEYS: tuple[KeyPath, ...] = (
    ("model", "source"),
    ("quantization", "calibration", "text"),
    ("tuning", "database"),
    ("quality", "text"),
)


@dataclass(frozen=True)
class Document:
    """The merged tables of a recipe; ``origins`` maps a key path to the file that set it."""

    path: Path
    tables: Mapping[str, Any]
    origins: Mapping[KeyPath, str] = field(default_factory=dict)
    lines: Mapping[str, Mapping[KeyPath, int]] = field(default_factory=dict)  # by file

    def place(self, location: tuple[str | int, ...]) -> tuple[str, int | None]:
        """File and line of a key; of an element of a list, that of the list.

        The line is None inside inline tables and for what no file says.
        """
        keys: list[str] = []
        for part in location:
            if isinstance(part, int):
                break
            keys.append(part)
        path = tuple(keys)
        known = path
        while known and known not in self.origins:
            known = known[:-1]
        file = self.origins.get(known, str(self.path))
        line = self.lines.get(file, {}).get(path)
        return file, line

    def table_place(self, location: tuple[str | int, ...]) -> tuple[str, int | None]:
        """File and line of the table in which a key is missing."""
        return self.place(location[:-1])


def read_document(path: Path) -> Document:
    """Read ``path`` and its bases. Raises ``RecipeProblems`` for what does not read."""
    return _read(path, ())


def _read(path: Path, chain: tuple[Path, ...]) -> Document:
    name = str(path)
    trail = " -> ".join(str(item) for item in (*chain, path))
    why = f"reached through {trail}" if chain else None
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise _fail(name, None, "there is no such recipe", why, _nearby(path)) from None
    except UnicodeDecodeError as error:
        raise _fail(name, None, "the recipe is not UTF-8 text", str(error), None) from error
    except OSError as error:
        raise _fail(name, None, "the recipe cannot be read", error.strerror, why) from error
    try:
        tables = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        message, line = _toml_message(error)
        raise _fail(name, line, f"not valid TOML: {message}", why, None) from error
    lines = find_lines(text)
    own = Document(path, tables, _origins(tables, name), {name: lines})
    base_name = tables.get("extends")
    if not isinstance(base_name, str) or not base_name:
        return own  # absent, or of a wrong type, which the schema reports
    base_path = path.parent / base_name
    resolved = [item.resolve() for item in (*chain, path)]
    if base_path.resolve() in resolved:
        raise RecipeProblems(
            [
                Problem(
                    name,
                    lines.get(("extends",)),
                    "extends",
                    "the recipes extend each other in a circle",
                    why=f"{trail} -> {base_path}",
                )
            ]
        )
    if not base_path.is_file():
        raise RecipeProblems(
            [
                Problem(
                    name,
                    lines.get(("extends",)),
                    "extends",
                    f"there is no recipe {base_path}",
                    why=why,
                    hint=_nearby(base_path),
                )
            ]
        )
    base = _read(base_path, (*chain, path))
    rebased = _rebase(base.tables, base_path.parent, path.parent)
    return Document(
        path,
        _merge(rebased, tables),
        {**base.origins, **own.origins},
        {**base.lines, **own.lines},
    )


def _fail(
    file: str, line: int | None, message: str, why: str | None, hint: str | None
) -> RecipeProblems:
    return RecipeProblems([Problem(file, line, "", message, why, hint)])


def _toml_message(error: tomli.TOMLDecodeError) -> tuple[str, int | None]:
    text = str(error)
    line = getattr(error, "lineno", None)
    message = getattr(error, "msg", None)
    if isinstance(line, int) and isinstance(message, str):
        return message, line
    head, _, tail = text.partition(" (at line ")
    digits = tail.split(",")[0]
    return (head, int(digits)) if digits.isdigit() else (text, None)


def _nearby(path: Path) -> str | None:
    from mlcbuild.core.suggest import did_you_mean

    if path.is_dir():
        return "that is a folder; name a .toml file"
    try:
        names = [item.name for item in path.parent.iterdir() if item.suffix == ".toml"]
    except OSError:
        return f"there is no folder {path.parent}"
    return did_you_mean(path.name, names)


def _origins(tables: Mapping[str, Any], file: str, prefix: KeyPath = ()) -> dict[KeyPath, str]:
    found: dict[KeyPath, str] = {}
    for key, value in tables.items():
        path = (*prefix, key)
        found[path] = file
        if isinstance(value, dict):
            found.update(_origins(value, file, path))
    return found


def _merge(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merge key by key; lists and plain values replace."""
    merged = dict(base)
    for key, value in own.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = _merge(old, value)
        else:
            merged[key] = value
    return merged


def _rebase(tables: Mapping[str, Any], old: Path, new: Path) -> dict[str, Any]:
    """A base's relative paths, seen from the folder of the recipe that extends it."""
    rebased = dict(tables)
    if old.resolve() == new.resolve():
        return rebased
    for keys in _PATH_KEYS:
        table: Any = rebased
        for key in keys[:-1]:
            if not isinstance(table.get(key), dict):
                break
            table[key] = dict(table[key])
            table = table[key]
        else:
            value = table.get(keys[-1])
            if isinstance(value, str) and _is_relative_path(value):
                table[keys[-1]] = os.path.relpath(old / value, new)
    return rebased


def _is_relative_path(value: str) -> bool:
    """Whether a value is neither absolute nor ``prefix:something``."""
    head, colon, _ = value.partition(":")
    has_prefix = bool(colon) and len(head) > 1 and "/" not in head
    return bool(value) and not has_prefix and not Path(value).is_absolute()
