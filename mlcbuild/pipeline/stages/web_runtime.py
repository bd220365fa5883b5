"""web_runtime: what a browser's model library has of TVM's runtime, as WebAssembly objects."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlcbuild
from mlcbuild.errors import ToolchainError
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.emscripten import run_emcc
from mlcbuild.pipeline.stages.tools import package_folder, tool_versions

ROOT = Path(mlcbuild.__file__).parent / "runtime_stub" / "platform" / "web_tvm"
# Nothing is exported by its own wish: the linker gets a list, and drops what nobody calls.
_UNEXPORTED = (
    "TVM_DLL",
    "TVM_DLL_EXPORT",
    "TVM_RUNTIME_DLL",
    "TVM_RUNTIME_DLL_EXPORT",
    "TVM_FFI_DLL",
    "TVM_FFI_DLL_EXPORT",
)
COMPILE_FLAGS = (
    "-std=c++17",
    "-Os",
    "-g0",
    "-DNDEBUG",
    "-Wno-ignored-attributes",
    "-Iinclude",
    "-I.",
    "-DTVM_LOG_DEBUG=0",
    "-DTVM_LOG_CUSTOMIZE=1",
    "-DTVM_FFI_USE_LIBBACKTRACE=0",
    # An exception ends the module, so its message must be out before.
    "-DTVM_FFI_ALWAYS_LOG_BEFORE_THROW=1",
    *(f"-D{name}=" for name in _UNEXPORTED),
)
_TVM, _FFI = "apache-tvm", "apache-tvm-ffi"


def web_runtime_action(emscripten: Mapping[str, str]) -> Action:
    """The action whose objects every model's library is linked with.

    ``emscripten``: versions of its programs.
    """
    return Action(
        stage="web_runtime",
        version=1,
        subject="web",
        run=_run,
        params={
            "units": {name: list(paths) for name, paths in read_units(ROOT).items()},
            "compile_flags": list(COMPILE_FLAGS),
        },
        tools={**tool_versions(_TVM, _FFI), **emscripten},
        code=("mlcbuild.runtime_stub.platform.web_tvm",),
        describe="compile TVM's runtime for the browser",
    )


def read_units(root: Path) -> dict[str, tuple[str, ...]]:
    """The sources of each unit that ``root``/units.txt lists, by the unit's name."""
    units: dict[str, tuple[str, ...]] = {}
    name = ""
    for line in (root / "units.txt").read_text(encoding="utf-8").splitlines():
        text = line.split("#")[0].strip()
        if text.startswith("["):
            name = text.strip("[]")
            units[name] = ()
        elif text:
            units[name] += (text,)
    return units


def _run(context: ActionContext) -> None:
    units = read_units(ROOT)
    tree = context.scratch / "tree"
    _lay_out(tree)
    with context.progress.task("compile", len(units), "units") as task:

        def compile_one(item: tuple[str, tuple[str, ...]]) -> None:
            name, paths = item
            lines = "".join(f'#include "{path}"\n' for path in paths)
            (tree / f"{name}.unit.cc").write_text(lines, encoding="utf-8")
            # Names are relative: no path of this machine gets into messages.
            words = [*COMPILE_FLAGS, "-c", f"{name}.unit.cc"]
            run_emcc(context, [*words, "-o", f"{name}.o"], tree)
            shutil.copyfile(tree / f"{name}.o", context.out / f"{name}.o")
            task.advance()

        with ThreadPoolExecutor(max_workers=max(1, context.threads)) as pool:
            list(pool.map(compile_one, units.items()))


def _lay_out(tree: Path) -> None:
    """The sources of the packages as they lie in TVM's own repository, with ours among them."""
    tvm, ffi = package_folder("tvm", _TVM), package_folder("tvm_ffi", _FFI)
    for source, place in (
        (tvm / "include", "include"),
        (tvm / "src" / "runtime", "src/runtime"),
        (tvm / "web" / "emcc", "web/emcc"),
        (ffi / "include", "include"),
        (ffi / "src" / "ffi", "ffi"),
        (ROOT / "include", "include"),
        (ROOT / "support", "src/support"),
    ):
        if not source.is_dir():
            raise ToolchainError(
                f"{source} does not exist",
                why="TVM's runtime for the browser is compiled from the sources in its package",
                hint=f"install {_TVM} from PyPI: its wheels bring them",
            )
        shutil.copytree(source, tree / place, dirs_exist_ok=True)
    shutil.copyfile(ROOT / "client.cc", tree / "client.cc")
