"""golden: runs the bundle once and keeps what it answered, as the bundle's self-test."""

from __future__ import annotations

from collections.abc import Mapping

from mlcbuild.core import canonical_json
from mlcbuild.core.canonical_json import Json
from mlcbuild.errors import StageError
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.compose import compose
from mlcbuild.pipeline.stages.tools import tool_versions
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.targets.target import Target

PROMPT = "The quick brown fox jumps over the lazy dog. 1, 2, 3,"
TOKENS = 16


def golden_action(
    subject: str,
    target: Target,
    scheme: QuantScheme,
    parts: Mapping[str, Action],
    params: Mapping[str, Json],
) -> Action:
    """Computed with the baseline float variant, so that it does not depend on the machine.

    On the way the bundle's tokenizer is compared with the reference implementation.
    """
    baseline = [v.name for v in target.variants(scheme) if v.activations == "float"][-1]
    return Action(
        stage="golden",
        version=1,
        subject=subject,
        run=_run,
        inputs=dict(parts),
        params={**params, "baseline": baseline, "prompt": PROMPT, "tokens": TOKENS},
        tools=tool_versions("tokenizers"),
        describe="run the bundle and record its self-test",
    )


def _run(context: ActionContext) -> None:
    from mlcbuild.bundle.native import NativeBundle
    from mlcbuild.bundle.selftest import compute_golden
    from mlcbuild.bundle.tokenizer_check import check_stop, check_tokenizer

    params = dict(context.params)
    bundle = context.scratch / "bundle"
    bundle.mkdir()
    compose(context.inputs, params, bundle)
    with NativeBundle.open(bundle) as native:
        check_tokenizer(native)
        check_stop(native)
        prompt = native.tokenize(str(params["prompt"]))
        if not prompt:
            raise StageError("the tokenizer makes no tokens of the self-test's prompt")
        golden = compute_golden(
            native,
            prompt,
            count=int(params["tokens"]),  # type: ignore[arg-type]
            variant=str(params["baseline"]),
        )
    (context.out / "golden.json").write_bytes(canonical_json.encode(golden))
