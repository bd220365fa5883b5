"""mlcbuild explain: what changed since the last build, root causes first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from mlcbuild.cli._recipes import collect_builds, recipe_options
from mlcbuild.cli.context import get_settings
from mlcbuild.core.suggest import suggestion_or_list
from mlcbuild.errors import UsageError
from mlcbuild.pipeline.explain import Finding, survey


@click.command("explain")
@recipe_options
@click.option("--stage", default=None, help="Only this stage.")
def command(
    recipes: tuple[Path, ...],
    quantization: tuple[str, ...],
    target: tuple[str, ...],
    offline: bool,
    as_json: bool,
    stage: str | None,
) -> None:
    """Compare the RECIPEs as they are now with their last build, field by field.

    For stages that are up to date, what changed when they were last rebuilt is shown.
    """
    settings = get_settings()
    as_json = as_json or settings.as_json
    settings = replace(settings, as_json=False)
    store, builds = collect_builds(settings, recipes, quantization, target, offline)
    findings = survey(store, [build.verify for build in builds])
    if stage is not None:
        names = {finding.stage for finding in findings}
        if stage not in names:
            raise UsageError(
                f'unknown stage "{stage}"', where="--stage", hint=suggestion_or_list(stage, names)
            )
        findings = [finding for finding in findings if finding.stage == stage]
    if as_json:
        causes = [finding.label for finding in findings if finding.is_root_cause]
        record = {
            "root_causes": causes,
            "actions": [finding.to_json() for finding in findings],
        }
        click.echo(json.dumps(record, ensure_ascii=False))
        return
    for line in explanation(findings):
        click.echo(line)


def explanation(findings: Sequence[Finding]) -> list[str]:
    """Lines for people: root causes, then what follows from them, then the rest."""
    lines: list[str] = []
    causes = [finding for finding in findings if finding.is_root_cause]
    effects = [finding for finding in findings if not finding.cached and not finding.is_root_cause]
    rest = [finding for finding in findings if finding.cached]
    for title, group in (("changed", causes), ("follows", effects)):
        for finding in group:
            lines.append(f"{title}: {finding.label}")
            lines += [f"  {reason}" for reason in finding.reasons]
    for finding in rest:
        if finding.changes:
            lines.append(f"up to date: {finding.label}, though not what was built last")
            lines += [f"  {change}" for change in finding.changes]
        elif finding.history:
            lines.append(f"up to date: {finding.label}, since it was rebuilt for")
            lines += [f"  {change}" for change in finding.history]
        else:
            lines.append(f"up to date: {finding.label}")
    return lines
