"""Small bundles for browsers, in their places; what is in the files only tests understand."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlcbuild.bundle.client_manifest import ClientInfo, ClientManifest, ClientMemory, DeviceNeeds
from mlcbuild.bundle.manifest import (
    BundleManifest,
    FileEntry,
    LimitsInfo,
    MemoryPlan,
    ModelInfo,
    RuntimeInfo,
    VariantInfo,
    tree_digest,
)
from mlcbuild.bundle.tree import hash_file, list_payload

GPU_TARGET = "web-wasm32-webgpu"
CPU_TARGET = "web-wasm32-cpu"
SHARD_BYTES = 300_000
SHARDS = 3


def _shard(number: int) -> bytes:
    """Bytes that differ between places and between shards."""
    block = b"".join(hashlib.sha256(bytes([number, i & 255, i >> 8])).digest() for i in range(512))
    return (block * (SHARD_BYTES // len(block) + 1))[:SHARD_BYTES]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def common(folder: Path, name: str, target: str, scheme: str) -> dict[str, Any]:
    """What every manifest says, for the files as they are now in ``folder``."""
    files = [
        FileEntry(path=path, size=size, sha256=digest)
        for path in list_payload(folder)
        for digest, size in [hash_file(folder / path)]
    ]
    return {
        "name": name,
        "target": target,
        "architecture": "llama",
        "scheme": {"name": scheme, "version": 1},
        "model": ModelInfo(
            source="hand-made",
            license="Apache-2.0",
            vocab_size=260,
            tokenizer_vocab_size=258,
            parameters=135_000_000,
        ),
        "limits": LimitsInfo(
            context_window_size=2048,
            prefill_chunk_size=256,
            max_batch_size=1,
            page_size=16,
            kv_dtype="float32",
        ),
        "tree_digest": tree_digest(files),
        "files": files,
    }


def _put(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def write_gpu_bundle(
    folder: Path,
    page: Mapping[str, bytes],
    *,
    name: str = "smollm2-135m-instruct",
    scheme: str = "q4f32_1",
    features: tuple[str, ...] = (),
    limits: Mapping[str, int] | None = None,
) -> ClientManifest:
    """A bundle for MLC's browser client in ``folder``, with the files of ``page``."""
    shards = [f"params_shard_{number}.bin" for number in range(SHARDS)]
    records = [
        {"dataPath": path, "format": "raw-shard", "nbytes": SHARD_BYTES, "records": []}
        for path in shards
    ]
    _put(folder, page)
    _put(folder, {path: _shard(number) for number, path in enumerate(shards)})
    config = {
        "temperature": 0.6,
        "top_p": 0.95,
        "tokenizer_files": ["tokenizer.json"],
        "conv_template": {"seps": ["<end>", "<end>"]},
    }
    _put(
        folder,
        {
            "mlc-chat-config.json": _json(config),
            "tensor-cache.json": _json({"metadata": {}, "records": records}),
            "tokenizer.json": _json({"version": "1.0"}),
            "lib/model.wasm": base64.b64decode("AGFzbQEAAAA="),
        },
    )
    manifest = ClientManifest(
        **common(folder, name, GPU_TARGET, scheme),
        client=ClientInfo(
            package="@mlc-ai/web-llm@0.2.86",
            library="lib/model.wasm",
            config="mlc-chat-config.json",
            params="tensor-cache.json",
        ),
        needs=DeviceNeeds(features=list(features), limits=dict(limits or {})),
        tokenizer="tokenizer.json",
        page="index.html" if "index.html" in page else None,
        memory=ClientMemory(
            weights_bytes=SHARDS * SHARD_BYTES,
            kv_bytes_per_token=46_080,
            kv_bytes=46_080 * 2048,
            scratch_bytes=1_000_000,
            total_bytes=SHARDS * SHARD_BYTES + 46_080 * 2048 + 1_000_000,
        ),
    )
    (folder / "bundle.json").write_bytes(manifest.to_bytes())
    return manifest


def write_cpu_bundle(
    folder: Path,
    page: Mapping[str, bytes],
    *,
    name: str = "smollm2-135m-instruct",
    scheme: str = "q4f32_1",
    target: str = CPU_TARGET,
) -> BundleManifest:
    """A bundle for our own runtime in ``folder``, with the files of ``page``."""
    _put(folder, page)
    _put(
        folder,
        {
            "lib/mlcb.wasm": base64.b64decode("AGFzbQEAAAA="),
            "lib/simd128.plan": b"{}",
            "include/mlcb.h": b"/* none */\n",
            "params/index.json": b"{}",
            "params/params_shard_0.bin": _shard(0),
            "tokenizer/tokenizer.json": b"{}",
            "chat.json": _json({"chat_version": 2, "sampling": {"temperature": 0.2}}),
        },
    )
    manifest = BundleManifest(
        **common(folder, name, target, scheme),
        variants=[
            VariantInfo(
                name="simd128",
                activations="int8",
                capability=["simd128"],
                kernels="lib/mlcb.wasm",
                plan="lib/simd128.plan",
            )
        ],
        runtime=RuntimeInfo(library="lib/mlcb.wasm", executable=None, header="include/mlcb.h"),
        params="params/index.json",
        tokenizer="tokenizer/tokenizer.json",
        chat="chat.json",
        golden=None,
        memory=MemoryPlan(
            weights_bytes=SHARD_BYTES,
            kv_bytes_per_token=46_080,
            kv_bytes=46_080 * 2048,
            arena_bytes=1_000_000,
            total_bytes=SHARD_BYTES + 46_080 * 2048 + 1_000_000,
        ),
    )
    (folder / "bundle.json").write_bytes(manifest.to_bytes())
    return manifest
