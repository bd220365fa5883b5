"""The graph of one bundle: which stages there are and what each of them reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlcbuild.core.suggest import suggestion_or_list
from mlcbuild.errors import InternalError, RecipeError
from mlcbuild.pipeline.action import Action
from mlcbuild.pipeline.client_graph import client_graph
from mlcbuild.pipeline.env import BuildEnv
from mlcbuild.pipeline.stages.assemble import assemble_action, verify_action
from mlcbuild.pipeline.stages.compile import compile_action
from mlcbuild.pipeline.stages.compose import VariantParts, part_inputs, part_params
from mlcbuild.pipeline.stages.emscripten import emscripten_versions
from mlcbuild.pipeline.stages.fetch import resolve_source, source_input
from mlcbuild.pipeline.stages.golden import golden_action
from mlcbuild.pipeline.stages.inspect_model import inspect_action
from mlcbuild.pipeline.stages.link import link_action
from mlcbuild.pipeline.stages.lower import lower_action
from mlcbuild.pipeline.stages.pack import pack_action
from mlcbuild.pipeline.stages.quantize import quantize_action
from mlcbuild.pipeline.stages.runtime import runtime_action
from mlcbuild.pipeline.stages.schedule import schedule_action
from mlcbuild.pipeline.stages.tokenizer import tokenizer_action
from mlcbuild.pipeline.stages.wasm import (
    module_action,
    module_files,
    wasm_runtime_action,
    web_files_action,
)
from mlcbuild.pipeline.tuning import BuildRecords
from mlcbuild.quant.schemes import SCHEMES, get_scheme
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.targets.registry import get_target
from mlcbuild.targets.target import ClientTarget, NativeTarget, PlanTarget, Target, WasmTarget


@dataclass(frozen=True)
class BundleGraph:
    """``bundle`` makes a bundle's tree; ``verify`` must pass before it is handed out.

    ``kernels`` are the actions of its kernel variants, by name.
    """

    bundle: Action
    verify: Action
    kernels: VariantParts


def build_graph(spec: BuildSpec, env: BuildEnv, scheme: QuantScheme | None = None) -> BundleGraph:
    """The actions for ``spec``. Sources are resolved here, once, and pinned in the lock.

    ``scheme`` takes the place of the registered one of that name (to compare variants of it).
    """
    target = get_target(spec.target)
    check_supported(spec, target)
    scheme = get_scheme(spec.scheme) if scheme is None else scheme
    if not target.supports(scheme):
        raise RecipeError(
            f"target {target.name} does not hold {scheme.name} ({scheme.weight_dtype} weights)",
            where=str(spec.recipe_path),
            hint="it holds " + (", ".join(_supported(target)) or "no registered scheme"),
        )
    if isinstance(target, PlanTarget):
        return _plan_graph(spec, env, target, scheme)
    if isinstance(target, ClientTarget):
        bundle, verify = client_graph(spec, env, target, scheme)
        return BundleGraph(bundle, verify, VariantParts({}, {}, {}))
    raise InternalError(f"there is no graph for targets like {target.name}")


def _supported(target: Target) -> list[str]:
    return [name for name, scheme in SCHEMES.items() if target.supports(scheme)]


def _plan_graph(
    spec: BuildSpec, env: BuildEnv, target: PlanTarget, scheme: QuantScheme
) -> BundleGraph:
    """The graph of a bundle that our own runtime runs."""
    layout = target.layout(scheme)
    if layout is None:
        raise InternalError(f"{target.name} has no layout for {scheme.weight_dtype}")
    resolved = resolve_source(spec, env)
    source = source_input(spec, env, resolved)
    model = inspect_action(spec, source, resolved.source)
    quantized = quantize_action(spec, scheme, source, model)
    params = pack_action(spec, scheme, layout, quantized)
    records = BuildRecords(spec, env)
    lowered, scheduled, compiled = {}, {}, {}
    for variant in target.variants(scheme):
        lower = lower_action(spec, target, variant, scheme, layout, model, env.dump_ir)
        lowered[variant.name] = lower
        usable = records.usable(variant.capabilities)
        schedules = schedule_action(variant, lower, usable, keep_records=records.kept)
        scheduled[variant.name] = schedules
        compiled[variant.name] = compile_action(target, variant, lower, schedules)
    runtime, linked = _link(env, target, scheme, lowered, compiled)
    kernels = VariantParts(lowered, scheduled, linked)
    parts = part_inputs(model, params, tokenizer_action(spec, model), runtime, kernels)
    described = part_params(spec, target, scheme, resolved)
    golden = golden_action(spec.subject, target, scheme, parts, described)
    bundle = assemble_action(spec.subject, parts, golden, described)
    return BundleGraph(bundle, verify_action(spec.subject, bundle), kernels)


def _link(
    env: BuildEnv,
    target: PlanTarget,
    scheme: QuantScheme,
    lowered: Mapping[str, Action],
    compiled: Mapping[str, Action],
) -> tuple[Action, Mapping[str, Action]]:
    """The action for the runtime's files in a bundle, and by variant that for its kernels' file."""
    variants = target.variants(scheme)
    if isinstance(target, NativeTarget):
        linked = {v.name: link_action(target, v, compiled[v.name]) for v in variants}
        return runtime_action(target), linked
    if not isinstance(target, WasmTarget):
        raise InternalError(f"nothing links the kernels of {target.name}")
    runtime = wasm_runtime_action(target, emscripten_versions(env.store))
    modules = {
        file: module_action(target, scheme, file, runtime, lowered, compiled)
        for file in module_files(target, variants)
    }
    return web_files_action(target), {v.name: modules[target.kernels_file(v)] for v in variants}


def check_supported(spec: BuildSpec, target: Target) -> None:
    """Refuses what a recipe may ask for but this version does not do: nothing is left out silently.

    Raises RecipeError naming the keys.
    """
    _check_options(spec, target)
    quality = spec.quality
    asked = {
        "model.lora": spec.lora,
        "quantization.exclude": spec.exclude,
        "quantization.calibration": spec.calibration,
        "quantization.overrides": spec.scheme_overrides,
        "publish.to": spec.publish.to,
        "quality": (quality.max_kld, quality.max_ppl_ratio, quality.min_top1) != (None,) * 3,
    }
    keys = [key for key, value in asked.items() if value]
    if keys:
        raise RecipeError(
            f"this version of mlcbuild does not carry out: {', '.join(keys)}",
            where=str(spec.recipe_path),
            why="the recipe format has the keys already, the stages behind them come later",
            hint="remove what is named to build without it",
        )


def _check_options(spec: BuildSpec, target: Target) -> None:
    """The table of the target in the recipe; RecipeError naming what it may hold."""
    known = target.options()
    for key, value in spec.target_options.items():
        where = f"{spec.recipe_path}: targets.{target.name}.{key}"
        if key not in known:
            raise RecipeError(
                f"the target {target.name} has no option {key}",
                where=where,
                hint=suggestion_or_list(key, known) if known else "it has no options",
            )
        if str(value) not in known[key]:
            raise RecipeError(
                f"{value!r} is no value of {key}",
                where=where,
                hint=f"one of {', '.join(known[key])}",
            )
