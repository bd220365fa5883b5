"""A tiny hand-made bundle: a real plan over C kernels, so that the runtime runs without a model."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlcbuild.pipeline.stages.runtime import read_units
from mlcbuild.spec.kv import Window
from tests.unit.runtime_objects import LINK_FLAGS, RUNTIME, TARGET, build_program, compile_all, zig

VOCAB = 264  # 256 bytes, 2 special tokens, 6 rows of padding
TOKENIZER_VOCAB = 258
IM_START, IM_END = 256, 257
FORBIDDEN = VOCAB - 1  # the embed kernel reports an error for it
LAYERS, KV_HEADS, Q_HEADS, HEAD_DIM, PAGE = 2, 2, 4, 8, 4
HIDDEN = Q_HEADS * HEAD_DIM
RESIDUAL = 0.7

Json = dict[str, Any]


@dataclass(frozen=True)
class FakeLimits:
    """The limits that the bundle is built for, in tokens and sequences."""

    context: int = 96
    chunk: int = 16
    batch: int = 4
    window: int = 0  # no sliding window
    sinks: int = 0

    @property
    def pages(self) -> int:
        """Pages of the pool at its largest."""
        return Window(self.window, self.sinks).pages(PAGE, self.context, self.batch, self.chunk)


def canonical(value: object) -> bytes:
    """Sorted keys, no white space: the form of every JSON file of a bundle."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def compile_kernels(path: Path) -> None:
    """The kernel library, linked with the runtime's error shim as the build does it."""
    flags = ["-target", TARGET, "-O2", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden"]
    sources = [
        RUNTIME / "tests" / "exec_fake_kernels.c",
        RUNTIME / "src" / "exec" / "kernel_shim.c",
    ]
    zig("cc", *flags, "-shared", "-s", "-Wl,--build-id=none", *sources, "-o", path)


def build_binaries(cache: pytest.Cache) -> Path:
    """Folder of all compiled parts, kept in pytest's cache for as long as no source changes."""
    units = read_units(RUNTIME)
    parts = cache.mkdir("runtime")
    objects = compile_all(parts, units)
    programs = [build_program(parts, name) for name in ("exec_test", "exec_stress")]
    kernels = [RUNTIME / "tests" / "exec_fake_kernels.c", RUNTIME / "src/exec/kernel_shim.c"]
    digest = hashlib.sha256("".join(path.name for path in [*objects, *programs]).encode())
    exports = RUNTIME / "src" / "abi" / "exports.map"
    for path in [exports, *kernels, Path(__file__)]:
        digest.update(path.read_bytes())
    base = cache.mkdir("runtime_exec")
    ready = base / digest.hexdigest()[:16]
    if ready.exists():
        return ready
    core = [path for unit, path in zip(units, objects, strict=True) if unit.in_library]
    link = ["c++", "-target", TARGET, *LINK_FLAGS]
    with tempfile.TemporaryDirectory(dir=base) as scratch:
        folder = Path(scratch) / "ready"
        folder.mkdir()
        zig(*link, f"-Wl,--version-script={exports}", "-shared", *core, "-o", folder / "libmlcb.so")
        zig(*link, *objects, "-o", folder / "mlcb")
        compile_kernels(folder / "kernels-fake.so")
        for name, program in zip(("exec_test", "exec_stress"), programs, strict=True):
            shutil.copy(program, folder / name)
        folder.replace(ready)
    return ready


def make_params() -> dict[str, npt.NDArray[np.float32]]:
    """Random weights, float32: table [vocab, hidden], per layer q, k, v, o [out, in]."""
    rng = np.random.default_rng(7)

    def matrix(rows: int, columns: int, scale: float) -> npt.NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    params = {"table": matrix(VOCAB, HIDDEN, 1.0)}
    for layer in range(LAYERS):
        params[f"l{layer}.q"] = matrix(HIDDEN, HIDDEN, 0.3)
        params[f"l{layer}.k"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN, 0.3)
        params[f"l{layer}.v"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN, 0.3)
        params[f"l{layer}.o"] = matrix(HIDDEN, HIDDEN, 0.3)
    return params


def inv_freq() -> list[float]:
    """Frequencies of rope, radians per position, HEAD_DIM / 2 of them."""
    return [1.0 / 100.0 ** (2 * i / HEAD_DIM) for i in range(HEAD_DIM // 2)]


@dataclass
class FunctionBuilder:
    """Collects one function of a plan; arena blocks are never reused."""

    name: str
    variables: list[str]
    bounds: Json
    exprs: list[list[object]] = field(default_factory=list)
    tensors: list[list[object]] = field(default_factory=list)
    calls: list[list[object]] = field(default_factory=list)
    arena: int = 0

    def expr(self, size: int | str) -> int:
        """Index of the expression for a constant or a variable."""
        token = size if isinstance(size, int) else f"${self.variables.index(size)}"
        if [token] not in self.exprs:
            self.exprs.append([token])
        return self.exprs.index([token])

    def tensor(self, kind: str, ref: object, shape: list[int | str], dtype: str = "float32") -> int:
        """Index of a new tensor; arena tensors get a block of their own."""
        offset = 0
        if kind == "arena":
            offset = self.arena
            size = 4
            for dim in shape:
                size *= dim if isinstance(dim, int) else int(self.bounds[dim])
            self.arena += -(-size // 64) * 64
        self.tensors.append([kind, ref, offset, dtype, [self.expr(dim) for dim in shape]])
        return len(self.tensors) - 1

    def finish(self, inputs: list[int], outputs: list[int]) -> Json:
        """The function as the plan stores it."""
        return {
            "name": self.name,
            "vars": self.variables,
            "exprs": self.exprs,
            "arena_bytes": self.arena,
            "tensors": self.tensors,
            "inputs": inputs,
            "outputs": outputs,
            "calls": self.calls,
        }


KERNELS = ("embed", "matmul", "rope", "append", "attention", "add", "take", "window_attention")


def make_plan(limits: FakeLimits, variant: str, activations: str) -> Json:
    """An execution plan of a 2-layer attention-only model."""
    params = make_params()
    names = list(params)
    bounds = {
        "seq_len": limits.chunk,
        "logit_rows": max(limits.batch, min(64, limits.chunk)),
        "kv_pages": limits.pages,
        "kv_nnz": limits.pages,
        "rope_positions": limits.context,
    }

    def call(f: FunctionBuilder, kernel: str, *args: list[object]) -> None:
        f.calls.append([KERNELS.index(kernel), list(args)])

    def t(index: int) -> list[object]:
        return ["t", index]

    def param(f: FunctionBuilder, name: str) -> list[object]:
        return t(f.tensor("param", names.index(name), list(params[name].shape)))

    e = FunctionBuilder("embed", ["seq_len"], bounds)
    ids = e.tensor("input", 0, ["seq_len"], "int32")
    rows = e.tensor("arena", 0, ["seq_len", HIDDEN])
    call(e, "embed", t(ids), param(e, "table"), t(rows))

    # The functions share one arena, in which nothing may overwrite what embed returned.
    f = FunctionBuilder("batch_prefill", list(bounds), bounds, arena=e.arena)
    x = f.tensor("input", 0, [1, "seq_len", HIDDEN])
    wanted = f.tensor("input", 1, ["logit_rows"], "int32")
    inputs = [x, wanted]
    positions = t(f.tensor("meta", "positions", ["seq_len"], "int32"))
    slots = t(f.tensor("meta", "slots", ["seq_len"], "int32"))
    begin = t(f.tensor("meta", "page_begin", ["seq_len"], "int32"))
    values = t(f.tensor("meta", "page_values", ["kv_nnz"], "int32"))
    table = t(f.tensor("meta", "rope_cos_sin", ["rope_positions", HEAD_DIM]))
    size = ["i", f.expr(PAGE)]
    for layer in range(LAYERS):
        pages = t(f.tensor("kv", layer, ["kv_pages", 2, KV_HEADS, PAGE * HEAD_DIM]))
        parts = {}
        for name in "qkv":
            width = params[f"l{layer}.{name}"].shape[0]
            parts[name] = t(f.tensor("arena", 0, ["seq_len", width]))
            call(f, "matmul", t(x), param(f, f"l{layer}.{name}"), parts[name])
            if name != "v":
                turned = t(f.tensor("arena", 0, ["seq_len", width]))
                call(f, "rope", parts[name], table, positions, turned)
                parts[name] = turned
        call(f, "append", parts["k"], parts["v"], slots, pages, size)
        mixed = t(f.tensor("arena", 0, ["seq_len", HIDDEN]))
        seen = [parts["q"], pages, positions, begin, values, size]
        if limits.window:
            skip = t(f.tensor("meta", "page_skip", ["seq_len"], "int32"))
            sizes = [["i", f.expr(limits.window)], ["i", f.expr(limits.sinks)]]
            call(f, "window_attention", *seen, skip, *sizes, mixed)
        else:
            call(f, "attention", *seen, mixed)
        projected = t(f.tensor("arena", 0, ["seq_len", HIDDEN]))
        call(f, "matmul", mixed, param(f, f"l{layer}.o"), projected)
        after = f.tensor("arena", 0, [1, "seq_len", HIDDEN])
        call(f, "add", t(x), projected, ["f", RESIDUAL], t(after))
        x = after
    taken = f.tensor("arena", 0, [1, "logit_rows", HIDDEN])
    logits = f.tensor("arena", 0, [1, "logit_rows", VOCAB])
    call(f, "take", t(x), t(wanted), t(taken))
    call(f, "matmul", t(taken), param(f, "table"), t(logits))
    page_bytes = 2 * KV_HEADS * PAGE * HEAD_DIM * 4
    return {
        "plan_version": 1,
        "target": "linux-x86_64-cpu",
        "variant": variant,
        "activations": activations,
        "capability": ["sse2"],
        "layout": "f32",
        "symbol_prefix": "t_",
        "vocab_size": VOCAB,
        "kv": {
            "layers": LAYERS,
            "kv_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "page_size": PAGE,
            "dtype": "float32",
            "layout": "kt",
            "page_bytes": page_bytes,
            "window": limits.window,
            "sinks": limits.sinks,
        },
        "rope": {"rotary_dim": HEAD_DIM, "inv_freq": inv_freq(), "attention_factor": 1.0},
        "bounds": bounds,
        "params": [
            {"name": name, "dtype": "float32", "shape": list(value.shape)}
            for name, value in params.items()
        ],
        "kernels": list(KERNELS),
        "functions": [e.finish([ids], [rows]), f.finish(inputs, [logits])],
    }


def reference_logits(ids: list[int], window: int = 0, sinks: int = 0) -> npt.NDArray[np.float64]:
    """What the fake model computes, in float64: [tokens, vocab]."""
    p = {name: value.astype(np.float64) for name, value in make_params().items()}
    x = p["table"][ids]
    count = len(ids)
    angle = np.arange(count)[:, None] * np.array(inv_freq())
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def rope(y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        a, b = y[..., : HEAD_DIM // 2], y[..., HEAD_DIM // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    row, column = np.arange(count)[:, None], np.arange(count)
    seen = (column <= row) & ((column < sinks) | (column > row - (window or count)))
    causal = np.where(seen, 0.0, -np.inf)
    for layer in range(LAYERS):
        q = rope((x @ p[f"l{layer}.q"].T).reshape(count, Q_HEADS, HEAD_DIM))
        k = rope((x @ p[f"l{layer}.k"].T).reshape(count, KV_HEADS, HEAD_DIM))
        v = (x @ p[f"l{layer}.v"].T).reshape(count, KV_HEADS, HEAD_DIM)
        out = np.empty_like(q)
        for head in range(Q_HEADS):
            group = head * KV_HEADS // Q_HEADS
            score = q[:, head] @ k[:, group].T / np.sqrt(HEAD_DIM) + causal
            weight = np.exp(score - score.max(-1, keepdims=True))
            out[:, head] = weight / weight.sum(-1, keepdims=True) @ v[:, group]
        x = x + RESIDUAL * (out.reshape(count, HIDDEN) @ p[f"l{layer}.o"].T)
    logits: npt.NDArray[np.float64] = x @ p["table"].T
    return logits


def byte_alphabet() -> list[str]:
    """The printable stand-ins of byte-level BPE, by byte."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = iter(range(0x100, 0x200))
    return [chr(byte) if byte in kept else chr(next(other)) for byte in range(256)]


def make_tokenizer() -> Json:
    """A tokenizer.json with one token for each byte."""
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    special = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": IM_START, "content": "<|im_start|>", "special": True, **special},
            {"id": IM_END, "content": "<|im_end|>", "special": True, **special},
        ],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {text: byte for byte, text in enumerate(byte_alphabet())},
            "merges": [],
        },
    }


def make_chat() -> Json:
    """A chat.json in ChatML."""
    return {
        "chat_version": 2,
        "template": "{% for m in messages %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        "tool_template": None,
        "tokens": {},
        "content_style": "text",
        "arguments_style": "any",
        "takes_tools": False,
        "tool_format": None,
        "reasoning_format": None,
        "stop_token_ids": [IM_END],
        "stop_strings": [],
        "kept_special_tokens": [],
        "add_bos_token_id": None,
        "sampling": None,
    }


def sha256(data: bytes | bytearray) -> str:
    """Hex digest of ``data``."""
    return hashlib.sha256(data).hexdigest()


def write_params(folder: Path) -> None:
    """Shards (two, to exercise the split) and their index."""
    (folder / "params").mkdir()
    tensors: list[Json] = []
    shards = [bytearray(), bytearray()]
    for index, (name, value) in enumerate(make_params().items()):
        shard = 0 if index < 5 else 1
        data = shards[shard]
        data.extend(b"\0" * (-len(data) % 64))
        raw = value.tobytes()
        tensors.append(
            {
                "name": name,
                "shard": shard,
                "offset": len(data),
                "nbytes": len(raw),
                "dtype": "float32",
                "shape": list(value.shape),
                "layout": "f32",
                "sha256": sha256(raw),
            }
        )
        data.extend(raw)
    listed: list[Json] = []
    for number, content in enumerate(shards):
        path = f"params/params_shard_{number}.bin"
        (folder / path).write_bytes(content)
        listed.append({"path": path, "size": len(content), "sha256": sha256(content)})
    listing = {"params_version": 1, "layout": "f32", "shards": listed, "tensors": tensors}
    (folder / "params" / "index.json").write_bytes(canonical(listing))


def make_manifest(folder: Path, limits: FakeLimits) -> Json:
    """A bundle.json over the files that lie in ``folder``."""
    files: list[Json] = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).as_posix()
        if path.is_file() and inside != "bundle.json" and not inside.startswith("attest/"):
            data = path.read_bytes()
            files.append({"path": inside, "size": len(data), "sha256": sha256(data)})
    files.sort(key=lambda entry: str(entry["path"]))
    variants: list[Json] = [
        {"name": "future", "activations": "int8", "capability": ["avx9000", "sse2"]},
        {"name": "fast", "activations": "int8", "capability": ["sse2"]},
        {"name": "plain", "activations": "float", "capability": ["sse2"]},
    ]
    for variant in variants:
        plan = "plain" if variant["name"] == "plain" else "fast"
        variant["kernels"] = "lib/kernels-fake.so"
        variant["plan"] = f"lib/{plan}.plan"
    return {
        "bundle_version": 1,
        "abi_version": 2,
        "plan_version": 1,
        "params_version": 1,
        "name": "fake",
        "target": "linux-x86_64-cpu",
        "architecture": "fake",
        "scheme": {"name": "q0f32", "version": 1},
        "model": {
            "source": "hand-made",
            "revision": None,
            "license": "Apache-2.0",
            "vocab_size": VOCAB,
            "tokenizer_vocab_size": TOKENIZER_VOCAB,
            "parameters": 0,
            "notes": [],
        },
        "limits": {
            "context_window_size": limits.context,
            "prefill_chunk_size": limits.chunk,
            "max_batch_size": limits.batch,
            "page_size": PAGE,
            "kv_dtype": "float32",
            "sliding_window_size": limits.window,
            "attention_sink_size": limits.sinks,
        },
        "variants": variants,
        "runtime": {"library": "lib/libmlcb.so", "executable": "bin/mlcb", "header": None},
        "params": "params/index.json",
        "tokenizer": "tokenizer/tokenizer.json",
        "chat": "chat.json",
        "golden": None,
        "memory": {},
        "tree_digest": "sha256:" + sha256(canonical(files)),
        "files": files,
    }


def write_manifest(
    folder: Path, changes: Json | None = None, limits: FakeLimits | None = None
) -> None:
    """Write bundle.json for the files as they are now, with ``changes`` put on top."""
    manifest = make_manifest(folder, limits or FakeLimits()) | (changes or {})
    (folder / "bundle.json").write_bytes(canonical(manifest))


def write_plan(folder: Path, plan: Json, name: str = "fast") -> None:
    """Replace a plan and bring the manifest up to date."""
    (folder / "lib" / f"{name}.plan").write_bytes(canonical(plan))
    write_manifest(folder)


def make_bundle(folder: Path, binaries: Path, limits: FakeLimits | None = None) -> None:
    """A whole bundle in ``folder``; ``binaries`` holds libmlcb.so, mlcb and kernels-fake.so."""
    limits = limits or FakeLimits()
    for name in ("lib", "bin", "tokenizer"):
        (folder / name).mkdir(parents=True)
    for source, target in (
        ("libmlcb.so", "lib/libmlcb.so"),
        ("kernels-fake.so", "lib/kernels-fake.so"),
        ("mlcb", "bin/mlcb"),
    ):
        shutil.copy(binaries / source, folder / target)
    for name, activations in (("fast", "int8"), ("plain", "float")):
        plan = make_plan(limits, name, activations)
        (folder / "lib" / f"{name}.plan").write_bytes(canonical(plan))
    write_params(folder)
    (folder / "tokenizer" / "tokenizer.json").write_bytes(canonical(make_tokenizer()))
    (folder / "chat.json").write_bytes(canonical(make_chat()))
    write_manifest(folder, limits=limits)
