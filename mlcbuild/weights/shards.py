"""Params on disk: raw aligned tensors in shards with an index (docs/formats.md, "Params")."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mlcbuild.core import canonical_json
from mlcbuild.core.atomic import (
    format_bytes,
    free_bytes,
    fsync_directory,
    is_disk_full,
    remove_tree,
    require_free,
)
from mlcbuild.errors import InternalError, ResourceError
from mlcbuild.weights.dtypes import dtype_name, numpy_dtype

PARAMS_VERSION = 1
ALIGNMENT = 64  # bytes; a cache line, and the widest vector register
MAX_SHARD_BYTES = 256 * 1024 * 1024
INDEX_NAME = "index.json"
_WRITE_BYTES = 16 * 1024 * 1024
_ZEROS = bytes(ALIGNMENT)


@dataclass(frozen=True, slots=True)
class ParamEntry:
    """Where one tensor lies: ``nbytes`` bytes at ``offset`` of shard number ``shard``."""

    name: str
    shard: int
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    layout: str
    sha256: str

    def to_json(self) -> dict[str, object]:
        """The entry as it stands in the index."""
        return {
            "name": self.name,
            "shard": self.shard,
            "offset": self.offset,
            "nbytes": self.nbytes,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "layout": self.layout,
            "sha256": self.sha256,
        }


class ShardWriter:
    """Streams tensors into ``out_dir``, which appears under its name only when all is written.

    Use as a context manager: leaving the block writes the index and puts the folder in place,
    leaving it by an exception removes what was written. An ``out_dir`` that exists must be empty;
    it is then its maker's to show or hide, and the index, without which it does not open, comes
    last.
    Tensors lie in the order of ``add``; a tensor's place depends on the sizes before it only.
    """

    def __init__(
        self,
        out_dir: Path,
        layout_id: str,
        max_shard_bytes: int = MAX_SHARD_BYTES,
        *,
        expected_bytes: int | None = None,
    ) -> None:
        """``expected_bytes``, if known, is checked against the free space before any work."""
        self._out_dir = out_dir
        self._layout_id = layout_id
        self._max_shard_bytes = max_shard_bytes
        self._expected_bytes = expected_bytes
        self._entries: list[ParamEntry] = []
        self._names: set[str] = set()
        self._shards: list[dict[str, object]] = []
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self._size = 0  # of the open shard
        self._folder = self._make_folder()

    @property
    def entries(self) -> tuple[ParamEntry, ...]:
        """What was added so far."""
        return tuple(self._entries)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def add(self, name: str, array: npt.NDArray[Any], layout: str) -> ParamEntry:
        """Appends one tensor; raises ResourceError when the disk is full."""
        if name in self._names:
            raise InternalError(f"tensor {name} is written twice")
        data = np.ascontiguousarray(array)
        offset = _aligned(self._size)
        if self._file is None or (self._size and offset + data.nbytes > self._max_shard_bytes):
            self._next_shard()
            offset = 0
        self._write(_ZEROS[: offset - self._size])
        digest = hashlib.sha256()
        view = data.reshape(-1).view(np.uint8).data
        for first in range(0, data.nbytes, _WRITE_BYTES):
            piece = view[first : first + _WRITE_BYTES]
            digest.update(piece)
            self._write(piece)
        entry = ParamEntry(
            name=name,
            shard=len(self._shards),
            offset=offset,
            nbytes=data.nbytes,
            dtype=dtype_name(data.dtype),
            shape=tuple(int(size) for size in array.shape),
            layout=layout,
            sha256=digest.hexdigest(),
        )
        self._names.add(name)
        self._entries.append(entry)
        return entry

    def close(self) -> None:
        """Writes the index and moves the folder to its final name."""
        try:
            self._end_shard()
            index = {
                "params_version": PARAMS_VERSION,
                "layout": self._layout_id,
                "shards": self._shards,
                "tensors": [entry.to_json() for entry in self._entries],
            }
            with open(self._folder / INDEX_NAME, "wb") as file:
                file.write(canonical_json.encode(index))
                _sync(file)
            fsync_directory(self._folder)
            if self._folder != self._out_dir:
                os.rename(self._folder, self._out_dir)
                fsync_directory(self._out_dir.parent)
        except OSError as error:
            self.abort()
            raise self._disk_error(error) from error

    def abort(self) -> None:
        """Removes everything that was written."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._folder != self._out_dir:
            remove_tree(self._folder)
            return
        for path in self._folder.iterdir():
            path.unlink()

    def _make_folder(self) -> Path:
        parent = self._out_dir.parent
        parent.mkdir(parents=True, exist_ok=True)
        if self._out_dir.exists() and any(self._out_dir.iterdir()):
            raise InternalError(f"the params folder {self._out_dir} is not empty")
        if self._expected_bytes is not None:
            require_free(parent, self._expected_bytes, "the params")
        if self._out_dir.exists():
            return self._out_dir
        folder = Path(tempfile.mkdtemp(prefix=f".{self._out_dir.name}.", dir=parent))
        folder.chmod(0o755)
        return folder

    def _next_shard(self) -> None:
        self._end_shard()
        path = self._folder / _shard_name(len(self._shards))
        try:
            self._file = open(path, "wb")  # noqa: SIM115 - stays open across add()
        except OSError as error:
            raise self._disk_error(error) from error

    def _end_shard(self) -> None:
        if self._file is None:
            return
        _sync(self._file)
        self._file.close()
        self._file = None
        self._shards.append(
            {
                "path": f"params/{_shard_name(len(self._shards))}",
                "size": self._size,
                "sha256": self._hash.hexdigest(),
            }
        )
        self._hash = hashlib.sha256()
        self._size = 0

    def _write(self, data: bytes | memoryview) -> None:
        if self._file is None:
            raise InternalError("no shard is open")
        try:
            self._file.write(data)
        except OSError as error:
            raise self._disk_error(error) from error
        self._hash.update(data)
        self._size += len(data)

    def _disk_error(self, error: OSError) -> ResourceError:
        if is_disk_full(error):
            return _no_space(self._out_dir, self._expected_bytes)
        return ResourceError(
            f"cannot write the params: {error.strerror or error}", where=str(self._out_dir)
        )


