"""Params as MLC's browser client fetches them: tensor-cache.json and shards with md5 sums."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, BinaryIO

from mlcbuild.core import canonical_json
from mlcbuild.core.atomic import format_bytes, require_free
from mlcbuild.core.progress import Progress
from mlcbuild.errors import InternalError, ResourceError
from mlcbuild.weights.shards import ParamIndex

CACHE_NAME = "tensor-cache.json"
# A browser keeps a shard in one piece, and fetches it again in one piece when a download breaks.
MAX_SHARD_BYTES = 32 * 1024 * 1024
# Bindings of a shader: what every device can do, and the most that the client asks a device for.
DEFAULT_BINDING_BYTES = 128 * 1024 * 1024
MAX_BINDING_BYTES = 1024 * 1024 * 1024


def check_bindings(params: ParamIndex) -> int:
    """Bytes of the largest binding that the params need of a device.

    Raises ResourceError naming the tensor that no browser binds.
    """
    largest = max(params.tensors.values(), key=lambda entry: entry.nbytes)
    if largest.nbytes > MAX_BINDING_BYTES:
        raise ResourceError(
            f"tensor {largest.name} takes {format_bytes(largest.nbytes)}",
            why=f"browsers bind {format_bytes(MAX_BINDING_BYTES)} to a shader at most",
            hint="use a scheme with fewer bits, such as q4f16_1",
        )
    return max(largest.nbytes, DEFAULT_BINDING_BYTES)


def write_tensor_cache(
    params: ParamIndex,
    out_dir: Path,
    *,
    parameters: int,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Writes the shards and the index into ``out_dir``; gives the names of the files.

    Tensors lie one after the other in the order of ``params``, each as it is (format "raw": the
    other format of the client's would round float32 to bfloat16). ``parameters`` is how many
    weights the model has. Raises ResourceError when the disk is too full.
    """
    total = sum(entry.nbytes for entry in params.tensors.values())
    require_free(out_dir, total, "the params")
    progress = progress or Progress()
    shards: list[dict[str, Any]] = []
    with progress.task("write the params for the browser", total, "B") as task:
        for names in _split(params, max_shard_bytes):
            name = f"params_shard_{len(shards)}.bin"
            with open(out_dir / name, "wb") as file:
                shards.append(_write_shard(file, name, params, names))
            task.advance(shards[-1]["nbytes"])
    index = {
        "metadata": {
            "ParamSize": len(params.tensors),
            "ParamBytes": float(total),
            "BitsPerParam": total * 8 / parameters,
        },
        "records": shards,
    }
    (out_dir / CACHE_NAME).write_bytes(canonical_json.encode(index))
    return (CACHE_NAME, *(str(shard["dataPath"]) for shard in shards))


def _split(params: ParamIndex, max_shard_bytes: int) -> list[list[str]]:
    """Names by shard: as many as fit, in order; a larger tensor has a shard of its own."""
    shards: list[list[str]] = []
    size = 0
    for name, entry in params.tensors.items():
        if not shards or size + entry.nbytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += entry.nbytes
    return shards


def _write_shard(file: BinaryIO, name: str, params: ParamIndex, names: list[str]) -> dict[str, Any]:
    digest = hashlib.md5(usedforsecurity=False)
    records: list[dict[str, Any]] = []
    offset = 0
    for tensor in names:
        entry = params.tensors[tensor]
        if entry.dtype == "bfloat16":
            raise InternalError(f"the browser's client has no bfloat16 tensor such as {tensor}")
        data = params.read(tensor).tobytes()
        digest.update(data)
        file.write(data)
        records.append(
            {
                "name": tensor,
                "shape": list(entry.shape),
                "dtype": entry.dtype,
                "format": "raw",
                "nbytes": entry.nbytes,
                "byteOffset": offset,
            }
        )
        offset += entry.nbytes
    return {
        "dataPath": name,
        "format": "raw-shard",
        "nbytes": offset,
        "md5sum": digest.hexdigest(),
        "records": records,
    }
