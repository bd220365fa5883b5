"""CPU kernels against numpy, on every instruction set that this machine runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from mlcbuild.kernels.cpu.set import CpuKernels  # noqa: E402
from mlcbuild.spec.capabilities import Capabilities  # noqa: E402

AVX2 = Capabilities("cpu", "avx2", ("avx2", "f16c", "fma"), "x86-64-v3")
AVX512 = Capabilities(
    "cpu", "avx512", ("avx512f", "avx512bw", "avx512vl"), "x86-64-v4", vector_bits=512
)
AVX512VNNI = Capabilities(
    "cpu",
    "avx512vnni",
    ("avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    "x86-64-v4",
    ("+avx512vnni",),
    vector_bits=512,
    int8_dot=True,
)
ROWS = (1, 3, 8, 37)
rng = np.random.default_rng(7)
