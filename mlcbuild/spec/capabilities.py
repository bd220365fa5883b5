"""What a device can do, as the kernels and the loader see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """One kernel variant's needs.

    ``features`` are what the loader requires, by the names that the system has for them (on Linux
    those of /proc/cpuinfo, e.g. ``avx2``, ``asimddp``; of a browser those of the WebAssembly
    proposals); ``llvm_cpu`` / ``llvm_features`` are what the code generator is told. ``family``
    picks the kernel builders (a package below ``mlcbuild.kernels``), ``architecture`` those parts
    of them that use an architecture's own instructions.
    """

    family: str  # "cpu"
    architecture: str  # "x86" | "arm" | "wasm"
    isa: str  # a name within the family, e.g. "avx2", "dotprod", "simd128"
    features: tuple[str, ...]
    llvm_cpu: str
    llvm_features: tuple[str, ...] = ()
    vector_bits: int = 256
    vector_registers: int = 16
    float16: bool = True  # has instructions that convert float16 to float32 and back
    int8_dot: bool = False  # has a dot-product instruction of u8 (of 7 bits at least) x s8 -> s32
    int8_matrix: bool = False  # has a product of int8 matrices [2, 8] x [8, 2] in one register
    int8_tiles: bool = False  # has products of int8 tiles (AMX), for many rows
