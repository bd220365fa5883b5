"""What a library asks of a WebGPU device: read from shaders, kernels and planned memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tvm
from tvm import relax, tirx
from tvm.tirx.script import builder as T

from mlcbuild.errors import ResourceError, StageError
from mlcbuild.kernels.webgpu.builder import divide_up, kernel, shared, store
from mlcbuild.passes.compile_web import check_kernels
from mlcbuild.passes.device_needs import (
    check_dispatches,
    device_needs,
    layer_bytes,
    memory_needs,
    planned_bytes,
)
from mlcbuild.spec.attention import AttentionSpec
from mlcbuild.spec.limits import Limits
from tests.unit.wgsl_runner import TARGET

ATTENTION = AttentionSpec(
    layers=2,
    heads=8,
    kv_heads=8,
    head_dim=128,
    rotary_dim=128,
    inv_freq=(1.0,) * 64,
    attention_factor=1.0,
)
LIMITS = Limits(context_window_size=4096, prefill_chunk_size=512, max_batch_size=1)
SHADER = """// Function: wide_kernel
//----------------------------------------
{enable}
{bindings}
var<workgroup> cells : array<vec4<f32>, {vectors}>;
@compute @workgroup_size({threads}, 1, 1)
fn wide_kernel() {{ }}
"""


def shader(*, buffers: int = 8, vectors: int = 1024, threads: int = 256, enable: str = "") -> str:
    """A shader at the limits, or beyond one of them."""
    bindings = "\n".join(
        f"@group(0) @binding({i}) var<storage, read> b{i} : array<f32>;" for i in range(buffers)
    )
    return SHADER.format(bindings=bindings, vectors=vectors, threads=threads, enable=enable)


def test_what_every_device_has_is_no_need() -> None:
    needs = device_needs(shader(enable="enable f16;"))
    assert needs.features == ("shader-f16",)
    assert needs.limits == {}


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({"buffers": 9}, "maxStorageBuffersPerShaderStage of 9"),
        ({"vectors": 1025}, "maxComputeWorkgroupStorageSize of 16400"),
        ({"threads": 257}, "maxComputeInvocationsPerWorkgroup of 257"),
    ],
)
def test_a_shader_beyond_a_limit_is_refused(change: Any, limit: str) -> None:
    with pytest.raises(StageError, match=f"kernel wide_kernel needs a {limit}"):
        device_needs(shader(**change))


def copy(rows: int, columns: int, cells: int) -> tirx.PrimFunc:
    """A kernel with ``rows`` workgroups along y and shared memory."""
    with kernel("copy") as writer:
        x = writer.tensor("x", (rows, columns), "float32")
        y = writer.tensor("y", (rows, columns), "float32")
        with (
            T.thread_binding(0, divide_up(columns, 64), "blockIdx.x") as group,
            T.thread_binding(0, rows, "blockIdx.y") as row,
            T.thread_binding(0, 64, "threadIdx.x") as thread,
            T.sblock("kernel"),
        ):
            held = shared((cells,), "float32")
            with T.serial(0, cells // 64) as i:
                store(held, x[row, group * 64 + thread], i * 64 + thread)
            store(y, held[63 - thread + cells - 64], row, group * 64 + thread)
    return writer.func.with_attr("global_symbol", "copy")


def test_workgroups_along_y_are_bounded() -> None:
    check_dispatches(tvm.IRModule({"copy": copy(65535, 64, 64)}))
    with pytest.raises(StageError, match=r"kernel copy has 65536 workgroups along blockIdx\.y"):
        check_dispatches(tvm.IRModule({"copy": copy(65536, 64, 64)}))


def test_the_kernel_that_does_not_compile_is_named() -> None:
    check_kernels(tvm.IRModule({"copy": copy(2, 64, 4096)}), TARGET)
    with pytest.raises(StageError, match=r"kernel copy is refused(.|\n)*16640 bytes"):
        check_kernels(tvm.IRModule({"copy": copy(2, 64, 4160)}), TARGET)


def planned(size: int) -> tvm.IRModule:
    """A module with a function that allocates ``size`` bytes."""
    builder = relax.BlockBuilder()
    with builder.function("batch_prefill", []):
        out = builder.emit(
            relax.op.memory.alloc_storage(
                relax.ShapeExpr([size]), relax.prim_value(0), "global", "uint8"
            )
        )
        builder.emit_func_output(out)
    return builder.get()


def test_large_buffers_are_needs_up_to_what_browsers_bind() -> None:
    assert memory_needs(planned(1 << 27), ATTENTION, LIMITS) == {}
    assert planned_bytes(planned(1 << 27)) == 1 << 27
    found = memory_needs(planned((1 << 27) + 4), ATTENTION, LIMITS)
    assert found["maxStorageBufferBindingSize"] == (1 << 27) + 4
    with pytest.raises(ResourceError, match="a buffer of batch_prefill"):
        memory_needs(planned((1 << 30) + 4), ATTENTION, LIMITS)
    # 8 heads of 128, keys and values, float16: 4 KiB a token.
    long = replace(LIMITS, context_window_size=1 << 16)
    found = memory_needs(planned(4), ATTENTION, long)
    assert found["maxStorageBufferBindingSize"] == (1 << 28) + (16 << 12)
    with pytest.raises(ResourceError, match="a layer of the KV cache"):
        memory_needs(planned(4), ATTENTION, replace(LIMITS, context_window_size=1 << 19))


def test_the_cache_has_a_page_beyond_the_context() -> None:
    """128 MiB, which every device binds, are the context and one page."""
    most = replace(LIMITS, context_window_size=(1 << 15) - 16)
    assert layer_bytes(ATTENTION, most) == 1 << 27
    assert memory_needs(planned(4), ATTENTION, most) == {}
    for context in ((1 << 15) - 15, 1 << 15):
        found = memory_needs(planned(4), ATTENTION, replace(most, context_window_size=context))
        size = (1 << 27) + (16 << 12)
        assert found == {"maxStorageBufferBindingSize": size, "maxBufferSize": size}
