"""The runtime's objects, compiled as the product compiles them, each once for all tests."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlcbuild.pipeline.stages.runtime import COMPILE_FLAGS, ROOT, RuntimeSource, read_sources

RUNTIME = ROOT
TARGET = "x86_64-linux-gnu.2.28"
LINK_FLAGS = ("-s", "-Wl,--gc-sections", "-Wl,--build-id=none")


def zig(*arguments: str | Path) -> None:
    """Run the pinned zig toolchain in the runtime's folder; what it says is in the error."""
    command = [sys.executable, "-m", "ziglang", *map(str, arguments)]
    done = subprocess.run(command, cwd=RUNTIME, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def headers_digest() -> bytes:
    """Of every header: a change of one compiles everything again."""
    digest = hashlib.sha256("\0".join(COMPILE_FLAGS).encode())
    for path in sorted([*RUNTIME.glob("src/**/*.h"), *RUNTIME.glob("include/*.h")]):
        digest.update(path.read_bytes())
    return digest.digest()


def compile_all(cache: pytest.Cache, sources: Sequence[RuntimeSource]) -> list[Path]:
    """The objects of ``sources``, kept in pytest's cache until they or a header change."""
    folder = cache.mkdir("runtime_objects")
    headers = headers_digest()

    def compile_one(source: RuntimeSource) -> Path:
        digest = hashlib.sha256(headers + f"{TARGET} {source}".encode())
        digest.update((RUNTIME / source.path).read_bytes())
        output = folder / f"{digest.hexdigest()[:20]}.o"
        if not output.exists():
            scratch = folder / f"{output.stem}.{os.getpid()}.tmp.o"
            zig(*source.compile_arguments(TARGET, str(scratch)))
            scratch.replace(output)
        return output

    # The first one alone: it also compiles zig's C++ library, which the others then share.
    first = [compile_one(source) for source in sources[:1]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return first + list(pool.map(compile_one, sources[1:]))


def library_objects(cache: pytest.Cache) -> list[Path]:
    """All objects of libmlcb."""
    return compile_all(cache, [source for source in read_sources(RUNTIME) if source.in_library])


def build_program(cache: pytest.Cache, driver: str) -> Path:
    """``tests/<driver>.cc`` linked with the library's objects, in pytest's cache."""
    core = library_objects(cache)
    own = compile_all(cache, [RuntimeSource(f"tests/{driver}.cc", "-O1", False)])
    digest = hashlib.sha256("".join(path.name for path in [*core, *own]).encode())
    program = cache.mkdir("runtime_programs") / f"{driver}-{digest.hexdigest()[:16]}"
    if not program.exists():
        scratch = program.with_suffix(f".{os.getpid()}.tmp")
        zig("c++", "-target", TARGET, *LINK_FLAGS, *core, *own, "-o", scratch)
        scratch.replace(program)
    return program
