"""WebAssembly: the runtime's objects, and modules that they and a bundle's kernels become."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.emscripten import (
    can_be_steady,
    fixed_addresses,
    run_emcc,
    steady_folder,
)
from mlcbuild.pipeline.stages.files import OBJECT, PLAN
from mlcbuild.pipeline.stages.runtime import COMPILE_FLAGS, ROOT, read_units
from mlcbuild.pipeline.stages.web_page import WEB_CODE, copy_page
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.targets.target import Variant, WasmTarget

# Exceptions are the engine's own, not those through JavaScript.
WASM_FLAGS = ("-fwasm-exceptions", "-msimd128")
LINK_FLAGS = (
    "-fwasm-exceptions",
    "-O1",  # from 2 on Emscripten runs binaryen, which in 3.1.6 refuses relaxed SIMD
    "-Wl,--strip-all",
    "--no-entry",
    "-sSTANDALONE_WASM=1",
    "-sWASM_BIGINT=1",
    "-sALLOW_MEMORY_GROWTH=1",
    "-sMAXIMUM_MEMORY=4GB",
    "-sTOTAL_STACK=2MB",  # regular expressions and templates nest 400 levels deep
    "-sEXPORTED_FUNCTIONS=_malloc,_free",
    "-sERROR_ON_UNDEFINED_SYMBOLS=1",
)
# Slots that kernels call the runtime through; an object has those that its kernels use.
SLOTS = (
    "__TVMBackendAllocWorkspace",
    "__TVMBackendFreeWorkspace",
    "__TVMBackendParallelLaunch",
    "__TVMBackendParallelBarrier",
)
HOOK = "mlcb_kernel_error_hook"
SHIM = "src/exec/kernel_shim.c"


def wasm_runtime_action(target: WasmTarget, emscripten: Mapping[str, str]) -> Action:
    """The action that compiles the runtime; every bundle of the target shares its objects.

    ``emscripten``: versions of its programs.
    """
    return Action(
        stage="runtime",
        version=1,
        subject=target.name,
        run=_compile,
        params={
            "units": [f"{unit.name} {' '.join(unit.paths)}" for unit in read_units(ROOT, "web")],
            "compile_flags": [*COMPILE_FLAGS, *WASM_FLAGS],
        },
        tools=emscripten,
        code=("mlcbuild.runtime_stub.src", "mlcbuild.runtime_stub.include"),
        describe="compile the runtime",
    )


def web_files_action(target: WasmTarget) -> Action:
    """The action for what a bundle's users get beside the modules: header and JavaScript."""
    return Action(
        stage="web-files",
        version=1,
        subject=target.name,
        run=_copy_files,
        code=("mlcbuild.runtime_stub.include", WEB_CODE),
        describe="copy the runtime's JavaScript",
    )


def module_action(
    target: WasmTarget,
    scheme: QuantScheme,
    file: str,
    runtime: Action,
    lowered: Mapping[str, Action],
    compiled: Mapping[str, Action],
) -> Action:
    """The action for the module ``file``; ``lowered`` and ``compiled`` are by variant."""
    variants = target.module_variants(scheme, file)
    inputs = {"runtime": runtime}
    for variant in variants:
        inputs[f"lower:{variant.name}"] = lowered[variant.name]
        inputs[f"compile:{variant.name}"] = compiled[variant.name]
    features: dict[str, None] = {}
    for variant in variants:
        features.update(dict.fromkeys(variant.capabilities.features))
    subject = lowered[variants[0].name].subject.rpartition("/")[0]
    return Action(
        stage="link",
        version=1,
        subject=f"{subject}/{file}",
        run=_link,
        inputs=inputs,
        params={
            "file": file,
            "variants": {variant.name: target.kernels_file(variant) for variant in variants},
            "features": list(features),
            "link_flags": list(LINK_FLAGS),
        },
        tools=runtime.tools,
        code=("mlcbuild.runtime_stub.src.exec", "mlcbuild.runtime_stub.src.core"),
        describe=f"link {file}",
    )


def module_files(target: WasmTarget, variants: Sequence[Variant]) -> tuple[str, ...]:
    """The modules of a bundle with these variants, best first."""
    return tuple(dict.fromkeys(target.kernels_file(variant) for variant in variants))


