"""mlcbuild plan: what make would do, and why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from mlcbuild.cli._recipes import collect_builds, recipe_options
from mlcbuild.cli.context import get_settings
from mlcbuild.cli.output import format_seconds
from mlcbuild.pipeline.explain import survey


@click.command("plan")
@recipe_options
@click.option("--force", multiple=True, metavar="STAGE", help="As for make.")
def command(
    recipes: tuple[Path, ...],
    quantization: tuple[str, ...],
    target: tuple[str, ...],
    offline: bool,
    as_json: bool,
    force: tuple[str, ...],
) -> None:
    """Show which stages of the RECIPEs would run and why; nothing is built."""
    settings = get_settings()
    as_json = as_json or settings.as_json
    settings = replace(settings, as_json=False)  # the plan is one record, not events
    store, builds = collect_builds(settings, recipes, quantization, target, offline)
    findings = survey(store, [build.verify for build in builds], force=force)
    running = [finding for finding in findings if not finding.cached]
    if as_json:
        record = {
            "bundles": [build.spec.subject for build in builds],
            "run": len(running),
            "cached": len(findings) - len(running),
            "actions": [finding.to_json() for finding in findings],
        }
        click.echo(json.dumps(record, ensure_ascii=False))
        return
    for finding in findings:
        if finding.cached:
            click.echo(f"cached    {finding.label}")
            continue
        first, *others = finding.reasons
        click.echo(f"will run  {finding.label}: {first}")
        for reason in others:
            click.echo(f"            {reason}")
    known = [finding.seconds for finding in running if finding.seconds is not None]
    guess = f", {format_seconds(sum(known))} last time" if known else ""
    click.echo(f"{len(running)} to run, {len(findings) - len(running)} cached{guess}")
