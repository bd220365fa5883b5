"""web_library: a model's objects and TVM's runtime, linked as the client's WebAssembly library."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from mlcbuild.core.atomic import format_bytes
from mlcbuild.errors import StageError
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.emscripten import run_emcc
from mlcbuild.pipeline.stages.files import WASM_LIBRARY
from mlcbuild.pipeline.stages.wasm_file import WasmModule, read_wasm

# What the client calls by name; the rest it finds by TVM's registry.
EXPORTS = (
    "TVMFFIAnyViewToOwnedAny",
    "TVMFFIDataTypeToString",
    "TVMFFIErrorSetRaisedFromCStr",
    "TVMFFIFunctionCall",
    "TVMFFIFunctionGetGlobal",
    "TVMFFIFunctionSetGlobal",
    "TVMFFIGetTypeInfo",
    "TVMFFIObjectDecRef",
    "TVMFFIObjectIncRef",
    "TVMFFITypeKeyToIndex",
    "TVMFFIWasmFunctionCreate",
    "TVMFFIWasmGetLastError",
    "TVMWasmAllocSpace",
    "TVMWasmFreeSpace",
)
# What the client brings: with any other import it does not load the library.
_WASI = (
    "clock_time_get",
    "environ_get",
    "environ_sizes_get",
    "fd_close",
    "fd_read",
    "fd_seek",
    "fd_write",
    "proc_exit",
)
IMPORTS = frozenset(
    {
        ("env", "TVMFFIWasmSafeCall"),
        ("env", "TVMFFIWasmFunctionDeleter"),
        ("env", "emscripten_notify_memory_growth"),
        *(("wasi_snapshot_preview1", name) for name in _WASI),
    }
)
LINK_FLAGS = (
    "--no-entry",
    "-g0",
    "-sSTANDALONE_WASM=1",
    "-sWASM_BIGINT=1",
    "-sALLOW_MEMORY_GROWTH=1",
    "-sINITIAL_MEMORY=33554432",
    "-sERROR_ON_UNDEFINED_SYMBOLS=0",  # the client's own functions; all others are refused below
    "-Wno-undefined",
    "-Wl,--strip-all",
    "-sEXPORTED_FUNCTIONS=" + ",".join(f"_{name}" for name in EXPORTS),
)
_MAX_BYTES = 16 * 1024 * 1024  # far more than any model's code: weights are elsewhere


def web_library_action(
    compiled: Action, runtime: Action, optimize: str, emscripten: Mapping[str, str]
) -> Action:
    """``compiled`` is of web_compile, ``runtime`` of web_runtime.

    ``optimize`` is the linker's level: "1" takes a second of CPU, "2" 20 for two thirds of the
    size, "3" 80 for 3 % less. ``emscripten``: versions of its programs.
    """
    return Action(
        stage="web_library",
        version=1,
        subject=compiled.subject,
        run=_run,
        inputs={"compiled": compiled, "runtime": runtime},
        params={"optimize": optimize, "link_flags": list(LINK_FLAGS)},
        tools=emscripten,
        describe="link the library for the browser",
    )


def _run(context: ActionContext) -> None:
    objects: list[str] = []
    for name in ("compiled", "runtime"):
        for path in sorted(context.inputs[name].glob("*.o")):
            objects.append(f"{name}_{path.name}")
            shutil.copyfile(path, context.scratch / objects[-1])
    optimize = str(context.params["optimize"])
    # Names without folders: the linker writes them into the module.
    run_emcc(context, [f"-O{optimize}", *LINK_FLAGS, *objects, "-o", WASM_LIBRARY], context.scratch)
    library = context.scratch / WASM_LIBRARY
    check_library(read_wasm(library), library)
    shutil.copyfile(library, context.out / WASM_LIBRARY)


def check_library(module: WasmModule, path: Path) -> None:
    """StageError if the client could not load the module at ``path``."""
    unknown = sorted(f"{owner}.{name}" for owner, name in module.imports - IMPORTS)
    missing = sorted(set(EXPORTS) - module.exports)
    size = path.stat().st_size
    problems = [f"it imports {', '.join(unknown)}"] if unknown else []
    problems += [f"it lacks {', '.join(missing)}"] if missing else []
    problems += [f"it takes {format_bytes(size)}"] if size > _MAX_BYTES else []
    if problems:
        raise StageError(
            "the browser's client cannot load the linked library",
            where=str(path),
            why="; ".join(problems),
            hint="a version of Apache TVM or Emscripten that mlcbuild was not made for?",
        )
