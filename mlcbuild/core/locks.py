"""File locks (flock) that die with their holder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.05


def _try_flock(descriptor: int, exclusive: bool) -> bool:
    mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _same_file(descriptor: int, path: Path) -> bool:
    """Whether ``path`` still names the open file (its last holder may have unlinked it)."""
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def try_acquire(path: Path, *, exclusive: bool = True) -> int | None:
    """Lock ``path`` (made if missing) and return its descriptor, or None when someone has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not _try_flock(descriptor, exclusive):
                os.close(descriptor)
                return None
            if _same_file(descriptor, path):
                return descriptor
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        os.close(descriptor)


def read_holder(path: Path) -> str:
    """What the holder of a lock wrote about itself; empty if nothing."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


@contextmanager
def hold_lock(
    path: Path,
    *,
    exclusive: bool = True,
    on_wait: Callable[[str], None] | None = None,
    cancelled: threading.Event | None = None,
    remove: bool = False,
) -> Iterator[None]:
    """Hold a lock while the block runs.

    ``on_wait`` is called once, with what the holder wrote about itself, before waiting.
    ``cancelled`` ends the wait with ``KeyboardInterrupt``. ``remove`` unlinks the file at the end,
    which is safe: whoever waits on it notices and takes the new one.
    """
    waiting = False
    while True:
        descriptor = try_acquire(path, exclusive=exclusive)
        if descriptor is not None:
            break
        if not waiting:
            waiting = True
            if on_wait is not None:
                on_wait(read_holder(path))
        if cancelled is not None and cancelled.is_set():
            raise KeyboardInterrupt
        time.sleep(POLL_SECONDS)
    try:
        if exclusive:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        if remove and exclusive:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        os.close(descriptor)
