"""The bounds of one build; the runtime checks them, the memory plan is computed from them."""

from __future__ import annotations

from dataclasses import dataclass

# Rows of logits that a step returns beyond one for each sequence: enough for 7 guessed tokens of
# each of 8 sequences, never more than 128, since every row takes vocab_size floats of the arena.
_LOGIT_ROWS, _ROWS_PER_SEQUENCE, _MOST_LOGIT_ROWS = 64, 8, 128


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
        """Rows of logits that one step can return.

        At least one for each sequence; where the chunk allows it 8 for each, so that guessed tokens
        can be checked, in 64 to 128 rows.
        """
        several = min(self.max_batch_size * _ROWS_PER_SEQUENCE, _MOST_LOGIT_ROWS)
        return max(self.max_batch_size, min(max(_LOGIT_ROWS, several), self.prefill_chunk_size))