@dataclass(frozen=True, slots=True)
class ParamIndex:
    """Params of a folder, opened for reading; arrays are views into mapped files."""

    folder: Path
    layout: str
    tensors: Mapping[str, ParamEntry]
    shard_paths: tuple[Path, ...]
    shard_sha256: tuple[str, ...]

    def read(self, name: str) -> npt.NDArray[Any]:
        """The tensor called ``name``, read-only and without a copy."""
        entry = self.tensors.get(name)
        if entry is None:
            raise InternalError(f"there is no tensor {name} in {self.folder}")
        if entry.nbytes == 0:
            return np.empty(entry.shape, numpy_dtype(entry.dtype))
        raw = np.memmap(self.shard_paths[entry.shard], np.uint8, "r", entry.offset, (entry.nbytes,))
        return raw.view(np.ndarray).view(numpy_dtype(entry.dtype)).reshape(entry.shape)

    @property
    def total_bytes(self) -> int:
        """Size of all shards."""
        return sum(path.stat().st_size for path in self.shard_paths)


def _aligned(offset: int) -> int:
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _shard_name(number: int) -> str:
    return f"params_shard_{number}.bin"


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _no_space(where: Path, need: int | None) -> ResourceError:
    needed = f"they need {format_bytes(need)}, " if need is not None else ""
    return ResourceError(
        "the disk is full while writing the params",
        where=str(where),
        why=f"{needed}{format_bytes(free_bytes(where))} are free",
        hint="make room there, or move the store to a larger disk; nothing half-written is left",
    )
