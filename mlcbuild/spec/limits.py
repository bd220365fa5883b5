"""The bounds of one build; the runtime checks them, the memory plan is computed from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds, all in tokens or sequences.

    ``context_window_size``: tokens of one sequence; ``prefill_chunk_size``: token rows of one
    forward step; ``max_batch_size``: sequences that run at once.
    """

    context_window_size: int
    prefill_chunk_size: int
    max_batch_size: int
    page_size: int = 16  # tokens of one KV page
    kv_dtype: str = "float16"

    @property
    def logit_rows(self) -> int:
        """Rows of logits that one step can return."""
        return max(self.max_batch_size, min(64, self.prefill_chunk_size))
