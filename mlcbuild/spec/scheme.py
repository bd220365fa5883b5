"""A quantization scheme: which numbers are stored. How they lie in memory is a ``Layout``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """Parameters of one scheme; the name is a label and is never parsed.

    Integer schemes store, for each row and each group of ``group_size`` input columns, unsigned
    codes ``q`` in ``0..max_code`` and one scale: ``w = (q - zero_point) * scale``.
    """

    name: str
    version: int  # part of every key: raise it when the numbers change
    summary: str
    weight_dtype: str  # "int3", "int4", "int8" or "float16" / "bfloat16" / "float32"
    scale_dtype: str | None = None  # "float16" / "float32" for integer schemes
    group_size: int | None = None  # input columns that share a scale
    bits: int | None = None
    zero_point: int | None = None
    max_code: int | None = None
    activation_dtype: str = "float32"  # on devices that have it; float32 elsewhere
    kv_dtype: str = "float16"  # of the KV cache, unless the recipe says otherwise
    quantize_embedding: bool = True
    quantize_lm_head: bool = True
    scale_rule: str = "search"  # "search": least-squares scale search; "absmax": MLC's rule

    @property
    def is_integer(self) -> bool:
        """Whether weights are stored as integer codes with scales."""
        return self.bits is not None
