"""Content-addressed files: written once, read-only, checked before use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from mlcbuild.core.atomic import copy_file, fsync_directory
from mlcbuild.core.stat_cache import StatCache, hash_file
from mlcbuild.spec.digest import Descriptor, Digest

_KIND = "blob"  # remembered without ctime, which every hard link changes


class BlobStore:
    """``blobs/ab/<sha256>`` (mode 0444) and ``<sha256>.x`` (0555, for executables)."""

    def __init__(self, root: Path, stats: StatCache) -> None:
        self.root = root
        self._stats = stats

    def path(self, file: Descriptor) -> Path:
        """Where the bytes of a file lie."""
        suffix = ".x" if file.executable else ""
        return self.root / file.digest.hash[:2] / f"{file.digest.hash}{suffix}"

    def adopt(self, source: Path, relative: str) -> Descriptor:
        """Move a finished file into the store; ``relative`` is its path in its tree."""
        info = os.stat(source)
        executable = bool(info.st_mode & 0o111)
        digest = hash_file(source)
        file = Descriptor(relative, Digest(digest, info.st_size), executable=executable)
        if self.intact(file):
            source.unlink()
            return file
        descriptor = os.open(source, os.O_RDONLY)
        try:
            os.fchmod(descriptor, 0o555 if executable else 0o444)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        target = self.path(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
        fsync_directory(target.parent)
        self._stats.record(_KIND, os.stat(target), digest, use_ctime=False, private=True)
        return file

    def intact(self, file: Descriptor) -> bool:
        """Whether the bytes are there and right; a file whose stat is as recorded is trusted.

        A damaged file is removed, so that it is never served and can be written again.
        """
        path = self.path(file)
        try:
            info = os.stat(path)
        except OSError:
            return False
        if info.st_size == file.digest.size:
            known = self._stats.lookup(_KIND, info, use_ctime=False)
            if known == file.digest.hash:
                return True
            if hash_file(path) == file.digest.hash:
                self._stats.record(_KIND, info, file.digest.hash, use_ctime=False)
                return True
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return False

    def link(self, file: Descriptor, target: Path) -> None:
        """Show a blob under another name: a hard link, or a copy where links run out."""
        source = self.path(file)
        try:
            os.link(source, target)
        except FileNotFoundError:
            raise
        except OSError:
            copy_file(source, target, durable=False)
            target.chmod(0o555 if file.executable else 0o444)
