"""From recipe files and options on the command line to actions; make, plan and explain share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from mlcbuild.cli.context import Settings, usable_cpus
from mlcbuild.core.progress import Progress
from mlcbuild.pipeline.action import Action
from mlcbuild.pipeline.env import BuildEnv
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.recipe.load import ValidationCache, load_recipe
from mlcbuild.recipe.lock import RecipeLock, lock_path
from mlcbuild.recipe.recipe import KnownNames
from mlcbuild.store.store import Store

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Build:
    """One cell of a matrix: the action that makes its bundle and the one that checks it.

    ``schedules`` are the actions that choose its kernels' schedules, by variant.
    """

    spec: BuildSpec
    bundle: Action
    verify: Action
    schedules: Mapping[str, Action]


def recipe_options(function: Command) -> Command:
    """Adds RECIPE..., --quantization, --target, --offline and --json."""
    for option in reversed(
        (
            click.argument("recipes", nargs=-1, required=True, type=click.Path(path_type=Path)),
            click.option(
                "--quantization",
                "-Q",
                multiple=True,
                metavar="SCHEME",
                help="Build this scheme instead of the recipe's list (may be repeated).",
            ),
            click.option(
                "--target",
                "-T",
                multiple=True,
                metavar="TARGET",
                help="Build for this target instead of the recipe's list (may be repeated).",
            ),
            click.option("--offline", is_flag=True, help="Use no network."),
            click.option("--json", "as_json", is_flag=True, help="JSON on stdout."),
        )
    ):
        function = option(function)
    return function


def known_names() -> KnownNames:
    """Schemes and targets by their registries."""
    from mlcbuild.quant.schemes import scheme_names
    from mlcbuild.targets.registry import target_names

    return KnownNames(schemes=tuple(scheme_names()), targets=tuple(target_names()))


def load_specs(
    store: Store, recipe: Path, quantization: Sequence[str], target: Sequence[str]
) -> tuple[BuildSpec, ...]:
    """The builds that one recipe and the options ask for."""
    known = known_names()
    cache = ValidationCache(store.root / "recipes", store.stats)
    return load_recipe(recipe, known, cache).expand(known, quantization, target)


def make_environment(
    settings: Settings,
    store: Store,
    recipe: Path,
    progress: Progress,
    *,
    offline: bool = False,
    dump_ir: Path | None = None,
    jobs: int = 1,
) -> BuildEnv:
    """The surroundings of one recipe's builds."""
    return BuildEnv(
        store=store,
        lock=RecipeLock(lock_path(recipe)),
        offline=offline,
        dump_ir=dump_ir,
        progress=progress,
        jobs=jobs,
        threads=max(1, usable_cpus() // jobs),
        hub=settings.hub,
        tuning=settings.db_path,
    )


def assemble_builds(env: BuildEnv, specs: Sequence[BuildSpec]) -> list[Build]:
    """The graph of each build."""
    from mlcbuild.pipeline.build import build_graph

    builds: list[Build] = []
    for spec in specs:
        graph = build_graph(spec, env)
        builds.append(Build(spec, graph.bundle, graph.verify, graph.kernels.scheduled))
    return builds


def collect_builds(
    settings: Settings,
    recipes: Sequence[Path],
    quantization: Sequence[str],
    target: Sequence[str],
    offline: bool,
) -> tuple[Store, list[Build]]:
    """The store and every build of the recipes, for commands that only look."""
    store = settings.open_store()
    progress = settings.progress()
    builds: list[Build] = []
    for recipe in recipes:
        specs = load_specs(store, recipe, quantization, target)
        env = make_environment(settings, store, recipe, progress, offline=offline)
        builds.extend(assemble_builds(env, specs))
    return store, builds
