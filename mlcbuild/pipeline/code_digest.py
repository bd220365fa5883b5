"""Digests of our own source code: comments, docstrings and layout do not count."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable
from pathlib import Path

from mlcbuild.core.stat_cache import StatCache, hash_file
from mlcbuild.errors import InternalError

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGE = _ROOT.name
_SKIPPED_FOLDERS = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache"})

# What only moves, names or shows things; it cannot change the bytes of a result. A stage that
# uses one of these for its output still names what matters in ``params``.
_MACHINERY = (
    "errors",
    "cli",
    "recipe",
    "store",
    "pipeline",
    "core.atomic",
    "core.locks",
    "core.process",
    "core.progress",
    "core.stat_cache",
    "core.suggest",
    "core.versions",
)
_NOT_MACHINERY = ("pipeline.stages",)


def _within(name: str, prefixes: Iterable[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _is_machinery(name: str) -> bool:
    inner = name[len(_PACKAGE) + 1 :]
    return not inner or (_within(inner, _MACHINERY) and not _within(inner, _NOT_MACHINERY))


def strip_source(text: str) -> str:
    """Python source without comments, docstrings and blank lines, so that these change no key."""
    import ast
    import tokenize

    tree = ast.parse(text)
    cut: list[tuple[tuple[int, int], tuple[int, int]]] = []
    lines = text.splitlines(keepends=True)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                start = (first.lineno, _characters(lines[first.lineno - 1], first.col_offset))
                last_line, last_byte = first.end_lineno or 0, first.end_col_offset or 0
                cut.append((start, (last_line, _characters(lines[last_line - 1], last_byte))))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            cut.append((token.start, token.end))
    for (first_line, first_column), (last_line, last_column) in sorted(cut, reverse=True):
        head = lines[first_line - 1][:first_column]
        tail = lines[last_line - 1][last_column:]
        lines[first_line - 1 : last_line] = [head + tail] + [""] * (last_line - first_line)
    stripped = "".join(lines).splitlines()
    return "\n".join(line.rstrip() for line in stripped if line.strip())


def _characters(line: str, byte_offset: int) -> int:
    """Ast counts UTF-8 bytes, tokenize characters."""
    return len(line.encode("utf-8")[:byte_offset].decode("utf-8"))


def imported_modules(text: str) -> list[str]:
    """Dotted names below our package that a source imports anywhere, functions included.

    ``from a import b`` gives ``a`` and ``a.b``; the caller drops what is no module.
    """
    import ast

    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return sorted(name for name in found if _within(name, [_PACKAGE]))


def _describe_python(path: Path) -> str:
    """Digest and imports of a source file, as JSON for the stat cache."""
    text = path.read_text(encoding="utf-8")
    digest = hashlib.sha256(strip_source(text).encode("utf-8")).hexdigest()
    return json.dumps([digest, imported_modules(text)])


class CodeIndex:
    """Finds and digests source files; what is unchanged costs a stat call per run.

    ``root`` is the folder of the package, ours unless a test passes another.
    """

    def __init__(self, stats: StatCache, root: Path = _ROOT) -> None:
        self._stats = stats
        self._root = root
        self._python: dict[Path, tuple[str, list[Path]]] = {}
        self._modules: dict[str, Path | None] = {}
        self._other: dict[Path, str] = {}

    def fields(self, names: Iterable[str]) -> dict[str, str]:
        """File (relative to the package) -> digest, for modules, packages and folders.

        Imports within the package are followed, except into the build machinery. Raises
        ``InternalError`` for a name that is nothing.
        """
        files: dict[str, str] = {}
        waiting: list[Path] = []
        for name in names:
            waiting.extend(self._files_of(name))
        seen: set[Path] = set()
        while waiting:
            path = waiting.pop()
            if path in seen:
                continue
            seen.add(path)
            relative = path.relative_to(self._root).as_posix()
            if path.suffix != ".py":
                files[relative] = self._other_digest(path)
                continue
            files[relative], imported = self._python_entry(path)
            waiting.extend(imported)
        return files

    def _python_entry(self, path: Path) -> tuple[str, list[Path]]:
        """Digest of a source file and the files that it imports."""
        if path not in self._python:
            digest, imports = json.loads(self._stats.compute("python", path, _describe_python))
            names: set[str] = set()
            for module in imports:
                parts = module.split(".")
                # Importing a.b.c runs a.b first.
                names.update(".".join(parts[:end]) for end in range(2, len(parts) + 1))
            found = [self._module_file(name) for name in sorted(names) if not _is_machinery(name)]
            self._python[path] = (digest, [file for file in found if file is not None])
        return self._python[path]

    def _other_digest(self, path: Path) -> str:
        if path not in self._other:
            self._other[path] = self._stats.compute("sha256", path, hash_file)
        return self._other[path]

    def _place(self, name: str) -> Path:
        first, *rest = name.split(".")
        if first != _PACKAGE:
            raise InternalError(f"{name} is not below {_PACKAGE}")
        return self._root.joinpath(*rest)

    def _module_file(self, name: str) -> Path | None:
        if name not in self._modules:
            place = self._place(name)
            candidates = (place.with_suffix(".py"), place / "__init__.py")
            self._modules[name] = next((path for path in candidates if path.is_file()), None)
        return self._modules[name]

    def _files_of(self, name: str) -> list[Path]:
        place = self._place(name)
        if place.is_dir():
            found = [
                path
                for path in sorted(place.rglob("*"))
                if path.is_file()
                and not _SKIPPED_FOLDERS.intersection(path.relative_to(self._root).parts)
                and path.suffix != ".pyc"
            ]
            if found:
                return found
        module = place.with_suffix(".py")
        if module.is_file():
            return [module]
        raise InternalError(f"no source code is named {name}")
