"""The runtime's objects as the product compiles them, each once for all tests and benches."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
    folders = ("src/**/*.h", "include/*.h", "tests/*.h")
    for path in sorted(path for pattern in folders for path in RUNTIME.glob(pattern)):
        digest.update(path.read_bytes())
    return digest.digest()


def compile_all(base: Path, sources: Sequence[RuntimeSource]) -> list[Path]:
    """The objects of ``sources``, kept in ``base``/objects until they or a header change."""
    folder = base / "objects"
    folder.mkdir(parents=True, exist_ok=True)
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


def library_objects(base: Path) -> list[Path]:
    """All objects of libmlcb."""
    return compile_all(base, [source for source in read_sources(RUNTIME) if source.in_library])


def build_program(base: Path, name: str) -> Path:
    """``tests/<name>.cc`` linked with the library's objects, kept in ``base``/programs."""
    core = library_objects(base)
    own = compile_all(base, [RuntimeSource(f"tests/{name}.cc", "-O1", False)])
    digest = hashlib.sha256("".join(path.name for path in [*core, *own]).encode())
    program = base / "programs" / f"{name}-{digest.hexdigest()[:16]}"
    if not program.exists():
        program.parent.mkdir(exist_ok=True)
        scratch = program.with_suffix(f".{os.getpid()}.tmp")
        zig("c++", "-target", TARGET, *LINK_FLAGS, *core, *own, "-o", scratch)
        scratch.replace(program)
    return program
