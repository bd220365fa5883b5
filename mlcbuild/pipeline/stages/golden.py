"""golden: runs the bundle once and keeps what it answered, as the bundle's self-test."""

from __future__ import annotations

from collections.abc import Mapping

from mlcbuild.core import canonical_json
from mlcbuild.core.canonical_json import Json
from mlcbuild.core.node import node_versions
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.compose import compose
from mlcbuild.pipeline.stages.files import TOKENIZER_CONFIG
from mlcbuild.pipeline.stages.native_child import run_native
from mlcbuild.pipeline.stages.tools import tool_versions
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.targets.target import PlanTarget, WasmTarget

PROMPT = "The quick brown fox jumps over the lazy dog. 1, 2, 3,"
TOKENS = 16


def golden_action(
    subject: str,
    target: PlanTarget,
    scheme: QuantScheme,
    parts: Mapping[str, Action],
    params: Mapping[str, Json],
) -> Action:
    """Computed with the baseline float variant, so that it does not depend on the machine.

    On the way the bundle's tokenizer and its rendering of conversations are compared with the
    reference implementations.
    """
    is_wasm = isinstance(target, WasmTarget)
    baseline = [v.name for v in target.variants(scheme) if v.activations == "float"][-1]
    return Action(
        stage="golden",
        version=1,
        subject=subject,
        run=_run,
        inputs=dict(parts),
        params={**params, "baseline": baseline, "prompt": PROMPT, "tokens": TOKENS},
        tools={
            **tool_versions("tokenizers", "jinja2"),
            **(node_versions() if is_wasm else {}),
        },
        code=("mlcbuild.runtime_stub.node",) if is_wasm else (),
        describe="run the bundle and record its self-test",
    )


def _run(context: ActionContext) -> None:
    params = context.params
    bundle = context.scratch / "bundle"
    bundle.mkdir()
    compose(context.inputs, dict(params), bundle)
    golden = run_native(
        context,
        "golden",
        bundle,
        tokenizer_config=str(context.inputs["model"] / TOKENIZER_CONFIG),
        prompt=params["prompt"],
        tokens=params["tokens"],
        variant=params["baseline"],
    )
    (context.out / "golden.json").write_bytes(canonical_json.encode(golden))
