"""What a source was pinned to: the record that lock files hold."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlcbuild.errors import SourceError
from mlcbuild.sources.reference import Kind

HashFile = Callable[[Path], str]  # sha256 of a file, 64 hex digits


@dataclass(frozen=True, slots=True)
class ResolvedFile:
    """One file; the hub states a sha256 for large files and a Git id (sha1) for small ones."""

    path: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None

    def to_json(self) -> dict[str, object]:
        """Without the digests that are not known."""
        record: dict[str, object] = {"path": self.path, "size": self.size}
        if self.sha256 is not None:
            record["sha256"] = self.sha256
        if self.git_sha1 is not None:
            record["git_sha1"] = self.git_sha1
        return record


@dataclass(frozen=True, slots=True)
class ResolvedSource:
    """A source with nothing left open: the same record always means the same bytes.

    ``name`` is the repository or package ("" for local ones); ``revision`` the commit or version;
    ``wheel`` the package's file. ``location`` is the path of a local source; it is no part of the
    record, since the same bytes may lie elsewhere.
    """

    source: str
    kind: Kind
    name: str
    revision: str
    files: tuple[ResolvedFile, ...]
    license: str | None = None
    wheel: ResolvedFile | None = None
    location: Path | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, object]:
        """The lock file's entry."""
        return {
            "source": self.source,
            "kind": self.kind,
            "name": self.name,
            "revision": self.revision,
            "license": self.license,
            "files": [file.to_json() for file in self.files],
            "wheel": None if self.wheel is None else self.wheel.to_json(),
        }

    def identity(self) -> dict[str, object]:
        """What decides a build's result: names, sizes and digests of the files, nothing else."""
        return {"files": [file.to_json() for file in self.files]}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ResolvedSource:
        """The inverse of ``to_json``; SourceError for a damaged record."""
        try:
            wheel = record.get("wheel")
            license_id = record.get("license")
            kind = record["kind"]
            if kind not in ("local", "gguf", "hf", "pypi"):
                raise ValueError(f"unknown kind {kind!r}")
            return cls(
                source=str(record["source"]),
                kind=kind,
                name=str(record["name"]),
                revision=str(record["revision"]),
                files=tuple(_file_from_json(file) for file in record["files"]),
                license=None if license_id is None else str(license_id),
                wheel=None if wheel is None else _file_from_json(wheel),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SourceError(
                "the pinned source in the lock file is damaged",
                why=repr(error),
                hint="remove its entry from the lock file to pin it again",
            ) from error


def check_file(path: Path, expected: ResolvedFile, hash_file: HashFile) -> None:
    """Compares a file with its record; SourceError if it is missing, of another size or altered."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise SourceError(
            f"{expected.path} is missing", where=str(path), hint="run the fetch again"
        ) from None
    if size != expected.size:
        raise SourceError(
            f"{expected.path} has {size:,} bytes, {expected.size:,} were expected",
            where=str(path),
            why="it was truncated or replaced",
            hint="remove it and fetch again",
        )
    if expected.sha256 is not None:
        found, wanted, algorithm = hash_file(path), expected.sha256, "sha256"
    elif expected.git_sha1 is not None:
        found, wanted, algorithm = git_sha1(path.read_bytes()), expected.git_sha1, "Git id"
    else:
        return
    if found != wanted:
        raise SourceError(
            f"{expected.path} has the {algorithm} {found}, {wanted} was expected",
            where=str(path),
            why="the file was altered or is not the pinned one",
            hint="remove it and fetch again; if the source was changed on purpose, remove its"
            " entry from the lock file",
        )


def git_sha1(data: bytes) -> str:
    """The id that Git gives to a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _file_from_json(record: Mapping[str, Any]) -> ResolvedFile:
    sha256, git_id = record.get("sha256"), record.get("git_sha1")
    path = str(record["path"])
    if "/" in path or path in ("", ".", ".."):
        raise ValueError(f"{path!r} is not a file name")
    return ResolvedFile(
        path=path,
        size=int(record["size"]),
        sha256=None if sha256 is None else str(sha256),
        git_sha1=None if git_id is None else str(git_id),
    )
