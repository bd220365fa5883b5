"""mlcbuild make: recipes in, bundles out."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from mlcbuild.cli._recipes import (
    Build,
    assemble_builds,
    load_specs,
    make_environment,
    recipe_options,
)
from mlcbuild.cli.context import Settings, get_settings, usable_cpus
from mlcbuild.cli.output import error_text, format_seconds
from mlcbuild.core.atomic import format_bytes
from mlcbuild.core.progress import Event, Progress, ProgressSink
from mlcbuild.core.suggest import suggestion_or_list
from mlcbuild.errors import MlcbuildError, UsageError
from mlcbuild.pipeline.action import Action
from mlcbuild.pipeline.env import BuildEnv
from mlcbuild.pipeline.export import export_tree
from mlcbuild.pipeline.graph import topological
from mlcbuild.pipeline.scheduler import Scheduler
from mlcbuild.pipeline.stages.files import SCHEDULES
from mlcbuild.pipeline.stages.schedule_sources import count_sources
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.store.records import ActionRecord
from mlcbuild.store.store import Store

_LOWERING = ("lower", "web_compile")  # stages that meet the limits, and can write IR


@dataclass(frozen=True)
class _Options:
    out: Path
    jobs: int
    force: tuple[str, ...]
    keep_going: bool
    dumps_ir: bool


class _CountingSink:
    """Passes events on and counts them, for the summary."""

    def __init__(self, inner: ProgressSink) -> None:
        self._inner = inner
        self.counts: Counter[object] = Counter()

    def emit(self, event: Event) -> None:
        self.counts[event["event"]] += 1
        self._inner.emit(event)

    def close(self) -> None:
        self._inner.close()


@click.command("make")
@recipe_options
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("artifacts"),
    show_default=True,
    help="Folder for bundles: OUT/<recipe>/<scheme>/<target>.",
)
@click.option("--jobs", "-j", type=click.IntRange(min=1), default=1, help="Stages at once.")
@click.option(
    "--force", multiple=True, metavar="STAGE", help="Run this stage again (may be repeated)."
)
@click.option(
    "--dump-ir",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Write the compiler's IR after each phase to this folder (lowers again).",
)
@click.option("--keep-going", "-k", is_flag=True, help="Go on with other builds after a failure.")
def command(
    recipes: tuple[Path, ...],
    quantization: tuple[str, ...],
    target: tuple[str, ...],
    offline: bool,
    as_json: bool,
    out: Path,
    jobs: int,
    force: tuple[str, ...],
    dump_ir: Path | None,
    keep_going: bool,
) -> None:
    """Build every bundle of the RECIPEs and print the path of each on stdout.

    Only what changed since the last time runs. An interrupted build goes on where it stopped.
    """
    settings = get_settings()
    settings = replace(settings, as_json=settings.as_json or as_json)
    store = settings.open_store()
    sink = _CountingSink(settings.make_sink())
    progress = Progress(sink)
    click.get_current_context().call_on_close(progress.close)
    started = time.monotonic()
    errors: list[MlcbuildError] = []
    builds: list[Build] = []
    for recipe in recipes:
        try:
            specs = load_specs(store, recipe, quantization, target)
            env = make_environment(
                settings,
                store,
                recipe,
                progress,
                offline=offline,
                dump_ir=dump_ir.absolute() if dump_ir is not None else None,
                jobs=jobs,
            )
            _tune(env, specs, progress)
            builds.extend(assemble_builds(env, specs))
        except MlcbuildError as error:
            if not keep_going:
                raise
            errors.append(error)
    options = _Options(out, jobs, tuple(dict.fromkeys(force)), keep_going, dump_ir is not None)
    errors += _build(settings, store, progress, builds, options)
    if not errors:
        ran, kept = sink.counts["stage_done"], sink.counts["stage_cached"]
        if ran and not settings.quiet:
            took = format_seconds(time.monotonic() - started)
            progress.note(f"{took}: {ran} stages ran, {kept} were up to date")
        return
    for later in errors[1:]:
        click.echo(error_text(later) + "\n", err=True)
    raise errors[0]


def _build(
    settings: Settings,
    store: Store,
    progress: Progress,
    builds: list[Build],
    options: _Options,
) -> list[MlcbuildError]:
    """Run the graph, export what is finished; returns what went wrong."""
    roots = [build.verify for build in builds]
    stages = {action.stage for action in topological(roots)}
    first = _early_checks(roots)
    for stage in options.force:
        if stage not in stages and roots:
            raise UsageError(
                f'unknown stage "{stage}"',
                where="--force",
                hint=suggestion_or_list(stage, stages),
            )
    scheduler = Scheduler(
        store,
        progress,
        jobs=options.jobs,
        threads=max(1, usable_cpus() // options.jobs),
        force=(*options.force, *(_LOWERING if options.dumps_ir else ())),
        keep_going=options.keep_going,
    )
    wanted = [*first, *roots]
    for build in builds:
        wanted += [build.bundle, *build.schedules.values()]
    with store.in_use():
        result = scheduler.run(wanted)
        records = dict(zip(map(id, wanted), result.records, strict=True))
        for build in builds:
            check, bundle = records[id(build.verify)], records[id(build.bundle)]
            if check is not None and bundle is not None:  # what fails its check is not handed out
                chosen = {name: records[id(item)] for name, item in build.schedules.items()}
                schedules = _read_schedules(store, chosen)
                _export(settings, store, progress, build, bundle, schedules, options.out)
    return list(dict.fromkeys(error for error in result.errors if error is not None))


def _tune(env: BuildEnv, specs: Sequence[BuildSpec], progress: Progress) -> None:
    """What the recipe's tuning budget asks for: workloads without a record, if it has a budget."""
    budget = specs[0].tuning
    if budget.trials is None and budget.minutes is None:
        return
    from mlcbuild.cli._tuning import run_tuning
    from mlcbuild.pipeline.tune import TuningRequest

    request = TuningRequest(budget.trials, budget.minutes, usable_cpus())
    run_tuning(env, specs, request, progress)


