"""runtime: the C++ runtime of a bundle, as a shared library and a small executable."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import mlcbuild
from mlcbuild.errors import InternalError
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.tools import tool_versions
from mlcbuild.pipeline.stages.zig import ZIG, run_zig
from mlcbuild.targets.target import NativeTarget

ROOT = Path(mlcbuild.__file__).parent / "runtime_stub"
COMPILE_FLAGS = (
    "-std=c++17",
    "-Wall",
    "-Wextra",
    "-Werror",  # the compiler is pinned: what has no warning here has none anywhere
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
# By section of sources.txt; a platform's own hold what only it needs.
OPTIMIZE = {
    "library": "-O2",
    "library small": "-Os",
    "posix": "-Os",
    "web": "-Os",
    "executable": "-Os",
}
PLATFORMS = ("posix", "web")
# Without it the C++ library's operators new and delete leak out.
EXPORTS = ROOT / "src" / "abi" / "exports.map"
LINK_FLAGS = ("-s", "-Wl,--gc-sections", "-Wl,--build-id=none", "-Wl,-z,now")


@dataclass(frozen=True)
class RuntimeUnit:
    """C++ sources that are compiled together, relative to the runtime's folder."""

    paths: tuple[str, ...]
    optimize: str
    in_library: bool

    @property
    def name(self) -> str:
        """Name of its object, without the ending."""
        return self.paths[0].replace("/", "_").removesuffix(".cc") + self.optimize

    def input_arguments(self) -> list[str]:
        """What a compiler reads: the last source, the others put in front of it."""
        *others, last = self.paths
        return [word for path in others for word in ("-include", path)] + ["-c", last]

    def compile_arguments(self, triple: str, output: str) -> list[str]:
        """Arguments of zig, for the runtime's folder as the current one."""
        flags = ["-target", triple, *COMPILE_FLAGS, self.optimize]
        return ["c++", *flags, *self.input_arguments(), "-o", output]


def runtime_action(target: NativeTarget) -> Action:
    """The action for ``target``; every bundle of the target shares its output."""
    return Action(
        stage="runtime",
        version=3,
        subject=target.name,
        run=_run,
        params={
            "triple": target.zig_triple,
            "library": target.runtime_file,
            "units": [f"{unit.name} {' '.join(unit.paths)}" for unit in read_units(ROOT)],
            "compile_flags": list(COMPILE_FLAGS),
            "link_flags": list(LINK_FLAGS),
        },
        tools=tool_versions(ZIG),
        code=("mlcbuild.runtime_stub.src", "mlcbuild.runtime_stub.include"),
        describe="compile the runtime",
    )


def read_units(root: Path, platform: str = "posix") -> list[RuntimeUnit]:
    """What sources.txt lists for a platform, the library first.

    A section and folder make a unit.
    """
    units: dict[tuple[str, str], list[str]] = {}
    section = ""
    for line in (root / "sources.txt").read_text(encoding="utf-8").splitlines():
        text = line.split("#")[0].strip()
        if text.startswith("["):
            section = text.strip("[]")
        elif text:
            units.setdefault((section, text.rpartition("/")[0]), []).append(text)
    if {section for section, _ in units} != set(OPTIMIZE):
        raise InternalError(
            f"runtime_stub/sources.txt: expected the sections {', '.join(OPTIMIZE)}"
        )
    return [
        RuntimeUnit(tuple(paths), OPTIMIZE[section], section != "executable")
        for (section, _), paths in units.items()
        if section not in PLATFORMS or section == platform
    ]


def _run(context: ActionContext) -> None:
    units = read_units(ROOT)
    work = context.scratch / "runtime"
    work.mkdir()
    triple = str(context.params["triple"])
    with context.progress.task("compile", len(units), "units") as task:

        def compile_one(unit: RuntimeUnit) -> str:
            # Compiled where the sources lie, so that zig's cache knows them again; their names are
            # relative: no path of this machine gets in.
            name = f"{unit.name}.o"
            run_zig(context, unit.compile_arguments(triple, str(work / name)), ROOT)
            task.advance()
            return name

        # The first one alone: it also compiles zig's C++ library, which the others then share.
        objects = [compile_one(units[0])]
        with ThreadPoolExecutor(max_workers=max(1, context.threads)) as pool:
            objects += pool.map(compile_one, units[1:])
    core = [name for unit, name in zip(units, objects, strict=True) if unit.in_library]
    file = str(context.params["library"])
    link = ["c++", "-target", triple, *LINK_FLAGS]
    shared = ["-shared", f"-Wl,-soname,{file}", f"-Wl,--version-script={EXPORTS}"]
    run_zig(context, [*link, *shared, "-o", file, *core], work)
    run_zig(context, [*link, "-o", "mlcb", *objects], work)
    for folder, name in (("lib", file), ("bin", "mlcb")):
        (context.out / folder).mkdir()
        shutil.copy(work / name, context.out / folder / name)
    (context.out / "bin" / "mlcb").chmod(0o755)
    (context.out / "include").mkdir()
    shutil.copyfile(ROOT / "include" / "mlcb.h", context.out / "include" / "mlcb.h")
