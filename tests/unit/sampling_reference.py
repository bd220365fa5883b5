"""What a sampler must do, in numpy and plain words: nothing of it is shared with the runtime."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
U64 = (1 << 64) - 1
# How far float weights may move a border: errors of a few 1e-7 in exponents of up to 32.
SLACK = 2e-5


@dataclass(frozen=True)
class Settings:
    """What a request asks for; names and defaults are those of the C++ ``SamplingParams``."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    stream: int = 0
    logit_bias: dict[int, float] = field(default_factory=dict)


def split_mix(x: int) -> int:
    """The output function of SplitMix64."""
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & U64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & U64
    return x ^ x >> 31


def uniform(seed: int, stream: int, index: int) -> float:
    """Number ``index`` of a stream, in [0, 1)."""
    golden = 0x9E3779B97F4A7C15
    start = split_mix((split_mix((seed + golden) & U64) + (stream + 1) * golden) & U64)
    return float(split_mix((start + (index + 1) * golden) & U64) >> 11) * 2.0**-53


def adjusted(logits: Floats, settings: Settings, prompt: list[int], text: list[int]) -> Floats:
    """Logits after biases and penalties; what may not be picked is minus infinity."""
    out = np.where(np.isfinite(logits), logits, np.float32(-np.inf))
    for token, bias in settings.logit_bias.items():
        if token < len(out) and np.isfinite(out[token]):
            out[token] = np.float32(out[token] + np.float32(bias))
    counts = Counter(text)
    seen = set(text) | (set(prompt) if settings.repetition_penalty != 1 else set())
    for token in sorted(seen):
        if token >= len(out) or not np.isfinite(out[token]):
            continue
        x, penalty = out[token], np.float32(settings.repetition_penalty)
        x = x / penalty if x > 0 else x * penalty
        if counts[token]:
            x = x - np.float32(settings.frequency_penalty) * np.float32(counts[token])
            x = x - np.float32(settings.presence_penalty)
        out[token] = x
    return out


def kept(
    row: Floats, settings: Settings, p_shift: float = 0, m_shift: float = 0
) -> dict[int, float]:
    """The tokens that may be picked and their probabilities, in order of the ids."""
    ids: Ids = np.flatnonzero(np.isfinite(row))
    ids = ids[np.lexsort((ids, -row[ids]))]  # by rank
    if settings.top_k:
        ids = ids[: settings.top_k]
    x: Doubles = row[ids].astype(np.float64)
    weights: Doubles = np.exp((x - x[0]) / np.float64(np.float32(settings.temperature)))
    if 0 < settings.top_p < 1:
        wanted = float(np.float32(settings.top_p)) + p_shift
        running = np.cumsum(weights) / weights.sum()
        count = min(int(np.searchsorted(running, wanted, side="left")) + 1, len(ids))
        ids, weights = ids[:count], weights[:count]
    likely = weights >= float(np.float32(settings.min_p)) * (1 + m_shift)
    likely[0] = True
    ids, weights = ids[likely], weights[likely]
    order = np.argsort(ids)
    total = weights.sum()
    return {int(i): float(w / total) for i, w in zip(ids[order], weights[order], strict=True)}


def pick(chances: dict[int, float], share: float) -> int:
    """The token at ``share`` of the probability, walking by id."""
    ids = list(chances)
    running = np.cumsum(np.fromiter(chances.values(), np.float64, len(ids)))
    at = int(np.searchsorted(running, share, side="right"))
    return ids[min(at, len(ids) - 1)]


def greedy(row: Floats) -> int:
    """The greatest logit, of equal ones that with the lowest id."""
    return int(np.argmax(row))


def acceptable(row: Floats, settings: Settings, share: float) -> set[int]:
    """What may come out if every border moves by no more than rounding can move it."""
    shifts = (-SLACK, 0.0, SLACK)
    found = set()
    for p_shift, m_shift, s_shift in itertools.product(shifts, shifts, shifts):
        chances = kept(row, settings, p_shift, m_shift)
        found.add(pick(chances, min(max(share + s_shift, 0.0), 1.0)))
    return found


def log_probabilities(logits: Floats) -> Doubles:
    """Log softmax over the finite logits of a row; minus infinity elsewhere."""
    x = np.where(np.isfinite(logits), logits, -np.inf).astype(np.float64)
    top = x.max()
    result: Doubles = x - top - math.log(np.exp(x - top).sum())
    return result
