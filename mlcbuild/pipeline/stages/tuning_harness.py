"""tuning-harness: the objects that candidates of a tuner are linked with."""

from __future__ import annotations

from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.runtime import COMPILE_FLAGS, ROOT
from mlcbuild.pipeline.stages.tools import tool_versions
from mlcbuild.pipeline.stages.zig import ZIG, run_zig
from mlcbuild.targets.target import NativeTarget

# Stripped, as the runtime's own library: zig compiles its C++ library once for each way to link.
LINK_FLAGS = ("-shared", "-fPIC", "-s", "-Wl,-z,undefs", "-lm")
SOURCES = ("tuning/harness.cc", "src/exec/thread_pool.cc")


def harness_action(target: NativeTarget) -> Action:
    """The action for ``target``; the runtime's thread pool is a part of it."""
    return Action(
        stage="tuning-harness",
        version=1,
        subject=target.name,
        run=_run,
        params={
            "triple": target.zig_triple,
            "compile_flags": list(COMPILE_FLAGS),
            "link_flags": list(LINK_FLAGS),
        },
        tools=tool_versions(ZIG),
        code=("mlcbuild.runtime_stub.tuning", "mlcbuild.runtime_stub.src.exec"),
        describe="compile what candidates run on",
    )


def _run(context: ActionContext) -> None:
    triple = str(context.params["triple"])
    for number, source in enumerate(SOURCES):
        output = context.out / f"{number}.o"
        flags = ["-target", triple, *COMPILE_FLAGS, "-O2"]
        run_zig(context, ["c++", *flags, "-c", source, "-o", output], ROOT)
    # Once here, where nobody waits with a clock in hand: the first link compiles the C++ library.
    objects = [str(context.out / f"{number}.o") for number in range(len(SOURCES))]
    link = ["c++", "-target", triple, *LINK_FLAGS, *objects, "-o", "trial.so"]
    run_zig(context, link, context.scratch)
