"""assemble: the bundle, complete; and verify: every promise of its manifest, held."""

from __future__ import annotations

from collections.abc import Mapping

from mlcbuild.core import canonical_json
from mlcbuild.core.canonical_json import Json
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.compose import compose
from mlcbuild.pipeline.stages.native_child import run_native


def assemble_action(
    subject: str, parts: Mapping[str, Action], golden: Action, params: Mapping[str, Json]
) -> Action:
    """The tree of this action is the bundle."""
    return Action(
        stage="assemble",
        version=1,
        subject=subject,
        run=_assemble,
        inputs={**parts, "golden": golden},
        params=dict(params),
        describe="put the bundle together",
    )


def verify_action(subject: str, bundle: Action) -> Action:
    """All hashes and the self-test, through the bundle's own runtime, as a user would run it."""
    return Action(
        stage="verify",
        version=1,
        subject=subject,
        run=_verify,
        inputs={"bundle": bundle},
        params={"subject": subject},
        describe="check hashes and self-test",
    )


def _assemble(context: ActionContext) -> None:
    compose(context.inputs, dict(context.params), context.out)


def _verify(context: ActionContext) -> None:
    from mlcbuild.bundle.reader import verify_bundle

    path = context.inputs["bundle"]
    report = verify_bundle(path)
    report.check()
    self_test = run_native(
        context, "verify", path, threads=context.threads, where=context.params["subject"]
    )
    record = {"files": report.to_json(), "self_test": self_test}
    (context.out / "report.json").write_bytes(canonical_json.encode(record))
