"""Lowers a web module to a virtual machine's code and its kernels, in named phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import dlight

_ALLOCATE = ("relax.memory.alloc_storage",)


def kernel_passes(target: Any) -> list[Any]:
    """From operators to kernels that are fused and, for a GPU, scheduled.

    Kernels that no builder scheduled get the generic schedules of ``dlight``.
    """
    transform = relax.transform
    schedule = [] if target.kind.name == "llvm" else [_schedule()]
    return [
        # Reshapes stay what they are, views: as kernels they would be copies.
        transform.LegalizeOps(skip_ops=["relax.reshape"]),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.DeadCodeElimination(),
        *schedule,
    ]


def web_pipeline(target: Any, observe: Callable[[tvm.IRModule], None] | None = None) -> Any:
    """The passes between a module of operators and one that ``tvm.compile`` makes code of.

    ``observe`` gets the module when its memory is planned.
    """
    transform = relax.transform
    passes = [
        *kernel_passes(target),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        transform.StaticPlanBlockMemory(),
        *([] if observe is None else [_observer(observe)]),
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]

    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def run(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        with target:
            return tvm.transform.Sequential(passes)(mod)

    return run


def _schedule() -> Any:
    gpu = dlight.gpu
    rules = (gpu.Matmul, gpu.GEMV, gpu.Reduction, gpu.GeneralReduction, gpu.Fallback)
    return dlight.ApplyDefaultSchedule(*(rule() for rule in rules))


def _observer(observe: Callable[[tvm.IRModule], None]) -> Any:
    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def run(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        observe(mod)
        return mod

    return run


def compile_web(
    mod: tvm.IRModule, target: Any, observe: Callable[[tvm.IRModule], None] | None = None
) -> Any:
    """The executable of a web module for ``target`` (TVM's); ``observe`` as in ``web_pipeline``."""
    return tvm.compile(mod, target=target, relax_pipeline=web_pipeline(target, observe))


def planned_bytes(mod: tvm.IRModule) -> int:
    """Bytes that the hungriest function of a module with planned memory takes for its values."""

    def of(func: relax.Function) -> int:
        sizes: list[int] = []

        def visit(node: Any) -> None:
            if isinstance(node, relax.Call) and getattr(node.op, "name", "") in _ALLOCATE:
                size = node.args[0].values[0]
                # What has no bound in the module is small, such as the ids of a bias.
                sizes.append(int(size) if isinstance(size, tvm.tirx.IntImm) else 0)

        relax.analysis.post_order_visit(func, visit)
        return sum(sizes)

    functions = mod.functions.values()
    return max(of(func) for func in functions if isinstance(func, relax.Function))
