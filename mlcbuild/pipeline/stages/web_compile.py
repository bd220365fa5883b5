"""web_compile: a model becomes objects of WebAssembly, with its kernels as WebGPU's shaders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlcbuild.core import canonical_json
from mlcbuild.core.canonical_json import Json
from mlcbuild.errors import StageError
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.files import LIBRARY, MODEL
from mlcbuild.pipeline.stages.lower import check_context, choose_window
from mlcbuild.pipeline.stages.records import from_params, to_params
from mlcbuild.pipeline.stages.tools import architecture_code, tool_versions
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.spec.attention import AttentionSpec
from mlcbuild.spec.limits import Limits
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.targets.target import ClientTarget


def web_compile_action(
    spec: BuildSpec, target: ClientTarget, scheme: QuantScheme, model: Action, dump_ir: Path | None
) -> Action:
    """The objects of the model's library, and library.json: what it tells of itself."""
    dump = None if dump_ir is None else dump_ir / spec.scheme / target.name

    def run(context: ActionContext) -> None:
        _run(context, dump)

    params: dict[str, Json] = {
        "host_triple": target.host_triple,
        "shared_memory": target.shared_memory,
        "scheme": to_params(scheme),
        "limits": to_params(spec.limits),
        "sliding_window_size": spec.sliding_window_size,
        "attention_sink_size": spec.attention_sink_size,
        "tie_word_embeddings": spec.tie_word_embeddings,
    }
    return Action(
        stage="web_compile",
        version=1,
        subject=spec.subject,
        run=run,
        inputs={"model": model},
        params=params,
        tools=tool_versions("apache-tvm", "apache-tvm-ffi"),
        code=architecture_code("config", "model"),
        describe="compile for the browser",
    )


def _run(context: ActionContext, dump: Path | None) -> None:
    import tvm

    from mlcbuild.passes.compile_web import compile_web
    from mlcbuild.passes.device_needs import (
        check_dispatches,
        device_needs,
        layer_bytes,
        memory_needs,
        planned_bytes,
        token_bytes,
    )
    from mlcbuild.passes.lower_model import dump_module
    from mlcbuild.passes.schedule_linear import generic_products

    params: dict[str, Any] = dict(context.params)
    target = tvm.target.Target(
        {"kind": "webgpu", "max_shared_memory_per_block": params["shared_memory"]},
        host={"kind": "llvm", "mtriple": params["host_triple"], "vector-width": 128},
    )
    source = _read_model(context, params)
    mod, metadata = _build(source, target)
    dump_module(dump, 0, "export", mod)
    planned: list[Any] = []

    def keep(module: Any) -> None:
        planned.append(module)
        dump_module(dump, 1, "planned", module)

    executable = compile_web(mod, target, keep)
    (planned_mod,) = planned
    check_dispatches(planned_mod)
    _export(executable, context.out)
    needs = device_needs("\n".join(_shaders(executable.mod)))
    attention: AttentionSpec = source.attention
    limits = needs.limits | memory_needs(planned_mod, attention, source.limits)
    library = {
        "metadata": metadata,
        "needs": {"features": list(needs.features), "limits": limits},
        "kv_bytes_per_token": attention.layers * token_bytes(attention, source.limits),
        "kv_bytes": attention.layers * layer_bytes(attention, source.limits),
        "scratch_bytes": planned_bytes(planned_mod),
        "notes": [
            f"{name} has a generic kernel: {why}"
            for name, why in generic_products(planned_mod).items()
        ],
    }
    (context.out / LIBRARY).write_bytes(canonical_json.encode(library))


def _read_model(context: ActionContext, params: dict[str, Any]) -> Any:
    """The model with its layers rewritten, as the passes take it (a WebInput)."""
    from mlcbuild.arch.registry import get_architecture
    from mlcbuild.passes.web_model import WebInput
    from mlcbuild.quant.layers import rewrite_layers
    from mlcbuild.quant.row_layers import RowPacking

    description = json.loads((context.inputs["model"] / MODEL).read_bytes())
    architecture = get_architecture(description["architecture"])
    config = architecture.config.read_config(
        description["config"], tie_word_embeddings=params["tie_word_embeddings"]
    )
    scheme = from_params(QuantScheme, params["scheme"])
    limits = from_params(Limits, params["limits"])
    check_context(limits, config)
    attention: AttentionSpec = architecture.model.attention_spec(config)
    window = choose_window(
        attention.window, params["sliding_window_size"], params["attention_sink_size"], limits
    )
    model = architecture.model.Model(config)
    rewrite_layers(model, RowPacking(scheme))
    return WebInput(
        model=model,
        attention=replace(attention, window=window),
        limits=limits,
        model_type=description["architecture"],
        scheme=scheme.name,
        vocab_size=config.vocab_size,
        window_is_asked_for=params["sliding_window_size"] is not None,
    )


def _build(source: Any, target: Any) -> tuple[Any, dict[str, Any]]:
    """(module, what its function _metadata gives)."""
    from mlcbuild.passes.web_model import build_web_module

    mod = build_web_module(source, target)
    metadata: dict[str, Any] = json.loads(str(mod["_metadata"].body.body.value))
    return mod, metadata


def _export(executable: Any, out: Path) -> None:
    """Writes the objects: the host's code, and what registers shaders and functions with TVM."""

    def keep(output: str, objects: list[str], **_: Any) -> None:
        for path in objects:
            shutil.copyfile(path, out / Path(path).name)
        Path(output).touch()  # TVM looks for it

    keep.object_format = "o"  # type: ignore[attr-defined]
    try:
        executable.export_library(str(out / "unlinked"), fcompile=keep)
    except Exception as error:  # TVM raises many types; the message is what helps
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise StageError("the compiler refused the model", why=lines[-1]) from error
    (out / "unlinked").unlink()


def _shaders(module: Any) -> Iterator[str]:
    """The sources of all device modules."""
    for part in module.imports:
        if part.kind == "webgpu":
            yield str(part.inspect_source())
        else:
            yield from _shaders(part)
