"""Linux on x86-64, CPU: AVX2, AVX-VNNI, AVX-512 VNNI and AMX kernels, glibc 2.28 or newer."""

from __future__ import annotations

from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.layout import BF16X16, F16X16, F32X16, I3X16, I4X16, I8X16
from mlcbuild.targets.target import Target, Variant

AVX2 = Capabilities(
    family="cpu",
    isa="avx2",
    features=("avx2", "f16c", "fma"),
    llvm_cpu="x86-64-v3",
    vector_bits=256,
)
AVX_VNNI = Capabilities(
    family="cpu",
    isa="avxvnni",
    features=(*AVX2.features, "avx_vnni"),
    llvm_cpu=AVX2.llvm_cpu,
    llvm_features=("+avxvnni",),
    vector_bits=256,
    int8_dot=True,
)
AVX512 = Capabilities(
    family="cpu",
    isa="avx512",
    features=("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", "f16c", "fma"),
    llvm_cpu="x86-64-v4",
    vector_bits=512,
)
AVX512_VNNI = Capabilities(
    family="cpu",
    isa="avx512vnni",
    features=(*AVX512.features, "avx512_vnni"),
    llvm_cpu="x86-64-v4",
    llvm_features=("+avx512vnni",),
    vector_bits=512,
    int8_dot=True,
)
AMX = Capabilities(
    family="cpu",
    isa="amx",
    features=(*AVX512_VNNI.features, "amx_tile", "amx_int8"),
    llvm_cpu=AVX512_VNNI.llvm_cpu,
    llvm_features=(*AVX512_VNNI.llvm_features, "+amx-tile", "+amx-int8"),
    vector_bits=512,
    int8_dot=True,
    int8_tiles=True,
)

TARGET = Target(
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
