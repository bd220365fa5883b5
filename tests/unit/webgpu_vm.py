"""Runs a web module on a software GPU: every kernel as its shader.

TVM's virtual machine and its paged cache run on the CPU.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from mlcbuild.passes.compile_web import web_pipeline
from tests.unit.kernel_runner import Array
from tests.unit.wgsl_runner import TARGET, Kernel, compile_kernels

_CPU = tvm.target.Target({"kind": "llvm"})
_PREFIX = "mlcbuild.tests.webgpu."


class ShaderModule:
    """The functions of a web module over shaders; ``calls`` counts the runs of each kernel."""

    def __init__(self, module: tvm.IRModule) -> None:
        self.lowered = lowered = web_pipeline(TARGET)(module)
        self.kernels = compile_kernels(lowered)
        self.calls: dict[str, int] = {}
        for name, kernel in self.kernels.items():
            call = functools.partial(self._call, name, kernel)
            tvm.register_global_func(_PREFIX + name, call, override=True)
        self.executable = tvm.compile(
            self._host(lowered), _CPU, relax_pipeline=tvm.transform.Sequential([])
        )

    def _host(self, lowered: tvm.IRModule) -> tvm.IRModule:
        """What runs on the CPU: virtual-machine functions that call the shaders by name."""

        def outside(gvar: Any) -> Any:
            name = gvar.name_hint
            return relax.ExternFunc(_PREFIX + name) if name in self.kernels else gvar

        kept = {}
        for gvar, func in lowered.functions.items():
            if gvar.name_hint in self.kernels:
                continue
            if isinstance(func, relax.Function):
                func = tvm_ffi.structural_map(func, (tvm.ir.GlobalVar, outside))
            kept[gvar] = func
        return tvm.IRModule(kept, attrs=lowered.attrs)

    def _call(self, name: str, kernel: Kernel, *args: Any) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        tensors = [arg for arg in args if isinstance(arg, tvm.runtime.Tensor)]
        scalars = [arg for arg in args if not isinstance(arg, tvm.runtime.Tensor)]
        arrays: list[Array] = [np.array(tensor.numpy()) for tensor in tensors]
        kernel.run(arrays, scalars)
        for param, tensor, array in zip(kernel.params[0], tensors, arrays, strict=True):
            if kernel.bindings.get(str(param.name), (0, False))[1]:
                tensor.copyfrom(array)
