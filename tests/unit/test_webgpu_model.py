"""Whole web modules, every kernel on a software GPU, against the same modules on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mlcbuild.passes.device_needs import check_dispatches, device_needs
from mlcbuild.passes.schedule_linear import generic_products
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


def run(variant: str, name: str, ids: Array, folder: Path) -> tuple[ShaderModule, Array]:
    """The shaders of a model, and the logits that they make."""
    scheme = SCHEMES[name]
    checkpoint = MemoryCheckpoint(tiny_llama.weights(variant))
    params = stored_params(checkpoint, variant, scheme, folder)
    shaders = ShaderModule(web_module(variant, scheme, TARGET))
    found = logits_of(WebRunner(shaders.executable, params), ids)
    assert set(shaders.calls) >= ATTENTION
    return shaders, found


def needed_features(shaders: ShaderModule) -> tuple[str, ...]:
    """The features of a device that the shaders need; they need no more than any has besides."""
    check_dispatches(shaders.lowered)
    sources = [f"// Function: {name}\n{k.code}" for name, k in shaders.kernels.items()]
    needs = device_needs("\n".join(sources))
    assert needs.limits == {}
    return needs.features


def test_float32_logits_are_those_of_transformers(tiny_reference: Arrays, tmp_path: Path) -> None:
    shaders, found = run("attention_bias", "q0f32", tiny_reference["ids"], tmp_path)
    expected = tiny_reference["logits_attention_bias"][np.cumsum(CHUNKS) - 1]
    assert np.abs(found - expected).max() < 1e-4
    assert needed_features(shaders) == ()


def test_float16_logits_are_those_of_the_cpu(tiny_reference: Arrays, tmp_path: Path) -> None:
    variant, scheme, ids = "rope_llama3", SCHEMES["q4f16_1"], tiny_reference["ids"]
    shaders, found = run(variant, scheme.name, ids, tmp_path / "gpu")
    checkpoint = MemoryCheckpoint(tiny_llama.weights(variant))
    params = stored_params(checkpoint, variant, scheme, tmp_path / "cpu")
    expected = logits_of(WebRunner(on_cpu(web_module(variant, scheme, CPU)), params), ids)
    # The cache rounds attention's output to float16, by sums in another order.
    assert np.abs(found - expected).max() < 5e-3
    assert needed_features(shaders) == ("shader-f16",)
    assert generic_products(shaders.lowered) == {}
