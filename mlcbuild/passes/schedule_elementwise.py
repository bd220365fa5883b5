"""Default CPU schedule for functions that no kernel covers: inline, parallel, vectorize."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule

from mlcbuild.passes.editor import int_of

LANES = 16


def schedule_elementwise(mod: tvm.IRModule) -> tvm.IRModule:
    """Schedules each PrimFunc that is not yet scheduled."""
    out = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs)
    for gvar, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc) or _is_scheduled(func):
            continue
        out[gvar] = _schedule(func)
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


def _schedule_block(sch: Schedule, block: Any) -> None:
    """Runs the outer loops on the thread pool and the innermost one in vectors.

    Only loops whose iterations are independent are touched; a block of another form than one loop
    for each of its axes keeps its loops.
    """
    loops = list(sch.get_loops(block))
    kinds = [it.iter_type for it in sch.get(block).iter_vars]
    if len(loops) != len(kinds):
        return
    spatial = [
        loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar
    ]
    if not spatial:
        return
    if len(spatial) < len(loops):
        sch.parallel(spatial[0])
        return
    # The lanes divide the innermost axis where they can: a vector with a bound check inside
    # would be taken apart into scalars again.
    columns = int_of(sch.get(loops[-1]).extent) or 1
    lanes = next(lanes for lanes in (LANES, 8, 4, 2, 1) if columns % lanes == 0)
    if lanes > 2:
        outer, vector = sch.split(loops[-1], [None, lanes])
        loops = [*loops[:-1], outer]
    else:
        outer, vector = sch.split(sch.fuse(*loops), [None, LANES])
        loops = [outer]
    sch.vectorize(vector)
    sch.parallel(sch.fuse(*loops))
