"""Quantization: the numbers, their packing, and whole checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from mlcbuild.arch.llama.config import tiny_config
from mlcbuild.arch.llama.weights import param_rules
from mlcbuild.errors import MlcbuildError, RecipeError, SourceError
from mlcbuild.quant import dense, groupwise, pack
from mlcbuild.quant.quantize import layout_of, pack_params, quantize_checkpoint
from mlcbuild.quant.schemes import get_scheme, scheme_names
from mlcbuild.sources.checkpoint import open_checkpoint
from mlcbuild.spec.layout import F16X16, I3X16, I4X16, I8X16, Layout
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.weights.dtypes import numpy_dtype
from mlcbuild.weights.mapping import read_param
from mlcbuild.weights.reader import open_params
from tests.unit.tiny_checkpoint import random_tensors, save_folder

Q4 = get_scheme("q4f16_1")
Q8, Q3 = get_scheme("q8f16_1"), get_scheme("q3f16_g32")
ABSMAX = dataclasses.replace(Q4, scale_rule="absmax")


def _weights(rows: int = 48, columns: int = 160, seed: int = 0) -> npt.NDArray[np.float32]:
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((rows, columns), dtype=np.float32)
    np.multiply(values, np.float32(0.02), out=values)
    return values


def _error(
    weight: npt.NDArray[Any], quantized: groupwise.Quantized, scheme: QuantScheme = Q4
) -> float:
    difference = groupwise.dequantize(quantized, scheme) - weight
    return float((difference**2).sum() / (weight**2).sum())


def test_scheme_names_and_suggestion() -> None:
    assert scheme_names() == (
        "q0f32",
        "q0f16",
        "q0bf16",
        "q8f16_1",
        "q4f16_1",
        "q4f32_1",
        "q3f16_g32",
    )
    with pytest.raises(RecipeError, match="no quantization scheme named 'q4f16'") as caught:
        get_scheme("q4f16")
    assert "q4f16_1" in (caught.value.hint or "")


def test_absmax_is_the_published_rule() -> None:
    weight = _weights()
    quantized = groupwise.quantize(weight, ABSMAX)
    groups = weight.reshape(48, 5, 32)
    scales = (np.abs(groups).max(axis=2) / np.float32(7)).astype(np.float16)
    codes = np.round(groups / scales.astype(np.float32)[:, :, None])
    np.testing.assert_array_equal(quantized.scales, scales)
    expected = (np.clip(codes, -7, 7) + 7).astype(np.uint8).reshape(48, 160)
    np.testing.assert_array_equal(quantized.codes, expected)


def test_search_is_a_third_better_than_absmax() -> None:
    weight = _weights(256, 512)
    searched = groupwise.quantize(weight, Q4)
    assert searched.codes.max() == 15
    assert _error(weight, searched) < 0.71 * _error(weight, groupwise.quantize(weight, ABSMAX))


@pytest.mark.parametrize(("scheme", "gain"), [(Q8, 0.82), (Q3, 0.53)], ids=["q8", "q3"])
def test_search_at_other_bits_is_better_than_absmax(scheme: QuantScheme, gain: float) -> None:
    """Against scale = max|w| / M, M being the highest code on the shorter side."""
    weight = _weights(256, 512)
    searched = groupwise.quantize(weight, scheme)
    zero_point, max_code = scheme.zero_point or 0, scheme.max_code or 0
    assert (searched.codes.min(), searched.codes.max()) == (0, max_code)
    short = min(zero_point, max_code - zero_point)
    published = dataclasses.replace(
        scheme, scale_rule="absmax", zero_point=short, max_code=2 * short
    )
    absmax = _error(weight, groupwise.quantize(weight, published), published)
    assert _error(weight, searched, scheme) < gain * absmax


def test_search_is_never_worse_in_any_group() -> None:
    weight = np.concatenate([_weights(64, 128), _weights(64, 128, 1) ** 3 * 1e3])

    def errors(quantized: groupwise.Quantized) -> npt.NDArray[np.float64]:
        difference = (groupwise.dequantize(quantized, Q4) - weight).astype(np.float64)
        grouped: npt.NDArray[np.float64] = (difference.reshape(128, 4, 32) ** 2).sum(axis=2)
        return grouped

    searched = errors(groupwise.quantize(weight, Q4))
    absmax = errors(groupwise.quantize(weight, ABSMAX))
    assert (searched <= absmax * (1 + 1e-5)).mean() > 0.99


def test_search_finds_exact_scales() -> None:
    """Weights that lie on a grid of 16 levels come back exactly, whatever the scale's sign."""
    generator = np.random.default_rng(2)
    codes = generator.integers(-7, 9, (32, 64)).astype(np.float32)
    codes[:, ::32] = 8
    sign = np.where(np.arange(32) % 2, np.float32(-0.125), np.float32(0.25))
    weight = codes * sign[:, None]
    np.testing.assert_array_equal(groupwise.dequantize(groupwise.quantize(weight, Q4), Q4), weight)


