"""schedule: which kernels of a variant have a tuning record, and which the default schedule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mlcbuild.core import canonical_json
from mlcbuild.core.canonical_json import Json
from mlcbuild.kernels.registry import get_spaces
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.files import RECORDS, SCHEDULES
from mlcbuild.pipeline.stages.records import from_params, to_params
from mlcbuild.pipeline.stages.schedule_sources import DEFAULT, GENERIC, RECORD
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.schedule_space import Space, Workload
from mlcbuild.targets.target import Variant


def schedule_action(
    variant: Variant,
    lowered: Action,
    records: Mapping[str, Mapping[str, Json]],
    *,
    keep_records: bool,
) -> Action:
    """The action for the kernels that ``lowered`` named.

    ``records`` are those for the variant's capabilities, by workload. It runs whenever any of them
    changes, but takes no time, and its result changes only with the ones that this model uses.
    ``keep_records``: also write the used ones as they are stored.
    """
    capabilities = variant.capabilities
    return Action(
        stage="schedule",
        version=1,
        subject=lowered.subject,
        run=_run,
        inputs={"lowered": lowered},
        params={
            "capabilities": to_params(capabilities),
            "records": {digest: dict(record) for digest, record in records.items()},
            "keep_records": keep_records,
        },
        code=(f"mlcbuild.kernels.{capabilities.family}.space",),
        describe=f"choose schedules for {variant.name}",
    )


def _run(context: ActionContext) -> None:
    params: dict[str, Any] = dict(context.params)
    kernels = json.loads((context.inputs["lowered"] / SCHEDULES).read_bytes())
    capabilities = from_params(Capabilities, params["capabilities"])
    chosen: dict[str, Any] = {}
    used: dict[str, Any] = {}
    for name, kernel in kernels.items():
        if kernel["builder"] is None:
            chosen[name] = {"source": GENERIC}
            context.progress.note(f"{name}: no kernel of ours fits, generic schedule")
            continue
        decisions: dict[str, Any] = {}
        ids: list[str] = []
        for space, workload in workloads_of(capabilities, kernel["builder"], kernel["args"]):
            record = params["records"].get(workload.digest())
            if record is None:
                continue
            if (reason := _misfit(space, record)) is not None:
                context.progress.note(f"{workload}: record {record['id']} is left out: {reason}")
                continue
            decisions[space.form] = record["decisions"]
            ids.append(record["id"])
            used[record["id"]] = record
        source = {"source": RECORD if decisions else DEFAULT}
        chosen[name] = {**source, "decisions": decisions, "records": ids}
    (context.out / SCHEDULES).write_bytes(canonical_json.encode(chosen))
    if params["keep_records"]:
        lines = [used[i]["stored"] for i in sorted(used)]
        (context.out / RECORDS).write_text("".join(lines), encoding="utf-8")


def workloads_of(
    capabilities: Capabilities, builder: str, args: Mapping[str, Any]
) -> list[tuple[Space, Workload]]:
    """What can be tuned of a kernel: its search spaces and the names of their records."""
    module = get_spaces(capabilities)
    kept = tuple(sorted(module.template_args(args).items()))
    return [
        (space, Workload(builder, kept, space.form, space.rows))
        for space in module.spaces(capabilities, builder, args)
    ]


def _misfit(space: Space, record: Mapping[str, Any]) -> str | None:
    """Why a record cannot be applied; None if it can.

    A comparison that the default won holds decisions that need not be in the space.
    """
    if record["speedup"] == 1.0:
        names = {name for choice in space.choices for name in choice.names}
        return None if names <= set(record["decisions"]) else "the template has other parameters"
    if space.index_of(record["decisions"]) is None:
        return "its decisions are not among this template's"
    return None
