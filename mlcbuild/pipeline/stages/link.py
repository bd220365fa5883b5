"""link: one variant's kernels become a shared library that needs only libc and libm."""

from __future__ import annotations

import shutil
from pathlib import Path

import mlcbuild
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.files import OBJECT
from mlcbuild.pipeline.stages.tools import tool_versions
from mlcbuild.pipeline.stages.zig import ZIG, run_zig
from mlcbuild.targets.target import NativeTarget, Variant

SHIM = "runtime_stub/src/exec/kernel_shim.c"


def link_action(target: NativeTarget, variant: Variant, compiled: Action) -> Action:
    """The action for the object file that ``compiled`` made."""
    return Action(
        stage="link",
        version=1,
        subject=compiled.subject,
        run=_run,
        inputs={"compiled": compiled},
        params={
            "triple": target.zig_triple,
            "file": target.kernels_file(variant),
        },
        tools=tool_versions(ZIG),
        code=("mlcbuild.runtime_stub.src.exec",),
        describe=f"link kernels for {variant.name}",
    )


def _run(context: ActionContext) -> None:
    work = context.scratch
    shutil.copyfile(context.inputs["compiled"] / OBJECT, work / "kernels.o")
    shutil.copyfile(Path(mlcbuild.__file__).parent / SHIM, work / "kernel_shim.c")
    name = str(context.params["file"])
    command = [
        "cc",
        "-target",
        str(context.params["triple"]),
        "-O2",
        "-g0",
        "-s",
        "-fPIC",
        "-shared",
        "-Wl,--build-id=none",
        "-Wl,-z,now",
        f"-Wl,-soname,{name}",
        "-o",
        name,
        "kernels.o",
        "kernel_shim.c",
        "-lm",
    ]
    run_zig(context, command, work)
    shutil.copyfile(work / name, context.out / name)
