"""CPU kernels against numpy, on every instruction set that this machine runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from mlcbuild.errors import InternalError  # noqa: E402
from mlcbuild.kernels.cpu.set import CpuKernels  # noqa: E402
from mlcbuild.spec.capabilities import Capabilities  # noqa: E402
from mlcbuild.spec.layout import padded  # noqa: E402

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
VARIANTS = (
    Capabilities("cpu", "avx2", ("avx2", "f16c", "fma"), "x86-64-v3"),
    Capabilities("cpu", "avx512", _AVX512, "x86-64-v4", vector_bits=512),
    Capabilities(
        "cpu",
        "avx512vnni",
        (*_AVX512, "avx512_vnni"),
        "x86-64-v4",
        ("+avx512vnni",),
        vector_bits=512,
        int8_dot=True,
    ),
)
AVX2, AVX512, AVX512VNNI = VARIANTS
ROWS = (1, 3, 8, 37)
INT4: dict[str, Any] = {"group_size": 32, "scale_dtype": "float16", "zero_point": 7}
WIDE = {"group_size": 128, "scale_dtype": "float32", "zero_point": 8}
BOTH = {"bias": True, "residual": True}
ATTENTION = {
    "mha": {"heads": 2, "kv_heads": 2, "head_dim": 80, "page_size": 16, "kv_dtype": "float32"},
    "gqa3": {"heads": 9, "kv_heads": 3, "head_dim": 64, "page_size": 16, "kv_dtype": "float16"},
    "gqa5": {"heads": 5, "kv_heads": 1, "head_dim": 96, "page_size": 32, "kv_dtype": "float16"},
    "gqa7": {"heads": 7, "kv_heads": 1, "head_dim": 128, "page_size": 16, "kv_dtype": "float32"},
    # Heads that 512-bit vectors do not divide, and ones that take 128 bits.
    "narrow": {"heads": 2, "kv_heads": 1, "head_dim": 72, "page_size": 16, "kv_dtype": "float16"},
    "narrower": {
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 100,
        "page_size": 16,
        "kv_dtype": "float32",
    },
    "gqa8": {"heads": 16, "kv_heads": 2, "head_dim": 256, "page_size": 16, "kv_dtype": "float16"},
}
LINEAR: dict[str, tuple[str, dict[str, Any]]] = {
    "int4": ("linear_int4", dict(out_features=64, in_features=576, **INT4)),
    "int4_wide": ("linear_int4", dict(out_features=48, in_features=200, **WIDE)),
    "int4_ragged": ("linear_int4", dict(out_features=100, in_features=100, **INT4, **BOTH)),
    "float": ("linear_int4_float", dict(out_features=32, in_features=256, **WIDE)),
    "float_ragged": (
        "linear_int4_float",
        dict(out_features=100, in_features=100, **INT4, **BOTH),
    ),
    "dense": ("linear_dense", {"out_features": 64, "in_features": 576, "weight_dtype": "float32"}),
    "dense_ragged": (
        "linear_dense",
        dict(out_features=100, in_features=100, weight_dtype="float16", **BOTH),
    ),
}
# What AVX-512 without VNNI has of its own; the rest is the same as with it.
INT4_ONLY = ("int4", "int4_ragged")
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    **LINEAR,
    **{f"attention_{k}": ("paged_attention", {**v, "scale": 0.125}) for k, v in ATTENTION.items()},
    **{
        f"rope_{k}": ("rope_append", {**ATTENTION[k], "rotary_dim": r})
        for k, r in (("gqa3", 64), ("mha", 20))
    },
    "embedding_int4": ("embedding_int4", dict(vocab_size=100, hidden_size=100, **INT4)),
    "embedding_dense": (
        "embedding_dense",
        {"vocab_size": 100, "hidden_size": 37, "weight_dtype": "float16"},
    ),
}
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

LINEAR_CASES = [
    pytest.param(variant, name, id=f"{variant.isa}-{name}")
    for variant in VARIANTS
    for name in (INT4_ONLY if variant is AVX512 else LINEAR)
]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Compiled:
    """All kernels of one variant in one library."""

    library: Any

    def run(self, name: str, inputs: Sequence[Array], *outputs: tuple[Any, str]) -> list[Array]:
        """Outputs ``(shape, dtype)`` of a kernel; they hold rubbish when it is called."""
        args = [tvm.runtime.tensor(np.ascontiguousarray(a)) for a in inputs]
        results = [tvm.runtime.tensor(rubbish(shape, dtype)) for shape, dtype in outputs]
        self.library[name](*args, *results)
        return [r.numpy() for r in results]

    def in_place(self, name: str, inputs: Sequence[Array], changed: int, *outputs: Any) -> Any:
        """As run, also giving the input number ``changed``, which the kernel writes to."""
        args = [tvm.runtime.tensor(np.ascontiguousarray(a)) for a in inputs]
        results = [tvm.runtime.tensor(rubbish(shape, dtype)) for shape, dtype in outputs]
        self.library[name](*args, *results)
        return args[changed].numpy(), [r.numpy() for r in results]


def rubbish(shape: Any, dtype: str) -> Array:
    """What an arena may hold before a kernel writes to it."""
    return np.full(shape, np.nan if dtype.startswith("float") else 77, dtype)


def on(*variants: Capabilities) -> pytest.MarkDecorator:
    """Run a test with the compiled kernels of some variants."""
    return pytest.mark.parametrize("compiled", variants, indirect=True, ids=lambda v: v.isa)


@pytest.fixture
def compiled(request: pytest.FixtureRequest) -> Compiled:
    """The kernels of one instruction set; skips what this machine cannot run."""
    variant: Capabilities = request.param
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    if not set(variant.features) <= set(flags):
        pytest.skip(f"this machine has no {variant.isa}")
    return compiled_kernels(variant)


@cache
def compiled_kernels(variant: Capabilities) -> Compiled:
    """All kernels that are tested on a variant, compiled once."""
    return Compiled(build(variant, INT4_ONLY if variant == AVX512 else KERNELS))


def build(variant: Capabilities, names: Iterable[str]) -> Any:
    """One library of some of KERNELS."""
    kernels = CpuKernels(variant)
    functions = {}
    for name in names:
        builder, arguments = KERNELS[name]
        func = getattr(kernels, builder)(**arguments)
        functions[name] = func.with_attr("global_symbol", name)
    target = tvm.target.Target(
        {
            "kind": "llvm",
            "mtriple": "x86_64-linux-gnu",
            "mcpu": variant.llvm_cpu,
            "mattr": list(variant.llvm_features),
        }
    )
    return tvm.compile(tvm.IRModule(functions), target)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype("float32")


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


def packed_int4(
    rng: np.random.Generator,
    out_features: int,
    in_features: int,
    group_size: int,
    scale_dtype: str,
    zero_point: int,
) -> tuple[Array, Array, Array]:
    """Random packed codes and scales in the i4x16 layout, and the weight [O,K] they stand for."""
    rows, columns = padded(out_features, 16), padded(in_features, group_size)
    codes = rng.integers(0, 16, (rows, columns))
    codes[out_features:] = zero_point
    codes[:, in_features:] = zero_point
    scales = (rng.random((rows, columns // group_size)) * 0.02).astype(scale_dtype)
    scales[out_features:] = 0
    weight = (codes - zero_point) * np.repeat(scales.astype("float64"), group_size, axis=1)
    nibbles = codes.astype("uint32").reshape(rows, columns // 8, 2, 4)
    shifts = np.array([[0, 8, 16, 24], [4, 12, 20, 28]], "uint32")
    words = np.bitwise_or.reduce(nibbles << shifts, axis=(2, 3)).astype("uint32").view("int32")

    def blocked(matrix: Array) -> Array:
        blocks: Array = matrix.reshape(rows // 16, 16, -1).transpose(0, 2, 1)
        return blocks

    return blocked(words), blocked(scales), weight[:out_features, :in_features]


def packed_dense(
    rng: np.random.Generator, out_features: int, in_features: int, weight_dtype: str
) -> tuple[Array, Array]:
    """A random weight in the f16x16 / f32x16 layout, and the weight [O,K]."""
    weight = np.zeros((padded(out_features, 16), in_features), weight_dtype)
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
    if builder == "linear_dense":
        w, weight = packed_dense(rng, out_features, in_features, arguments["weight_dtype"])
        weights = [w]
    else:
        w, s, weight = packed_int4(rng, out_features, in_features, *(arguments[k] for k in INT4))
        weights = [w, s]
    activations = [x]
    if builder == "linear_int4":
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


@on(AVX2, AVX512VNNI)
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


@on(AVX2, AVX512VNNI)
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


@on(AVX2, AVX512VNNI)
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


@on(AVX2, AVX512VNNI)
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


@on(AVX2, AVX512VNNI)
@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize("size", [37, 576])
def test_add_and_take(compiled: Compiled, rng: np.random.Generator, size: int, n: int) -> None:
    a, b = normal(rng, n, size), normal(rng, n, size)
    [total] = compiled.run(f"add_{size}", [a, b], (a.shape, "float32"))
    np.testing.assert_array_equal(total, a + b)
    which = rng.integers(0, n, 5).astype("int32")
    [taken] = compiled.run(f"take_rows_{size}", [a, which], ((5, size), "float32"))
    np.testing.assert_array_equal(taken, a[which])


@on(AVX2, AVX512VNNI)
@pytest.mark.parametrize("n", ROWS)
def test_embedding(compiled: Compiled, rng: np.random.Generator, n: int) -> None:
    ids = rng.integers(0, 100, n).astype("int32")
    ids[0] = 99
    w, s, weight = packed_int4(rng, 100, 100, *INT4.values())
    [y] = compiled.run("embedding_int4", [ids, w, s], ((n, 100), "float32"))
    np.testing.assert_array_equal(y, weight[ids].astype("float32"))
    w, weight = packed_dense(rng, 100, 37, "float16")
    [y] = compiled.run("embedding_dense", [ids, w], ((n, 37), "float32"))
    np.testing.assert_array_equal(y, weight[ids].astype("float32"))


def rotated(x: Array, cos_sin: Array, rotary_dim: int) -> Array:
    """X [n,heads,D] rotated by the rows [n,rotary_dim] of the rope table."""
    half = rotary_dim // 2
    cos, sin = cos_sin[:, None, :half], cos_sin[:, None, half:]
    low, high = x[..., :half], x[..., half:rotary_dim]
    parts = [low * cos - high * sin, high * cos + low * sin, x[..., rotary_dim:]]
    return np.concatenate(parts, axis=-1)


@on(AVX2, AVX512VNNI)
@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize("name", ["gqa3", "mha"])
def test_rope_append(compiled: Compiled, rng: np.random.Generator, name: str, n: int) -> None:
    arguments = KERNELS[f"rope_{name}"][1]
    heads, kv_heads, head_dim = (arguments[k] for k in ("heads", "kv_heads", "head_dim"))
    page, rotary_dim = arguments["page_size"], arguments["rotary_dim"]
    pool = 6
    qkv = normal(rng, n, (heads + 2 * kv_heads) * head_dim)
    positions = rng.integers(0, 50, n).astype("int32")
    slots = rng.permutation(pool * page)[:n].astype("int32")
    angles = rng.random((50, rotary_dim // 2)) * 6
    table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype("float32")
    before = normal(rng, pool, 2, kv_heads, page * head_dim).astype(arguments["kv_dtype"])
    pages, [q] = compiled.in_place(
        f"rope_{name}",
        [qkv, positions, slots, table, before],
        4,
        ((n, heads * head_dim), "float32"),
    )
    parts = qkv.reshape(n, heads + 2 * kv_heads, head_dim)
    turned = rotated(parts, table[positions], rotary_dim)
    np.testing.assert_allclose(q, turned[:, :heads].reshape(n, -1), rtol=1e-5, atol=1e-6)
    expected = before.copy()
    for row, slot in enumerate(slots):
        keys = expected[slot // page, 0].reshape(kv_heads, head_dim, page)
        keys[:, :, slot % page] = turned[row, heads : heads + kv_heads]
        values = expected[slot // page, 1].reshape(kv_heads, page, head_dim)
        values[:, slot % page] = parts[row, heads + kv_heads :]
    tolerance = 1e-3 if arguments["kv_dtype"] == "float16" else 1e-6
    np.testing.assert_allclose(
        pages.astype("float32"), expected.astype("float32"), rtol=tolerance, atol=1e-6
    )


@dataclass(frozen=True)
class Cache:
    """A pool of pages with sequences in shuffled pages; what no sequence holds is NaN."""

    pages: Array
    page_begin: dict[int, int]  # by sequence
    page_values: Array
    keys: list[Array]  # per sequence, [length, kv_heads, head_dim]
    values: list[Array]


def filled_cache(rng: np.random.Generator, arguments: dict[str, Any], lengths: list[int]) -> Cache:
    kv_heads, head_dim, page = (arguments[k] for k in ("kv_heads", "head_dim", "page_size"))
    counts = [-(-length // page) for length in lengths]
    pool = sum(counts) + 2
    pages = np.full((pool, 2, kv_heads, page * head_dim), np.nan, arguments["kv_dtype"])
    ids = rng.permutation(pool)[: sum(counts)].astype("int32")
    begins = np.concatenate([[0], np.cumsum(counts)])
    keys, values = [], []
    for sequence, length in enumerate(lengths):
        shape = (length, kv_heads, head_dim)
        key, value = (normal(rng, *shape).astype(arguments["kv_dtype"]) for _ in range(2))
        for position in range(length):
            at = ids[begins[sequence] + position // page]
            stored = pages[at, 0].reshape(kv_heads, head_dim, page)
            stored[:, :, position % page] = key[position]
            stored = pages[at, 1].reshape(kv_heads, page, head_dim)
            stored[:, position % page] = value[position]
        keys.append(key.astype("float64"))
        values.append(value.astype("float64"))
    return Cache(pages, dict(enumerate(begins.tolist())), ids, keys, values)


@on(AVX2, AVX512VNNI)
@pytest.mark.parametrize("name", ATTENTION)
def test_paged_attention(compiled: Compiled, rng: np.random.Generator, name: str) -> None:
    arguments = KERNELS[f"attention_{name}"][1]
    heads, kv_heads, head_dim = (arguments[k] for k in ("heads", "kv_heads", "head_dim"))
    lengths = [1, 16, 33, 70]
    cache = filled_cache(rng, arguments, lengths)
    # Rows of several sequences: prompts with all their positions, one decoding at its end.
    rows = [(0, 0), *((1, p) for p in range(16)), *((2, p) for p in range(20, 33)), (3, 69)]
    rows += [(3, p) for p in range(6)]
    n = len(rows)
    assert n == 37
    q = normal(rng, n, heads * head_dim) * 3
    positions = np.array([p for _, p in rows], "int32")
    begin = np.array([cache.page_begin[s] for s, _ in rows], "int32")

    def run(which: slice) -> Array:
        inputs = [q[which], cache.pages, positions[which], begin[which], cache.page_values]
        [y] = compiled.run(f"attention_{name}", inputs, (q[which].shape, "float32"))
        return y

    whole = run(slice(0, n))
    for row, (sequence, position) in enumerate(rows):
        key = np.repeat(cache.keys[sequence][: position + 1], heads // kv_heads, axis=1)
        value = np.repeat(cache.values[sequence][: position + 1], heads // kv_heads, axis=1)
        scores = np.einsum("hd,phd->hp", q[row].reshape(heads, head_dim), key) * 0.125
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        expected = np.einsum("hp,phd->hd", weights, value).reshape(-1)
        np.testing.assert_allclose(whole[row], expected, rtol=2e-5, atol=2e-5)
    for count in (1, 5):
        for start in range(0, n - count, count):
            part = run(slice(start, start + count))
            assert part.tobytes() == whole[start : start + count].tobytes(), (start, count)


@pytest.mark.parametrize(
    ("variant", "dot", "register"),
    [(AVX2, "vpmaddubsw", "%ymm"), (AVX512VNNI, "vpdpbusd", "%zmm")],
    ids=["avx2", "avx512vnni"],
)
def test_machine_code(variant: Capabilities, dot: str, register: str) -> None:
    """The hot loops have the instructions they are written for, and nothing calls libm."""
    names = ["int4", "silu_mul_quantize_37", "attention_gqa3"]
    text = build(variant, names).mod.inspect_source("asm")
    for instruction in (dot, "vfmadd", "vcvtph2ps"):
        assert re.search(rf"\b{instruction}\w*\s.*{register}", text), instruction
    called = set(re.findall(r"\bcall\w*\s+([\w.]+)", text))
    called |= set(re.findall(r"([\w.]+)@GOTPCREL", text))
    # Entry points call the kernels' bodies, and those the runtime: neither libm nor a helper.
    allowed = rf"(__tvm_ffi_)?({'|'.join(names)})(_compute_)?|_*TVM\w+|__tvm_set_raised\w*"
    assert not [name for name in called if not re.fullmatch(allowed, name)]


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
    with pytest.raises(InternalError, match="rotary_dim"):
        kernels.rope_append(9, 3, 64, 80, 16, "float16")
