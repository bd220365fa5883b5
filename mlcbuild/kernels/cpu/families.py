"""The instruction sets that the CPU kernels know, for targets to pick from.

Nothing here imports TVM: targets are read where nothing is compiled.
"""

from __future__ import annotations

from mlcbuild.spec.capabilities import Capabilities

AVX2 = Capabilities(
    family="cpu",
    architecture="x86",
    isa="avx2",
    features=("avx2", "f16c", "fma"),
    llvm_cpu="x86-64-v3",
    vector_bits=256,
)
AVX_VNNI = Capabilities(
    family="cpu",
    architecture="x86",
    isa="avxvnni",
    features=(*AVX2.features, "avx_vnni"),
    llvm_cpu=AVX2.llvm_cpu,
    llvm_features=("+avxvnni",),
    vector_bits=256,
    int8_dot=True,
)
AVX512 = Capabilities(
    family="cpu",
    architecture="x86",
    isa="avx512",
    features=("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", "f16c", "fma"),
    llvm_cpu="x86-64-v4",
    vector_bits=512,
    vector_registers=32,
)
AVX512_VNNI = Capabilities(
    family="cpu",
    architecture="x86",
    isa="avx512vnni",
    features=(*AVX512.features, "avx512_vnni"),
    llvm_cpu="x86-64-v4",
    llvm_features=("+avx512vnni",),
    vector_bits=512,
    vector_registers=32,
    int8_dot=True,
)
AMX = Capabilities(
    family="cpu",
    architecture="x86",
    isa="amx",
    features=(*AVX512_VNNI.features, "amx_tile", "amx_int8"),
    llvm_cpu=AVX512_VNNI.llvm_cpu,
    llvm_features=(*AVX512_VNNI.llvm_features, "+amx-tile", "+amx-int8"),
    vector_bits=512,
    vector_registers=32,
    int8_dot=True,
    int8_tiles=True,
)
X86 = (AVX2, AVX_VNNI, AVX512, AVX512_VNNI, AMX)

NEON = Capabilities(
    family="cpu",
    architecture="arm",
    isa="neon",
    features=("asimd",),
    llvm_cpu="generic",
    vector_bits=128,
    vector_registers=32,
)
DOTPROD = Capabilities(
    family="cpu",
    architecture="arm",
    isa="dotprod",
    features=(*NEON.features, "asimddp"),
    llvm_cpu=NEON.llvm_cpu,
    llvm_features=("+dotprod",),
    vector_bits=128,
    vector_registers=32,
    int8_dot=True,
)
I8MM = Capabilities(
    family="cpu",
    architecture="arm",
    isa="i8mm",
    features=(*DOTPROD.features, "i8mm"),
    llvm_cpu=DOTPROD.llvm_cpu,
    llvm_features=(*DOTPROD.llvm_features, "+i8mm"),
    vector_bits=128,
    vector_registers=32,
    int8_dot=True,
    int8_matrix=True,
)
ARM = (NEON, DOTPROD, I8MM)

SIMD128 = Capabilities(
    family="cpu",
    architecture="wasm",
    isa="simd128",
    features=("simd128",),
    llvm_cpu="generic",
    llvm_features=("+simd128",),
    vector_bits=128,
    float16=False,
)
RELAXED = Capabilities(
    family="cpu",
    architecture="wasm",
    isa="relaxed",
    features=(*SIMD128.features, "relaxed-simd"),
    llvm_cpu=SIMD128.llvm_cpu,
    llvm_features=(*SIMD128.llvm_features, "+relaxed-simd"),
    vector_bits=128,
    float16=False,
    int8_dot=True,
)
WASM = (SIMD128, RELAXED)
