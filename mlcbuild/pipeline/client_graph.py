"""The graph of a bundle that another client runs."""

from __future__ import annotations

from dataclasses import replace

from mlcbuild.core.canonical_json import Json
from mlcbuild.pipeline.action import Action
from mlcbuild.pipeline.env import BuildEnv
from mlcbuild.pipeline.stages.client_bundle import client_assemble_action, client_verify_action
from mlcbuild.pipeline.stages.client_config import client_config_action
from mlcbuild.pipeline.stages.client_package import client_package_action
from mlcbuild.pipeline.stages.client_params import client_params_action
from mlcbuild.pipeline.stages.compose import describe_build
from mlcbuild.pipeline.stages.emscripten import emscripten_versions
from mlcbuild.pipeline.stages.fetch import resolve_source, source_input
from mlcbuild.pipeline.stages.inspect_model import inspect_action
from mlcbuild.pipeline.stages.quantize import quantize_action
from mlcbuild.pipeline.stages.records import to_params
from mlcbuild.pipeline.stages.web_compile import web_compile_action
from mlcbuild.pipeline.stages.web_library import web_library_action
from mlcbuild.pipeline.stages.web_runtime import web_runtime_action
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.targets.target import ClientTarget


def client_graph(
    spec: BuildSpec, env: BuildEnv, target: ClientTarget, scheme: QuantScheme
) -> tuple[Action, Action]:
    """(what makes the bundle's tree, what must pass before it is handed out)."""
    notes: list[Json] = []
    if spec.limits.max_batch_size != 1:
        notes.append(
            "the browser's client runs one conversation at a time: max_batch_size is 1, not "
            f"{spec.limits.max_batch_size}"
        )
        spec = replace(spec, limits=replace(spec.limits, max_batch_size=1))
    if spec.bundle_options.get("tuning_records"):
        notes.append("bundle.tuning_records: no kernel for browsers has any")
    optimize = str(spec.target_options.get("optimize", target.optimize))
    resolved = resolve_source(spec, env)
    source = source_input(spec, env, resolved)
    model = inspect_action(spec, source, resolved.source)
    quantized = quantize_action(spec, scheme, source, model)
    compiled = web_compile_action(spec, target, scheme, model, env.dump_ir)
    emscripten = emscripten_versions(env.store)
    runtime = web_runtime_action(emscripten)
    described: dict[str, Json] = {
        **describe_build(spec, scheme, resolved),
        "limits": to_params(spec.limits),
        "client": target.client,
        "notes": notes,
    }
    bundle = client_assemble_action(
        spec.subject,
        model=model,
        params=client_params_action(spec, quantized, model),
        config=client_config_action(spec, spec.limits, model),
        compiled=compiled,
        library=web_library_action(compiled, runtime, optimize, emscripten),
        package=client_package_action(target.client, env),
        described=described,
    )
    return bundle, client_verify_action(spec.subject, bundle)
