"""The rules of the package's shape: layers, absolute imports, module sizes, docstrings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mlcbuild"
MAX_LINES = 800

# A module imports only from rows above its own; modules of one row do not import each other.
ROWS = (
    ("errors",),
    ("core",),
    ("spec",),
    ("store", "bundle", "sources", "weights"),
    ("kernels", "nn"),
    ("arch", "quant", "passes", "tuning"),
    ("targets",),
    ("recipe",),
    ("pipeline",),
    ("engine", "server"),
    ("cli",),
)
ROW_OF = {part: row for row, parts in enumerate(ROWS) for part in parts}
WITHIN_A_ROW = {("nn", "kernels")}
# Where modules may import the compiler.
COMPILER_PARTS = {"kernels", "nn", "arch", "passes", "quant", "tuning", "pipeline"}


def modules(package: Path) -> list[Path]:
    """Every Python module; runtime_stub is C++ and imports nothing of ours."""
    stub = package / "runtime_stub"
    return sorted(path for path in package.rglob("*.py") if stub not in path.parents)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import; the names of ``from x import a`` are ``x.a``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def part_of(path: Path, package: Path) -> str:
    """The part that a module belongs to; __main__ is the command line."""
    name = path.relative_to(package).parts[0].removesuffix(".py")
    return "cli" if name == "__main__" else name


def violations(package: Path) -> list[str]:
    """Every import that breaks the layer rule, as ``file:line: what``."""
    found = []
    for path in modules(package):
        part = part_of(path, package)
        where = path.relative_to(package.parent)
        if part != "__init__" and part not in ROW_OF:
            found.append(f"{where}:1: {part} is in no row of the layer table")
            continue
        for line, name in imports(ast.parse(path.read_text(encoding="utf-8"))):
            if name.startswith("."):
                found.append(f"{where}:{line}: relative import {name}")
            package_name, _, rest = name.partition(".")
            if package_name == "mlcbuild" and not allowed(part, rest.partition(".")[0]):
                found.append(f"{where}:{line}: {part} may not import {name}")
    return found


def allowed(part: str, imported: str) -> bool:
    """Whether a module of ``part`` may import from the part ``imported``."""
    if imported == part or imported == "" or imported.startswith("__"):
        return True  # the part itself, the package, its __version__
    if part == "__init__" or imported not in ROW_OF:
        return False
    return ROW_OF[imported] < ROW_OF[part] or (part, imported) in WITHIN_A_ROW


def test_layers() -> None:
    found = violations(PACKAGE)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("core/a.py", "import mlcbuild.spec.digest", "core may not import mlcbuild.spec"),
        ("store/a.py", "import mlcbuild.bundle.reader", "store may not import mlcbuild.bundle"),
        ("arch/a.py", "from mlcbuild import targets", "arch may not import mlcbuild.targets"),
        ("cli/a.py", "def f():\n    from . import b", "cli/a.py:2: relative import"),
        ("misc/a.py", "", "misc is in no row"),
    ],
)
def test_a_broken_rule_is_found(tmp_path: Path, path: str, source: str, message: str) -> None:
    file = tmp_path / "mlcbuild" / path
    file.parent.mkdir(parents=True)
    file.write_text(source, encoding="utf-8")
    (found,) = violations(tmp_path / "mlcbuild")
    assert message in found


def test_what_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "mlcbuild" / "nn" / "layers.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import tvm\nfrom mlcbuild import __version__\nfrom mlcbuild.nn import attention\n"
        "from mlcbuild.kernels.cpu import norm\nfrom mlcbuild.errors import StageError\n",
        encoding="utf-8",
    )
    assert violations(tmp_path / "mlcbuild") == []


def test_the_compiler_is_imported_only_where_things_are_compiled() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules(PACKAGE)
        if part_of(path, PACKAGE) not in COMPILER_PARTS
        for line, name in imports(ast.parse(path.read_text(encoding="utf-8")))
        if name.split(".")[0] in {"tvm", "tvm_ffi"}
    ]
    assert not found, "\n" + "\n".join(found)


def test_the_environment_is_read_only_by_the_command_line() -> None:
    found = []
    for path in modules(PACKAGE):
        if part_of(path, PACKAGE) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"}:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: os.{node.attr}")
    assert not found, "\n" + "\n".join(found)


def test_modules_are_short_and_say_what_they_are() -> None:
    found = []
    for path in modules(PACKAGE):
        text = path.read_text(encoding="utf-8")
        lines = text.count("\n")
        if lines > MAX_LINES:
            found.append(f"{path.relative_to(ROOT)}: {lines} lines, more than {MAX_LINES}")
        if text.strip() and ast.get_docstring(ast.parse(text)) is None:
            found.append(f"{path.relative_to(ROOT)}: no docstring")
    assert not found, "\n" + "\n".join(found)
