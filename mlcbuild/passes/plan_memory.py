"""Lifetime planner: one arena, constant offsets that hold for every shape within the bounds."""

from __future__ import annotations

from dataclasses import dataclass

ALIGNMENT = 64  # bytes; kernels use aligned 512-bit loads and stores


@dataclass(frozen=True, slots=True)
class Buffer:
    """A temporary: its bytes at the upper bounds, and the calls that first and last touch it."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Byte offsets by buffer number, the arena's size, and the least that could do."""

    offsets: tuple[int, ...]
    arena_bytes: int
    lower_bound: int


def align(nbytes: int) -> int:
    """``nbytes`` rounded up to the arena's alignment."""
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def plan_memory(buffers: list[Buffer], base: int = 0) -> MemoryPlan:
    """Places the largest buffer first, each at the lowest offset that is free over its life.

    Offsets start at ``base``. The heuristic is "greedy by size" of Pisarchyk and Lee, 2020.
    """
    offsets = [0] * len(buffers)
    placed: list[int] = []
    order = sorted(range(len(buffers)), key=lambda i: (-align(buffers[i].nbytes), i))
    for index in order:
        buffer = buffers[index]
        offset = base
        for other in sorted(placed, key=lambda i: offsets[i]):
            taken = buffers[other]
            alive = taken.first <= buffer.last and buffer.first <= taken.last
            end = offsets[other] + align(taken.nbytes)
            if alive and offset + align(buffer.nbytes) > offsets[other] and offset < end:
                offset = end
        offsets[index] = offset
        placed.append(index)
    total = max((offsets[i] + align(b.nbytes) for i, b in enumerate(buffers)), default=base)
    last = max((b.last for b in buffers), default=0)
    peak = max(
        (
            sum(align(b.nbytes) for b in buffers if b.first <= call <= b.last)
            for call in range(last + 1)
        ),
        default=0,
    )
    return MemoryPlan(tuple(offsets), total, peak)
