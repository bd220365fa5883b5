"""compile: the kernels of one variant become an object file."""

from __future__ import annotations

import json
from typing import Any

from mlcbuild.errors import StageError
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.files import KERNELS, OBJECT
from mlcbuild.pipeline.stages.tools import tool_versions
from mlcbuild.targets.target import Target, Variant


def compile_action(target: Target, variant: Variant, lowered: Action) -> Action:
    """The action for the kernels that ``lowered`` made."""
    capabilities = variant.capabilities
    return Action(
        stage="compile",
        version=1,
        subject=lowered.subject,
        run=_run,
        inputs={"lowered": lowered},
        params={
            "triple": target.triple,
            "cpu": capabilities.llvm_cpu,
            "features": list(capabilities.llvm_features),
        },
        tools=tool_versions("apache-tvm", "apache-tvm-ffi"),
        describe=f"compile kernels for {variant.name}",
    )


def _run(context: ActionContext) -> None:
    import tvm

    params: dict[str, Any] = dict(context.params)
    mod = tvm.ir.load_json((context.inputs["lowered"] / KERNELS).read_text(encoding="utf-8"))
    record: dict[str, Any] = {
        "kind": "llvm",
        "mtriple": params["triple"],
        "mcpu": params["cpu"],
    }
    if params["features"]:
        record["mattr"] = list(params["features"])
    target = tvm.target.Target(record)
    try:
        library = tvm.compile(mod, target)
    except Exception as error:  # TVM raises many types; the message is what helps
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise StageError(
            "the compiler refused the kernels", where=str(record), why=lines[-1]
        ) from error
    module = getattr(library, "mod", library)
    module.write_to_file(str(context.out / OBJECT), "o")
    context.log.write_text(json.dumps(record) + "\n", encoding="utf-8")
