"""A checkpoint that lies in memory, made from an architecture's own rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlcbuild.weights.mapping import ParamRule


@dataclass(frozen=True)
class MemoryCheckpoint:
    """What ``quantize_checkpoint`` needs of a checkpoint."""

    tensors: Mapping[str, npt.NDArray[Any]]
    location: str = "memory"

    def read(self, name: str) -> npt.NDArray[Any]:
        """One tensor's values."""
        return self.tensors[name]


def random_checkpoint(rules: Sequence[ParamRule], seed: int = 7) -> MemoryCheckpoint:
    """Small random values for every source that ``rules`` name."""
    random = np.random.RandomState(seed)
    tensors = {
        source: (random.random_sample(shape) * 0.4 - 0.2).astype(np.float32)
        for rule in rules
        for source, shape in zip(rule.sources, rule.shapes, strict=True)
    }
    return MemoryCheckpoint(tensors)
