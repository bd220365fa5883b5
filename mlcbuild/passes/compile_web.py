"""Lowers a web module to a virtual machine's code and its kernels, in named phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import dlight

from mlcbuild.errors import StageError
from mlcbuild.passes.schedule_linear import schedule_linear


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


def _own_kernels() -> Any:
    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def run(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        return schedule_linear(mod)

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
    """The executable of a web module for ``target`` (TVM's); ``observe`` as in ``web_pipeline``.

    Raises StageError naming the kernel that the device's code generator refuses.
    """
    planned: list[tvm.IRModule] = []

    def keep(module: tvm.IRModule) -> None:
        planned.append(module)
        if observe is not None:
            observe(module)

    try:
        return tvm.compile(mod, target=target, relax_pipeline=web_pipeline(target, keep))
    except tvm.error.InternalError:
        for module in planned:
            check_kernels(module, target)
        raise


def check_kernels(mod: tvm.IRModule, target: Any) -> None:
    """Compiles every kernel by itself; a StageError for the first that is refused."""
    for gvar, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc):
            try:
                tvm.compile(tvm.IRModule({gvar: func}), target=target)
            except tvm.error.InternalError as error:
                why = str(error).strip().splitlines()[-1]
                raise StageError(f"kernel {gvar.name_hint} is refused", why=why) from error
