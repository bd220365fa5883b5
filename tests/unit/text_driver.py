"""Builds the C++ test driver of the runtime's text parts and talks to it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

FLAGS = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"]
TEXT_PARTS = (
    "added_tokens",
    "bpe",
    "byte_trie",
    "decoder",
    "normalizer",
    "pre_tokenizer",
    "precompiled",
    "regex",
    "regex_compile",
    "stream",
    "tokenizer",
    "tokenizer_file",
    "unicode",
    "unicode_tables",
    "unigram",
    "vocab",
)
RUNTIME = Path(__file__).resolve().parents[2] / "mlcbuild" / "runtime_stub"


def find_compiler() -> list[str] | None:
    """Return the command of a C++ compiler, or None."""
    if shutil.which("g++"):
        return ["g++"]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    return None


def build_driver(config: pytest.Config) -> Path:
    """Compile the driver into pytest's cache, unless it is there; skips without a compiler."""
    compiler = find_compiler()
    if compiler is None or config.cache is None:
        pytest.skip("no C++ compiler (neither g++ nor the ziglang package), or no pytest cache")
    sources = [
        RUNTIME / "src/core/json.cc",
        *(RUNTIME / f"src/text/{name}.cc" for name in TEXT_PARTS),
        RUNTIME / "tests/text_driver.cc",
    ]
    digest = hashlib.sha256("\0".join([*compiler, *FLAGS]).encode())
    headers = [path for part in ("core", "text") for path in (RUNTIME / "src" / part).glob("*.h")]
    for path in [*sources, *sorted(headers), RUNTIME / "include/mlcb.h"]:
        digest.update(path.read_bytes())
    folder = config.cache.mkdir("text_driver")
    driver = folder / digest.hexdigest()[:16]
    if driver.exists():
        return driver

    def compile_one(source: Path) -> Path:
        output = scratch / f"{source.stem}.o"
        includes = [f"-I{RUNTIME / 'src'}", f"-I{RUNTIME / 'include'}"]
        run([*compiler, *FLAGS, *includes, "-c", str(source), "-o", str(output)])
        return output

    with tempfile.TemporaryDirectory(dir=folder) as name:
        scratch = Path(name)
        with ThreadPoolExecutor(max_workers=2) as pool:
            objects = list(pool.map(compile_one, sources))
        run([*compiler, *map(str, objects), "-o", str(scratch / "driver"), "-pthread"])
        (scratch / "driver").replace(driver)
    return driver


def run(command: Sequence[str]) -> None:
    """Run a compiler command; its output becomes the test's failure."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{result.stderr}")


class DriverError(Exception):
    """What the runtime refused; status is the mlcb_status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Driver:
    """One process of the driver; call it with an op and its arguments."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def __call__(self, op: str, **arguments: Any) -> Any:
        """Return the answer; bytes arguments go in as hex. Raises DriverError."""
        for key, value in arguments.items():
            if isinstance(value, bytes):
                arguments[key] = value.hex()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            pytest.fail(f"the driver died at {op}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "status" in answer and "error" in answer:
            raise DriverError(answer["error"], answer["status"])
        return answer
