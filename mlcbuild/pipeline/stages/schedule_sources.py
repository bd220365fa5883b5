"""Where kernels have their schedules from, as the schedule stage writes it down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A tuning record, the template's own default, or, for a kernel that no template of ours fits, the
# generic schedule of the lowering.
RECORD, DEFAULT, GENERIC = "record", "default", "generic"


def count_sources(schedules: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """How many kernels have their schedule from where."""
    counts = {RECORD: 0, DEFAULT: 0, GENERIC: 0}
    for kernel in schedules.values():
        counts[kernel["source"]] += 1
    return counts
