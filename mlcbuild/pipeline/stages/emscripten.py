"""Emscripten, the compiler and linker of WebAssembly: found on this machine, run apart from it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mlcbuild.core.process import minimal_environment
from mlcbuild.errors import ToolchainError
from mlcbuild.pipeline.action import ActionContext

EMSCRIPTEN = "emscripten"
MIN_VERSION = "3.1.6"  # of Debian 12; older ones were not tried
_INSTALL = (
    "install it (Debian, Ubuntu: apt install emscripten; elsewhere: "
    "https://emscripten.org/docs/getting_started/downloads.html) and have emcc on the PATH"
)
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_VERSION_SECONDS = 60.0
_STEADY_LENGTH = 240  # longer than most stores' scratch folders
_NAME_MAX = 255


@dataclass(frozen=True, slots=True)
class Emscripten:
    """An installation: ``emcc`` is the program, ``root`` the folder it belongs to."""

    emcc: Path
    root: Path
    version: str


def emscripten_versions() -> Mapping[str, str]:
    """For ``Action.tools``; ToolchainError without an Emscripten that is new enough."""
    return {EMSCRIPTEN: find_emscripten().version}


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


def _read_version(root: Path) -> str | None:
    """From the installation's own file, which is quicker than asking emcc."""
    try:
        match = _VERSION.search((root / "emscripten-version.txt").read_text(encoding="utf-8"))
    except OSError:
        return None
    return match.group() if match else None


def _ask_version(emcc: str) -> str:
    try:
        result = subprocess.run(
            [emcc, "--version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_VERSION_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{emcc} does not run", why=str(error), hint=_INSTALL) from error
    match = _VERSION.search(result.stdout.partition("\n")[0])
    if result.returncode != 0 or match is None:
        said = (result.stderr or result.stdout).strip() or "nothing"
        raise ToolchainError(
            f"{emcc} does not tell its version", why=f"it said: {said}", hint=_INSTALL
        )
    return match.group()


def _as_tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def run_emcc(
    context: ActionContext,
    arguments: Sequence[str | Path],
    cwd: Path,
    *,
    program: str = "emcc",
    steady: bool = False,
) -> None:
    """Runs ``program ARGUMENTS`` of Emscripten in ``cwd``: ``emcc``, ``em++`` or ``emar``.

    ``steady``: with the same addresses every time; ``cwd`` is from ``steady_folder``, and
    ``arguments`` name files in it.
    """
    tools = find_emscripten()
    env = emscripten_environment(context, tools)
    command: list[str | Path] = [tools.emcc.with_name(program), *arguments]
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
    missing = _STEADY_LENGTH - len(str(base)) - 1
    folder = base / ("x" * missing) if 0 < missing < _NAME_MAX else base / "steady"
    folder.mkdir()
    return folder


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
