"""What composing a bundle.json takes, whatever kind of bundle it is of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlcbuild.bundle.manifest import FileEntry
from mlcbuild.bundle.tree import hash_file, list_payload
from mlcbuild.errors import StageError


def payload_entries(out_dir: Path) -> list[FileEntry]:
    """The entries of all payload files in ``out_dir``, sorted by path."""
    return [
        FileEntry(path=path, size=size, sha256=digest)
        for path in list_payload(out_dir)
        for digest, size in [hash_file(out_dir / path)]
    ]


def read_part(out_dir: Path, path: str) -> dict[str, Any]:
    """A JSON object of the bundle; StageError if it is not there or something else."""
    try:
        value = json.loads((out_dir / path).read_bytes())
    except FileNotFoundError:
        raise StageError(
            "the bundle lacks parts", where=str(out_dir), why=f"missing: {path}"
        ) from None
    except ValueError as error:
        raise StageError(f"{path} is not JSON", where=str(out_dir), why=str(error)) from None
    if not isinstance(value, dict):
        raise StageError(f"{path} is not a JSON object", where=str(out_dir))
    return value


def refuse_contradictions(out_dir: Path, problems: Sequence[str]) -> None:
    """StageError if there are any."""
    if problems:
        raise StageError(
            "the parts of the bundle do not fit together",
            where=str(out_dir),
            why="; ".join(problems),
            hint="parts of different builds were mixed: build the bundle again",
        )
