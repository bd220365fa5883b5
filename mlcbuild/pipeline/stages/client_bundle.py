"""client_assemble: another client's bundle, complete; client_verify: its promises, held."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlcbuild.core import canonical_json
from mlcbuild.core.canonical_json import Json
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.client_package import LICENSE, SCRIPT
from mlcbuild.pipeline.stages.files import LIBRARY, MODEL, NEEDS, NOTES, TOKENIZER
from mlcbuild.pipeline.stages.place import place, place_licenses
from mlcbuild.pipeline.stages.records import from_params
from mlcbuild.pipeline.stages.tools import package_folder, tool_versions
from mlcbuild.pipeline.stages.web_page import PAGE, WEB_CODE, copy_page
from mlcbuild.spec.limits import Limits
from mlcbuild.spec.scheme import QuantScheme

WASM = "lib/model.wasm"
_NOTICE = """\
lib/model.wasm holds kernels that mlcbuild made, and the runtime of Apache TVM; both are licensed
under the Apache License, Version 2.0 (tvm-LICENSE.txt, tvm-NOTICE.txt). platform/web/ is part of
mlcbuild, under the same licence; {script} in it is {package}, under that of
{package_license}. The model's weights and tokenizer are under the model's own licence; see
bundle.json.
"""


def client_assemble_action(
    subject: str,
    *,
    model: Action,
    params: Action,
    config: Action,
    compiled: Action,
    library: Action,
    package: Action,
    described: Mapping[str, Json],
) -> Action:
    """The tree of this action is the bundle; ``described`` is what no part of it tells."""
    return Action(
        stage="client_assemble",
        version=1,
        subject=subject,
        run=_assemble,
        inputs={
            "model": model,
            "params": params,
            "config": config,
            "compiled": compiled,
            "library": library,
            "package": package,
        },
        params=dict(described),
        tools=tool_versions("apache-tvm"),
        code=(WEB_CODE,),
        describe="put the bundle together",
    )


def client_verify_action(subject: str, bundle: Action) -> Action:
    """All hashes of the bundle; what it computes only its client can tell."""
    return Action(
        stage="client_verify",
        version=1,
        subject=subject,
        run=_verify,
        inputs={"bundle": bundle},
        describe="check hashes",
    )


def _assemble(context: ActionContext) -> None:
    from mlcbuild.bundle.client_manifest import ClientInfo
    from mlcbuild.bundle.client_writer import ClientParts, write_client_bundle
    from mlcbuild.bundle.manifest import ModelInfo
    from mlcbuild.bundle.web_config import CONFIG_NAME
    from mlcbuild.weights.tensor_cache import CACHE_NAME

    params, out = dict(context.params), context.out
    _place_files(context, params)
    description = json.loads((context.inputs["model"] / MODEL).read_bytes())
    library = json.loads((context.inputs["compiled"] / LIBRARY).read_bytes())
    own_notes: Any = params["notes"]
    notes = [
        *description["notes"],
        *json.loads((context.inputs["config"] / NOTES).read_bytes()),
        *library["notes"],
        *own_notes,
    ]
    write_client_bundle(
        out,
        ClientParts(
            name=str(params["name"]),
            target=str(params["target"]),
            architecture=description["architecture"],
            scheme=from_params(QuantScheme, params["scheme"]),
            limits=from_params(Limits, params["limits"]),
            model=ModelInfo(
                source=str(params["source"]),
                revision=None if params["revision"] is None else str(params["revision"]),
                license=str(params["license"] or description["license"] or "") or None,
                vocab_size=description["vocab_size"],
                tokenizer_vocab_size=description["tokenizer_vocab_size"],
                parameters=description["parameters"],
                notes=notes,
            ),
            client=ClientInfo(
                package=str(params["client"]), library=WASM, config=CONFIG_NAME, params=CACHE_NAME
            ),
            needs=_needs(context, library),
            kv_bytes_per_token=library["kv_bytes_per_token"],
            kv_bytes=library["kv_bytes"],
            scratch_bytes=library["scratch_bytes"],
            metadata=library["metadata"],
            tokenizer=TOKENIZER,
            page=PAGE,
        ),
    )


def _place_files(context: ActionContext, params: Mapping[str, Any]) -> None:
    inputs, out = context.inputs, context.out
    for path in sorted((inputs["params"] / "params").iterdir()):
        place(path, out / path.name)
    for path in sorted(inputs["config"].iterdir()):
        if path.name != NOTES:
            place(path, out / path.name)
    place(inputs["library"] / Path(WASM).name, out / WASM)
    place(inputs["package"] / SCRIPT, copy_page(out) / SCRIPT)
    licenses = out / "licenses"
    place_licenses(inputs["model"], licenses)
    place(inputs["package"] / LICENSE, licenses / f"{LICENSE}.txt")
    tvm = package_folder("tvm", "apache-tvm")
    for name in ("LICENSE", "NOTICE"):
        place(tvm / name, licenses / f"tvm-{name}.txt", copy=True)
    (licenses / "mlcb-NOTICE.txt").write_text(
        _NOTICE.format(script=SCRIPT, package=params["client"], package_license=f"{LICENSE}.txt"),
        encoding="utf-8",
    )


def _needs(context: ActionContext, library: Mapping[str, Any]) -> Any:
    """What kernels or params ask of a device, whichever asks for more."""
    from mlcbuild.bundle.client_manifest import DeviceNeeds

    params = json.loads((context.inputs["params"] / NEEDS).read_bytes())
    limits: dict[str, int] = dict(params["limits"])
    for name, value in library["needs"]["limits"].items():
        limits[name] = max(value, limits.get(name, 0))
    features = {*params["features"], *library["needs"]["features"]}
    return DeviceNeeds(features=sorted(features), limits=limits)


def _verify(context: ActionContext) -> None:
    from mlcbuild.bundle.reader import verify_bundle

    report = verify_bundle(context.inputs["bundle"])
    report.check()
    (context.out / "report.json").write_bytes(canonical_json.encode({"files": report.to_json()}))
