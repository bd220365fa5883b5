"""Reads a params folder: checks its version, its index and the sizes of its shards."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from mlcbuild.errors import InternalError, VerificationError
from mlcbuild.weights.dtypes import numpy_dtype
from mlcbuild.weights.shards import INDEX_NAME, PARAMS_VERSION, ParamEntry, ParamIndex

_HASH_BYTES = 4 * 1024 * 1024


def open_params(folder: Path) -> ParamIndex:
    """Opens the params in ``folder`` (which holds index.json and the shards).

    Raises VerificationError when the index is damaged or of another version, when a shard is
    missing or has another size than the index says, or a tensor lies outside its shard.
    """
    path = folder / INDEX_NAME
    try:
        index = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise VerificationError("the params index is missing", where=str(path)) from None
    except ValueError as error:
        raise VerificationError(
            "the params index is not JSON", where=str(path), why=str(error)
        ) from error
    version = index.get("params_version") if isinstance(index, dict) else None
    if version != PARAMS_VERSION:
        raise VerificationError(
            f"the params have version {version}, this mlcbuild reads version {PARAMS_VERSION}",
            where=str(path),
            hint="build the bundle again, or use the mlcbuild that made it",
        )
    try:
        tensors = {str(item["name"]): _entry(item) for item in index["tensors"]}
        shards = [
            (folder / Path(item["path"]).name, int(item["size"]), str(item["sha256"]))
            for item in index["shards"]
        ]
        layout = str(index["layout"])
    except (KeyError, TypeError, ValueError, InternalError) as error:
        raise VerificationError(
            "the params index is damaged", where=str(path), why=repr(error)
        ) from error
    for shard, size, _ in shards:
        _check_size(shard, size)
    for entry in tensors.values():
        if not 0 <= entry.shard < len(shards):
            raise VerificationError(
                f"tensor {entry.name} is in shard {entry.shard}, which is not listed",
                where=str(path),
            )
        if entry.offset < 0 or entry.offset + entry.nbytes > shards[entry.shard][1]:
            raise VerificationError(
                f"tensor {entry.name} reaches beyond the end of its shard",
                where=str(shards[entry.shard][0]),
            )
    return ParamIndex(
        folder=folder,
        layout=layout,
        tensors=tensors,
        shard_paths=tuple(shard for shard, _, _ in shards),
        shard_sha256=tuple(sha256 for _, _, sha256 in shards),
    )


def verify_hashes(params: ParamIndex) -> None:
    """Reads every shard and compares its sha256; a VerificationError names the altered one."""
    for path, expected in zip(params.shard_paths, params.shard_sha256, strict=True):
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while piece := file.read(_HASH_BYTES):
                digest.update(piece)
        if digest.hexdigest() != expected:
            raise VerificationError(
                f"the shard's bytes were altered: sha256 {digest.hexdigest()}, expected {expected}",
                where=str(path),
                hint="copy or build it again",
            )


def _entry(item: dict[str, Any]) -> ParamEntry:
    entry = ParamEntry(
        name=str(item["name"]),
        shard=int(item["shard"]),
        offset=int(item["offset"]),
        nbytes=int(item["nbytes"]),
        dtype=str(item["dtype"]),
        shape=tuple(int(size) for size in item["shape"]),
        layout=str(item["layout"]),
        sha256=str(item["sha256"]),
    )
    elements = 1
    for size in entry.shape:
        elements *= size
    if elements * numpy_dtype(entry.dtype).itemsize != entry.nbytes:
        raise ValueError(f"tensor {entry.name}: shape and size disagree")
    return entry


def _check_size(path: Path, expected: int) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise VerificationError("a params shard is missing", where=str(path)) from None
    if size != expected:
        raise VerificationError(
            f"the shard has {size:,} bytes, {expected:,} were expected",
            where=str(path),
            why="it was truncated or replaced",
            hint="copy or build it again",
        )
