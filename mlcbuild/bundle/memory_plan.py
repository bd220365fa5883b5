"""What a bundle needs in memory, computed from what it holds (never typed by hand)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlcbuild.bundle.manifest import LimitsInfo, MemoryPlan
from mlcbuild.errors import StageError
from mlcbuild.spec.kv import KvPageShape, Window

_KV_KEYS = ("layers", "kv_heads", "head_dim", "page_size", "dtype", "window", "sinks")


def kv_of(plans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The KV cache that all plans of a bundle agree on; StageError if they do not."""
    found = {tuple(plan["kv"].get(key, 0) for key in _KV_KEYS) for plan in plans}
    if len(found) != 1:
        raise StageError(
            "the plans of one bundle disagree about the KV cache",
            why=f"({', '.join(_KV_KEYS)}): {sorted(found)}",
        )
    return dict(zip(_KV_KEYS, found.pop(), strict=True))


def plan_memory(
    params_index: Mapping[str, Any], plans: Sequence[Mapping[str, Any]], limits: LimitsInfo
) -> MemoryPlan:
    """The memory plan of a bundle from its decoded params/index.json and execution plans.

    KV: every sequence of the largest batch fills its context, or what its sliding window keeps of
    it, in whole pages. Arena: the functions of a plan share one; an engine runs one plan, so the
    largest of the plans counts.
    """
    weights = sum(int(shard["size"]) for shard in params_index["shards"])
    kv = kv_of(plans)
    for key, limit in (("dtype", limits.kv_dtype), ("page_size", limits.page_size)):
        if kv[key] != limit:
            raise StageError(
                f"the plans' KV cache has {key} {kv[key]}, the limits say {limit}",
                hint="lower with the limits of the recipe",
            )
    shape = KvPageShape(kv["kv_heads"], kv["head_dim"], kv["page_size"], kv["dtype"])
    page_bytes = int(kv["layers"]) * shape.page_bytes
    pages = Window(kv["window"], kv["sinks"]).pages(
        limits.page_size,
        limits.context_window_size,
        limits.max_batch_size,
        limits.prefill_chunk_size,
    )
    arena = max(int(function["arena_bytes"]) for plan in plans for function in plan["functions"])
    return MemoryPlan(
        weights_bytes=weights,
        kv_bytes_per_token=-(-page_bytes // limits.page_size),
        kv_bytes=pages * page_bytes,
        arena_bytes=arena,
        total_bytes=weights + pages * page_bytes + arena,
    )
