"""A Llama forward pass in numpy over the weights that a bundle holds, dequantized."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlcbuild.quant.pack import unpack_codes, unpack_lanes
from mlcbuild.spec.layout import LAYOUTS
from mlcbuild.weights.reader import open_params

Array = npt.NDArray[np.float64]
GROUP = 32


def _weights(bundle: Path, zero_point: int) -> dict[str, Array]:
    params = open_params(bundle / "params")
    plain: dict[str, Array] = {}
    for name in params.tensors:
        stem = name.removesuffix("q_weight")
        if name.endswith(".q_scale"):
            continue
        values = params.read(name)
        if stem == name:
            plain[name] = values.astype(np.float64)
            continue
        rows = values.shape[0] * values.shape[2]
        codes = unpack_codes(values, rows, LAYOUTS[params.layout]).astype(np.float64) - zero_point
        scales = unpack_lanes(params.read(stem + "q_scale"), rows).astype(np.float64)
        plain[stem + "weight"] = codes * np.repeat(scales, GROUP, axis=1)
    return plain


def _norm(x: Array, weight: Array, eps: float) -> Array:
    normed: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight
    return normed


def reference_logits(bundle: Path, ids: Sequence[int]) -> Array:
    """float64 [n, vocab] of a tiny bundle (plain rope, theta from the plan's inv_freq)."""
    manifest = json.loads((bundle / "bundle.json").read_bytes())
    plan = json.loads((bundle / manifest["variants"][0]["plan"]).read_bytes())
    weights = _weights(bundle, manifest["scheme"]["zero_point"])
    kv, eps = plan["kv"], 1e-5
    head_dim, kv_heads = kv["head_dim"], kv["kv_heads"]
    embedding = weights["model.embed_tokens.weight"]
    x = embedding[np.array(ids)]
    hidden = weights["model.norm.weight"].shape[0]
    x = x[:, :hidden]
    count = len(ids)
    angles = np.arange(count)[:, None] * np.array(plan["rope"]["inv_freq"])[None, :]
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]

    def linear(x: Array, name: str) -> Array:
        weight = weights[name + ".weight"]
        y = x @ weight[:, : x.shape[1]].T
        bias = weights.get(name + ".bias")
        sums: Array = y if bias is None else y[:, : len(bias)] + bias
        return sums

    def turn(x: Array) -> Array:
        left, right = np.split(x, 2, axis=-1)
        return np.concatenate((left * cos - right * sin, right * cos + left * sin), axis=-1)

    mask = np.where(np.tril(np.ones((count, count))) > 0, 0.0, -np.inf)
    for layer in range(kv["layers"]):
        prefix = f"model.layers.{layer}."
        normed = _norm(x, weights[prefix + "input_layernorm.weight"], eps)
        qkv = linear(normed, prefix + "self_attn.qkv_proj").reshape(count, -1, head_dim)
        heads = qkv.shape[1] - 2 * kv_heads
        query, key = turn(qkv[:, :heads]), turn(qkv[:, heads : heads + kv_heads])
        key = np.repeat(key, heads // kv_heads, axis=1)
        value = np.repeat(qkv[:, heads + kv_heads :], heads // kv_heads, axis=1)
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(head_dim) + mask
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", scores, value).reshape(count, -1)
        x = x + linear(mixed, prefix + "self_attn.o_proj")[:, :hidden]
        normed = _norm(x, weights[prefix + "post_attention_layernorm.weight"], eps)
        gate_up = linear(normed, prefix + "mlp.gate_up_proj")
        gate, up = np.split(gate_up, 2, axis=-1)
        x = x + linear(gate / (1 + np.exp(-gate)) * up, prefix + "mlp.down_proj")[:, :hidden]
    x = _norm(x, weights["model.norm.weight"], eps)
    head = "lm_head" if "lm_head.weight" in weights else "model.embed_tokens"
    logits: Array = linear(x, head)[:, : plan["vocab_size"]]
    return logits
