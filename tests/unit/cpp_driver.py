"""Compiles small C++ test drivers over parts of the runtime, into pytest's cache."""

from __future__ import annotations

import hashlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.text_driver import RUNTIME, find_compiler, run

# As the product is compiled, so that what is tested is what ships.
FLAGS = ["-std=c++17", "-O2", "-ffp-contract=off", "-fno-rtti", "-Wall", "-Wextra", "-Werror"]


def build_cpp(config: pytest.Config, driver: str, sources: list[str]) -> Path:
    """The program ``tests/<driver>.cc`` with ``sources``, all relative to the runtime's folder."""
    compiler = find_compiler()
    if compiler is None or config.cache is None:
        pytest.fail("no C++ compiler (neither g++ nor the ziglang package), or no pytest cache")
    files = [RUNTIME / "tests" / f"{driver}.cc", *(RUNTIME / source for source in sources)]
    digest = hashlib.sha256("\0".join([*compiler, *FLAGS]).encode())
    for path in [*files, *sorted(RUNTIME.glob("src/**/*.h")), *RUNTIME.glob("include/*.h")]:
        digest.update(path.read_bytes())
    folder = config.cache.mkdir(driver)
    program = folder / digest.hexdigest()[:16]
    if program.exists():
        return program

    def compile_one(source: Path) -> Path:
        output = scratch / f"{source.stem}.o"
        includes = [f"-I{RUNTIME / 'src'}", f"-I{RUNTIME / 'include'}"]
        run([*compiler, *FLAGS, *includes, "-c", str(source), "-o", str(output)])
        return output

    with tempfile.TemporaryDirectory(dir=folder) as name:
        scratch = Path(name)
        with ThreadPoolExecutor(max_workers=2) as pool:
            objects = list(pool.map(compile_one, files))
        run([*compiler, *map(str, objects), "-o", str(scratch / "program"), "-pthread"])
        (scratch / "program").replace(program)
    return program
