"""What a device can do, as the kernels and the loader see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """One kernel variant's needs.

    ``features`` are CPUID-style flags (as in /proc/cpuinfo, e.g. ``avx2``, ``avx512_vnni``) that
    the loader requires; ``llvm_cpu`` / ``llvm_features`` are what the code generator is told.
    ``family`` picks the kernel builders (a package below ``mlcbuild.kernels``).
    """

    family: str  # "cpu"
    isa: str  # "avx2" | "avxvnni" | "avx512" | "avx512vnni" | "amx"
    features: tuple[str, ...]
    llvm_cpu: str
    llvm_features: tuple[str, ...] = ()
    vector_bits: int = 256
    int8_dot: bool = False  # has a u8 x s8 -> s32 dot-product instruction
    int8_tiles: bool = False  # has products of int8 tiles (AMX), for 16 rows and more