def _read_schedules(
    store: Store, chosen: Mapping[str, ActionRecord | None]
) -> dict[str, dict[str, Any]]:
    """By variant, what the schedule stage wrote about each kernel."""
    return {
        name: json.loads((store.materialize(record.tree) / SCHEDULES).read_bytes())
        for name, record in chosen.items()
        if record is not None
    }


def _early_checks(roots: Sequence[Action]) -> list[Action]:
    """Actions to run first: what is wrong with the input should show before the long compilations.

    The tokenizer and the chat template, then the recipe's limits (in the first lowering of each
    bundle, or where another client's library is compiled), then the values of the weights, for
    which all of them are read.
    """
    texts = ("tokenizer", "client_config")
    first = [action for action in topological(roots) if action.stage in texts]
    for root in roots:
        first += [action for action in topological([root]) if action.stage in _LOWERING][:1]
    return first + [action for action in topological(roots) if action.stage == "quantize"]


def schedule_lines(schedules: Mapping[str, Mapping[str, Any]], *, each: bool) -> list[str]:
    """Where the kernels' schedules are from: a line for each variant, or for each kernel."""
    lines = []
    for variant, kernels in schedules.items():
        counts = count_sources(kernels)
        parts = [f"{count} {source}" for source, count in counts.items() if count]
        lines.append(f"  {variant}: schedules of {len(kernels)} kernels: {', '.join(parts)}")
        if each:
            for name, kernel in kernels.items():
                ids = " ".join(kernel.get("records", ()))
                lines.append(f"    {name}: {kernel['source']} {ids}".rstrip())
    return lines


def _export(
    settings: Settings,
    store: Store,
    progress: Progress,
    build: Build,
    record: ActionRecord,
    schedules: Mapping[str, Mapping[str, Any]],
    out: Path,
) -> None:
    spec = build.spec
    folder = out / spec.recipe / spec.scheme / spec.target
    changed = export_tree(store, record.tree, folder, progress)
    if settings.as_json:
        row = {
            "event": "bundle",
            "recipe": spec.recipe,
            "scheme": spec.scheme,
            "target": spec.target,
            "path": str(folder),
            "bytes": record.tree.size,
            "changed": changed,
            "schedules": schedules,
        }
        click.echo(json.dumps(row, ensure_ascii=False))
        return
    if changed and not settings.quiet:
        progress.note(f"{spec.subject}: {format_bytes(record.tree.size)}")
        for line in schedule_lines(schedules, each=settings.verbose):
            progress.note(line)
    click.echo(str(folder))
