"""Default CPU schedule for functions that no kernel covers: inline, parallel, vectorize."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.s_tir import Schedule

LANES = 16


def schedule_elementwise(
    mod: tvm.IRModule, report: Callable[[str], None] | None = None
) -> tvm.IRModule:
    """Schedules each PrimFunc that is not yet scheduled; ``report`` is told every name."""
    out = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs)
    for gvar, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc) or _is_scheduled(func):
            continue
        out[gvar] = _schedule(func)
        if report is not None:
            report(gvar.name_hint)
    return out


def _is_scheduled(func: tirx.PrimFunc) -> bool:
    return func.attrs is not None and "tirx.is_scheduled" in func.attrs


def _schedule(func: tirx.PrimFunc) -> tirx.PrimFunc:
    sch = Schedule(tvm.IRModule({"main": func}))
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    for block in blocks[:-1]:
        try:
            sch.compute_inline(block)
        except tvm.s_tir.ScheduleError:
            continue  # a reduction or an output: it keeps its own loops
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        _schedule_block(sch, block)
    result = sch.mod["main"]
    return result.with_attr("tirx.is_scheduled", True)


def _schedule_block(sch: Schedule, block: object) -> None:
    loops = sch.get_loops(block)
    kinds = [it.iter_type for it in sch.get(block).iter_vars]
    spatial = [
        loop for loop, kind in zip(loops, kinds, strict=False) if kind == tirx.IterVar.DataPar
    ]
    if not spatial or len(loops) != len(kinds):
        return
    if len(spatial) == len(loops):
        fused = sch.fuse(*loops)
        outer, inner = sch.split(fused, [None, LANES])
        sch.vectorize(inner)
        sch.parallel(outer)
    else:
        sch.parallel(spatial[0])
