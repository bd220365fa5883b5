"""Linux on x86-64, CPU: AVX2, AVX-VNNI, AVX-512 VNNI and AMX kernels, glibc 2.28 or newer."""

from __future__ import annotations

from mlcbuild.kernels.cpu.families import AMX, AVX2, AVX512, AVX512_VNNI, AVX_VNNI
from mlcbuild.spec.layout import BF16X16, F16X16, F32X16, I3X16, I4X16, I8X16
from mlcbuild.targets.target import NativeTarget, Variant

TARGET = NativeTarget(
    name="linux-x86_64-cpu",
    summary="Linux, x86-64 CPUs with AVX2, AVX-512 VNNI or AMX, glibc 2.28+",
    triple="x86_64-unknown-linux-gnu",
    zig_triple="x86_64-linux-gnu.2.28",
    integer_variants=(
        Variant("amx", AMX, "int8"),
        Variant("avx512vnni", AVX512_VNNI, "int8"),
        Variant("avxvnni", AVX_VNNI, "int8"),
        Variant("avx2", AVX2, "int8"),
        Variant("avx512-float", AVX512, "float"),
        Variant("avx2-float", AVX2, "float"),
    ),
    float_variants=(
        Variant("avx512", AVX512, "float"),
        Variant("avx2", AVX2, "float"),
    ),
    layouts=(I3X16, I4X16, I8X16, F16X16, BF16X16, F32X16),
    library_suffix=".so",
    tools=("apache-tvm", "apache-tvm-ffi", "ziglang"),
)
