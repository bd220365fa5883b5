"""Tuning the kernels of recipes: what there is to tune, and the processes that do it."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mlcbuild.core.suggest import suggestion_or_list
from mlcbuild.errors import ResourceError, UsageError
from mlcbuild.pipeline.action import Action
from mlcbuild.pipeline.build import build_graph
from mlcbuild.pipeline.env import BuildEnv
from mlcbuild.pipeline.scheduler import Scheduler
from mlcbuild.pipeline.stages.files import SCHEDULES
from mlcbuild.pipeline.stages.schedule import workloads_of
from mlcbuild.pipeline.stages.tools import tool_versions
from mlcbuild.pipeline.stages.tuning_harness import LINK_FLAGS, harness_action
from mlcbuild.pipeline.stages.zig import ZIG
from mlcbuild.pipeline.tuning import record_key, writable_database
from mlcbuild.quant.schemes import get_scheme
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.spec.schedule_space import Workload
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.store.store import Store
from mlcbuild.targets.registry import get_target, target_names
from mlcbuild.targets.target import NativeTarget, Variant
from mlcbuild.tuning.database import Database
from mlcbuild.tuning.device import host_device, host_has
from mlcbuild.tuning.job import KnownTrial, RpcDevice, TuningJob, TuningTask
from mlcbuild.tuning.record import CONFIRMED, capabilities_digest
from mlcbuild.tuning.run import JobResult, Outcome, run_job

# The distribution that has xgboost without the libraries of GPUs, which Linux gets.
XGBOOST = "xgboost-cpu" if sys.platform == "linux" else "xgboost"
_ONLY_NATIVE = "only libraries of a machine's own system are loaded and timed"


@dataclass(frozen=True)
class TuningPlan:
    """The job for one set of capabilities, and what is not part of it.

    ``variants`` are the names that use these capabilities; ``known`` counts workloads that the
    database has a comparison for already and that were not asked for again.
    """

    job: TuningJob
    variants: tuple[str, ...]
    known: int


@dataclass(frozen=True)
class TuningRequest:
    """What to tune: a budget, and which variants and kernels of the recipes.

    ``variants`` empty: those that this machine's loader would choose. ``kernels``: only those
    workloads whose name holds one of these texts. ``again``: also those that have a comparison.
    ``device`` describes what is behind ``rpc``; ``asked``: somebody named the target or variant,
    and wants to know if there is nothing to tune in it.
    """

    trials: int | None
    minutes: float | None
    threads: int
    variants: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    again: bool = False
    rpc: RpcDevice | None = None
    device: Mapping[str, str] | None = None
    asked: bool = False


class PlanWatch(Protocol):
    """Told when a plan begins (no number, no outcome) and about each outcome that changed."""

    def __call__(self, plan: TuningPlan, number: int | None, outcome: Outcome | None) -> None:
        """Show it."""


def tuned_variants(
    target: NativeTarget, scheme: QuantScheme, names: Sequence[str]
) -> tuple[Variant, ...]:
    """The variants called ``names``; without names the one that the loader takes here, if any.

    UsageError for a name that the target does not have.
    """
    variants = {variant.name: variant for variant in target.variants(scheme)}
    for name in names:
        if name not in variants:
            raise UsageError(
                f"{target.name} has no variant {name} for {scheme.name}",
                where="--variant",
                hint=suggestion_or_list(name, variants),
            )
    if names:
        return tuple(variants[name] for name in names)
    usable = [variant for variant in variants.values() if host_has(variant.capabilities)]
    return tuple(usable[:1])


def plan_tuning(
    kernels: Sequence[tuple[NativeTarget, Variant, Mapping[str, Any]]],
    database: Database,
    request: TuningRequest,
    link: Callable[[NativeTarget], tuple[str, ...]],
) -> list[TuningPlan]:
    """The jobs for some variants' kernels (what lower wrote about them), one per capabilities.

    Kernels that several models share are one workload. ``link`` gives a target's linker command.
    """
    contents = database.read()
    groups: dict[str, list[tuple[NativeTarget, Variant, Mapping[str, Any]]]] = {}
    for target, variant, tags in kernels:
        groups.setdefault(capabilities_digest(variant.capabilities), []).append(
            (target, variant, tags)
        )
    plans = []
    for group in groups.values():
        target, variant, _ = group[0]
        capabilities = variant.capabilities
        workloads: dict[str, Workload] = {}
        for _, _, tags in group:
            for tag in tags.values():
                if tag["builder"] is None:
                    continue
                for _, workload in workloads_of(capabilities, tag["builder"], tag["args"]):
                    if not request.kernels or any(
                        text in str(workload) for text in request.kernels
                    ):
                        workloads.setdefault(workload.digest(), workload)
        tasks, known = [], 0
        for digest, workload in workloads.items():
            key = record_key(capabilities, digest)
            records = [record for record in contents.records if record.key == key]
            if not request.again and any(record.kind == CONFIRMED for record in records):
                known += 1
                continue
            trials = tuple(
                KnownTrial(dict(record.decisions), min(record.seconds))
                for record in records
                if record.seconds
            )
            tasks.append(TuningTask(workload, trials))
        job = TuningJob(
            capabilities=capabilities,
            triple=target.triple,
            link=link(target),
            tasks=tuple(tasks),
            trials=request.trials,
            seconds=None if request.minutes is None else 60 * request.minutes,
            threads=request.threads,
            rpc=request.rpc,
        )
        names = tuple(dict.fromkeys(variant.name for _, variant, _ in group))
        plans.append(TuningPlan(job, names, known))
    return plans


def tune_builds(
    env: BuildEnv,
    specs: Sequence[BuildSpec],
    request: TuningRequest,
    watch: PlanWatch | None = None,
) -> list[tuple[TuningPlan, JobResult]]:
    """Tune what ``specs`` of one recipe need; records go into the recipe's or user's database.

    Lowers the models as far as that is not done. ResourceError if this machine cannot run a
    variant that was asked for by name (without ``rpc``); one chosen by default is left out with a
    note, like a target whose kernels this process cannot load. UsageError without a database to
    write to, and if all targets are such and one was asked for.
    """
    native, others = _native(specs)
    if not native and request.asked:
        raise UsageError(
            f"the kernels of {', '.join(others)} cannot be tuned",
            where="--target",
            why=_ONLY_NATIVE,
            hint=f"--target {' or '.join(_native_names())}",
        )
    for name in others:
        env.progress.note(f"{name}: not tuned, {_ONLY_NATIVE}")
    chosen: list[tuple[NativeTarget, Variant, Action]] = []
    for spec, target in native:
        variants = tuned_variants(target, get_scheme(spec.scheme), request.variants)
        if not variants:
            env.progress.note(f"{spec.subject}: not tuned, this machine runs none of its variants")
            continue
        graph = build_graph(spec, env)
        for variant in variants:
            if request.rpc is None and not host_has(variant.capabilities):
                raise _cannot_run(variant)
            chosen.append((target, variant, graph.kernels.lowered[variant.name]))
    if not chosen:
        return []
    harnesses = {target.name: harness_action(target) for target, _, _ in chosen}
    wanted = [*(action for _, _, action in chosen), *harnesses.values()]
    scheduler = Scheduler(env.store, env.progress, jobs=env.jobs, threads=env.threads)
    with env.store.in_use():
        built = scheduler.run(wanted)
        if built.first_error is not None:
            raise built.first_error
        folders = {
            id(action): env.store.materialize(record.tree)
            for action, record in zip(wanted, built.records, strict=True)
            if record is not None
        }
        kernels = [
            (target, variant, json.loads((folders[id(action)] / SCHEDULES).read_bytes()))
            for target, variant, action in chosen
        ]

        def link(target: NativeTarget) -> tuple[str, ...]:
            objects = sorted(folders[id(harnesses[target.name])].iterdir())
            return (*link_command(env.store, target), *map(str, objects))

        return _run_plans(env, specs[0], request, kernels, link, watch)


def _native(
    specs: Sequence[BuildSpec],
) -> tuple[list[tuple[BuildSpec, NativeTarget]], tuple[str, ...]]:
    """The builds whose kernels can be loaded and timed, and the other targets' names."""
    native, others = [], []
    for spec in specs:
        target = get_target(spec.target)
        if isinstance(target, NativeTarget):
            native.append((spec, target))
        else:
            others.append(target.name)
    return native, tuple(dict.fromkeys(others))


