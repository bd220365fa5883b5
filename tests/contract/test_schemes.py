"""What every quantization scheme must hold; a new record is tested by being there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from mlcbuild.arch.registry import get_architecture
from mlcbuild.errors import RecipeError, SourceError
from mlcbuild.quant import groupwise
from mlcbuild.quant.quantize import is_quantized, layout_of, pack_params, quantize_checkpoint
from mlcbuild.quant.schemes import SCHEMES, get_scheme, scheme_names
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.weights.reader import open_params, verify_hashes
from tests.contract.memory_checkpoint import MemoryCheckpoint, random_checkpoint

FLOATS = {"float16", "bfloat16", "float32"}
ALL = [SCHEMES[name] for name in scheme_names()]
INTEGER = [scheme for scheme in ALL if scheme.is_integer]


def by_name(scheme: QuantScheme) -> str:
    return scheme.name


@pytest.fixture(params=ALL, ids=by_name)
def scheme(request: pytest.FixtureRequest) -> QuantScheme:
    value: QuantScheme = request.param
    return value


@pytest.fixture(params=INTEGER, ids=by_name)
def integer_scheme(request: pytest.FixtureRequest) -> QuantScheme:
    value: QuantScheme = request.param
    return value


def test_the_promised_schemes_are_there() -> None:
    assert {"q0f32", "q0f16", "q0bf16", "q8f16_1", "q4f16_1", "q4f32_1", "q3f16_g32"} <= set(
        scheme_names()
    )


def test_the_record_is_consistent(scheme: QuantScheme) -> None:
    assert get_scheme(scheme.name) is scheme
    assert scheme.version >= 1
    assert scheme.summary
    assert scheme.activation_dtype in FLOATS
    integer_fields = (scheme.bits, scheme.group_size, scheme.zero_point, scheme.max_code)
    if scheme.is_integer:
        assert None not in integer_fields
        assert scheme.scale_dtype in FLOATS
        assert scheme.weight_dtype == f"int{scheme.bits}"
        assert (scheme.group_size or 1) % 32 == 0, "packing and kernels go by 32 columns"
        assert 0 <= (scheme.zero_point or 0) <= (scheme.max_code or 0) < 2 ** (scheme.bits or 0)
    else:
        assert integer_fields == (None,) * 4
        assert scheme.scale_dtype is None
        assert scheme.weight_dtype in FLOATS


def test_the_record_cannot_be_changed(scheme: QuantScheme) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        scheme.name = "other"  # type: ignore[misc]


def test_codes_and_scales_rebuild_the_weights(integer_scheme: QuantScheme) -> None:
    group = integer_scheme.group_size or 0
    weight = np.random.RandomState(3).standard_normal((24, 3 * group)).astype(np.float32)
    quantized = groupwise.quantize(weight, integer_scheme, name="w")
    rebuilt = groupwise.dequantize(quantized, integer_scheme)
    peak = np.abs(weight.reshape(24, 3, group)).max(-1).repeat(group, axis=-1).reshape(24, -1)
    step = peak / (integer_scheme.zero_point or 1)
    assert int(quantized.codes.max()) <= (integer_scheme.max_code or 0)
    assert (np.abs(rebuilt - weight) <= step).all()
    levels = (integer_scheme.max_code or 0) + 1
    assert np.mean((rebuilt - weight) ** 2) < np.mean(weight**2) * (4 / levels) ** 2


def test_a_group_of_zeros_stays_zero(integer_scheme: QuantScheme) -> None:
    weight = np.zeros((16, 2 * (integer_scheme.group_size or 0)), np.float32)
    weight[:, 0] = 1.0
    quantized = groupwise.quantize(weight, integer_scheme, name="w")
    rebuilt = groupwise.dequantize(quantized, integer_scheme)
    assert np.isfinite(rebuilt).all()
    assert (rebuilt[:, integer_scheme.group_size :] == 0).all()


def test_a_checkpoint_is_quantized_and_packed_the_same_twice(
    scheme: QuantScheme, tmp_path: Path
) -> None:
    architecture = get_architecture("llama")
    rules = architecture.weights.param_rules(architecture.config.tiny_config())
    checkpoint = random_checkpoint(rules)
    shards = []
    for threads, name in ((1, "a"), (2, "b")):
        nk, packed = tmp_path / name / "nk", tmp_path / name / "packed"
        quantize_checkpoint(checkpoint, rules, scheme, nk, threads=threads)
        pack_params(nk, scheme, layout_of(scheme), packed)
        verify_hashes(open_params(packed))
        shards.append({file.name: file.read_bytes() for file in sorted(packed.rglob("*.*"))})
    assert shards[0] == shards[1]
    stored = set(open_params(tmp_path / "a" / "packed").tensors)
    for rule in rules:
        stem = rule.name.removesuffix("weight")
        parts = {stem + "q_weight", stem + "q_scale"}
        assert (parts if is_quantized(rule, scheme) else {rule.name}) <= stored


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_value_is_named(scheme: QuantScheme, tmp_path: Path, bad: float) -> None:
    architecture = get_architecture("llama")
    rules = architecture.weights.param_rules(architecture.config.tiny_config())
    tensors = {name: value.copy() for name, value in random_checkpoint(rules).tensors.items()}
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = bad
    with pytest.raises(SourceError, match=r"layers\.1\.mlp\.down_proj\.weight"):
        quantize_checkpoint(MemoryCheckpoint(tensors), rules, scheme, tmp_path / "nk")


def test_an_unknown_scheme_is_answered_with_a_hint() -> None:
    with pytest.raises(RecipeError, match="q4f16_9") as caught:
        get_scheme("q4f16_9")
    assert caught.value.hint is not None
    assert "q4f16_1" in caught.value.hint
