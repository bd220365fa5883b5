"""quantize: the checkpoint's weights in the scheme's numbers, the same for every target."""

from __future__ import annotations

import json

from mlcbuild.pipeline.action import Action, ActionContext, ActionInput
from mlcbuild.pipeline.stages.files import MODEL
from mlcbuild.pipeline.stages.records import from_params, to_params
from mlcbuild.pipeline.stages.tools import architecture_code, tool_versions
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.spec.scheme import QuantScheme


def quantize_action(
    spec: BuildSpec, scheme: QuantScheme, source: ActionInput, model: Action
) -> Action:
    """Streams every tensor once; the output is params in the layout "nk"."""
    return Action(
        stage="quantize",
        version=1,
        subject=f"{spec.recipe}/{spec.scheme}",
        run=_run,
        inputs={"source": source, "model": model},
        params={
            "scheme": to_params(scheme),
            "tie_word_embeddings": spec.tie_word_embeddings,
        },
        tools=tool_versions("gguf", "safetensors", "numpy", "ml_dtypes"),
        code=(*architecture_code("config", "weights"), "mlcbuild.sources"),
        long=True,
        describe=f"quantize to {spec.scheme}",
    )


def _run(context: ActionContext) -> None:
    from mlcbuild.arch.registry import get_architecture
    from mlcbuild.quant.quantize import quantize_checkpoint
    from mlcbuild.sources.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(context.inputs["source"])
    description = json.loads((context.inputs["model"] / MODEL).read_bytes())
    architecture = get_architecture(description["architecture"])
    config = architecture.config.read_config(
        description["config"], tie_word_embeddings=context.params["tie_word_embeddings"]
    )
    quantize_checkpoint(
        checkpoint,
        architecture.weights.param_rules(config),
        from_params(QuantScheme, context.params["scheme"]),
        context.out,
        context.progress,
        threads=context.threads,
    )