def _native_names() -> list[str]:
    return [name for name in target_names() if isinstance(get_target(name), NativeTarget)]


def _run_plans(
    env: BuildEnv,
    spec: BuildSpec,
    request: TuningRequest,
    kernels: Sequence[tuple[NativeTarget, Variant, Mapping[str, Any]]],
    link: Callable[[NativeTarget], tuple[str, ...]],
    watch: PlanWatch | None,
) -> list[tuple[TuningPlan, JobResult]]:
    database = writable_database(spec, env)
    plans = plan_tuning(kernels, database, request, link)
    device = request.device or host_device(request.threads)
    tools = tool_versions("apache-tvm", "apache-tvm-ffi", ZIG, XGBOOST)
    results = []
    for plan in plans:
        if watch is not None:
            watch(plan, None, None)
        if not plan.job.tasks:
            results.append((plan, JobResult()))
            continue
        with database.writer() as segment:
            tell = None if watch is None else functools.partial(watch, plan)
            results.append((plan, run_job(plan.job, segment, device, tools, tell)))
    return results


def _cannot_run(variant: Variant) -> ResourceError:
    return ResourceError(
        f"this machine cannot run the variant {variant.name}, so it cannot be tuned here",
        why=f"its processor lacks some of: {', '.join(variant.capabilities.features)}",
        hint="tune it on a machine that has them, with --rpc, or leave --variant out",
    )


def link_command(store: Store, target: NativeTarget) -> tuple[str, ...]:
    """Makes a shared library of the objects that follow, with zig; ``-o FILE`` says where.

    TVM's runtime, which loads it, has what it refers to.
    """
    cache = store.tool_cache("zig")
    return (
        "env",
        f"ZIG_GLOBAL_CACHE_DIR={cache}",
        f"ZIG_LOCAL_CACHE_DIR={cache}",
        sys.executable,
        "-m",
        ZIG,
        "c++",
        "-target",
        target.zig_triple,
        *LINK_FLAGS,
    )
