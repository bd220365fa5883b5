"""CPU kernels against numpy, on every instruction set that this machine runs."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from mlcbuild.errors import InternalError
from mlcbuild.kernels.cpu.families import (
    AMX,
    AVX2,
    AVX512_VNNI,
    AVX_VNNI,
    DOTPROD,
    I8MM,
    NEON,
    RELAXED,
    SIMD128,
)
from mlcbuild.kernels.cpu.set import CpuKernels
from mlcbuild.kernels.cpu.tiles import RowsTile, RowTile, Tiles
from mlcbuild.quant import pack
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.layout import LAYOUTS, padded
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.weights.dtypes import numpy_dtype
from tests.unit.kernel_runner import (
    EMULATED,
    VARIANTS,
    Array,
    Compiled,
    build,
    compile_kernels,
    normal,
    on,
    skip_unless_runnable,
)

ROWS = (1, 3, 8, 37)
INT4: dict[str, Any] = {"group_size": 32, "scale_dtype": "float16", "zero_point": 7}
INT8 = {**INT4, "zero_point": 128}
INT3 = {**INT4, "zero_point": 3}
WIDE = {"group_size": 128, "scale_dtype": "float32", "zero_point": 8}
BOTH = {"bias": True, "residual": True}
GQA3 = {"heads": 9, "kv_heads": 3, "head_dim": 64, "page_size": 16}
LINEAR: dict[str, tuple[str, dict[str, Any]]] = {
    "int4": ("linear_int4", dict(out_features=64, in_features=576, **INT4)),
    "int4_wide": ("linear_int4", dict(out_features=48, in_features=200, **WIDE)),
    "int4_ragged": ("linear_int4", dict(out_features=100, in_features=100, **INT4, **BOTH)),
    "float": ("linear_int4_float", dict(out_features=32, in_features=256, **WIDE)),
    "float_ragged": (
        "linear_int4_float",
        dict(out_features=100, in_features=100, **INT4, **BOTH),
    ),
    "int8": ("linear_int8", dict(out_features=48, in_features=200, **{**INT8, "group_size": 64})),
    "int3": ("linear_int3", dict(out_features=48, in_features=100, **INT3)),
    "int8_float": ("linear_int8_float", dict(out_features=32, in_features=100, **INT8)),
    "int3_float": ("linear_int3_float", dict(out_features=32, in_features=100, **INT3)),
    "dense": ("linear_dense", {"out_features": 64, "in_features": 576, "weight_dtype": "float32"}),
    "dense_ragged": (
        "linear_dense",
        dict(out_features=100, in_features=100, weight_dtype="float16", **BOTH),
    ),
    "dense_bf16": (
        "linear_dense",
        {"out_features": 32, "in_features": 100, "weight_dtype": "bfloat16"},
    ),
}
INTEGER = ("int4", "int4_wide", "int4_ragged")
# What some variants have of their own; the rest is that of the variants that run everything.
OWN = {
    "avxvnni": (*INTEGER, "int8", "int3"),
    "avx512": ("int4", "int4_ragged", "int8"),
    "amx": (*INTEGER, "int8", "int3"),
    "neon": ("int4", "int8"),
    "i8mm": ("int4", "int8"),
    "relaxed": ("int4", "int8", "dense_ragged"),
}
EVERYTHING = (AVX2, AVX512_VNNI, DOTPROD, SIMD128)
# Left out where compiling and emulating takes longer than it tells.
NOT_EMULATED = {
    *("int4_wide", "float_ragged", "int8_float", "int3_float", "dense"),
    *("attention", "attention_int8", "rope"),
}
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    **LINEAR,
    "attention": ("paged_attention", {**GQA3, "kv_dtype": "float16", "scale": 0.125}),
    "attention_int8": ("paged_attention", {**GQA3, "kv_dtype": "int8", "scale": 0.125}),
    "rope": ("rope_append", {**GQA3, "kv_dtype": "int8", "rotary_dim": 64}),
    # A weight of every float16 there is, times one.
    "float16": (
        "linear_dense",
        {"out_features": 1 << 16, "in_features": 1, "weight_dtype": "float16"},
    ),
}
EMBEDDED = {"int4": INT4, "int8": INT8, "int3": INT3}
for kind, numbers in EMBEDDED.items():
    table = {"vocab_size": 100, "hidden_size": 101, **numbers}
    KERNELS[f"embedding_{kind}"] = (f"embedding_{kind}", table)
for dtype in ("float16", "bfloat16"):
    table = {"vocab_size": 100, "hidden_size": 37, "weight_dtype": dtype}
    KERNELS[f"embedding_{dtype}"] = ("embedding_dense", table)
for size in (37, 576):
    KERNELS |= {
        f"quantize_{size}": ("quantize_rows", {"in_features": size}),
        f"rms_norm_{size}": ("rms_norm", {"hidden_size": size, "eps": 1e-5}),
        f"rms_norm_quantize_{size}": ("rms_norm_quantize", {"hidden_size": size, "eps": 1e-5}),
        f"silu_mul_{size}": ("silu_mul", {"intermediate_size": size}),
        f"silu_mul_quantize_{size}": ("silu_mul_quantize", {"intermediate_size": size}),
        f"add_{size}": ("add", {"width": size}),
        f"take_rows_{size}": ("take_rows", {"width": size}),
    }


def kernels_of(variant: Capabilities) -> list[str]:
    """The kernels that are tested on a variant."""
    left_out = NOT_EMULATED if variant in EMULATED else set()
    return [name for name in OWN.get(variant.isa, KERNELS) if name not in left_out]


LINEAR_CASES = [
    pytest.param(variant, name, id=f"{variant.isa}-{name}")
    for variant in (*VARIANTS, *EMULATED)
    for name in kernels_of(variant)
    if name in LINEAR
]


@pytest.fixture
def compiled(request: pytest.FixtureRequest) -> Compiled:
    """The kernels of one instruction set; skips what this machine cannot run."""
    variant: Capabilities = request.param
    skip_unless_runnable(variant)
    return compiled_kernels(variant)


@cache
def compiled_kernels(variant: Capabilities) -> Compiled:
    """All kernels that are tested on a variant, compiled once."""
    return compile_kernels(variant, {name: KERNELS[name] for name in kernels_of(variant)})


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def quantized(x: Array) -> tuple[Array, Array, Array]:
    """int8 codes [n,Kp], scales [n,G], sums [n,G] of activations, by the definition."""
    n, columns = x.shape
    values = np.zeros((n, padded(columns, 32)), "float32")
    values[:, :columns] = x
    values = values.reshape(n, -1, 32)
    absmax = np.abs(values).max(-1, keepdims=True)
    inverse = np.divide(127, absmax, out=np.zeros_like(absmax), where=absmax > 0)
    codes = np.rint(values * inverse).astype("int8")
    sums = codes.astype("int32").sum(-1, dtype="int32")
    return codes.reshape(n, -1), (absmax / np.float32(127))[..., 0], sums


def packed_codes(
    rng: np.random.Generator,
    bits: int,
    out_features: int,
    in_features: int,
    group_size: int,
    scale_dtype: str,
    zero_point: int,
) -> tuple[Array, Array, Array]:
    """Random packed codes and scales in the layout of ``bits``, and the weight [O,K] they mean.

    Output 0 has the highest code everywhere.
    """
    columns = padded(in_features, group_size)
    codes = rng.integers(0, 2**bits, (out_features, columns))
    codes[0] = 2**bits - 1
    codes[:, in_features:] = zero_point
    scales = rng.random((out_features, columns // group_size)) * 0.32 / 2**bits
    scales = scales.astype(scale_dtype)
    weight = (codes - zero_point) * np.repeat(scales.astype("float64"), group_size, axis=1)
    layout = LAYOUTS[f"i{bits}x16"]
    scheme = QuantScheme("", 1, "", layout.weight_dtype, bits=bits, zero_point=zero_point)
    words = pack.pack_codes(codes.astype("uint8"), layout, scheme)
    return words, pack.pack_lanes(scales, layout), weight[:, :in_features]


def packed_dense(
    rng: np.random.Generator, out_features: int, in_features: int, weight_dtype: str
) -> tuple[Array, Array]:
    """A random weight in the layout of its dtype, and the weight [O,K]."""
    weight = np.zeros((padded(out_features, 16), in_features), numpy_dtype(weight_dtype))
    weight[:out_features] = normal(rng, out_features, in_features) * 0.1
    blocked = weight.reshape(-1, 16, in_features).transpose(0, 2, 1)
    return blocked, weight[:out_features].astype("float64")


def linear_case(
    rng: np.random.Generator, name: str, n: int
) -> tuple[list[Array], list[Array], list[Array], Array]:
    """Activation tensors, weight tensors, [bias, residual] and the expected output."""
    builder, arguments = LINEAR[name]
    out_features, in_features = arguments["out_features"], arguments["in_features"]
    x = normal(rng, n, in_features)
    if n > 1:
        x[1] = 0
        x[n - 1] = 1  # products with the highest codes are as large as they get
    if builder == "linear_dense":
        w, weight = packed_dense(rng, out_features, in_features, arguments["weight_dtype"])
        weights = [w]
    else:
        bits = int(builder.removeprefix("linear_int").removesuffix("_float"))
        numbers = (arguments[k] for k in INT4)
        w, s, weight = packed_codes(rng, bits, out_features, in_features, *numbers)
        weights = [w, s]
    activations = [x]
    if builder in ("linear_int3", "linear_int4", "linear_int8"):
        codes, scales, sums = quantized(x)
        activations = [codes, scales, sums]
        x = (codes.reshape(n, -1, 32) * scales[..., None].astype("float64")).reshape(n, -1)
        x = x[:, :in_features]
    expected = x.astype("float64") @ weight.T
    extra = []
    if arguments.get("bias"):
        extra = [normal(rng, out_features), normal(rng, n, out_features)]
        expected = expected + extra[0] + extra[1]
    return activations, weights, extra, expected


@pytest.mark.parametrize(("compiled", "name"), LINEAR_CASES, indirect=["compiled"])
@pytest.mark.parametrize("n", ROWS)
def test_linear(compiled: Compiled, rng: np.random.Generator, name: str, n: int) -> None:
    activations, weights, extra, expected = linear_case(rng, name, n)
    [y] = compiled.run(name, [*activations, *weights, *extra], (expected.shape, "float32"))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize(("compiled", "name"), LINEAR_CASES, indirect=["compiled"])
def test_linear_row_does_not_depend_on_the_batch(
    compiled: Compiled, rng: np.random.Generator, name: str
) -> None:
    activations, weights, extra, expected = linear_case(rng, name, 37)
    bias, residual = (extra[:1], extra[1:]) if extra else ([], [])

    def rows(which: slice) -> Array:
        inputs = [a[which] for a in activations] + weights + bias + [r[which] for r in residual]
        [y] = compiled.run(name, inputs, (expected[which].shape, "float32"))
        return y

    whole = rows(slice(0, 37))
    for count, stride in ((1, 5), (2, 7), (3, 9), (7, 11), (15, 11)):
        for start in range(0, 37 - count, stride):
            part = rows(slice(start, start + count))
            assert part.tobytes() == whole[start : start + count].tobytes(), (start, count)


def check_quantized(actual: list[Array], x: Array) -> None:
    """Scales agree to rounding, codes to the nearest (a tie of rounding may go either way)."""
    codes, scales, sums = actual
    expected_codes, expected_scales, _ = quantized(x)
    np.testing.assert_allclose(scales, expected_scales, rtol=3e-6)
    difference = np.abs(codes.astype("int32") - expected_codes)
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.002
    assert (sums == codes.reshape(*sums.shape, 32).sum(-1, dtype="int32")).all()


def quantized_outputs(n: int, columns: int) -> list[tuple[Any, str]]:
    groups = padded(columns, 32) // 32
    return [((n, groups * 32), "int8"), ((n, groups), "float32"), ((n, groups), "int32")]


@on(*EVERYTHING)
@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize("size", [37, 576])
def test_quantize_rows(compiled: Compiled, rng: np.random.Generator, size: int, n: int) -> None:
    x = normal(rng, n, size)
    x[0, 32:] = 0
    x[-1] *= 1e-36
    actual = compiled.run(f"quantize_{size}", [x], *quantized_outputs(n, size))
    x[-1] = 0  # too small for an int8 scale in float32
    for a, b in zip(actual, quantized(x), strict=False):
        np.testing.assert_array_equal(a, b)


@on(*EVERYTHING)
def test_quantize_rounds_half_to_even(compiled: Compiled) -> None:
    x = np.zeros((1, 37), "float32")
    x[0, :6] = [127, 0.5, 1.5, -2.5, -3.5, -127]
    codes, scales, sums = compiled.run("quantize_37", [x], *quantized_outputs(1, 37))
    assert codes[0, :6].tolist() == [127, 0, 2, -2, -4, -127]
    assert scales.tolist() == [[1.0, 0.0]]
    assert sums.tolist() == [[-4, 0]]


def rms_normalized(x: Array, w: Array) -> Array:
    x = x.astype("float64")
    normed: Array = (x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w).astype("float32")
    return normed


@on(*EVERYTHING)
@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize("size", [37, 576])
def test_rms_norm(compiled: Compiled, rng: np.random.Generator, size: int, n: int) -> None:
    x, w = normal(rng, n, size), normal(rng, size)
    x[0] = 0
    expected = rms_normalized(x, w)
    [y] = compiled.run(f"rms_norm_{size}", [x, w], (x.shape, "float32"))
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-7)
    fused = compiled.run(f"rms_norm_quantize_{size}", [x, w], *quantized_outputs(n, size))
    check_quantized(fused, expected)
    apart = compiled.run(f"quantize_{size}", [y], *quantized_outputs(n, size))
    for a, b in zip(fused, apart, strict=False):
        assert a.tobytes() == b.tobytes()


@on(*EVERYTHING)
@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize("size", [37, 576])
def test_silu_mul(compiled: Compiled, rng: np.random.Generator, size: int, n: int) -> None:
    gate_up = normal(rng, n, 2 * size) * 4
    gate_up[0, :5] = [0, -200, 200, -87.5, 88.5]
    gate, up = np.split(gate_up.astype("float64"), 2, axis=1)
    expected = (gate / (1 + np.exp(-gate)) * up).astype("float32")
    [y] = compiled.run(f"silu_mul_{size}", [gate_up], ((n, size), "float32"))
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-30)
    fused = compiled.run(f"silu_mul_quantize_{size}", [gate_up], *quantized_outputs(n, size))
    apart = compiled.run(f"quantize_{size}", [y], *quantized_outputs(n, size))
    for a, b in zip(fused, apart, strict=False):
        assert a.tobytes() == b.tobytes()


@on(*EVERYTHING)
@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize("size", [37, 576])
def test_add_and_take(compiled: Compiled, rng: np.random.Generator, size: int, n: int) -> None:
    a, b = normal(rng, n, size), normal(rng, n, size)
    [total] = compiled.run(f"add_{size}", [a, b], (a.shape, "float32"))
    np.testing.assert_array_equal(total, a + b)
    which = rng.integers(0, n, 5).astype("int32")
    [taken] = compiled.run(f"take_rows_{size}", [a, which], ((5, size), "float32"))
    np.testing.assert_array_equal(taken, a[which])


@on(*EVERYTHING)
@pytest.mark.parametrize("n", ROWS)
def test_embedding(compiled: Compiled, rng: np.random.Generator, n: int) -> None:
    ids = rng.integers(0, 100, n).astype("int32")
    ids[0] = 99
    for kind, numbers in EMBEDDED.items():
        w, s, weight = packed_codes(rng, int(kind[3:]), 100, 101, *numbers.values())
        [y] = compiled.run(f"embedding_{kind}", [ids, w, s], ((n, 101), "float32"))
        np.testing.assert_array_equal(y, weight[ids].astype("float32"))
    for dtype in ("float16", "bfloat16"):
        w, weight = packed_dense(rng, 100, 37, dtype)
        [y] = compiled.run(f"embedding_{dtype}", [ids, w], ((n, 37), "float32"))
        np.testing.assert_array_equal(y, weight[ids].astype("float32"))


@pytest.mark.parametrize(
    ("variant", "dot", "register"),
    [(AVX2, "vpmaddubsw", "%ymm"), (AVX512_VNNI, "vpdpbusd", "%zmm")],
    ids=["avx2", "avx512vnni"],
)
def test_machine_code(variant: Capabilities, dot: str, register: str) -> None:
    """The hot loops have the instructions they are written for, and nothing calls libm."""
    names = ["int4", "silu_mul_quantize_37", "attention", "attention_int8", "rope"]
    library = build(variant, {name: KERNELS[name] for name in names})
    text = library.mod.inspect_source("asm")
    for instruction in (dot, "vfmadd", "vcvtph2ps", "vpmovsxbd", "vcvtdq2ps"):
        assert re.search(rf"\b{instruction}\w*\s.*{register}", text), instruction
    called = set(re.findall(r"\bcall\w*\s+([\w.]+)", text))
    called |= set(re.findall(r"([\w.]+)@GOTPCREL", text))
    # Entry points call the kernels' bodies, and those the runtime: neither libm nor a helper, but
    # for memset, which LLVM makes of loops and every C library has.
    allowed = rf"(__tvm_ffi_)?({'|'.join(names)})(_compute_)?|_*TVM\w+|__tvm_set_raised\w*|memset"
    assert not [name for name in called if not re.fullmatch(allowed, name)]


def test_machine_code_of_the_short_dot() -> None:
    text = build(AVX_VNNI, {"int4": KERNELS["int4"]}).mod.inspect_source("asm")
    assert re.search(r"\{vex\}\s+vpdpbusd\s.*%ymm", text)
    assert "%zmm" not in text


def test_machine_code_of_tiles() -> None:
    text = build(AMX, {"int4": KERNELS["int4"]}).mod.inspect_source("asm")
    assert re.search(r"\btdpbssd\s", text)
    assert text.count("ldtilecfg") == text.count("tilerelease") > 0


@pytest.mark.parametrize(
    ("variant", "instructions"),
    [
        (NEON, {"smlal", "saddlp"}),
        (DOTPROD, {"sdot"}),
        (I8MM, {"usmmla", "usdot"}),
        (SIMD128, {"i16x8.mul", "i32x4.extadd_pairwise_i16x8_s"}),
        (RELAXED, {"i32x4.relaxed_dot_i8x16_i7x16_add_s", "f32x4.relaxed_madd"}),
    ],
    ids=lambda value: value.isa if isinstance(value, Capabilities) else "",
)
def test_machine_code_of_emulated_variants(variant: Capabilities, instructions: set[str]) -> None:
    """The hot loop has them; that nothing is called, the link of the driver sees to: no library."""
    small = dict(out_features=16, in_features=32, **INT4)
    text = build(variant, {"int4": ("linear_int4", small)}).mod.inspect_source("asm")
    assert instructions <= set(re.findall(r"^\s+([\w.]+)", text, re.MULTILINE))


@on(*VARIANTS, *EMULATED)
@pytest.mark.parametrize("activation", [127, -127])
@pytest.mark.parametrize("code", [0, 15])
def test_no_integer_sum_overflows(compiled: Compiled, activation: int, code: int) -> None:
    n, groups = 5, 576 // 32
    codes = np.full((n, 576), activation, "int8")
    scales, sums = np.ones((n, groups), "float32"), np.full((n, groups), 32 * activation, "int32")
    w = np.full((4, 72, 16), 0x11111111 * code, "uint32").view("int32")
    s = np.ones((4, groups, 16), "float16")
    [y] = compiled.run("int4", [codes, scales, sums, w, s], ((n, 64), "float32"))
    assert (y == 576 * activation * (code - 7)).all()


@on(*EVERYTHING)
def test_every_float16_is_read(compiled: Compiled) -> None:
    w = np.arange(1 << 16, dtype="uint16").view("float16")
    one = np.ones((1, 1), "float32")
    [y] = compiled.run("float16", [one, w.reshape(-1, 1, 16)], ((1, 1 << 16), "float32"))
    np.testing.assert_array_equal(y[0], w.astype("float32"))


@pytest.mark.parametrize(
    "pair",
    [(AVX2, AVX_VNNI), (AVX512_VNNI, AMX), (NEON, DOTPROD), (DOTPROD, I8MM)],
    ids=lambda pair: pair[1].isa,
)
def test_better_instructions_give_the_same_bits(
    pair: tuple[Capabilities, Capabilities], rng: np.random.Generator
) -> None:
    for variant in pair:
        skip_unless_runnable(variant)
    for name in ("int4", "int8"):
        activations, weights, extra, expected = linear_case(rng, name, 50)
        inputs = [*activations, *weights, *extra]
        first, second = (
            compiled_kernels(variant).run(name, inputs, (expected.shape, "float32"))[0]
            for variant in pair
        )
        assert first.tobytes() == second.tobytes()


def test_matrix_products_of_an_odd_number_of_rows(rng: np.random.Generator) -> None:
    skip_unless_runnable(I8MM)
    rows = RowsTile(rows=3, vectors=4, blocks=1, ahead=0)
    tiles = Tiles(RowTile(blocks=1, unroll=1, ahead=0, grain=1), rows, rows)
    odd = compile_kernels(I8MM, {"int4": KERNELS["int4"]}, tiles)
    activations, weights, _, expected = linear_case(rng, "int4", 7)
    inputs, output = [*activations, *weights], (expected.shape, "float32")
    [y] = odd.run("int4", inputs, output)
    [even] = compiled_kernels(I8MM).run("int4", inputs, output)
    assert y.tobytes() == even.tobytes()


def test_builders_are_cached_and_scheduled() -> None:
    for variant in VARIANTS:
        first, again = CpuKernels(variant), CpuKernels(variant)
        for builder, arguments in KERNELS.values():
            func = getattr(first, builder)(**arguments)
            assert func is getattr(again, builder)(**arguments)
            assert func.attrs["tirx.is_scheduled"]
            assert func.attrs["tirx.noalias"]
            assert "global_symbol" not in func.attrs


def test_shapes_that_no_kernel_serves_are_refused() -> None:
    kernels = CpuKernels(VARIANTS[-1])
    with pytest.raises(InternalError, match="multiple"):
        kernels.paged_attention(9, 3, 62, 16, "float16", 0.125)
    with pytest.raises(InternalError, match="multiple"):
        kernels.linear_int4(64, 64, 40, "float16", 7)
    with pytest.raises(InternalError, match="the zero point 127"):
        kernels.linear_int8(64, 64, 32, "float16", 127)
    with pytest.raises(InternalError, match="rotary_dim"):
        kernels.rope_append(9, 3, 64, 80, 16, "float16")
    with pytest.raises(InternalError, match="dtype 'int4'"):
        kernels.paged_attention(9, 3, 64, 16, "int4", 0.125)
