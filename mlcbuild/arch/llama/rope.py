"""Rotary frequencies of the Llama family, from every form in which configs state them."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlcbuild.errors import SourceError

ROPE_TYPES = ("default", "linear", "llama3", "frequency_factors")
_DEFAULT_THETA = 10000.0  # of Llama configs that say nothing about rope, as in Llama 1 and 2


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Parameters of the rotary embedding.

    ``rope_type``: "default"; "linear" divides every frequency by ``factor``; "llama3" divides the
    low ones by it and interpolates in between; "frequency_factors" divides each by its own entry
    of ``frequency_factors`` (how GGUF files state what "llama3" computes).
    """

    theta: float = _DEFAULT_THETA
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    frequency_factors: tuple[float, ...] = ()

    @property
    def attention_factor(self) -> float:
        """What cosines and sines are multiplied with; 1 for all types known here."""
        return 1.0

    def inv_freq(self, head_dim: int) -> tuple[float, ...]:
        """The head_dim / 2 inverse frequencies, each a float32 value.

        Every operation is rounded to float32 as transformers does, the power is computed in
        double precision and rounded once, so the result is the same on every machine.
        """
        base = []
        for index in range(0, head_dim, 2):
            exponent = _f32(index / head_dim)
            base.append(_f32(1.0 / _f32(math.pow(self.theta, exponent))))
        if self.rope_type == "linear":
            return tuple(_f32(value / self.factor) for value in base)
        if self.rope_type == "llama3":
            return tuple(self._llama3(value) for value in base)
        if self.rope_type == "frequency_factors":
            return tuple(
                _f32(value / divisor)
                for value, divisor in zip(base, self.frequency_factors, strict=True)
            )
        return tuple(base)

    def _llama3(self, inv_freq: float) -> float:
        # "Llama 3.1" scaling, modeling_rope_utils of transformers: wavelengths beyond the
        # original context are stretched, short ones are kept, those between are blended.
        context = self.original_max_position_embeddings
        wavelength = _f32(_f32(2 * math.pi) / inv_freq)
        if wavelength < context / self.high_freq_factor:
            return inv_freq
        if wavelength > context / self.low_freq_factor:
            return _f32(inv_freq / self.factor)
        span = self.high_freq_factor - self.low_freq_factor
        ratio = _f32(_f32(context / wavelength) - self.low_freq_factor)
        smooth = _f32(ratio / span)
        stretched = _f32(_f32(_f32(1 - smooth) * inv_freq) / self.factor)
        return _f32(stretched + _f32(smooth * inv_freq))


def read_rope(config: Mapping[str, Any], head_dim: int, where: str) -> RopeConfig:
    """Reads ``rope_parameters`` (transformers 5) or ``rope_theta`` + ``rope_scaling`` (4.x).

    Raises SourceError for an unknown type, an unknown or missing key, or values out of range.
    """
    table = dict(config.get("rope_parameters") or {})
    scaling = dict(config.get("rope_scaling") or {})
    if table and scaling and _type_of(table, where) != _type_of(scaling, where):
        raise SourceError(
            "rope_parameters and rope_scaling state different rope types",
            where=where,
            hint="remove the one that does not hold",
        )
    if not table:
        table = scaling
    theta = table.pop("rope_theta", None)
    if theta is None:
        theta = config.get("rope_theta")
    if theta is None:
        if table:
            raise SourceError(
                "rope_theta is missing though the config states rope parameters",
                where=where,
                hint="add rope_theta to config.json; the model's card or code states it",
            )
        theta = _DEFAULT_THETA
    rope_type = _type_of(table, where)
    table.pop("type", None)
    table.pop("rope_type", None)
    partial = table.pop("partial_rotary_factor", None)
    if partial not in (None, 1, 1.0):
        raise SourceError(
            f"partial_rotary_factor {partial} is not supported by this architecture", where=where
        )
    rope = RopeConfig(theta=_positive(theta, "rope_theta", where), rope_type=rope_type)
    return _with_parameters(rope, table, config, head_dim, where)


def _with_parameters(
    rope: RopeConfig,
    table: dict[str, Any],
    config: Mapping[str, Any],
    head_dim: int,
    where: str,
) -> RopeConfig:
    wanted = {
        "default": (),
        "linear": ("factor",),
        "llama3": (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        ),
        "frequency_factors": ("frequency_factors",),
    }[rope.rope_type]
    if "original_max_position_embeddings" in wanted:
        table.setdefault(
            "original_max_position_embeddings", config.get("original_max_position_embeddings")
        )
    missing = [key for key in wanted if table.get(key) is None]
    if missing:
        raise SourceError(
            f"rope type {rope.rope_type!r} needs {', '.join(missing)}",
            where=where,
            hint="the model's original config.json states them",
        )
    unknown = sorted(key for key in table if key not in wanted and table[key] is not None)
    if unknown:
        raise SourceError(
            f"rope type {rope.rope_type!r} has unknown parameters: {', '.join(unknown)}",
            where=where,
            why="ignoring them could change the model's results",
        )
    if rope.rope_type == "default":
        return rope
    if rope.rope_type == "frequency_factors":
        factors = tuple(
            _positive(value, "frequency_factors", where) for value in table["frequency_factors"]
        )
        if len(factors) != head_dim // 2:
            raise SourceError(
                f"{len(factors)} rope frequency factors do not fit head_dim {head_dim}",
                where=where,
            )
        return RopeConfig(rope.theta, rope.rope_type, frequency_factors=factors)
    values = {key: _positive(table[key], key, where) for key in wanted}
    if rope.rope_type == "linear":
        return RopeConfig(rope.theta, rope.rope_type, factor=values["factor"])
    if values["high_freq_factor"] <= values["low_freq_factor"]:
        raise SourceError("high_freq_factor must be above low_freq_factor", where=where)
    return RopeConfig(
        rope.theta,
        rope.rope_type,
        factor=values["factor"],
        low_freq_factor=values["low_freq_factor"],
        high_freq_factor=values["high_freq_factor"],
        original_max_position_embeddings=int(values["original_max_position_embeddings"]),
    )


def _type_of(table: Mapping[str, Any], where: str) -> str:
    new, old = table.get("rope_type"), table.get("type")
    if new is not None and old is not None and new != old:
        raise SourceError(f"rope_type is {new!r} but type is {old!r}", where=where)
    value = new if new is not None else old
    if value is None:
        if any(item is not None for key, item in table.items() if key != "rope_theta"):
            raise SourceError("the rope parameters state no rope_type", where=where)
        return "default"
    if value not in ROPE_TYPES:
        raise SourceError(
            f"rope type {value!r} is not supported",
            where=where,
            why=f"known types: {', '.join(ROPE_TYPES[:3])}",
        )
    return str(value)


def _positive(value: Any, key: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise SourceError(f"{key} is {value!r}, a positive number was expected", where=where)
    return float(value)


def _f32(value: float) -> float:
    """Rounded to float32. One operation in double then rounded once is the float32 operation."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])
