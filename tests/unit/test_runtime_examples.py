"""The C and C++ examples of the runtime's interface compile strictly, and the docs quote them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "mlcbuild" / "runtime_stub"
EXAMPLES = sorted((RUNTIME / "examples").glob("*.c*"))
STRICT = ["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{RUNTIME / 'include'}"]


def compiler_for(path: Path) -> list[str]:
    """The compiler and the standard for a source; the pinned zig where the system has none."""
    gnu, zig, standard = ("gcc", "cc", "c89") if path.suffix == ".c" else ("g++", "c++", "c++17")
    command = [gnu] if shutil.which(gnu) else [sys.executable, "-m", "ziglang", zig]
    return [*command, f"-std={standard}"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_compile(path: Path) -> None:
    command = [*compiler_for(path), *STRICT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_example_is_there() -> None:
    assert [path.name for path in EXAMPLES] == ["batch.cc", "generate.c", "tool_call.cc"]


def test_the_docs_quote_the_examples() -> None:
    """Each block of C in docs/c-abi.md stands in an example, word for word."""
    sources = {
        "c": (RUNTIME / "examples" / "generate.c").read_text(),
        "cpp": "".join(path.read_text() for path in EXAMPLES if path.suffix == ".cc"),
    }
    text = (ROOT / "docs" / "c-abi.md").read_text()
    blocks = re.findall(r"^```(c|cpp)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 12
    for language, block in blocks:
        assert block in sources[language], block


def test_the_docs_name_functions_that_exist() -> None:
    header = (RUNTIME / "include" / "mlcb.h").read_text()
    known = set(re.findall(r"\b(?:mlcb|MLCB)_\w+", header))
    used = set(re.findall(r"\b(?:mlcb|MLCB)_\w+", (ROOT / "docs" / "c-abi.md").read_text()))
    assert len(used) > 30
    assert used - known == set()


def test_the_docs_list_every_metric() -> None:
    """The table of docs/metrics.md and the names in metrics.cc are the same."""
    source = (RUNTIME / "src" / "engine" / "metrics.cc").read_text()
    exposed = set(
        re.findall(r'out\.(?:counter|gauge|family|by_status|histogram)\(\s*"(\w+)"', source)
    )
    text = (ROOT / "docs" / "metrics.md").read_text()
    for group in re.findall(r"mlcb_(\w*)\{(\w+,\w+)\}(\w*)", text):
        text += "".join(f" mlcb_{group[0]}{part}{group[2]}" for part in group[1].split(","))
    listed = set(re.findall(r"\bmlcb_(\w+)", text)) - {"engine_metrics", "speculation_"}
    assert {re.sub(r"_count$", "", name) for name in listed} == exposed
