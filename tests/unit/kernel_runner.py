"""Compiles kernels for an instruction set and runs them on numpy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from mlcbuild.kernels.cpu import families
from mlcbuild.kernels.cpu.set import CpuKernels
from mlcbuild.kernels.cpu.tiles import Tiles
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.weights.dtypes import numpy_dtype
from tests.unit import kernel_emulator

VARIANTS = families.X86  # run where this machine has them
EMULATED = (*families.ARM, *families.WASM)  # run everywhere
_TRIPLES = {
    "x86": "x86_64-linux-gnu",
    "arm": "aarch64-linux-gnu",
    "wasm": "wasm32-unknown-unknown",
}
_REQUEST_PERMISSION, _TILE_DATA, _ARCH_PRCTL = 0x1023, 18, 158

Array = np.ndarray[Any, np.dtype[Any]]
Kernels = Mapping[str, tuple[str, dict[str, Any]]]  # name -> builder and its arguments


@dataclass(frozen=True)
class Compiled:
    """Kernels of one variant in one library, here or in an emulator."""

    call: Callable[[str, Sequence[Array]], None]

    def run(self, name: str, inputs: Sequence[Array], *outputs: tuple[Any, str]) -> list[Array]:
        """Outputs ``(shape, dtype)`` of a kernel; they hold rubbish when it is called.

        An input whose data begin at a multiple of 64 bytes is passed as it is, so that a kernel
        that writes to it is seen to; others are copied.
        """
        results = [aligned(rubbish(shape, dtype)) for shape, dtype in outputs]
        arrays = [
            a if a.ctypes.data % 64 == 0 and a.flags.c_contiguous else aligned(a) for a in inputs
        ]
        self.call(name, [*arrays, *results])
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
    """Skips the test on a machine without the instruction set, or without its emulator."""
    if variant.architecture == "arm":
        if kernel_emulator.find_qemu() is None:
            pytest.skip("there is no qemu-aarch64 (Debian's qemu-user-static) to run ARM's kernels")
        return
    if variant.architecture == "wasm":
        return
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    if not set(variant.features) <= set(flags):
        pytest.skip(f"this machine has no {variant.isa}")
    if variant.int8_tiles:
        refused = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
        assert not refused, "Linux gives this process no tile registers"


def build(variant: Capabilities, chosen: Kernels, tiles: Tiles | None = None) -> Any:
    """One library of some kernels."""
    kernels = CpuKernels(variant, tiles)
    functions = {
        name: getattr(kernels, builder)(**arguments).with_attr("global_symbol", name)
        for name, (builder, arguments) in chosen.items()
    }
    target = tvm.target.Target(
        {
            "kind": "llvm",
            "mtriple": _TRIPLES[variant.architecture],
            "mcpu": variant.llvm_cpu,
            "mattr": list(variant.llvm_features),
            "vector-width": variant.vector_bits,
        }
    )
    return tvm.compile(tvm.IRModule(functions), target)


def compile_kernels(variant: Capabilities, chosen: Kernels, tiles: Tiles | None = None) -> Compiled:
    """Some kernels, ready to run."""
    library = build(variant, chosen, tiles)
    if variant.architecture == "x86":
        return loaded(library)
    return Compiled(kernel_emulator.emulate(variant.architecture, library.mod, list(chosen)).call)


def loaded(library: Any) -> Compiled:
    """A library of TVM's for this machine, ready to run."""

    def call(name: str, arrays: Sequence[Array]) -> None:
        library[name](*(as_tensor(array) for array in arrays))

    return Compiled(call)


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Standard normal draws as float32."""
    return rng.standard_normal(shape).astype("float32")
