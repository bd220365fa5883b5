"""lower: the model's definition becomes an execution plan and scheduled kernels in TIR."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlcbuild.core import canonical_json
from mlcbuild.core.canonical_json import Json
from mlcbuild.errors import StageError
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.files import KERNELS, MODEL, PLAN, SCHEDULES
from mlcbuild.pipeline.stages.records import from_params, to_params
from mlcbuild.pipeline.stages.tools import architecture_code, tool_versions
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.spec.attention import AttentionSpec
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.kv import Window
from mlcbuild.spec.layout import Layout
from mlcbuild.spec.limits import Limits
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.targets.target import PlanTarget, Variant

if TYPE_CHECKING:
    from mlcbuild.kernels.tagged import KernelTag


def lower_action(
    spec: BuildSpec,
    target: PlanTarget,
    variant: Variant,
    scheme: QuantScheme,
    layout: Layout,
    model: Action,
    dump_ir: Path | None,
) -> Action:
    """The action for one kernel variant; reads the model's description, never its weights."""
    params: dict[str, Json] = {
        "target": target.name,
        "variant": variant.name,
        "activations": variant.activations,
        "capabilities": to_params(variant.capabilities),
        "scheme": to_params(scheme),
        "layout": to_params(layout),
        "limits": to_params(spec.limits),
        "sliding_window_size": spec.sliding_window_size,
        "attention_sink_size": spec.attention_sink_size,
        "tie_word_embeddings": spec.tie_word_embeddings,
    }
    dump = None if dump_ir is None else dump_ir / spec.scheme / target.name / variant.name

    def run(context: ActionContext) -> None:
        _run(context, dump)

    return Action(
        stage="lower",
        version=2,
        subject=f"{spec.subject}/{variant.name}",
        run=run,
        inputs={"model": model},
        params=params,
        tools=tool_versions("apache-tvm", "apache-tvm-ffi"),
        code=(*architecture_code("config", "model"), "mlcbuild.kernels"),
        describe=f"lower to {variant.name}",
    )


def _run(context: ActionContext, dump: Path | None) -> None:
    import tvm

    from mlcbuild.arch.registry import get_architecture
    from mlcbuild.kernels.registry import get_kernel_set
    from mlcbuild.passes.export_model import export_model
    from mlcbuild.passes.lower_model import NATIVE_FUNCTIONS, LoweringInput, lower_model
    from mlcbuild.quant.layers import Packing, rewrite_layers

    params: dict[str, Any] = dict(context.params)
    description = json.loads((context.inputs["model"] / MODEL).read_bytes())
    architecture = get_architecture(description["architecture"])
    config = architecture.config.read_config(
        description["config"], tie_word_embeddings=params["tie_word_embeddings"]
    )
    scheme = from_params(QuantScheme, params["scheme"])
    layout = from_params(Layout, params["layout"])
    limits = from_params(Limits, params["limits"])
    check_context(limits, config)
    capabilities = from_params(Capabilities, params["capabilities"])
    kernels = get_kernel_set(capabilities)(capabilities)
    attention: AttentionSpec = architecture.model.attention_spec(config)
    window = choose_window(
        attention.window, params["sliding_window_size"], params["attention_sink_size"], limits
    )
    attention = replace(attention, window=window)
    try:
        model = architecture.model.Model(config)
        rewrite_layers(model, Packing(scheme, layout, kernels, str(params["activations"])))
        mod, names = export_model(model, NATIVE_FUNCTIONS)
        lowered = lower_model(
            LoweringInput(
                mod=mod,
                param_names=names,
                kernels=kernels,
                attention=attention,
                limits=limits,
                target=str(params["target"]),
                variant=str(params["variant"]),
                activations=str(params["activations"]),
                capability=capabilities.features,
                layout=layout.id,
                vocab_size=config.vocab_size,
            ),
            dump,
        )
    except StageError as error:
        where = f"{params['target']}, variant {params['variant']}"
        raise StageError(error.message, where=where, why=error.why, hint=error.hint) from error
    (context.out / PLAN).write_bytes(canonical_json.encode(lowered.plan))
    (context.out / KERNELS).write_text(tvm.ir.save_json(lowered.kernels), encoding="utf-8")
    (context.out / SCHEDULES).write_bytes(canonical_json.encode(_tags(lowered.tags)))


def _tags(tags: Mapping[str, KernelTag | None]) -> dict[str, Any]:
    """Builder and arguments of every kernel; null for one that no builder of ours made."""
    return {
        name: {
            "builder": None if tag is None else tag.builder,
            "args": None if tag is None else dict(tag.args),
        }
        for name, tag in tags.items()
    }


def choose_window(own: Window, size: int | None, sinks: int | None, limits: Limits) -> Window:
    """The window of a build: the recipe's where it gives one, else the model's ``own``.

    A window that hides nothing within the context is none. StageError if the recipe's is larger
    than the model's own.
    """
    if size is not None and own.size and size > own.size:
        raise StageError(
            f"sliding_window_size {size} is larger than the model's own window, {own.size}",
            why="the model never saw more positions at a time",
            hint=f"set runtime.sliding_window_size to {own.size} or less, or leave it out",
        )
    window = own if size is None else Window(size, sinks or 0)
    return window if window.size + window.sinks < limits.context_window_size else Window()


def check_context(limits: Limits, config: Any) -> None:
    """Refuses a context beyond what the model's config says it was made for (StageError)."""
    trained = int(config.max_position_embeddings)
    if limits.context_window_size > trained:
        raise StageError(
            f"context_window_size {limits.context_window_size} is beyond what the model was made "
            f"for ({trained} positions)",
            hint=f"set runtime.context_window_size to {trained} or less",
        )