def _compile(context: ActionContext) -> None:
    units = [unit for unit in read_units(ROOT, "web") if unit.in_library]
    flags = [*COMPILE_FLAGS, *WASM_FLAGS]
    if not fixed_addresses():
        context.progress.note(
            "this system does not let programs run at fixed addresses (setarch -R): "
            "the modules' bytes may differ from one build to the next"
        )
    if not can_be_steady(context.scratch):
        context.progress.note(
            f"the path of the store's scratch folders has {len(str(context.scratch))} characters: "
            "the modules' bytes may differ from those of a store with a shorter one"
        )
    work = steady_folder(context.scratch)
    for folder in ("src", "include"):
        shutil.copytree(ROOT / folder, work / folder)
    with context.progress.task("compile", len(units), "units") as task:

        def compile_one(index: int) -> None:
            unit = units[index]
            output = f"{unit.name}.o"
            arguments = [*flags, unit.optimize, *unit.input_arguments(), "-o", output]
            run_emcc(context, arguments, work, steady=True)
            shutil.copyfile(work / output, context.out / output)
            task.advance()

        with ThreadPoolExecutor(max_workers=max(1, context.threads)) as pool:
            list(pool.map(compile_one, range(len(units))))


def _copy_files(context: ActionContext) -> None:
    (context.out / "include").mkdir()
    shutil.copyfile(ROOT / "include" / "mlcb.h", context.out / "include" / "mlcb.h")
    copy_page(context.out)


def kernel_table(libraries: Sequence[tuple[str, Sequence[str]]], features: Sequence[str]) -> str:
    """C source that registers kernels that are linked in (src/core/linked_kernels.h).

    ``libraries``: for each, the file that its variant names in bundle.json, and its symbols.
    """
    lines = ['#include "core/linked_kernels.h"']
    names = [*SLOTS, HOOK]
    lines += [f"extern __attribute__((weak)) void* {name};" for name in names]
    tables, records = [], []
    for number, (file, symbols) in enumerate(libraries):
        lines += [f"extern int {name}(void*, const void*, int, void*);" for name in symbols]
        entries = [f'  {{"{name}", (void*)&{name}}},' for name in [*symbols, *names]]
        tables += [f"static const mlcb_linked_symbol symbols_{number}[] = {{", *entries, "};"]
        records.append(f'  {{"{file}", symbols_{number}, {len(entries)}, 0}},')
    lines += [*tables, "static mlcb_linked_library libraries[] = {", *records, "};"]
    lines += [
        f'const char* const mlcb_module_features = "{" ".join(features)}";',
        "__attribute__((constructor)) static void register_all(void) {",
        f"  for (int i = 0; i < {len(records)}; ++i) mlcb_register_kernels(&libraries[i]);",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _link(context: ActionContext) -> None:
    params = json.loads(json.dumps(dict(context.params)))
    work = context.scratch / "link"
    work.mkdir()
    libraries = []
    objects = []
    for number, (variant, file) in enumerate(params["variants"].items()):
        plan = json.loads((context.inputs[f"lower:{variant}"] / PLAN).read_bytes())
        prefix = f"__tvm_ffi_{plan['symbol_prefix']}"
        libraries.append((file, [prefix + name for name in plan["kernels"]]))
        objects.append(f"kernels_{number}.o")
        shutil.copyfile(context.inputs[f"compile:{variant}"] / OBJECT, work / objects[-1])
    table = work / "table.c"
    table.write_text(kernel_table(libraries, params["features"]), encoding="utf-8")
    include = f"-I{ROOT / 'src'}"
    for source, name in (("table.c", "table.o"), (ROOT / SHIM, "shim.o")):
        run_emcc(context, ["-Os", "-g0", include, "-c", source, "-o", name], work)
        objects.append(name)
    for path in sorted(context.inputs["runtime"].glob("*.o")):
        shutil.copyfile(path, work / path.name)
        objects.append(path.name)
    run_emcc(context, [*LINK_FLAGS, *objects, "-o", params["file"]], work)
    shutil.copyfile(work / params["file"], context.out / params["file"])
