"""Lowers a web module to a virtual machine's code and its kernels, in named phases."""

from __future__ import annotations

import logging
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import dlight

from mlcbuild.passes.schedule_linear import schedule_linear

_LOG = logging.getLogger(__name__)


def kernel_passes(target: Any, *, own_kernels: bool = True) -> list[Any]:
    """From operators to kernels that are fused and, for a GPU, scheduled.

    Products are made by kernels of our own (unless not ``own_kernels``, for comparison); what no
    builder scheduled gets the generic schedules of ``dlight``.
    """
    transform = relax.transform
    own = [_own_kernels()] if own_kernels else []
    schedule = [] if target.kind.name == "llvm" else [*own, _schedule()]
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


def web_pipeline(target: Any) -> Any:
    """The passes between a module of operators and one that ``tvm.compile`` makes code of."""
    transform = relax.transform
    passes = [
        *kernel_passes(target),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        transform.StaticPlanBlockMemory(),
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


def _own_kernels() -> Any:
    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def run(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        mod, left = schedule_linear(mod)
        for name, why in sorted(left.items()):
            _LOG.warning("%s has the generic schedule: %s", name, why)
        return mod

    return run


def _schedule() -> Any:
    gpu = dlight.gpu
    rules = (gpu.Matmul, gpu.GEMV, gpu.Reduction, gpu.GeneralReduction, gpu.Fallback)
    return dlight.ApplyDefaultSchedule(*(rule() for rule in rules))


def compile_web(mod: tvm.IRModule, target: Any) -> Any:
    """The executable of a web module for ``target`` (TVM's)."""
    return tvm.compile(mod, target=target, relax_pipeline=web_pipeline(target))
