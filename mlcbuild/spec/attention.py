"""What a model's attention looks like to the lowering and to the runtime."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlcbuild.spec.kv import Window


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Causal multi-head attention with grouped keys and values and rotary positions.

    ``inv_freq`` holds ``rotary_dim / 2`` inverse frequencies (radians per position, every rope
    scaling already applied); cosines and sines are multiplied by ``attention_factor``. ``window``
    holds for every layer.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0
    window: Window = field(default_factory=Window)
