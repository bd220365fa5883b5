"""Whole web modules, every kernel on a software GPU, against the same modules on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlcbuild.quant.schemes import SCHEMES
from tests.conftest import Arrays
from tests.contract.memory_checkpoint import MemoryCheckpoint
from tests.parity import tiny_llama
from tests.unit.kernel_runner import Array
from tests.unit.web_runner import CPU, WebRunner, on_cpu, stored_params, web_module
from tests.unit.webgpu_vm import ShaderModule
from tests.unit.wgsl_runner import TARGET

# Prefill and decode, within a page and over its end, and prefill behind what is cached.
CHUNKS = (20, 1, 13, 1, 1, 12)
# The caches' kernels that every conversation comes to.
ATTENTION = {
    "batch_prefill_ragged_kv",
    "batch_prefill_paged_kv",
    "batch_decode_paged_kv",
    "tir_attention_merge_state",
    "tir_kv_cache_transpose_append",
    "fused_rope",
}


def logits_of(runner: WebRunner, ids: Array) -> Array:
    """The logits behind each chunk."""
    ends = np.cumsum(CHUNKS)
    return np.stack(
        [runner.step(ids[end - size : end]) for size, end in zip(CHUNKS, ends, strict=True)]
    )


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("untied", "q0f32"),
        ("attention_bias", "q4f32_1"),
        ("tied", "q0f16"),
        ("rope_llama3", "q4f16_1"),
    ],
)
def test_logits_are_those_of_the_cpu(
    variant: str, name: str, tiny_reference: Arrays, tmp_path: Path
) -> None:
    scheme = SCHEMES[name]
    checkpoint = MemoryCheckpoint(tiny_llama.weights(variant))
    params = stored_params(checkpoint, variant, scheme, tmp_path)
    shaders = ShaderModule(web_module(variant, scheme, TARGET))
    ids = tiny_reference["ids"]
    found = logits_of(WebRunner(shaders.executable, params), ids)
    assert set(shaders.calls) >= ATTENTION
    expected = logits_of(WebRunner(on_cpu(web_module(variant, scheme, CPU)), params), ids)
    # A cache of float16 rounds attention's output, which depends on the order of its sums.
    tolerance = 1e-4 if scheme.kv_dtype == "float32" else 5e-3
    assert np.abs(found - expected).max() < tolerance
