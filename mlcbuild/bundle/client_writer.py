"""Composes bundle.json for a folder that holds everything else of another client's bundle."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlcbuild.bundle.client_manifest import (
    ClientInfo,
    ClientManifest,
    ClientMemory,
    DeviceNeeds,
)
from mlcbuild.bundle.manifest import MANIFEST_NAME, FileEntry, LimitsInfo, ModelInfo, tree_digest
from mlcbuild.bundle.parts import payload_entries, read_part, refuse_contradictions
from mlcbuild.core.atomic import write_atomic
from mlcbuild.spec.limits import Limits
from mlcbuild.spec.scheme import QuantScheme


@dataclass(frozen=True, slots=True)
class ClientParts:
    """What the manifest says beyond what the files themselves tell.

    ``needs`` and the three sizes come from the compiled library; ``metadata`` is what its
    ``_metadata`` function gives.
    """

    name: str
    target: str
    architecture: str
    scheme: QuantScheme
    limits: Limits
    model: ModelInfo
    client: ClientInfo
    needs: DeviceNeeds
    kv_bytes_per_token: int
    kv_bytes: int
    scratch_bytes: int
    metadata: dict[str, Any]
    tokenizer: str
    page: str | None


def write_client_bundle(out_dir: Path, parts: ClientParts) -> ClientManifest:
    """Writes ``out_dir``/bundle.json for the files that lie in ``out_dir`` and returns it.

    The file appears atomically; an older one is replaced. Raises ``StageError`` naming every part
    that is missing or contradicts another, ``ResourceError`` if the disk is full.
    """
    (out_dir / MANIFEST_NAME).unlink(missing_ok=True)
    files = payload_entries(out_dir)
    config = read_part(out_dir, parts.client.config)
    cache = read_part(out_dir, parts.client.params)
    _check(out_dir, parts, files, config, cache)
    weights = sum(int(shard["nbytes"]) for shard in cache["records"])
    manifest = ClientManifest(
        name=parts.name,
        target=parts.target,
        architecture=parts.architecture,
        scheme=dataclasses.asdict(parts.scheme),
        model=parts.model,
        limits=LimitsInfo(**dataclasses.asdict(parts.limits)),
        client=parts.client,
        needs=parts.needs,
        tokenizer=parts.tokenizer,
        page=parts.page,
        memory=ClientMemory(
            weights_bytes=weights,
            kv_bytes_per_token=parts.kv_bytes_per_token,
            kv_bytes=parts.kv_bytes,
            scratch_bytes=parts.scratch_bytes,
            total_bytes=weights + parts.kv_bytes + parts.scratch_bytes,
        ),
        tree_digest=tree_digest(files),
        files=files,
    )
    write_atomic(out_dir / MANIFEST_NAME, manifest.to_bytes())
    return manifest


def _check(
    out_dir: Path,
    parts: ClientParts,
    files: Sequence[FileEntry],
    config: dict[str, Any],
    cache: dict[str, Any],
) -> None:
    """Library, configuration and params must speak of one model."""
    sizes = {entry.path: entry.size for entry in files}
    needed = [parts.client.library, parts.tokenizer, *([parts.page] if parts.page else [])]
    problems = [f"{path} is missing" for path in needed if path not in sizes]
    metadata = parts.metadata
    for key in ("context_window_size", "prefill_chunk_size"):
        if not metadata.get(key) == config.get(key) == getattr(parts.limits, key):
            problems.append(
                f"{key}: the library has {metadata.get(key)}, {parts.client.config} "
                f"{config.get(key)}, the recipe {getattr(parts.limits, key)}"
            )
    held = {
        record["name"]: (record["shape"], record["dtype"])
        for shard in cache["records"]
        for record in shard["records"]
    }
    for param in metadata["params"]:
        found = held.get(param["name"])
        if found != (param["shape"], param["dtype"]):
            problems.append(
                f"the library wants {param['name']} as {param['dtype']} {param['shape']}, the "
                f"params hold {'nothing' if found is None else f'{found[1]} {found[0]}'}"
            )
    for shard in cache["records"]:
        if sizes.get(shard["dataPath"]) != shard["nbytes"]:
            problems.append(
                f"{parts.client.params} says {shard['dataPath']} has {shard['nbytes']} bytes, "
                f"the file has {sizes.get(shard['dataPath'])}"
            )
    refuse_contradictions(out_dir, problems)
