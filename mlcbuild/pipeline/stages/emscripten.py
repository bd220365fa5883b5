"""Emscripten, the compiler and linker of WebAssembly: found on this machine, run apart from it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mlcbuild.core.atomic import write_atomic
from mlcbuild.core.process import minimal_environment
from mlcbuild.errors import ToolchainError
from mlcbuild.pipeline.action import ActionContext
from mlcbuild.store.store import Store

EMSCRIPTEN = "emscripten"
MIN_VERSION = "3.1.6"  # of Debian 12; older ones were not tried
_INSTALL = (
    "install it (Debian, Ubuntu: apt install emscripten; elsewhere: "
    "https://emscripten.org/docs/getting_started/downloads.html) and have emcc on the PATH"
)
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_VERSION_SECONDS = 60.0
_SETTING = re.compile(r"""^(\w+) *= *['"]([^'"\n]*)['"] *(?:#.*)?$""", re.MULTILINE)
_STEADY_LENGTH = 240  # longer than most stores' scratch folders
_NAME_MAX = 255


@dataclass(frozen=True, slots=True)
class Emscripten:
    """An installation: ``emcc`` is the program, ``root`` the folder it belongs to."""

    emcc: Path
    root: Path
    version: str


def emscripten_versions(store: Store) -> Mapping[str, str]:
    """For ``Action.tools``; ToolchainError without an Emscripten that is new enough."""
    tools = find_emscripten()
    cache = store.tool_cache("emscripten-versions") / "versions.json"
    return {EMSCRIPTEN: tools.version, **_helper_versions(tools.root, cache)}


def find_emscripten() -> Emscripten:
    """The ``emcc`` on the PATH; ToolchainError saying what to install."""
    found = shutil.which("emcc")
    if found is None:
        raise ToolchainError(
            "emcc was not found",
            why="Emscripten compiles everything that runs in a browser",
            hint=_INSTALL,
        )
    return _inspect(found)


@lru_cache(maxsize=4)
def _inspect(found: str) -> Emscripten:
    # A link into the installation, or a program within it.
    root = Path(found).resolve().parent
    version = _read_version(root) or _ask_version(found)
    if _as_tuple(version) < _as_tuple(MIN_VERSION):
        raise ToolchainError(
            f"{found} is Emscripten {version}",
            why=f"{MIN_VERSION} is the oldest that is known to work",
            hint=_INSTALL,
        )
    return Emscripten(Path(found), root, version)


def _helper_versions(root: Path, cache: Path) -> dict[str, str]:
    """What the compiler, linker and optimizer below emcc say of themselves, by their names.

    Debian has them in packages apart, which change without emcc. Asking takes a tenth of a second,
    so a program is asked again only when it is another file. One that is not where it is looked
    for is left out: emcc has it from elsewhere, or says itself that it is missing.
    """
    try:
        kept = json.loads(cache.read_bytes())
    except (OSError, ValueError):
        kept = {}
    found: dict[str, list[Any]] = {}
    for name, program in _helpers(root).items():
        try:
            stat = program.stat()
        except OSError:
            continue
        file = [str(program), stat.st_size, stat.st_mtime_ns]
        before = kept.get(name)
        if not isinstance(before, list) or before[:3] != file:
            before = [*file, _first_line(program)]
        found[name] = before
    if found != kept:
        write_atomic(cache, json.dumps(found).encode(), durable=False)
    return {name: str(entry[3]) for name, entry in found.items()}


def _first_line(program: Path) -> str:
    """Of what ``program --version`` says."""
    result = _ask([str(program), "--version"])
    said = result.stdout.strip().splitlines()
    if result.returncode != 0 or not said:
        raise _says_no_version(str(program), result)
    return said[0]


def _helpers(root: Path) -> dict[str, Path]:
    """The programs that emcc starts, as the installation's settings name them.

    Without settings they are beside ``root``, as in Emscripten's own SDK.
    """
    try:
        settings = dict(_SETTING.findall((root / ".emscripten").read_text(encoding="utf-8")))
    except OSError:
        settings = {}
    llvm = Path(settings.get("LLVM_ROOT", root.parent / "bin"))
    binaryen = Path(settings.get("BINARYEN_ROOT", root.parent)) / "bin"
    suffixes = [
        f"-{version}" if version else ""
        for version in (settings.get("CLANG_ADD_VERSION"), settings.get("LLVM_ADD_VERSION"))
    ]
    return {
        "clang": llvm / f"clang{suffixes[0]}",
        "wasm-ld": llvm / f"wasm-ld{suffixes[1]}",
        "wasm-opt": binaryen / "wasm-opt",
    }


def _read_version(root: Path) -> str | None:
    """From the installation's own file, which is quicker than asking emcc."""
    try:
        match = _VERSION.search((root / "emscripten-version.txt").read_text(encoding="utf-8"))
    except OSError:
        return None
    return match.group() if match else None


def _ask_version(emcc: str) -> str:
    result = _ask([emcc, "--version"])
    match = _VERSION.search(result.stdout.partition("\n")[0])
    if result.returncode != 0 or match is None:
        raise _says_no_version(emcc, result)
    return match.group()


def _ask(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_VERSION_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{command[0]} does not run", why=str(error), hint=_INSTALL) from error


def _says_no_version(program: str, result: subprocess.CompletedProcess[str]) -> ToolchainError:
    said = (result.stderr or result.stdout).strip() or "nothing"
    return ToolchainError(
        f"{program} does not tell its version", why=f"it said: {said}", hint=_INSTALL
    )


def _as_tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def run_emcc(
    context: ActionContext,
    arguments: Sequence[str | Path],
    cwd: Path,
    *,
    steady: bool = False,
) -> None:
    """Runs ``emcc ARGUMENTS`` in ``cwd``.

    ``steady``: with the same addresses every time; ``cwd`` is from ``steady_folder``, and
    ``arguments`` name files in it.
    """
    tools = find_emscripten()
    env = emscripten_environment(context, tools)
    command: list[str | Path] = [tools.emcc, *arguments]
    if steady:
        env["HOME"] = env["TMPDIR"] = str(cwd)
        command = [*fixed_addresses(), *command]
    context.run_process(command, cwd=cwd, env=env)


def steady_folder(base: Path) -> Path:
    """A new folder below ``base`` whose path is as long as that of any other such folder.

    clang up to 14 (Emscripten 3.1.6 has it) writes ``try`` and ``delegate`` of exceptions in the
    order of a hash table of addresses. These are the same every time if the system's randomness is
    off (``fixed_addresses``) and every text that clang allocates is as long as before.
    """
    folder = base / ("x" * _missing_length(base) if can_be_steady(base) else "steady")
    folder.mkdir()
    return folder


def can_be_steady(base: Path) -> bool:
    """Whether ``steady_folder`` of ``base`` has the length of the others: few are too deep."""
    return 0 < _missing_length(base) < _NAME_MAX


def _missing_length(base: Path) -> int:
    return _STEADY_LENGTH - len(str(base)) - 1


@lru_cache(maxsize=1)
def fixed_addresses() -> tuple[str, ...]:
    """What to put before a command so that its addresses are not random; empty if that is refused.

    (Containers may refuse it.)
    """
    setarch = shutil.which("setarch")
    if setarch is None:
        return ()
    try:
        tried = subprocess.run([setarch, "-R", "true"], capture_output=True, check=False)
    except OSError:
        return ()
    return (setarch, "-R") if tried.returncode == 0 else ()


def emscripten_environment(context: ActionContext, tools: Emscripten) -> dict[str, str]:
    """What Emscripten's programs see: no setting of the user's, scratch files in ``scratch``."""
    env = minimal_environment(context.scratch)
    env["PATH"] = os.pathsep.join((str(tools.emcc.parent), os.defpath))
    env["TMPDIR"] = str(context.scratch)
    if not _brings_libraries(tools.root):
        # Its C and C++ libraries, compiled when first used.
        env["EM_CACHE"] = str(context.tool_cache(EMSCRIPTEN))
    return env


def _brings_libraries(root: Path) -> bool:
    """Whether the installation's own cache can be used: one of Debian's is complete."""
    if os.access(root / "cache", os.W_OK):
        return True
    try:
        settings = (root / ".emscripten").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^FROZEN_CACHE\s*=\s*True", settings, re.MULTILINE) is not None
