"""Kernels of attention that are ours, on a software GPU, against numpy; TVM's fit the device."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from mlcbuild.kernels.webgpu.merge import merge_state
from mlcbuild.passes.web_model import build_cache
from mlcbuild.spec.attention import AttentionSpec
from tests.unit.kernel_runner import Array
from tests.unit.wgsl_runner import TARGET, compile_kernels, run_kernel


@pytest.mark.parametrize(("dim", "dtype"), [(16, "float32"), (64, "float16"), (128, "float32")])
def test_parts_of_an_attention_are_merged(dim: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    rows, heads = 7, 3
    values = [rng.standard_normal((rows, heads, dim)).astype(dtype) for _ in range(2)]
    sums: list[Array] = [rng.standard_normal((rows, heads), np.float32) * 9 for _ in range(2)]
    weights = [np.exp2(part.astype(np.float64))[..., None] for part in sums]
    total = weights[0] + weights[1]
    expected = (values[0] * weights[0] + values[1] * weights[1]) / total
    expected_sums = np.log2(total[..., 0])
    run_kernel(merge_state(heads, dim, dtype), [values[0], sums[0], values[1], sums[1]])
    np.testing.assert_allclose(values[0], expected, atol=2e-3 if dtype == "float16" else 1e-6)
    np.testing.assert_allclose(sums[0], expected_sums, rtol=1e-5)


def test_attention_without_groups_fits_every_device() -> None:
    spec = AttentionSpec(
        layers=1,
        heads=2,
        kv_heads=2,
        head_dim=64,
        rotary_dim=64,
        inv_freq=(1.0,) * 32,
        attention_factor=1.0,
    )
    cache = build_cache(spec, "float32", TARGET)
    name = "batch_decode_paged_kv"
    found = compile_kernels(tvm.IRModule({name: cache[name]}))[name]
    assert "@workgroup_size" in found.code
