"""The runtime's objects as the product compiles them, each once for all tests and benches."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mlcbuild.pipeline.stages.runtime import COMPILE_FLAGS, ROOT, RuntimeUnit, read_units

RUNTIME = ROOT
TARGET = "x86_64-linux-gnu.2.28"
LINK_FLAGS = ("-s", "-Wl,--gc-sections", "-Wl,--build-id=none")


def zig(*arguments: str | Path) -> None:
    """Run the pinned zig toolchain in the runtime's folder; what it says is in the error."""
    command = [sys.executable, "-m", "ziglang", *map(str, arguments)]
    done = subprocess.run(command, cwd=RUNTIME, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def headers_digest(flags: str) -> bytes:
    """Of ``flags`` and every header: a change of one compiles everything again."""
    digest = hashlib.sha256(flags.encode())
    folders = ("src/**/*.h", "include/*.h", "tests/*.h")
    for path in sorted(path for pattern in folders for path in RUNTIME.glob(pattern)):
        digest.update(path.read_bytes())
    return digest.digest()


def compile_units(
    base: Path, units: Sequence[RuntimeUnit], flags: str, run: Callable[[RuntimeUnit, Path], object]
) -> list[Path]:
    """The objects of ``units``, kept in ``base``/objects until they, a header or ``flags`` change.

    ``run`` compiles a unit to a file; the runtime's folder is the current one of its compiler.
    """
    folder = base / "objects"
    folder.mkdir(parents=True, exist_ok=True)
    headers = headers_digest(flags)

    def compile_one(unit: RuntimeUnit) -> Path:
        digest = hashlib.sha256(headers + repr(unit).encode())
        for path in unit.paths:
            digest.update((RUNTIME / path).read_bytes())
        output = folder / f"{unit.name}-{digest.hexdigest()[:20]}.o"
        if not output.exists():
            scratch = folder / f"{output.stem}.{os.getpid()}.tmp.o"
            run(unit, scratch)
            scratch.replace(output)
        return output

    # The first one alone: it also compiles zig's C++ library, which the others then share.
    first = [compile_one(unit) for unit in units[:1]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return first + list(pool.map(compile_one, units[1:]))


def compile_all(base: Path, units: Sequence[RuntimeUnit]) -> list[Path]:
    """The objects of ``units`` as the product compiles them."""
    return compile_units(
        base,
        units,
        " ".join([TARGET, *COMPILE_FLAGS]),
        lambda unit, output: zig(*unit.compile_arguments(TARGET, str(output))),
    )


def library_units() -> list[RuntimeUnit]:
    """All units of libmlcb."""
    return [unit for unit in read_units(RUNTIME) if unit.in_library]


def program_unit(name: str) -> RuntimeUnit:
    """``tests/<name>.cc`` as a unit."""
    return RuntimeUnit((f"tests/{name}.cc",), "-O1", False)


def build_program(base: Path, name: str) -> Path:
    """``tests/<name>.cc`` linked with the library's objects, kept in ``base``/programs."""
    core = compile_all(base, library_units())
    own = compile_all(base, [program_unit(name)])
    digest = hashlib.sha256("".join(path.name for path in [*core, *own]).encode())
    program = base / "programs" / f"{name}-{digest.hexdigest()[:16]}"
    if not program.exists():
        program.parent.mkdir(exist_ok=True)
        scratch = program.with_suffix(f".{os.getpid()}.tmp")
        zig("c++", "-target", TARGET, *LINK_FLAGS, *core, *own, "-o", scratch)
        scratch.replace(program)
    return program
