"""Content digests and descriptors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """A sha256 of some bytes and how many they are."""

    hash: str  # 64 lowercase hex digits
    size: int  # bytes

    def __str__(self) -> str:
        return f"sha256:{self.hash}"

    @classmethod
    def of(cls, data: bytes) -> Digest:
        """The digest of ``data``."""
        return cls(hashlib.sha256(data).hexdigest(), len(data))


@dataclass(frozen=True, slots=True, order=True)
class Descriptor:
    """A file of a tree: where it lies (POSIX path, relative) and what it holds."""

    path: str
    digest: Digest
    media_type: str = "application/octet-stream"
    executable: bool = False
