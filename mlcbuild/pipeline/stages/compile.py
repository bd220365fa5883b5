"""compile: the kernels of one variant become an object file."""

from __future__ import annotations

import json
from typing import Any

from mlcbuild.errors import InternalError, StageError
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.files import KERNELS, OBJECT, SCHEDULES
from mlcbuild.pipeline.stages.records import from_params, to_params
from mlcbuild.pipeline.stages.tools import tool_versions
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.targets.target import PlanTarget, Variant


def compile_action(
    target: PlanTarget, variant: Variant, lowered: Action, schedules: Action
) -> Action:
    """The action for the kernels that ``lowered`` made, with the ``schedules`` chosen for them."""
    capabilities = variant.capabilities
    return Action(
        stage="compile",
        version=2,
        subject=lowered.subject,
        run=_run,
        inputs={"lowered": lowered, "schedules": schedules},
        params={"triple": target.triple, "capabilities": to_params(capabilities)},
        tools=tool_versions("apache-tvm", "apache-tvm-ffi"),
        code=("mlcbuild.kernels",),
        describe=f"compile kernels for {variant.name}",
    )


def _run(context: ActionContext) -> None:
    import tvm

    params: dict[str, Any] = dict(context.params)
    capabilities = from_params(Capabilities, params["capabilities"])
    mod = tvm.ir.load_json((context.inputs["lowered"] / KERNELS).read_text(encoding="utf-8"))
    schedules = json.loads((context.inputs["schedules"] / SCHEDULES).read_bytes())
    mod = _apply_records(mod, capabilities, schedules)
    record: dict[str, Any] = {
        "kind": "llvm",
        "mtriple": params["triple"],
        "mcpu": capabilities.llvm_cpu,
    }
    if capabilities.architecture == "wasm":  # TVM would find the same, and say that it guessed
        record["vector-width"] = capabilities.vector_bits
    if capabilities.llvm_features:
        record["mattr"] = list(capabilities.llvm_features)
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


def _apply_records(mod: Any, capabilities: Capabilities, schedules: dict[str, Any]) -> Any:
    """The module with every kernel that has decisions built anew with these.

    Symbols have a prefix that the schedules do not know: the name of a kernel is what follows it.
    """
    import tvm

    from mlcbuild.kernels.registry import get_kernel_set, get_spaces
    from mlcbuild.kernels.tagged import build, read_tag

    functions = {}
    for gvar, func in mod.functions.items():
        name = gvar.name_hint.partition("_")[2]
        decisions = schedules[name].get("decisions")
        if decisions:
            tag = read_tag(func)
            if tag is None:
                raise InternalError(f"{name} has a schedule, but no template")
            space = get_spaces(capabilities)
            tiles = space.tiles_from(capabilities, tag.builder, dict(tag.args), decisions)
            new = build(get_kernel_set(capabilities)(capabilities, tiles), tag)
            func = new.with_attr("global_symbol", gvar.name_hint)
        functions[gvar] = func
    return tvm.IRModule(functions, attrs=mod.attrs)
