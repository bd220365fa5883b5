"""pack: quantized weights in the memory layout of a target family."""

from __future__ import annotations

from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.records import from_params, to_params
from mlcbuild.pipeline.stages.tools import tool_versions
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.spec.layout import Layout
from mlcbuild.spec.scheme import QuantScheme


def pack_action(spec: BuildSpec, scheme: QuantScheme, layout: Layout, quantized: Action) -> Action:
    """Every kernel library of the bundle reads what this writes."""
    return Action(
        stage="pack",
        version=1,
        subject=f"{spec.recipe}/{spec.scheme}/{layout.id}",
        run=_run,
        inputs={"quantized": quantized},
        params={
            "scheme": to_params(scheme),
            "layout": to_params(layout),
        },
        tools=tool_versions("numpy"),
        describe=f"pack as {layout.id}",
    )


def _run(context: ActionContext) -> None:
    from mlcbuild.quant.quantize import pack_params

    scheme = from_params(QuantScheme, context.params["scheme"])
    layout = from_params(Layout, context.params["layout"])
    pack_params(context.inputs["quantized"], scheme, layout, context.out, context.progress)
