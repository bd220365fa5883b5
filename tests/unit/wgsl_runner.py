"""Runs WebGPU kernels on this machine: wgpu-native over Mesa's software Vulkan.

The device has nothing but WebGPU's default limits and float16 where the adapter has it. A shader
gets what TVM's host code would give it: its launch is read from the lowered host function.
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
import tvm_ffi
from tvm import relax, tirx

from mlcbuild.passes.compile_web import kernel_passes
from tests.unit.kernel_runner import Array

TARGET = tvm.target.Target(
    {"kind": "webgpu", "max_shared_memory_per_block": 16384}, host={"kind": "llvm"}
)
_GROUPS_PER_DIMENSION = 65535
# Where a tensor may begin anywhere in its memory, it does not begin at the front.
_OFFSET = 3
_BINDING = re.compile(r"@binding\((\d+)\) var<storage, (read|read_write)> (\w+)_ptr")
_UNIFORM = re.compile(r"@binding\((\d+)\) var<uniform>")
_PODS = re.compile(r"struct PODArgs \{(.*?)\}", re.DOTALL)
_HEADER = re.compile(r"^// Function: (\w+)_kernel$", re.MULTILINE)


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
class Launch:
    """What the host code of a kernel computes for its shader."""

    binds: tuple[tuple[str, Any], ...]
    extents: Mapping[str, Any]  # by blockIdx.x ...

    def grid(self, values: dict[str, Any]) -> tuple[int, int]:
        """Workgroups along x and y; ``values`` gets what the host code names on the way."""
        for name, expr in self.binds:
            value = _number(expr, values)
            if value is not None:
                values.setdefault(name, value)
        sizes = [_number(self.extents.get(f"blockIdx.{axis}", 1), values) for axis in "xy"]
        assert None not in sizes
        return int(sizes[0] or 0), int(sizes[1] or 0)


def _number(expr: Any, values: Mapping[str, Any]) -> int | None:
    """The value of an integer expression; None if it reads more than ``values``."""
    if isinstance(expr, int):
        return expr
    unknown: list[str] = []

    def replace(var: Any) -> Any:
        if var.name not in values:
            unknown.append(var.name)
            return var
        return tirx.const(int(values[var.name]), str(var.ty.dtype))

    if not isinstance(expr, tirx.Var | tirx.IntImm) and "tvm_struct_get" in str(expr):
        return None
    known = tvm_ffi.structural_map(expr, (tirx.Var, replace))
    value = None if unknown else tvm.sym.Analyzer().simplify(known)
    return int(value.value) if isinstance(value, tirx.IntImm) else None


@dataclass(frozen=True)
class Kernel:
    """A kernel and its shader: bindings by the names of its arguments, scalars in order."""

    func: tirx.PrimFunc
    code: str
    launch: Launch

    @functools.cached_property
    def pipeline(self) -> Any:
        (name,) = re.findall(r"^fn (\w+)\(", self.code, re.MULTILINE)
        return device().create_compute_pipeline(
            layout="auto",
            compute={"module": device().create_shader_module(code=self.code), "entry_point": name},
        )

    @functools.cached_property
    def bindings(self) -> dict[str, tuple[int, bool]]:
        """Number, and whether the shader writes to it."""
        return {
            name: (int(number), kind == "read_write")
            for number, kind, name in _BINDING.findall(self.code)
        }

    @functools.cached_property
    def uniform(self) -> tuple[int, list[tuple[str, str]]]:
        """Number, and the fields (name, type)."""
        pods, number = _PODS.search(self.code), _UNIFORM.search(self.code)
        assert pods is not None
        assert number is not None
        fields = [field.split(":") for field in pods.group(1).split(",")]
        return int(number.group(1)), [(name.strip(), kind.strip()) for name, kind in fields]

    @functools.cached_property
    def params(self) -> tuple[list[Any], list[Any]]:
        """Tensor arguments, and scalar ones."""
        params = list(self.func.params)
        tensors = [param for param in params if hasattr(param.ty, "shape")]
        return tensors, [param for param in params if not hasattr(param.ty, "shape")]

    def values(self, shapes: Sequence[Sequence[int]], scalars: Sequence[Any]) -> dict[str, Any]:
        """What the host code knows: dimensions, offsets and scalar arguments by name."""
        tensors, numbers = self.params
        found = {str(p.name): value for p, value in zip(numbers, scalars, strict=True)}
        for param, shape in zip(tensors, shapes, strict=True):
            sizes = [*zip(param.ty.shape, shape, strict=True), (param.ty.elem_offset, _OFFSET)]
            found |= {str(size.name): n for size, n in sizes if isinstance(size, tirx.Var)}
        return found

    def offset(self, index: int) -> int:
        """Elements in front of the tensor argument ``index``."""
        return _OFFSET if isinstance(self.params[0][index].ty.elem_offset, tirx.Var) else 0

    def arguments(
        self, shapes: Sequence[Sequence[int]], scalars: Sequence[Any]
    ) -> tuple[tuple[int, int, int], bytes]:
        """The grid, and the contents of the uniform buffer."""
        values = self.values(shapes, scalars)
        x, y = self.launch.grid(values)
        values["packGridDimX"] = x - 1
        words = b"".join(
            struct.pack("<f" if kind == "f32" else "<i", values[name])
            for name, kind in self.uniform[1]
        )
        z = -(-x // _GROUPS_PER_DIMENSION)  # what is too long goes along z, as the client does it
        return (x if z == 1 else _GROUPS_PER_DIMENSION, y, z), words + bytes(-len(words) % 16)

    def bind(self, buffers: Sequence[Any], words: bytes) -> Any:
        """A bind group of GPU buffers for the tensor arguments; unread ones are left out."""
        import wgpu

        uniform = device().create_buffer_with_data(data=words, usage=wgpu.BufferUsage.UNIFORM)
        names = [str(param.name) for param in self.params[0]]
        places = [
            (self.bindings[name][0], buffer)
            for name, buffer in zip(names, buffers, strict=True)
            if name in self.bindings
        ]
        return device().create_bind_group(
            layout=self.pipeline.get_bind_group_layout(0),
            entries=[
                {
                    "binding": number,
                    "resource": {"buffer": buffer, "offset": 0, "size": buffer.size},
                }
                for number, buffer in [*places, (self.uniform[0], uniform)]
            ],
        )

    def run(self, arrays: Sequence[Array], scalars: Sequence[Any] = ()) -> None:
        """Runs on ``arrays``, the tensor arguments in order; what it writes is in them then."""
        import wgpu

        flags = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        buffers = [
            device().create_buffer_with_data(
                data=_bytes(array, self.offset(index) * array.itemsize), usage=flags
            )
            for index, array in enumerate(arrays)
        ]
        grid, words = self.arguments([array.shape for array in arrays], scalars)
        encoder = device().create_command_encoder()
        step = encoder.begin_compute_pass()
        step.set_pipeline(self.pipeline)
        step.set_bind_group(0, self.bind(buffers, words))
        step.dispatch_workgroups(*grid)
        step.end()
        device().queue.submit([encoder.finish()])
        for index, param in enumerate(self.params[0]):
            if self.bindings.get(str(param.name), (0, False))[1]:
                array = arrays[index]
                found = np.frombuffer(device().queue.read_buffer(buffers[index]), array.dtype)
                begin = self.offset(index)
                array[...] = found[begin : begin + array.size].reshape(array.shape)


def _bytes(array: Array, front: int) -> bytes:
    """The memory of an array behind ``front`` bytes, filled up to a whole and positive size."""
    data = bytes(front) + array.tobytes()
    return data + bytes(max(-len(data) % 4, 4 - len(data)))


def compile_kernels(mod: tvm.IRModule) -> dict[str, Kernel]:
    """Every kernel of a module, by name, as the module's library has it."""
    funcs = {
        gvar.name_hint: func.with_attr("global_symbol", gvar.name_hint)
        for gvar, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and "tirx.is_host_func" not in (func.attrs or {})
    }
    library = tvm.compile(tvm.IRModule(funcs), TARGET)
    (module,) = library.mod.imports
    _, *rest = _HEADER.split(str(module.inspect_source()))
    codes = dict(zip(rest[::2], rest[1::2], strict=True))
    bound = tirx.transform.BindTarget(TARGET)(tvm.IRModule(funcs))
    with TARGET:
        lowered = tirx.get_tir_pipeline("s_tir")[0](bound)
    return {name: Kernel(func, codes[name], _launch(lowered[name])) for name, func in funcs.items()}


