"""runtime: the C++ runtime of a bundle, as a shared library and a small executable."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlcbuild
from mlcbuild.errors import InternalError
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.tools import tool_versions
from mlcbuild.pipeline.stages.zig import ZIG, run_zig
from mlcbuild.targets.target import Target

ROOT = Path(mlcbuild.__file__).parent / "runtime_stub"
COMPILE_FLAGS = (
    "-std=c++17",
    "-O2",
    "-g0",
    "-fPIC",
    "-fno-rtti",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-Isrc",
    "-Iinclude",
)
EXPORTS = "src/abi/exports.map"  # without it the C++ library's operators new and delete leak out
LINK_FLAGS = ("-s", "-Wl,--gc-sections", "-Wl,--build-id=none", "-Wl,-z,now")


def runtime_action(target: Target) -> Action:
    """The action for ``target``; every bundle of the target shares its output."""
    library, executable = read_sources(ROOT)
    return Action(
        stage="runtime",
        version=1,
        subject=target.name,
        run=_run,
        params={
            "triple": target.zig_triple,
            "library": f"libmlcb{target.library_suffix}",
            "sources": [*library, "", *executable],
            "compile_flags": list(COMPILE_FLAGS),
            "link_flags": list(LINK_FLAGS),
        },
        tools=tool_versions(ZIG),
        code=("mlcbuild.runtime_stub.src", "mlcbuild.runtime_stub.include"),
        describe="compile the runtime",
    )


def read_sources(root: Path) -> tuple[list[str], list[str]]:
    """Sources of the library and of the executable, from sources.txt."""
    library: list[str] = []
    executable: list[str] = []
    current = library
    for line in (root / "sources.txt").read_text(encoding="utf-8").splitlines():
        text = line.split("#")[0].strip()
        if text == "[executable]":
            current = executable
        elif text == "[library]":
            current = library
        elif text:
            current.append(text)
    if not library or not executable:
        raise InternalError("runtime_stub/sources.txt lists no sources")
    return library, executable


def _run(context: ActionContext) -> None:
    library, executable = read_sources(ROOT)
    work = context.scratch / "runtime"  # relative names only: no path of this machine gets in
    for folder in ("src", "include"):
        shutil.copytree(ROOT / folder, work / folder)
    triple = str(context.params["triple"])
    sources = [*library, *executable]
    with context.progress.task("compile", len(sources), "files") as task:

        def compile_one(source: str) -> str:
            name = source.replace("/", "_") + ".o"
            command = ["c++", "-target", triple, *COMPILE_FLAGS, "-c", source, "-o", name]
            run_zig(context, command, work)
            task.advance()
            return name

        # The first one alone: it also compiles zig's C++ library, which the others then share.
        objects = {sources[0]: compile_one(sources[0])}
        with ThreadPoolExecutor(max_workers=max(1, context.threads)) as pool:
            objects.update(zip(sources[1:], pool.map(compile_one, sources[1:]), strict=True))
    file = str(context.params["library"])
    link = ["c++", "-target", triple, *LINK_FLAGS]
    core = [objects[source] for source in library]
    shared = ["-shared", f"-Wl,-soname,{file}", f"-Wl,--version-script={EXPORTS}"]
    run_zig(context, [*link, *shared, "-o", file, *core], work)
    main = [objects[source] for source in executable]
    run_zig(context, [*link, "-o", "mlcb", *core, *main], work)
    for folder, name in (("lib", file), ("bin", "mlcb")):
        (context.out / folder).mkdir()
        shutil.copy(work / name, context.out / folder / name)
    (context.out / "bin" / "mlcb").chmod(0o755)
    (context.out / "include").mkdir()
    shutil.copyfile(ROOT / "include" / "mlcb.h", context.out / "include" / "mlcb.h")
