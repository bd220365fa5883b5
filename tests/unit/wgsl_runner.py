"""Runs WebGPU kernels on this machine: wgpu-native over Mesa's software Vulkan.

The device has nothing but WebGPU's default limits and float16 where the adapter has it.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.unit.kernel_runner import Array

TARGET = tvm.target.Target({"kind": "webgpu"}, host={"kind": "llvm"})
_BINDING = re.compile(r"@binding\((\d+)\) var<storage, (read|read_write)> (\w+)_ptr")
_UNIFORM = re.compile(r"@binding\((\d+)\) var<uniform>")
_EXTENT = re.compile(r'T\.thread_binding\((.+), thread="blockIdx\.([xyz])"\)')
_PODS = re.compile(r"struct PODArgs \{(.*?)\}", re.DOTALL)


@functools.cache
def device() -> Any:
    """A device with default limits; the test is skipped where there is none."""
    import wgpu

    try:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except RuntimeError as error:
        pytest.skip(f"no WebGPU adapter (Debian: mesa-vulkan-drivers): {error}")
    wanted = ["shader-f16"] if "shader-f16" in adapter.features else []
    return adapter.request_device_sync(required_features=wanted)


@dataclass(frozen=True)
class Shader:
    """The shader of a kernel: bindings by the names of its arguments, scalars in order."""

    pipeline: Any
    bindings: dict[str, tuple[int, bool]]
    uniform: int
    scalars: tuple[str, ...]


@functools.cache
def shader_of(func: tirx.PrimFunc) -> Shader:
    """Compiles a kernel with TVM, and its shader for the device."""
    named = func.with_attr("global_symbol", "kernel")
    library = tvm.compile(tvm.IRModule({"kernel": named}), TARGET)
    (module,) = library.mod.imports
    code = str(module.inspect_source())
    pods, uniform = _PODS.search(code), _UNIFORM.search(code)
    assert pods is not None
    assert uniform is not None
    bindings = {
        name: (int(number), kind == "read_write") for number, kind, name in _BINDING.findall(code)
    }
    pipeline = device().create_compute_pipeline(
        layout="auto",
        compute={
            "module": device().create_shader_module(code=code),
            "entry_point": "kernel_kernel",
        },
    )
    names = tuple(field.split(":")[0].strip() for field in pods.group(1).split(","))
    return Shader(pipeline, bindings, int(uniform.group(1)), names)


def _grid(func: tirx.PrimFunc, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Workgroups along x and y that a scheduled kernel runs with these dimensions."""

    class Numbers:
        int32 = int64 = int

    found = {"x": 1, "y": 1}
    for extent, axis in _EXTENT.findall(func.script()):
        found[axis] = int(eval(extent, {"T": Numbers}, dict(sizes)))
    return found["x"], found["y"]


def run_kernel(func: tirx.PrimFunc, arrays: Sequence[Array], scalars: Sequence[int] = ()) -> None:
    """Runs a kernel on ``arrays``, its tensor arguments in order; what it writes is in them."""
    import wgpu

    usage = wgpu.BufferUsage
    shader = shader_of(func)
    queue = device().queue
    plain = [param for param in func.params if hasattr(param.ty, "shape")]
    named = dict(zip((str(param.name) for param in plain), arrays, strict=True))
    numbers = [str(param.name) for param in func.params if not hasattr(param.ty, "shape")]
    sizes = dict(zip(numbers, scalars, strict=True)) | _dimensions(plain, arrays)
    grid = _grid(func, sizes)
    sizes["packGridDimX"] = grid[0] - 1
    words = b"".join(struct.pack("<i", sizes[name]) for name in shader.scalars)
    words += bytes(-len(words) % 16)
    flags = usage.STORAGE | usage.COPY_SRC
    buffers = {
        name: device().create_buffer_with_data(data=array.tobytes(), usage=flags)
        for name, array in named.items()
        if name in shader.bindings
    }
    uniform = device().create_buffer_with_data(data=words, usage=usage.UNIFORM)
    places = [(shader.bindings[name][0], buffer) for name, buffer in buffers.items()]
    places.append((shader.uniform, uniform))
    group = device().create_bind_group(
        layout=shader.pipeline.get_bind_group_layout(0),
        entries=[
            {"binding": number, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
            for number, buffer in places
        ],
    )
    encoder = device().create_command_encoder()
    step = encoder.begin_compute_pass()
    step.set_pipeline(shader.pipeline)
    step.set_bind_group(0, group)
    step.dispatch_workgroups(*grid, 1)
    step.end()
    queue.submit([encoder.finish()])
    for name, buffer in buffers.items():
        if shader.bindings[name][1]:
            found = np.frombuffer(queue.read_buffer(buffer), named[name].dtype)
            named[name][...] = found.reshape(named[name].shape)


def _dimensions(params: Sequence[Any], arrays: Sequence[Array]) -> dict[str, int]:
    """The values of dynamic dimensions."""
    found: dict[str, int] = {}
    for param, array in zip(params, arrays, strict=True):
        for size, value in zip(param.ty.shape, array.shape, strict=True):
            if isinstance(size, tirx.Var):
                found[str(size.name)] = value
    return found


def run_function(module: tvm.IRModule, name: str, args: Sequence[Any]) -> Any:
    """Runs a straight-line Relax function of kernel calls: an array, or a list of them.

    A tuple of params is a list of arrays.
    """
    func = module[name]
    values: dict[Any, Any] = dict(zip(func.params, args, strict=True))

    def value_of(expr: Any) -> Any:
        return values[expr] if isinstance(expr, relax.Var) else expr

    for binding in func.body.blocks[0].bindings:
        value = binding.value
        if isinstance(value, relax.TupleGetItem):
            values[binding.var] = value_of(value.tuple_value)[value.index]
        elif isinstance(value, relax.Var):
            values[binding.var] = values[value]
        else:
            values[binding.var] = _call(module, value, value_of)
    return value_of(func.body.body)


def _call(module: tvm.IRModule, value: Any, value_of: Any) -> Any:
    assert str(value.op.name) == "relax.call_tir"
    given = [value_of(field) for field in value.args[1].fields]
    arrays = [item for item in given if isinstance(item, np.ndarray)]
    scalars = [int(item.value) for item in given if not isinstance(item, np.ndarray)]
    (out_ty,) = value.ty_args
    types = [out_ty] if isinstance(out_ty, relax.TensorType) else list(out_ty.fields)
    outs = [np.zeros([int(s) for s in ty.shape.values], str(ty.dtype)) for ty in types]
    run_kernel(module[value.args[0]], [*arrays, *outs], scalars)
    return outs[0] if len(outs) == 1 else outs