def _launch(host: tirx.PrimFunc) -> Launch:
    binds: list[tuple[str, Any]] = []
    calls: list[Any] = []

    def visit(node: Any) -> None:
        kind = type(node).__name__
        if kind == "Bind":
            binds.append((str(node.var.name), node.value))
        elif kind == "Call" and str(getattr(node.op, "name", "")) == "tirx.call_ffi_kernel":
            calls.append(node)

    tvm_ffi.structural_walk(host.body, (object, visit), order="pre")
    (call,) = calls
    axes = [str(axis) for axis in call.attrs["launch_params"]]
    extents = list(call.args)[len(call.args) - len(axes) :]
    return Launch(tuple(binds), dict(zip(axes, extents, strict=True)))


@functools.cache
def kernel_of(func: tirx.PrimFunc) -> Kernel:
    """Compiles one kernel."""
    return compile_kernels(tvm.IRModule({"kernel": func}))["kernel"]


def run_kernel(func: tirx.PrimFunc, arrays: Sequence[Array], scalars: Sequence[Any] = ()) -> None:
    """Runs a kernel on ``arrays``, its tensor arguments in order; what it writes is in them."""
    kernel_of(func).run(arrays, scalars)


def scheduled(module: tvm.IRModule) -> tvm.IRModule:
    """The module with kernels that are fused and scheduled."""
    with TARGET:
        return tvm.transform.Sequential(kernel_passes(TARGET))(module)


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
    # A dynamic dimension is the number of rows, the second of the first argument.
    rows = arrays[0].shape[min(1, arrays[0].ndim - 1)]
    outs = [
        np.zeros([int(getattr(size, "value", rows)) for size in ty.shape.values], str(ty.dtype))
        for ty in types
    ]
    run_kernel(module[value.args[0]], [*arrays, *outs], scalars)
    return outs[0] if len(outs) == 1 else outs
