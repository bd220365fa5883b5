"""Appending to the paged key-value cache and attention over it, against numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from mlcbuild.kernels.cpu.families import AVX2, AVX512_VNNI, DOTPROD, SIMD128
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.kv import KvPageShape, Window
from tests.unit.kernel_runner import (
    EMULATED,
    Array,
    Compiled,
    aligned,
    compile_kernels,
    normal,
    on,
    skip_unless_runnable,
)

ROWS = (1, 3, 8, 37)
SHAPES: dict[str, dict[str, Any]] = {
    "mha": {"heads": 2, "kv_heads": 2, "head_dim": 80, "page_size": 16, "kv_dtype": "float32"},
    "mha_int8": {"heads": 2, "kv_heads": 2, "head_dim": 80, "page_size": 16, "kv_dtype": "int8"},
    "gqa3": {"heads": 9, "kv_heads": 3, "head_dim": 64, "page_size": 16, "kv_dtype": "float16"},
    "gqa3_int8": {"heads": 9, "kv_heads": 3, "head_dim": 64, "page_size": 16, "kv_dtype": "int8"},
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
    "narrower_int8": {
        "heads": 3,
        "kv_heads": 3,
        "head_dim": 20,
        "page_size": 16,
        "kv_dtype": "int8",
    },
    "gqa8": {"heads": 16, "kv_heads": 2, "head_dim": 256, "page_size": 16, "kv_dtype": "float16"},
}
ROPE = {"gqa3": 64, "gqa3_int8": 64, "mha": 20, "mha_int8": 20, "narrower_int8": 20}
SMALL = {"heads": 2, "kv_heads": 1, "head_dim": 16, "page_size": 16, "kv_dtype": "float32"}
# (window, sinks): one position, page borders, sinks in a part of a page and over two pages.
WINDOWS: dict[str, tuple[dict[str, Any], int, int]] = {
    "1": (SMALL, 1, 0),
    "16": (SMALL, 16, 0),
    "17_16": (SMALL, 17, 16),
    "21_5": (SMALL, 21, 5),
    "40_33": (SMALL, 40, 33),
    "20_4_int8": ({**SMALL, "heads": 3, "kv_dtype": "int8"}, 20, 4),
}
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"attention_{k}": ("paged_attention", {**v, "scale": 0.125}) for k, v in SHAPES.items()},
    **{
        f"window_{k}": ("paged_attention", {**v, "scale": 0.125, "window": w, "sinks": s})
        for k, (v, w, s) in WINDOWS.items()
    },
    **{f"rope_{k}": ("rope_append", {**SHAPES[k], "rotary_dim": r}) for k, r in ROPE.items()},
}
# Every kind of pages and all that windows do, where it takes little time to compile.
EMULATED_NAMES = {
    *("attention_gqa3", "attention_narrower_int8", "window_21_5", "window_20_4_int8"),
    *("rope_gqa3", "rope_mha_int8"),
}


def kernels_of(variant: Capabilities) -> list[str]:
    """The kernels that are tested on a variant."""
    return [name for name in KERNELS if variant not in EMULATED or name in EMULATED_NAMES]


def cases(prefix: str) -> list[Any]:
    """Pairs of a variant and a name, those of the kernels that begin with ``prefix``."""
    return [
        pytest.param(variant, name.removeprefix(prefix), id=f"{variant.isa}-{name}")
        for variant in (AVX2, AVX512_VNNI, DOTPROD, SIMD128)
        for name in kernels_of(variant)
        if name.startswith(prefix)
    ]


@pytest.fixture
def compiled(request: pytest.FixtureRequest) -> Compiled:
    """The kernels of one instruction set; skips what this machine cannot run."""
    variant: Capabilities = request.param
    skip_unless_runnable(variant)
    return compiled_kernels(variant)


@cache
def compiled_kernels(variant: Capabilities) -> Compiled:
    """All kernels that are tested here, compiled once."""
    return compile_kernels(variant, {name: KERNELS[name] for name in kernels_of(variant)})


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def page_shape(arguments: dict[str, Any]) -> KvPageShape:
    """The page of a kernel's arguments."""
    sizes = {key: arguments[key] for key in ("kv_heads", "head_dim", "page_size")}
    return KvPageShape(**sizes, dtype=arguments["kv_dtype"])


