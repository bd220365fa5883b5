"""mlcbuild list: what there is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mlcbuild.cli.context import get_settings


@click.command("list")
@click.argument("what", type=click.Choice(["recipes", "targets", "quantizations", "architectures"]))
@click.option(
    "--recipes",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("recipes"),
    show_default=True,
    help="Folder of recipes.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def command(what: str, folder: Path, as_json: bool) -> None:
    """List recipes, targets, quantizations or architectures."""
    rows = {
        "recipes": lambda: _recipes(folder),
        "targets": _targets,
        "quantizations": _quantizations,
        "architectures": _architectures,
    }[what]()
    if as_json or get_settings().as_json:
        click.echo(json.dumps(rows, ensure_ascii=False))
        return
    if not rows and what == "recipes":
        click.echo(f"no recipes in {folder}; --recipes names another folder", err=True)
    for line in _columns(rows):
        click.echo(line)


def _recipes(folder: Path) -> list[dict[str, Any]]:
    from mlcbuild.errors import RecipeError
    from mlcbuild.recipe.read_toml import read_document

    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            tables: Any = read_document(path).tables
        except RecipeError as error:
            click.echo(f"warning: {error}", err=True)
            continue
        rows.append(
            {
                "name": tables.get("name"),
                "path": str(path),
                "source": _get(tables, "model", "source"),
                "quantizations": _get(tables, "quantization", "schemes"),
                "targets": _get(tables, "targets", "names"),
            }
        )
    return rows


def _get(tables: Any, *keys: str) -> Any:
    for key in keys:
        tables = tables.get(key) if isinstance(tables, dict) else None
    return tables


def _targets() -> list[dict[str, Any]]:
    from mlcbuild.targets.registry import get_target, target_names

    targets = [get_target(name) for name in target_names()]
    return [{"name": target.name, "summary": target.summary} for target in targets]


def _quantizations() -> list[dict[str, Any]]:
    from mlcbuild.quant.schemes import SCHEMES, scheme_names

    return [{"name": name, "summary": SCHEMES[name].summary} for name in scheme_names()]


def _architectures() -> list[dict[str, Any]]:
    from mlcbuild.arch.registry import architectures

    return [{"name": name} for name in architectures()]


def _columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Rows as text, aligned; lists joined by commas."""
    cells = [
        [",".join(map(str, value)) if isinstance(value, list) else str(value or "-")]
        for row in rows
        for value in row.values()
    ]
    width = len(rows[0]) if rows else 0
    table = [
        [cell[0] for cell in cells[index : index + width]]
        for index in range(0, len(cells), width or 1)
    ]
    sizes = [max(len(row[column]) for row in table) for column in range(width)]
    return [
        "  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip()
        for row in table
    ]
