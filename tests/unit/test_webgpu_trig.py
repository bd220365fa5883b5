"""Sine and cosine of the WebGPU kernels, in float32 on the CPU, at every position."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.kernels.webgpu.builder import kernel, store
from mlcbuild.kernels.webgpu.trig import cosine_and_sine
from tests.unit.kernel_runner import loaded
from tests.unit.web_runner import CPU

POSITIONS = 1 << 18


def trig(count: int) -> tirx.PrimFunc:
    """``(angle f32[count], cosine f32[count], sine f32[count])``."""
    with kernel("trig") as writer:
        angle = writer.tensor("angle", (count,), "float32")
        cosine = writer.tensor("cosine", (count,), "float32")
        sine = writer.tensor("sine", (count,), "float32")
        with T.serial(0, count) as i, T.sblock("trig"):
            index = T.axis.spatial(count, i)
            both = cosine_and_sine(angle[index])
            store(cosine, both[0], index)
            store(sine, both[1], index)
    return writer.func.with_attr("global_symbol", "trig")


@pytest.mark.parametrize("frequency", [1.0, 0.865964, 0.0123])
def test_they_are_as_good_at_the_end_of_a_long_context(frequency: float) -> None:
    positions = np.arange(POSITIONS, dtype=np.float32)
    angles = positions * np.float32(frequency)
    compiled = loaded(tvm.compile(tvm.IRModule({"trig": trig(POSITIONS)}), CPU))
    shape = ((POSITIONS,), "float32")
    cosine, sine = compiled.run("trig", [angles], shape, shape)
    exact = angles.astype(np.float64)
    assert np.abs(cosine - np.cos(exact)).max() < 2e-7
    assert np.abs(sine - np.sin(exact)).max() < 2e-7
