"""The parts of a bundle put together in one folder; golden and assemble share it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlcbuild.core.canonical_json import Json
from mlcbuild.pipeline.action import Action
from mlcbuild.pipeline.stages.files import LICENSES, MODEL, NOTES, PLAN, RECORDS, SCHEDULES
from mlcbuild.pipeline.stages.place import place, place_licenses
from mlcbuild.pipeline.stages.records import from_params, to_params
from mlcbuild.pipeline.stages.schedule_sources import count_sources
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.sources.resolved import ResolvedSource
from mlcbuild.spec.limits import Limits
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.targets.target import PlanTarget

# Folder of a bundle for the tuning records that its kernels were made with, if asked for.
TUNING = "tuning"


@dataclass(frozen=True)
class VariantParts:
    """The actions of the kernel variants of a bundle, by variant."""

    lowered: Mapping[str, Action]
    scheduled: Mapping[str, Action]
    linked: Mapping[str, Action]


def part_inputs(
    model: Action, params: Action, tokenizer: Action, runtime: Action, kernels: VariantParts
) -> dict[str, Action]:
    """The inputs of an action that composes a bundle."""
    inputs = {"model": model, "params": params, "tokenizer": tokenizer, "runtime": runtime}
    inputs.update({f"lower:{name}": action for name, action in kernels.lowered.items()})
    inputs.update({f"schedule:{name}": action for name, action in kernels.scheduled.items()})
    inputs.update({f"link:{name}": action for name, action in kernels.linked.items()})
    return inputs


def part_params(
    spec: BuildSpec, target: PlanTarget, scheme: QuantScheme, resolved: ResolvedSource
) -> dict[str, Json]:
    """What the manifest says beyond what the parts themselves tell."""
    return {
        **describe_build(spec, scheme, resolved),
        "limits": to_params(spec.limits),
        "variants": [variant.name for variant in target.variants(scheme)],
        "kernels": {v.name: target.kernels_file(v) for v in target.variants(scheme)},
        "library": f"lib/{target.runtime_file}",
        "executable": target.executable,
    }


def describe_build(
    spec: BuildSpec, scheme: QuantScheme, resolved: ResolvedSource
) -> dict[str, Json]:
    """What every manifest says of the recipe: names, scheme, source and licence."""
    local = resolved.location is not None
    return {
        "name": spec.recipe,
        "target": spec.target,
        "scheme": to_params(scheme),
        # A local folder's path would differ from machine to machine; its name is enough.
        "source": f"local:{Path(resolved.source).name}" if local else resolved.source,
        "revision": None if local else resolved.revision,
        "license": spec.bundle_options.get("license") or resolved.license,
    }


def compose(inputs: Mapping[str, Path], params: Mapping[str, Any], out: Path) -> None:
    """Puts every part at its place in ``out`` and writes bundle.json."""
    from mlcbuild.bundle.writer import BundleParts, write_bundle

    runtime = inputs["runtime"]
    for path in sorted(runtime.rglob("*")):
        if path.is_file():
            place(path, out / path.relative_to(runtime))
    for path in sorted(inputs["params"].iterdir()):
        place(path, out / "params" / path.name)
    tokenizer = inputs["tokenizer"]
    for file in sorted((tokenizer / "tokenizer").iterdir()):
        place(file, out / "tokenizer" / file.name)
    place(tokenizer / "chat.json", out / "chat.json")
    sources: dict[str, dict[str, int]] = {}
    for name in params["variants"]:
        place(inputs[f"lower:{name}"] / PLAN, out / "lib" / f"{name}.plan")
        file = params["kernels"][name]
        if not (out / "lib" / file).exists():  # variants may share one
            place(inputs[f"link:{name}"] / file, out / "lib" / file)
        schedules = inputs[f"schedule:{name}"]
        sources[name] = count_sources(json.loads((schedules / SCHEDULES).read_bytes()))
        if (schedules / RECORDS).is_file():
            place(schedules / RECORDS, out / TUNING / f"{name}.jsonl")
    if "golden" in inputs:
        place(inputs["golden"] / "golden.json", out / "golden.json")
    _licenses(inputs["model"], out / LICENSES)
    description = json.loads((inputs["model"] / MODEL).read_bytes())
    notes = [*description["notes"], *json.loads((tokenizer / NOTES).read_bytes())]
    write_bundle(
        out,
        BundleParts(
            name=params["name"],
            target=params["target"],
            architecture=description["architecture"],
            scheme=from_params(QuantScheme, params["scheme"]),
            limits=from_params(Limits, params["limits"]),
            variants=tuple(params["variants"]),
            source=params["source"],
            vocab_size=description["vocab_size"],
            tokenizer_vocab_size=description["tokenizer_vocab_size"],
            parameters=description["parameters"],
            revision=params["revision"],
            license=params["license"] or description["license"],
            notes=tuple(notes),
            library=params["library"],
            executable=params["executable"],
            kernels={name: f"lib/{file}" for name, file in params["kernels"].items()},
            schedules=sources,
        ),
    )


def _licenses(model: Path, out: Path) -> None:
    """The model's licence texts and the runtime's own."""
    out.mkdir()
    place_licenses(model, out)
    (out / "mlcb-NOTICE.txt").write_text(
        "The runtime and kernels in lib/, bin/ and include/ are part of mlcbuild,\n"
        "licensed under the Apache License, Version 2.0.\n"
        "The model's weights and tokenizer are under the model's own licence; see bundle.json.\n",
        encoding="utf-8",
    )
