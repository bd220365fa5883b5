"""A bundle of dummy files as another client's, for tests of what reads and writes such bundles."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlcbuild.bundle.client_manifest import ClientInfo, ClientManifest, DeviceNeeds
from mlcbuild.bundle.client_writer import ClientParts, write_client_bundle
from mlcbuild.bundle.manifest import ModelInfo
from mlcbuild.quant.schemes import get_scheme
from mlcbuild.spec.limits import Limits

TENSOR = {"name": "w", "shape": [2, 4], "dtype": "float32"}
LIMITS = Limits(context_window_size=64, prefill_chunk_size=16, max_batch_size=1, kv_dtype="float32")
PARTS = ClientParts(
    name="tiny",
    target="web-wasm32-webgpu",
    architecture="llama",
    scheme=get_scheme("q0f32"),
    limits=LIMITS,
    model=ModelInfo(
        source="local:tiny", vocab_size=8, tokenizer_vocab_size=7, parameters=8, notes=["for tests"]
    ),
    client=ClientInfo(
        package="@mlc-ai/web-llm@0.2.86",
        library="lib/model.wasm",
        config="mlc-chat-config.json",
        params="tensor-cache.json",
    ),
    needs=DeviceNeeds(features=["shader-f16"], limits={"maxBufferSize": 1 << 30}),
    kv_bytes_per_token=128,
    kv_bytes=80 * 128,
    scratch_bytes=1000,
    metadata={"params": [TENSOR], "context_window_size": 64, "prefill_chunk_size": 16},
    tokenizer="tokenizer.json",
    page="index.html",
)


def make_client_bundle(root: Path, **changes: Any) -> ClientManifest:
    """A whole bundle at ``root``, its parts changed."""
    shard = bytes(32)
    record = {**TENSOR, "format": "raw", "nbytes": 32, "byteOffset": 0}
    cache = {
        "dataPath": "params_shard_0.bin",
        "format": "raw-shard",
        "nbytes": 32,
        "md5sum": hashlib.md5(shard, usedforsecurity=False).hexdigest(),
        "records": [record],
    }
    files = {
        "lib/model.wasm": b"\0asm\1\0\0\0",
        "mlc-chat-config.json": json.dumps(
            {"context_window_size": 64, "prefill_chunk_size": 16}
        ).encode(),
        "tensor-cache.json": json.dumps({"metadata": {}, "records": [cache]}).encode(),
        "params_shard_0.bin": shard,
        "tokenizer.json": b"{}",
        "index.html": b"<!doctype html>",
    }
    for path, data in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return write_client_bundle(root, replace(PARTS, **changes))
