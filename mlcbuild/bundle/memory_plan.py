"""What a bundle needs in memory, computed from what it holds (never typed by hand)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlcbuild.bundle.manifest import LimitsInfo, MemoryPlan
from mlcbuild.errors import StageError

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1}


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of a KV dtype."""
    if dtype not in _BYTES:
        raise StageError(f"unknown KV dtype {dtype!r}", hint=f"known: {', '.join(sorted(_BYTES))}")
    return _BYTES[dtype]


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, dtype: str) -> int:
    """Bytes that one token takes in the KV cache: a key and a value per layer and KV head."""
    return 2 * layers * kv_heads * head_dim * dtype_bytes(dtype)


def plan_memory(
    params_index: Mapping[str, Any], plans: Sequence[Mapping[str, Any]], limits: LimitsInfo
) -> MemoryPlan:
    """The memory plan of a bundle from its decoded params/index.json and execution plans.

    KV: every sequence of the largest batch fills its window, in whole pages. Arena: the functions
    of a plan share one; an engine runs one plan, so the largest of the plans counts.
    """
    weights = sum(int(shard["size"]) for shard in params_index["shards"])
    shapes = {
        (kv["layers"], kv["kv_heads"], kv["head_dim"], kv["dtype"])
        for kv in (plan["kv"] for plan in plans)
    }
    if len(shapes) != 1:
        raise StageError(
            "the plans of one bundle disagree about the KV cache",
            why=f"(layers, kv_heads, head_dim, dtype): {sorted(shapes)}",
        )
    layers, kv_heads, head_dim, dtype = shapes.pop()
    if dtype != limits.kv_dtype:
        raise StageError(
            f"the plans keep KV in {dtype}, the limits say {limits.kv_dtype}",
            hint="lower with the kv_dtype of the recipe",
        )
    per_token = kv_bytes_per_token(layers, kv_heads, head_dim, dtype)
    pages = -(-limits.context_window_size // limits.page_size) * limits.max_batch_size
    kv = pages * limits.page_size * per_token
    arena = max(int(function["arena_bytes"]) for plan in plans for function in plan["functions"])
    return MemoryPlan(
        weights_bytes=weights,
        kv_bytes_per_token=per_token,
        kv_bytes=kv,
        arena_bytes=arena,
        total_bytes=weights + kv + arena,
    )
