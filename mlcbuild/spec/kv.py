"""How one page of one layer of the key-value cache lies in memory, and the sliding window."""

from __future__ import annotations

from dataclasses import dataclass

from mlcbuild.errors import InternalError

ALIGNMENT = 64  # bytes; pages of int8 are padded to it
SCALE_BYTES = 4  # a float32 for each key and each value of a token and head
KV_DTYPES = ("float32", "float16", "int8")

_ITEM_BYTES = {"float32": 4, "float16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class KvPageShape:
    """One page of one layer: ``[2, kv_heads, page_size * head_dim]`` of ``dtype``.

    int8 pages go on with float32 scales ``[2, kv_heads, page_size]`` (docs/formats.md).
    """

    kv_heads: int
    head_dim: int
    page_size: int
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in _ITEM_BYTES:
            raise InternalError(f"pages of dtype {self.dtype!r}")

    @property
    def is_quantized(self) -> bool:
        """Whether elements are codes with scales."""
        return self.dtype == "int8"

    @property
    def layout(self) -> str:
        """The name of this arrangement in a plan."""
        return "kt8" if self.is_quantized else "kt"

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return _ITEM_BYTES[self.dtype]

    @property
    def code_bytes(self) -> int:
        """Bytes of the elements alone."""
        return 2 * self.kv_heads * self.page_size * self.head_dim * _ITEM_BYTES[self.dtype]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer."""
        if not self.is_quantized:
            return self.code_bytes
        scales = 2 * self.kv_heads * self.page_size * SCALE_BYTES
        return -(-(self.code_bytes + scales) // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Window:
    """A row at position p attends to the positions j <= p with j < sinks or j > p - size.

    ``size`` 0 stands for no window: all positions up to p are seen.
    """

    size: int = 0
    sinks: int = 0

    def sink_pages(self, page_size: int) -> int:
        """Pages at the front of a sequence's page list that are never dropped."""
        return -(-self.sinks // page_size)

    def pages(self, page_size: int, context: int, batch: int, rows: int) -> int:
        """The most pages that ``batch`` sequences hold during a step of ``rows`` rows in all."""
        full = -(-context // page_size)
        if self.size == 0:
            return batch * full
        # What one row sees begins anywhere in a page; then the rows of the step, and for each
        # sequence what rounding them up to pages may cost.
        one = self.sink_pages(page_size) + -(-self.size // page_size) + 1
        return min(batch * full, batch * (one + 1) + -(-rows // page_size))
