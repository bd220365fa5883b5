"""client_params: quantized weights as the shards that a browser's client fetches."""

from __future__ import annotations

import json

from mlcbuild.core import canonical_json
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.files import MODEL, NEEDS
from mlcbuild.pipeline.stages.tools import tool_versions
from mlcbuild.recipe.build_spec import BuildSpec


def client_params_action(spec: BuildSpec, quantized: Action, model: Action) -> Action:
    """tensor-cache.json, its shards, and what the largest tensor needs of a device."""
    return Action(
        stage="client_params",
        version=1,
        subject=f"{spec.recipe}/{spec.scheme}",
        run=_run,
        inputs={"quantized": quantized, "model": model},
        tools=tool_versions("numpy"),
        describe="split the params for the browser",
    )


def _run(context: ActionContext) -> None:
    from mlcbuild.weights.reader import open_params
    from mlcbuild.weights.tensor_cache import (
        DEFAULT_BINDING_BYTES,
        check_bindings,
        write_tensor_cache,
    )

    params = open_params(context.inputs["quantized"])
    description = json.loads((context.inputs["model"] / MODEL).read_bytes())
    largest = check_bindings(params)
    folder = context.out / "params"
    folder.mkdir()
    write_tensor_cache(
        params, folder, parameters=description["parameters"], progress=context.progress
    )
    needs: dict[str, dict[str, int] | list[str]] = {"features": [], "limits": {}}
    if largest > DEFAULT_BINDING_BYTES:
        needs["limits"] = {"maxStorageBufferBindingSize": largest, "maxBufferSize": largest}
    (context.out / NEEDS).write_bytes(canonical_json.encode(needs))
