"""Opens a bundle folder and checks it against its manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mlcbuild.bundle.client_manifest import AnyManifest, read_any_manifest
from mlcbuild.bundle.manifest import (
    CHAT_VERSION,
    GOLDEN_VERSION,
    MANIFEST_NAME,
    PARAMS_VERSION,
    PLAN_VERSION,
    BundleManifest,
    FileEntry,
    ManifestBase,
    is_attestation,
    read_manifest,
)
from mlcbuild.bundle.tree import hash_file, walk_files
from mlcbuild.errors import VerificationError

ProblemKind = Literal["missing", "size", "altered", "unexpected", "refused", "unreadable"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One file that is not what the manifest names; both values are given where there are two."""

    kind: ProblemKind
    path: str
    expected: str | None = None
    found: str | None = None

    def __str__(self) -> str:
        if self.kind == "missing":
            return f"{self.path}: missing ({self.expected})"
        if self.kind == "size":
            return f"{self.path}: {self.found}, the manifest says {self.expected}"
        if self.kind == "altered":
            return f"{self.path}: altered: sha256 {self.found}, the manifest says {self.expected}"
        if self.kind == "unexpected":
            return f"{self.path}: not in the manifest"
        if self.kind == "refused":
            return f"{self.path}: a link or special file, which a bundle may not hold"
        return f"{self.path}: cannot be read: {self.found}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification looked at and found."""

    bundle: str
    tree_digest: str
    full: bool  # whether the params were hashed as well
    files: int
    bytes_hashed: int
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, object]:
        """A JSON-able record."""
        return {
            "bundle": self.bundle,
            "ok": self.ok,
            "tree_digest": self.tree_digest,
            "full": self.full,
            "files": self.files,
            "bytes_hashed": self.bytes_hashed,
            "problems": [
                {
                    "kind": problem.kind,
                    "path": problem.path,
                    "expected": problem.expected,
                    "found": problem.found,
                }
                for problem in self.problems
            ],
        }

    def check(self) -> None:
        """Raises ``VerificationError`` naming every problem, if there are any."""
        if self.problems:
            count = len(self.problems)
            raise VerificationError(
                f"{count} file{'s' if count > 1 else ''} of the bundle "
                f"{'are' if count > 1 else 'is'} not what the manifest names",
                where=self.bundle,
                why="; ".join(str(problem) for problem in self.problems),
                hint="fetch or build the bundle again",
            )


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle folder whose manifest was read and checked."""

    path: Path
    manifest: BundleManifest

    def file(self, path: str) -> Path:
        """The absolute place of a file that the manifest lists."""
        return self.path / path

    def read_json(self, path: str) -> dict[str, Any]:
        """A JSON file of the bundle; ``VerificationError`` if it does not read."""
        try:
            value = json.loads(self.file(path).read_bytes())
        except (OSError, ValueError) as error:
            raise VerificationError(
                f"{path} of the bundle does not read", where=str(self.path), why=str(error)
            ) from None
        if not isinstance(value, dict):
            raise VerificationError(f"{path} is not a JSON object", where=str(self.path))
        return value


def open_bundle(path: Path) -> Bundle:
    """Reads the manifest in folder ``path`` and checks that every listed file has its size.

    Versions are looked at first. Hashes are the business of ``verify_bundle`` and of the runtime.

    Raises ``VerificationError``: not a bundle, other versions, or every missing or cut-off file;
    ``UsageError`` for a bundle that our runtime does not run.
    """
    bundle = Bundle(path.resolve(), read_manifest(path))
    _check_sizes(path, bundle.manifest)
    return bundle


def open_any_manifest(path: Path) -> AnyManifest:
    """The manifest of a bundle of any kind, its files looked at as by ``open_bundle``."""
    manifest = read_any_manifest(path)
    _check_sizes(path, manifest)
    return manifest


def _check_sizes(path: Path, manifest: ManifestBase) -> None:
    root = path.resolve()
    problems = [
        problem for entry in manifest.files if (problem := _check_size(root, entry)) is not None
    ]
    VerifyReport(
        str(path), manifest.tree_digest, False, len(manifest.files), 0, tuple(problems)
    ).check()


def verify_bundle(
    path: Path, *, full: bool = True, progress: Callable[[int], None] | None = None
) -> VerifyReport:
    """Compares the folder ``path`` with its manifest: versions, then sizes, then hashes.

    Without ``full`` the params' bytes are not hashed (their sizes are still compared). Every
    problem is in the report; call its ``check()`` to raise. ``progress`` is told the bytes of each
    file once it is hashed. Raises ``VerificationError`` if the manifest itself does not read.
    """
    root, manifest = path.resolve(), read_any_manifest(path)
    if isinstance(manifest, BundleManifest):
        _check_inner_versions(Bundle(root, manifest))
    present, refused = walk_files(root)
    problems = [Problem("refused", name) for name in refused]
    listed = {entry.path for entry in manifest.files}
    problems += [
        Problem("unexpected", name)
        for name in present
        if name not in listed and name != MANIFEST_NAME and not is_attestation(name)
    ]
    hashed = 0
    wrong_kind = set(refused)
    for entry in manifest.files:
        if entry.path in wrong_kind:
            continue
        problem = _check_size(root, entry)
        if problem is None and (full or not _is_shard(entry.path)):
            problem = _check_hash(root, entry)
            hashed += entry.size
        if problem is not None:
            problems.append(problem)
        if progress is not None:
            progress(entry.size)
    problems.sort(key=lambda problem: problem.path)
    return VerifyReport(
        str(path), manifest.tree_digest, full, len(manifest.files), hashed, tuple(problems)
    )


def _is_shard(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith("params_shard_") and name.endswith(".bin")


def _check_size(root: Path, entry: FileEntry) -> Problem | None:
    file = root / entry.path
    try:
        if _through_link(root, entry.path):
            return Problem("refused", entry.path)
        if not file.is_file():
            return Problem("missing", entry.path, expected=f"{entry.size} bytes")
        size = file.stat().st_size
    except OSError as error:
        return Problem("unreadable", entry.path, found=error.strerror)
    if size != entry.size:
        return Problem("size", entry.path, f"{entry.size} bytes", f"{size} bytes")
    return None


def _through_link(root: Path, path: str) -> bool:
    current = root
    for part in path.split("/"):
        current = current / part
        if current.is_symlink():
            return True
    return False


def _check_hash(root: Path, entry: FileEntry) -> Problem | None:
    try:
        found, _ = hash_file(root / entry.path)
    except OSError as error:
        return Problem("unreadable", entry.path, found=error.strerror)
    if found != entry.sha256:
        return Problem("altered", entry.path, entry.sha256, found)
    return None


def _check_inner_versions(bundle: Bundle) -> None:
    """Checks the versions of the plans, params, chat and golden files, where these read at all.

    A missing or damaged one is found by its size or hash and named with the others.
    """
    manifest = bundle.manifest
    expected: Iterable[tuple[str | None, str, int]] = [
        *((variant.plan, "plan_version", PLAN_VERSION) for variant in manifest.variants),
        (manifest.params, "params_version", PARAMS_VERSION),
        (manifest.chat, "chat_version", CHAT_VERSION),
        (manifest.golden, "golden_version", GOLDEN_VERSION),
    ]
    wrong: list[str] = []
    for path, key, known in expected:
        if path is None:
            continue
        try:
            value = json.loads(bundle.file(path).read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(value, dict) and key in value and value[key] != known:
            wrong.append(f"{path}: {key} is {value[key]}, this mlcbuild reads {known}")
    if wrong:
        raise VerificationError(
            "the bundle holds files of other format versions",
            where=str(bundle.path),
            why="; ".join(wrong),
            hint="use the mlcbuild that made the bundle, or build it again with this one",
        )
