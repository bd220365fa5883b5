"""Range, If-Range and If-None-Match of HTTP (RFC 9110), for content that has a strong ETag."""

from __future__ import annotations

import re
from typing import Literal

# Numbers of more digits than any file has are no numbers of bytes.
_RANGE = re.compile(r"bytes=[ \t]*([0-9]{0,18})-([0-9]{0,18})[ \t]*", re.IGNORECASE)
_TAG = re.compile(r'(?:W/)?("[^"]*")')


def wanted_range(
    header: str | None, if_range: str | None, size: int, etag: str
) -> tuple[int, int] | Literal["whole", "unsatisfiable"]:
    """The bytes [first, end) that a request asks for, of ``size`` bytes.

    "whole" without a usable header: several ranges, another unit and bad syntax count as none, and
    so does a range of another version than ``etag``.
    """
    match = _RANGE.fullmatch(header or "")
    if match is None or (if_range is not None and if_range.strip() != etag):
        return "whole"
    first, last = match[1], match[2]
    if first:
        if last and int(last) < int(first):
            return "whole"
        start, end = int(first), min(int(last) + 1, size) if last else size
    elif last:
        start, end = max(0, size - int(last)), size
    else:
        return "whole"
    return (start, end) if start < end else "unsatisfiable"


def is_known(if_none_match: str | None, etag: str) -> bool:
    """Whether the client holds the version that ``etag`` names."""
    if if_none_match is None:
        return False
    return if_none_match.strip() == "*" or etag in _TAG.findall(if_none_match)
