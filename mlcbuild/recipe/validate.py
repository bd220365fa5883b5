"""Checks a recipe's tables against the schema and the names that there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mlcbuild.core.suggest import did_you_mean, suggestion_or_list
from mlcbuild.errors import RecipeError
from mlcbuild.recipe.problems import Problem
from mlcbuild.recipe.read_toml import Document
from mlcbuild.recipe.recipe import KnownNames
from mlcbuild.recipe.schema import RecipeSchema, keys_at
from mlcbuild.sources.reference import parse_source

Location = tuple[str | int, ...]

_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}


def validate(document: Document, known: KnownNames) -> tuple[dict[str, Any], list[Problem]]:
    """The values with defaults filled in, or every problem in the order of the files' lines."""
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    try:
        schema = RecipeSchema.model_validate(dict(document.tables))
        values = schema.model_dump(mode="json", by_alias=True)
    except ValidationError as error:
        seen: set[Location] = set()
        for detail in error.errors(include_url=False):
            location = _location(detail)
            if location not in seen:
                seen.add(location)
                problems.append(_schema_problem(document, detail, location))
    problems.extend(_name_problems(document, known))
    problems.extend(_source_problems(document))
    problems.sort(key=lambda problem: (problem.file, problem.line or 0))
    return values, problems


def dotted(location: Location) -> str:
    """``quantization.schemes[0]``; keys with other characters are quoted as in TOML."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = part.replace("-", "").replace("_", "").isalnum()
            text += ("." if text else "") + (part if plain else json.dumps(part))
    return text


def _location(detail: ErrorDetails) -> Location:
    """Where the problem lies; pydantic adds the names of union members, which are not keys."""
    location: list[str | int] = []
    for part in detail["loc"]:
        if isinstance(part, str) and part in ("bool", "int", "float", "str"):
            break
        if isinstance(part, str) and part.startswith("list["):
            break
        location.append(part)
    return tuple(location)


def _schema_problem(document: Document, detail: ErrorDetails, location: Location) -> Problem:
    kind = detail["type"]
    found = _show(detail["input"])
    hint = None
    file, line = document.place(location)
    if kind == "missing":
        file, line = document.table_place(location)
        message = "the key is missing"
        keys = _keys_of(document, location[:-1]) - set(keys_at(location[:-1]))
        close = did_you_mean(str(location[-1]), keys)
        hint = close.replace("did you mean", "instead of").rstrip("?") if close else None
    elif kind == "extra_forbidden":
        message = "unknown key"
        hint = suggestion_or_list(str(location[-1]), keys_at(location[:-1]))
    elif kind == "value_error":
        message = str(detail["ctx"]["error"])
    elif kind == "literal_error":
        message = f"expected {detail['ctx']['expected']}, found {found}"
    elif kind in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        sign = {"greater_than_equal": ">=", "greater_than": ">"}.get(
            kind, "<=" if kind == "less_than_equal" else "<"
        )
        limit = next(iter(detail["ctx"].values()))
        message = f"expected a number {sign} {limit}, found {found}"
    elif kind == "string_pattern_mismatch":
        message = f"expected letters, digits, dots, dashes and underscores, found {found}"
    elif kind in ("too_short", "string_too_short"):
        message = "it is empty"
    elif len(location) < len(detail["loc"]):
        message = f"expected true, false, a number, a string or a list of these, found {found}"
    elif kind in _EXPECTED:
        message = f"expected {_EXPECTED[kind]}, found {found}"
    else:
        message = f"{detail['msg'][:1].lower()}{detail['msg'][1:]}, found {found}"
    return Problem(file, line, dotted(location), message, hint=hint)


def _keys_of(document: Document, location: Location) -> set[str]:
    table = _get(document, location)
    return set(table) if isinstance(table, dict) else set()


def _get(document: Document, location: Location) -> Any:
    value: Any = document.tables
    for part in location:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _show(value: Any) -> str:
    """A value as a person wrote it, shortened."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, bool):
        return str(value).lower()
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _strings(document: Document, location: Location) -> Iterator[tuple[Location, str]]:
    """The strings of a list or of a table's values, with their places."""
    value = _get(document, location)
    rows: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(value, list):
        rows = iter(enumerate(value))
    elif isinstance(value, dict):
        rows = iter(value.items())
    for key, item in rows:
        if isinstance(item, str) and item:
            yield (*location, key), item


def _name_problems(document: Document, known: KnownNames) -> Iterator[Problem]:
    """Unknown or repeated schemes and targets, and options of targets that there are not."""
    lists: tuple[tuple[Location, str, tuple[str, ...]], ...] = (
        (("quantization", "schemes"), "quantization scheme", known.schemes),
        (("quantization", "overrides"), "quantization scheme", known.schemes),
        (("targets", "names"), "target", known.targets),
    )
    for location, what, names in lists:
        seen: set[str] = set()
        for place, name in _strings(document, location):
            file, line = document.place(place)
            if name not in names:
                yield Problem(
                    file,
                    line,
                    dotted(place),
                    f'unknown {what} "{name}"',
                    hint=suggestion_or_list(name, names),
                )
            elif name in seen and isinstance(place[-1], int):
                yield Problem(file, line, dotted(place), f'"{name}" is listed twice')
            seen.add(name)
    table = _get(document, ("targets",))
    for key, value in table.items() if isinstance(table, dict) else ():
        if key != "names" and key not in known.targets:
            file, line = document.place(("targets", key))
            what = "unknown target" if isinstance(value, dict) else "unknown key"
            yield Problem(
                file,
                line,
                dotted(("targets", key)),
                what,
                hint=suggestion_or_list(key, (*known.targets, "names")),
            )


def _source_problems(document: Document) -> Iterator[Problem]:
    """A source that cannot be understood, or a revision where none can be."""
    source = _get(document, ("model", "source"))
    if not isinstance(source, str) or not source:
        return
    file, line = document.place(("model", "source"))
    try:
        ref = parse_source(source, document.path.parent)
    except RecipeError as error:
        yield Problem(file, line, "model.source", error.message, why=error.why, hint=error.hint)
        return
    if isinstance(_get(document, ("model", "revision")), str):
        file, line = document.place(("model", "revision"))
        if ref.kind != "hf":
            yield Problem(file, line, "model.revision", "only hf: sources have revisions")
        elif ref.revision is not None:
            yield Problem(
                file,
                line,
                "model.revision",
                f'the source already names the revision "{ref.revision}"',
                hint="keep one of the two",
            )
