"""Web modules, run on the CPU: logits of transformers, chunks, every scheme, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tvm

from mlcbuild.errors import StageError
from mlcbuild.passes.web_model import WebInput, build_web_module
from mlcbuild.quant import groupwise
from mlcbuild.quant.schemes import SCHEMES
from mlcbuild.spec.attention import AttentionSpec
from mlcbuild.spec.kv import Window
from mlcbuild.spec.scheme import QuantScheme
from tests.conftest import Arrays
from tests.contract.memory_checkpoint import MemoryCheckpoint
from tests.parity import tiny_llama
from tests.unit.web_runner import CPU, LIMITS, WebRunner, on_cpu, stored_params, web_module

CHUNKS = (20, 1, 13, 1, 1, 12)  # of the reference's 48 tokens: prefill, decode, prefill again
WEB_SCHEMES = ("q0f32", "q0f16", "q4f32_1", "q4f16_1")
GPU = tvm.target.Target({"kind": "webgpu"}, host={"kind": "llvm"})


def logits_of_chunks(runner: WebRunner, ids: np.ndarray) -> np.ndarray:
    """The logits behind each chunk."""
    ends = np.cumsum(CHUNKS)
    return np.stack(
        [runner.step(ids[end - size : end]) for size, end in zip(CHUNKS, ends, strict=True)]
    )


def checkpoint_of(variant: str) -> MemoryCheckpoint:
    return MemoryCheckpoint(tiny_llama.weights(variant))


@pytest.mark.parametrize("variant", ["untied", "attention_bias", "rope_llama3"])
def test_logits_are_those_of_transformers(
    variant: str, tiny_reference: Arrays, tmp_path: Path
) -> None:
    scheme = SCHEMES["q0f32"]
    params = stored_params(checkpoint_of(variant), variant, scheme, tmp_path / "nk")
    runner = WebRunner(on_cpu(web_module(variant, scheme, CPU)), params)
    found = logits_of_chunks(runner, tiny_reference["ids"])
    expected = tiny_reference[f"logits_{variant}"][np.cumsum(CHUNKS) - 1]
    assert np.abs(found - expected).max() < 1e-4


def meant(scheme: QuantScheme) -> MemoryCheckpoint:
    """The tied checkpoint with every matrix as the scheme's codes mean it."""
    tensors = {}
    for name, values in tiny_llama.weights("tied").items():
        if values.ndim == 2 and scheme.is_integer:
            values = groupwise.dequantize(groupwise.quantize(values, scheme), scheme)
        elif values.ndim == 2:
            values = values.astype(scheme.weight_dtype).astype(np.float32)
        tensors[name] = values
    return MemoryCheckpoint(tensors)


@pytest.mark.parametrize("name", WEB_SCHEMES[1:])
def test_what_a_scheme_stores_is_what_is_computed_with(
    name: str, tiny_reference: Arrays, tmp_path: Path
) -> None:
    scheme, exact = SCHEMES[name], SCHEMES["q0f32"]
    checkpoint = checkpoint_of("tied")
    params = stored_params(checkpoint, "tied", scheme, tmp_path / "nk")
    found = logits_of_chunks(
        WebRunner(on_cpu(web_module("tied", scheme, CPU)), params), tiny_reference["ids"]
    )
    plain = stored_params(meant(scheme), "tied", exact, tmp_path / "exact")
    runner = WebRunner(on_cpu(web_module("tied", exact, CPU)), plain)
    expected = logits_of_chunks(runner, tiny_reference["ids"])
    tolerance = 1e-4 if scheme.kv_dtype == "float32" else 5e-3
    assert np.abs(found - expected).max() < tolerance


def test_metadata_names_the_stored_params_in_order(tmp_path: Path) -> None:
    scheme = SCHEMES["q4f16_1"]
    params = stored_params(checkpoint_of("qwen2"), "qwen2", scheme, tmp_path / "nk")
    module = web_module("qwen2", scheme, CPU)
    record = json.loads(str(module["_metadata"].body.body.value))
    assert record["kv_state_kind"] == "kv_cache"
    assert record["prefill_chunk_size"] == 32
    assert [(p["name"], tuple(p["shape"]), p["dtype"]) for p in record["params"]] == [
        (name, values.shape, str(values.dtype)) for name, values in params.items()
    ]


def test_the_functions_that_the_client_looks_up() -> None:
    names = {gvar.name_hint for gvar in web_module("tied", SCHEMES["q0f32"], GPU).functions}
    assert names >= {
        "embed",
        "batch_prefill",
        "batch_decode",
        "create_tir_paged_kv_cache",
        "_metadata",
        "softmax_with_temperature",
        "argsort_probs",
        "sample_with_top_p",
        "apply_logit_bias_inplace",
        "apply_penalty_inplace",
        "apply_bitmask_inplace",
    }
    assert not [name for name in names if "tree" in name or "sliding" in name or "mla" in name]


def test_a_window_is_refused() -> None:
    with pytest.raises(StageError, match="model attends to a window of 11 tokens"):
        web_module("mistral", SCHEMES["q0f32"], CPU, window=11)
    with pytest.raises(StageError, match="recipe asks for a window of 11 tokens") as caught:
        build_web_module(
            WebInput(
                model=None,
                attention=AttentionSpec(1, 1, 1, 8, 8, (1.0,) * 4, 1.0, window=Window(11)),
                limits=LIMITS,
                model_type="llama",
                scheme="q0f32",
                vocab_size=8,
                window_is_asked_for=True,
            ),
            CPU,
        )
    assert caught.value.hint == "leave out runtime.sliding_window_size"
