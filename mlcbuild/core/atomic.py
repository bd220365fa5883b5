"""Files that are either whole or not there: temp + fsync + rename, copies, disk-full errors."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlcbuild.errors import ResourceError

_FICLONE = 0x40049409  # linux/fs.h: share the extents of another file
_COPY_CHUNK = 8 << 20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def format_bytes(count: int) -> str:
    """``count`` bytes for people: 12 B, 3.4 MB, 1.2 GB (powers of 1000)."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def free_bytes(path: Path) -> int:
    """Bytes that this user can still write on the file system of ``path`` (or its parent)."""
    probe = path.absolute()
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    info = os.statvfs(probe)
    return info.f_bavail * info.f_frsize


def require_free(path: Path, need: int, what: str) -> None:
    """Raise ``ResourceError`` unless ``need`` bytes for ``what`` fit on the disk of ``path``."""
    free = free_bytes(path)
    if free < need:
        raise ResourceError(
            f"not enough disk space for {what}",
            where=str(path),
            why=f"it needs {format_bytes(need)}, {format_bytes(free)} are free",
            hint="free some space (mlcbuild gc drops old results) or choose another --store",
        )


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that the disk or the quota is full."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL


@contextmanager
def disk_guard(path: Path, what: str, need: int | None = None) -> Iterator[None]:
    """Turn "no space left" inside the block into a ``ResourceError`` with need and free."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        wanted = f"it needs {format_bytes(need)}, " if need is not None else ""
        raise ResourceError(
            f"the disk is full while writing {what}",
            where=str(path),
            why=f"{wanted}{format_bytes(free_bytes(path))} are free",
            hint="free some space (mlcbuild gc drops old results) or choose another --store; "
            "nothing half-written is left under a final name",
        ) from error


def fsync_directory(path: Path) -> None:
    """Make renames inside a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)


def temporary_name(final: Path) -> Path:
    """A hidden, unused name beside ``final``."""
    return final.with_name(f".{final.name}.{secrets.token_hex(6)}.tmp")


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644, durable: bool = True) -> None:
    """Write ``path`` as a whole: a reader sees the old bytes or the new ones, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with disk_guard(path, path.name, len(data)):
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.chmod(mode)
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        fsync_directory(path.parent)


def copy_file(source: Path, target: Path, *, durable: bool = True) -> None:
    """Copy bytes to ``target`` (must not exist), sharing extents where the file system can."""
    size = source.stat().st_size
    guard = disk_guard(target, target.name, size)
    with guard, source.open("rb") as reader, target.open("xb") as writer:
        if not _clone(reader.fileno(), writer.fileno()):
            _copy_bytes(reader.fileno(), writer.fileno())
        if durable:
            os.fsync(writer.fileno())


def _clone(source: int, target: int) -> bool:
    import fcntl

    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def _copy_bytes(source: int, target: int) -> None:
    copy_range = getattr(os, "copy_file_range", None)
    copied = 0
    if copy_range is not None:
        try:
            while count := copy_range(source, target, _COPY_CHUNK):
                copied += count
            if copied == os.fstat(source).st_size:
                return
        except OSError as error:
            if is_disk_full(error):
                raise
    os.lseek(source, copied, os.SEEK_SET)
    os.lseek(target, copied, os.SEEK_SET)
    while data := os.read(source, _COPY_CHUNK):
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]


def remove_tree(path: Path) -> None:
    """Remove a folder, read-only ones included; nothing happens if it is not there."""
    if not path.exists() and not path.is_symlink():
        return
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            os.chmod(folder, stat.S_IRWXU)
    shutil.rmtree(path)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step (renameat2); False where the system cannot."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2", None)
    if rename is None:
        return False
    at_cwd, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    code = rename(at_cwd, os.fsencode(first), at_cwd, os.fsencode(second), exchange)
    return bool(code == 0)


def replace_directory(temporary: Path, final: Path) -> Path | None:
    """Put a finished folder under its final name, at no moment showing a mixture.

    An existing folder there is swapped out whole; its new, hidden name is returned.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    fsync_directory(temporary)
    old: Path | None = None
    if final.exists():
        if _exchange(temporary, final):
            old = temporary
        else:
            old = temporary_name(final)
            os.rename(final, old)
            try:
                os.rename(temporary, final)
            except BaseException:
                os.rename(old, final)
                raise
    else:
        os.rename(temporary, final)
    fsync_directory(final.parent)
    return old