def test_search_finds_exact_scales_of_bytes() -> None:
    generator = np.random.default_rng(2)
    weight = generator.integers(-128, 128, (32, 64)).astype(np.float32)
    weight[:, ::32] = -128
    weight *= np.where(np.arange(32) % 2, np.float32(-0.125), np.float32(0.25))[:, None]
    np.testing.assert_array_equal(groupwise.dequantize(groupwise.quantize(weight, Q8), Q8), weight)


@pytest.mark.parametrize("scheme", [Q4, ABSMAX, get_scheme("q4f32_1")])
def test_zero_groups_and_tiny_values(scheme: Any) -> None:
    weight = _weights(4, 96)
    weight[1, 32:64] = 0
    weight[2, :32] = 1e-42
    quantized = groupwise.quantize(weight, scheme)
    assert quantized.scales[1, 1] == 0
    assert (quantized.codes[1, 32:64] == 7).all()
    assert (groupwise.dequantize(quantized, scheme)[1, 32:64] == 0).all()
    assert np.isfinite(groupwise.dequantize(quantized, scheme)).all()


def test_ragged_last_group_holds_the_zero_point() -> None:
    weight = _weights(8, 176)
    quantized = groupwise.quantize(weight, Q4)
    assert quantized.codes.shape == (8, 192)
    assert quantized.scales.shape == (8, 6)
    assert (quantized.codes[:, 176:] == 7).all()
    assert groupwise.dequantize(quantized, Q4).shape == (8, 176)
    alone = groupwise.quantize(weight[:, 160:], Q4)
    np.testing.assert_array_equal(alone.codes[:, :16], quantized.codes[:, 160:176])


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (Q4, "bc5cfb8ccbd63e24d9675da09efa1da2fefd43f244f5060da6986ac7daceba42"),
        (Q8, "42054d09de11613d6757863ae8e1a1d0d89871f22214adebc1068bd33a314436"),
        (Q3, "f546615a4b151bf53f651a3c487110587565c2003db524a595cece61e9aeebf6"),
    ],
    ids=["q4", "q8", "q3"],
)
def test_result_is_the_same_everywhere(scheme: QuantScheme, expected: str) -> None:
    """Neither chunks nor threads matter, and the bytes are the same on every CPU."""
    generator = np.random.Generator(np.random.PCG64(7))
    weight = (generator.integers(-(2**20), 2**20, (300, 320)) / 2**22).astype(np.float32)
    alone = groupwise.quantize(weight, scheme)
    threaded = groupwise.quantize(weight, scheme, threads=2)
    row = groupwise.quantize(weight[17:18], scheme)
    np.testing.assert_array_equal(alone.codes, threaded.codes)
    np.testing.assert_array_equal(alone.scales, threaded.scales)
    np.testing.assert_array_equal(alone.codes[17:18], row.codes)
    digest = hashlib.sha256(alone.codes.tobytes() + alone.scales.tobytes()).hexdigest()
    assert digest == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_bad_values_are_named(dtype: Any) -> None:
    weight = _weights(4, 64).astype(dtype)
    weight[2, 5] = np.nan
    weight[3, 6] = np.inf
    for action in (
        lambda: groupwise.quantize(weight, Q4, name="w"),
        lambda: dense.convert(weight, "float16", "w"),
    ):
        expected = r"tensor w holds 1 NaN and 1 infinite values, the first at \[2, 5\]"
        with pytest.raises(SourceError, match=expected):
            action()


def test_values_beyond_float16() -> None:
    weight = _weights(4, 64) * np.float32(1e8)
    with pytest.raises(SourceError, match="scales of tensor w are beyond the range of float16"):
        groupwise.quantize(weight, Q4, name="w")
    groupwise.quantize(weight, get_scheme("q4f32_1"), name="w")
    with pytest.raises(SourceError, match="values of tensor w are beyond the range of float16"):
        dense.convert(weight, "float16", "w")


def _bits_of(words: npt.NDArray[Any]) -> str:
    """All bits of int32 or uint32 words, the lowest first."""
    return "".join(format(int(word) & 0xFFFFFFFF, "032b")[::-1] for word in words)


