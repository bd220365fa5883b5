"""Compiles kernels for an instruction set and runs them on numpy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from mlcbuild.kernels.cpu.set import CpuKernels
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.weights.dtypes import numpy_dtype

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
VARIANTS = (
    Capabilities("cpu", "avx2", ("avx2", "f16c", "fma"), "x86-64-v3"),
    Capabilities(
        "cpu",
        "avxvnni",
        ("avx2", "f16c", "fma", "avx_vnni"),
        "x86-64-v3",
        ("+avxvnni",),
        int8_dot=True,
    ),
    Capabilities("cpu", "avx512", _AVX512, "x86-64-v4", vector_bits=512),
    Capabilities(
        "cpu",
        "avx512vnni",
        (*_AVX512, "avx512_vnni"),
        "x86-64-v4",
        ("+avx512vnni",),
        vector_bits=512,
        int8_dot=True,
    ),
    Capabilities(
        "cpu",
        "amx",
        (*_AVX512, "avx512_vnni", "amx_tile", "amx_int8"),
        "x86-64-v4",
        ("+avx512vnni", "+amx-tile", "+amx-int8"),
        vector_bits=512,
        int8_dot=True,
        int8_tiles=True,
    ),
)
AVX2, AVXVNNI, AVX512, AVX512VNNI, AMX = VARIANTS
_REQUEST_PERMISSION, _TILE_DATA, _ARCH_PRCTL = 0x1023, 18, 158

Array = np.ndarray[Any, np.dtype[Any]]
Kernels = Mapping[str, tuple[str, dict[str, Any]]]  # name -> builder and its arguments


@dataclass(frozen=True)
class Compiled:
    """Kernels of one variant in one library."""

    library: Any

    def run(self, name: str, inputs: Sequence[Array], *outputs: tuple[Any, str]) -> list[Array]:
        """Outputs ``(shape, dtype)`` of a kernel; they hold rubbish when it is called.

        An input whose data begin at a multiple of 64 bytes is passed as it is, so that a kernel
        that writes to it is seen to; others are copied.
        """
        results = [aligned(rubbish(shape, dtype)) for shape, dtype in outputs]
        arrays = [
            a if a.ctypes.data % 64 == 0 and a.flags.c_contiguous else aligned(a) for a in inputs
        ]
        self.library[name](*(as_tensor(a) for a in (*arrays, *results)))
        return results


def as_tensor(array: Array) -> Any:
    """The array itself as TVM's tensor; a copy of bfloat16, which numpy cannot hand over."""
    if array.dtype == numpy_dtype("bfloat16"):
        return tvm.runtime.tensor(array)
    return tvm.runtime.from_dlpack(array)


def aligned(array: Array) -> Array:
    """A copy whose data begin at a multiple of 64 bytes, as kernels want it."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    copy: Array = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def rubbish(shape: Any, dtype: str) -> Array:
    """What an arena may hold before a kernel writes to it."""
    return np.full(shape, np.nan if dtype.startswith("float") else 77, dtype)


def on(*variants: Capabilities) -> pytest.MarkDecorator:
    """Run a test with the compiled kernels of some variants."""
    return pytest.mark.parametrize("compiled", variants, indirect=True, ids=lambda v: v.isa)


def skip_unless_runnable(variant: Capabilities) -> None:
    """Skips the test on a machine without the instruction set."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    if not set(variant.features) <= set(flags):
        pytest.skip(f"this machine has no {variant.isa}")
    if variant.int8_tiles:
        refused = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
        assert not refused, "Linux gives this process no tile registers"


def build(variant: Capabilities, chosen: Kernels) -> Any:
    """One library of some kernels."""
    kernels = CpuKernels(variant)
    functions = {
        name: getattr(kernels, builder)(**arguments).with_attr("global_symbol", name)
        for name, (builder, arguments) in chosen.items()
    }
    target = tvm.target.Target(
        {
            "kind": "llvm",
            "mtriple": "x86_64-linux-gnu",
            "mcpu": variant.llvm_cpu,
            "mattr": list(variant.llvm_features),
        }
    )
    return tvm.compile(tvm.IRModule(functions), target)


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Standard normal draws as float32."""
    return rng.standard_normal(shape).astype("float32")