class Pool:
    """Pages of one layer in one memory, as the runtime has them; what is not written is NaN."""

    def __init__(self, shape: KvPageShape, pages: int) -> None:
        self.shape = shape
        self.pages = pages
        dtype = "float32" if shape.is_quantized else shape.dtype
        columns = shape.page_bytes // np.dtype(dtype).itemsize
        # Codes have no NaN; scales have.
        self.memory = aligned(np.full((pages, columns), np.nan, dtype))
        full = (pages, 2, shape.kv_heads, shape.page_size * shape.head_dim)
        codes = self.memory.view(shape.dtype)[:, : np.prod(full[1:])]
        self.elements = codes.reshape(full) if not shape.is_quantized else codes
        scales = (2, shape.kv_heads, shape.page_size)
        self.scales = (
            self.memory[:, shape.code_bytes // 4 :][:, : np.prod(scales)]
            if shape.is_quantized
            else None
        )

    def arguments(self) -> list[Array]:
        """The tensors that a kernel takes."""
        if not self.shape.is_quantized:
            return [self.elements]
        return [self.memory.view("int8"), self.memory]

    def head(self, page: int, kind: int, head: int) -> Array:
        """Keys (0) or values (1) of a head as they are stored, [page_size, head_dim]."""
        shape = self.shape
        if not shape.is_quantized:
            flat: Array = self.elements[page, kind, head]
        else:
            size = shape.page_size * shape.head_dim
            begin = (kind * shape.kv_heads + head) * size
            flat = self.elements[page, begin : begin + size]
        rows: Array = flat.reshape(shape.page_size, shape.head_dim)
        return flat.reshape(shape.head_dim, shape.page_size).T if kind == 0 else rows

    def _scale(self, page: int, kind: int, head: int) -> Array:
        assert self.scales is not None
        begin = (kind * self.shape.kv_heads + head) * self.shape.page_size
        part: Array = self.scales[page, begin : begin + self.shape.page_size]
        return part

    def write(self, slot: int, kind: int, head: int, vector: Array) -> None:
        """Store a key (0) or value (1) by the definition of the format."""
        page, offset = divmod(slot, self.shape.page_size)
        stored = self.head(page, kind, head)
        if not self.shape.is_quantized:
            stored[offset] = vector
            return
        absmax = np.abs(vector).max()
        usable = absmax > 1e-30
        inverse = np.float32(127) / absmax if usable else np.float32(0)
        stored[offset] = np.rint(vector * inverse)
        self._scale(page, kind, head)[offset] = absmax / np.float32(127) if usable else 0

    def read(self, slot: int, kind: int, head: int) -> Array:
        """What a kernel sees as a key or value, float64."""
        page, offset = divmod(slot, self.shape.page_size)
        vector: Array = self.head(page, kind, head)[offset].astype("float64")
        return vector * (self._scale(page, kind, head)[offset] if self.shape.is_quantized else 1)


def rotated(x: Array, cos_sin: Array, rotary_dim: int) -> Array:
    """X [n,heads,D] rotated by the rows [n,rotary_dim] of the rope table."""
    half = rotary_dim // 2
    cos, sin = cos_sin[:, None, :half], cos_sin[:, None, half:]
    low, high = x[..., :half], x[..., half:rotary_dim]
    parts = [low * cos - high * sin, high * cos + low * sin, x[..., rotary_dim:]]
    return np.concatenate(parts, axis=-1)


@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize(("compiled", "name"), cases("rope_"), indirect=["compiled"])
def test_rope_append(compiled: Compiled, rng: np.random.Generator, name: str, n: int) -> None:
    arguments = KERNELS[f"rope_{name}"][1]
    heads, kv_heads, head_dim = (arguments[k] for k in ("heads", "kv_heads", "head_dim"))
    page, rotary_dim = arguments["page_size"], arguments["rotary_dim"]
    pages = 6
    qkv = normal(rng, n, heads + 2 * kv_heads, head_dim)
    qkv[n // 2, -1] = 0  # a value of zeros
    positions = rng.integers(0, 50, n).astype("int32")
    slots = rng.permutation(pages * page)[:n].astype("int32")
    angles = rng.random((50, rotary_dim // 2)) * 6
    table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype("float32")
    pool, expected = (Pool(page_shape(arguments), pages) for _ in range(2))
    [q] = compiled.run(
        f"rope_{name}",
        [qkv.reshape(n, -1), positions, slots, table, *pool.arguments()],
        ((n, heads * head_dim), "float32"),
    )
    turned = rotated(qkv, table[positions], rotary_dim)
    np.testing.assert_allclose(q, turned[:, :heads].reshape(n, -1), rtol=1e-5, atol=1e-6)
    for row, slot in enumerate(slots):
        for head in range(kv_heads):
            expected.write(slot, 0, head, turned[row, heads + head])
            expected.write(slot, 1, head, qkv[row, heads + kv_heads + head])
    for row, slot in enumerate(slots):
        for head in range(kv_heads):
            key, value = turned[row, heads + head], qkv[row, heads + kv_heads + head]
            # Keys are rotated in another order of rounding, and so may fall to the next code.
            kind = arguments["kv_dtype"]
            step = {"float32": 1e-6, "float16": 5e-4, "int8": 1.001 / 254}[kind]
            error = np.abs(pool.read(slot, 0, head) - key).max()
            assert error <= step * np.abs(key).max() + 1e-7
            np.testing.assert_array_equal(pool.read(slot, 1, head), expected.read(slot, 1, head))
            assert np.abs(expected.read(slot, 1, head) - value).max() <= step * np.abs(value).max()
    # Nothing else was touched.
    written = np.unique(slots // page)
    untouched = np.setdiff1d(np.arange(pages), written)
    assert np.isnan(pool.memory[untouched]).all()
    if pool.scales is not None:
        unset, unset_expected = np.isnan(pool.scales), np.isnan(expected.scales)  # type: ignore[arg-type]
        np.testing.assert_array_equal(unset, unset_expected)
    else:
        np.testing.assert_array_equal(np.isnan(pool.memory), np.isnan(expected.memory))


@on(AVX2, AVX512_VNNI, DOTPROD, SIMD128)
def test_float16_pages_round_half_to_even(compiled: Compiled, rng: np.random.Generator) -> None:
    n, pages = 37, 3
    # From below the least subnormal to above the largest float16; ties of both kinds.
    values = normal(rng, n, 15, 64) * np.exp2(rng.integers(-28, 18, (n, 15, 64))).astype("float32")
    bits = values.view("uint32")
    bits[::2] = bits[::2] & 0xFFFFF000 | 0x1000
    values[1, 9] = np.exp2(np.linspace(-25, -24, 64))
    values[3, 9] = np.linspace(65503, 65537, 64)
    values[5, 12, :5] = [np.inf, -np.inf, np.nan, 0.0, -0.0]  # a value: keys are multiplied
    table = np.repeat([[1, 0]], 32, axis=1).reshape(1, 64).astype("float32")
    slots = rng.permutation(pages * 16)[:n].astype("int32")
    pool = Pool(page_shape(SHAPES["gqa3"]), pages)
    inputs = [values.reshape(n, -1), np.zeros(n, "int32"), slots, table, *pool.arguments()]
    compiled.run("rope_gqa3", inputs, ((n, 9 * 64), "float32"))
    with np.errstate(over="ignore"):
        expected = values[:, 9:].reshape(n, 2, 3, 64).astype("float16")
    for row, slot in enumerate(slots):
        for kind in (0, 1):
            for head in range(3):
                page, offset = divmod(int(slot), 16)
                stored = pool.head(page, kind, head)[offset]
                np.testing.assert_array_equal(stored, expected[row, kind, head])


@dataclass(frozen=True)
class Cache:
    """A pool with sequences in shuffled pages; what no sequence holds is NaN."""

    pool: Pool
    page_begin: list[int]  # by sequence
    page_values: Array
    slots: list[list[int]]  # by sequence and position

    def tokens(self, sequence: int, kind: int) -> Array:
        """Keys (0) or values (1) of a sequence as kernels see them, [length, kv_heads, D]."""
        heads = range(self.pool.shape.kv_heads)
        slots = self.slots[sequence]
        return np.array([[self.pool.read(slot, kind, head) for head in heads] for slot in slots])


def filled_cache(rng: np.random.Generator, shape: KvPageShape, lengths: list[int]) -> Cache:
    """Random keys and values of some sequences."""
    counts = [-(-length // shape.page_size) for length in lengths]
    pool = Pool(shape, sum(counts) + 2)
    ids = rng.permutation(pool.pages)[: sum(counts)].astype("int32")
    begins = [0, *np.cumsum(counts).tolist()]
    slots = [
        [
            int(ids[begins[sequence] + position // shape.page_size]) * shape.page_size
            + position % shape.page_size
            for position in range(length)
        ]
        for sequence, length in enumerate(lengths)
    ]
    for slot in (slot for sequence in slots for slot in sequence):
        for kind in (0, 1):
            for head in range(shape.kv_heads):
                pool.write(slot, kind, head, normal(rng, shape.head_dim))
    return Cache(pool, begins[:-1], ids, slots)


def attention(q: Array, key: Array, value: Array, seen: Array) -> Array:
    """One row: q [heads,D] over the seen ones of key and value [length, kv_heads, D]."""
    group = q.shape[0] // key.shape[1]
    key, value = (np.repeat(tokens[seen], group, axis=1) for tokens in (key, value))
    scores = np.einsum("hd,phd->hp", q, key) * 0.125
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    result: Array = np.einsum("hp,phd->hd", weights, value).reshape(-1)
    return result


@pytest.mark.parametrize(("compiled", "name"), cases("attention_"), indirect=["compiled"])
def test_paged_attention(compiled: Compiled, rng: np.random.Generator, name: str) -> None:
    arguments = SHAPES[name]
    heads, head_dim = arguments["heads"], arguments["head_dim"]
    cache = filled_cache(rng, page_shape(arguments), [1, 16, 33, 70])
    # Rows of several sequences: prompts with all their positions, one decoding at its end.
    rows = [(0, 0), *((1, p) for p in range(16)), *((2, p) for p in range(20, 33)), (3, 69)]
    rows += [(3, p) for p in range(6)]
    n = len(rows)
    assert n == 37
    q = normal(rng, n, heads * head_dim) * 3
    positions = np.array([p for _, p in rows], "int32")
    begin = np.array([cache.page_begin[s] for s, _ in rows], "int32")

    def run(which: slice) -> Array:
        inputs = [
            q[which],
            *cache.pool.arguments(),
            positions[which],
            begin[which],
            cache.page_values,
        ]
        [y] = compiled.run(f"attention_{name}", inputs, (q[which].shape, "float32"))
        return y

    whole = run(slice(0, n))
    tokens = {s: (cache.tokens(s, 0), cache.tokens(s, 1)) for s in range(4)}
    for row, (sequence, position) in enumerate(rows):
        seen = np.arange(position + 1)
        expected = attention(q[row].reshape(heads, head_dim), *tokens[sequence], seen)
        np.testing.assert_allclose(whole[row], expected, rtol=2e-5, atol=2e-5)
    for count in (1, 5):
        for start in range(0, n - count, count):
            part = run(slice(start, start + count))
            assert part.tobytes() == whole[start : start + count].tobytes(), (start, count)


@pytest.mark.parametrize(("compiled", "name"), cases("window_"), indirect=["compiled"])
def test_window(compiled: Compiled, rng: np.random.Generator, name: str) -> None:
    """Every position of a sequence, with none, some and all of its hidden pages dropped."""
    arguments, size, sinks = WINDOWS[name]
    heads, head_dim, page = (arguments[k] for k in ("heads", "head_dim", "page_size"))
    length = 120
    cache = filled_cache(rng, page_shape(arguments), [length])
    outside = next(i for i in range(cache.pool.pages) if i not in cache.page_values)
    q = normal(rng, length, heads * head_dim) * 3
    positions = np.arange(length, dtype="int32")
    sink_pages = Window(size, sinks).sink_pages(page)
    can_drop = [
        max(0, max(position - size + 1, 0) // page - sink_pages) for position in range(length)
    ]

    def run(skips: list[int], rows: slice = slice(0, length)) -> Array:
        begin: list[int] = []
        values: list[int] = []
        for position, skip, most in list(zip(positions, skips, can_drop, strict=True))[rows]:
            begin.append(len(values))
            ids = cache.page_values[: position // page + 1].tolist()
            # Pages that the row does not see are not touched: here they hold NaN.
            hidden = range(sink_pages, min(len(ids), sink_pages + most))
            ids = [outside if i in hidden else page_id for i, page_id in enumerate(ids)]
            values += ids[:sink_pages] + ids[sink_pages + skip :]
        inputs = [q[rows], *cache.pool.arguments(), positions[rows]]
        inputs += [np.array(numbers, "int32") for numbers in (begin, values, skips[rows])]
        [y] = compiled.run(f"window_{name}", inputs, (q[rows].shape, "float32"))
        return y

    whole = run([0] * length)
    key, value = cache.tokens(0, 0), cache.tokens(0, 1)
    for position in range(length):
        seen = np.arange(position + 1)
        seen = seen[(seen < sinks) | (seen > position - size)]
        expected = attention(q[position].reshape(heads, head_dim), key, value, seen)
        np.testing.assert_allclose(whole[position], expected, rtol=2e-5, atol=2e-5)
    assert run(can_drop).tobytes() == whole.tobytes()
    some = [int(rng.integers(0, most + 1)) for most in can_drop]
    assert run(some).tobytes() == whole.tobytes()
    for start in range(0, length, 7):
        rows = slice(start, start + 1)
        assert run(some, rows).tobytes() == whole[rows].tobytes(), start