def _places(layout: Layout, t: int) -> list[tuple[int, int]]:
    """Where the bits of column 4t + j lie, the lowest first: (word, bit of byte j)."""
    if layout is I8X16:
        return [(t, bit) for bit in range(8)]
    if layout is I4X16:
        return [(t // 2, 4 * (t % 2) + bit) for bit in range(4)]
    if t < 6:
        return [(t // 2, 3 * (t % 2) + bit) for bit in range(3)]
    return [(t - 6, 6), (t - 6, 7), (2, t)]


@pytest.mark.parametrize(
    ("scheme", "layout"), [(Q3, I3X16), (Q4, I4X16), (Q8, I8X16)], ids=["q3", "q4", "q8"]
)
def test_codes_are_packed_as_documented(scheme: QuantScheme, layout: Layout) -> None:
    bits = scheme.bits or 0
    codes = np.random.default_rng(3).integers(0, 2**bits, (40, 96)).astype(np.uint8)
    words = pack.pack_nk(codes, bits)
    assert words.shape == (40, 3 * bits)
    assert _bits_of(words[3]) == "".join(format(code, f"0{bits}b")[::-1] for code in codes[3])
    np.testing.assert_array_equal(pack.unpack_nk(words, bits), codes)

    packed = pack.pack_codes(codes, layout, scheme)
    assert packed.shape == (3, 3 * bits, 16)
    group = [_bits_of(packed[1, word : word + 1, 5]) for word in range(bits, 2 * bits)]
    for column in range(32):
        places = _places(layout, column // 4)
        found = "".join(group[word][8 * (column % 4) + bit] for word, bit in places)
        assert int(found[::-1], 2) == codes[21, 32 + column]
    np.testing.assert_array_equal(pack.unpack_codes(packed, 40, layout), codes)
    assert (pack.unpack_codes(packed, 48, layout)[40:] == scheme.zero_point).all()


def test_lanes_round_trip() -> None:
    values = _weights(40, 24).astype(np.float16)
    lanes = pack.pack_lanes(values, F16X16)
    assert lanes.shape == (3, 24, 16)
    assert lanes[1, 4, 5] == values[21, 4]
    assert (lanes[2, :, 8:] == 0).all()
    np.testing.assert_array_equal(pack.unpack_lanes(lanes, 40), values)


@pytest.mark.parametrize("name", scheme_names())
def test_checkpoint_to_params(tmp_path: Path, name: str) -> None:
    scheme, rules = get_scheme(name), param_rules(tiny_config())
    checkpoint = open_checkpoint(save_folder(tmp_path / "model", random_tensors(tiny_config())))
    quantize_checkpoint(checkpoint, rules, scheme, tmp_path / "nk")
    pack_params(tmp_path / "nk", scheme, layout_of(scheme), tmp_path / "params")
    params = open_params(tmp_path / "params")
    stored = list(params.tensors)
    for rule in rules:
        exact = read_param(rule, checkpoint).astype(np.float32)
        if rule.kind == "norm":
            np.testing.assert_array_equal(params.read(rule.name), exact)
            assert params.tensors[rule.name].layout == "raw"
        elif not scheme.is_integer:
            values = pack.unpack_lanes(params.read(rule.name), rule.shape[0])
            np.testing.assert_array_equal(values, exact.astype(numpy_dtype(scheme.weight_dtype)))
        else:
            stem = rule.name.removesuffix("weight")
            assert stored.index(stem + "q_scale") == stored.index(stem + "q_weight") + 1
            quantized = groupwise.Quantized(
                pack.unpack_codes(params.read(stem + "q_weight"), rule.shape[0], layout_of(scheme)),
                pack.unpack_lanes(params.read(stem + "q_scale"), rule.shape[0]),
                rule.shape[1],
            )
            assert quantized.scales.dtype == scheme.scale_dtype
            assert (
                _error(exact, quantized, scheme) < {3: 0.032, 4: 0.008, 8: 3e-5}[scheme.bits or 0]
            )
    assert params.layout == layout_of(scheme).id


def test_failed_quantization_leaves_nothing(tmp_path: Path) -> None:
    tensors = random_tensors(tiny_config())
    tensors["model.layers.1.mlp.down_proj.weight"][3, 4] = np.nan
    checkpoint = open_checkpoint(save_folder(tmp_path / "model", tensors))
    with pytest.raises(MlcbuildError, match=r"layers\.1\.mlp\.down_proj\.weight holds 1 NaN"):
        quantize_checkpoint(checkpoint, param_rules(tiny_config()), Q4, tmp_path / "nk")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
