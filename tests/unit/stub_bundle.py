"""A bundle of dummy files around the stub of the runtime, for tests of bundle/ and engine/."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from mlcbuild.bundle.manifest import BundleManifest
from mlcbuild.bundle.writer import BundleParts, write_bundle
from mlcbuild.spec.limits import Limits
from mlcbuild.spec.scheme import QuantScheme

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "mlcbuild" / "runtime_stub" / "include"
VOCAB = 260

SCHEME = QuantScheme("q0f32", 1, "float32 as stored", "float32")

CHAT: dict[str, Any] = {
    "chat_version": 2,
    "template": "{% for m in messages %}"
    "{{ '<' + m.role[0] + '>' + m.content + '</' + m.role[0] + '>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<a>' }}{% endif %}",
    "tool_template": None,
    "tokens": {},
    "content_style": "text",
    "arguments_style": "any",
    "takes_tools": False,
    "tool_format": None,
    "reasoning_format": None,
    "stop_token_ids": [0],
    "stop_strings": [],
    "kept_special_tokens": [],
    "add_bos_token_id": None,
    "sampling": None,
}


def compile_c(source: Path, out: Path, *flags: str) -> Path:
    """Compiles a C file with the pinned compiler."""
    command = [sys.executable, "-m", "ziglang", "cc", "-O1", "-Wall", "-I", str(INCLUDE), *flags]
    result = subprocess.run(
        [*command, str(source), "-o", str(out)], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    return out


def compile_stub(folder: Path, *flags: str) -> Path:
    """The stub library in ``folder``."""
    return compile_c(HERE / "stub_runtime.c", folder / "libmlcb.so", "-shared", "-fPIC", *flags)


def plan(variant: str = "avx2", **changes: Any) -> dict[str, Any]:
    """A plan that has what bundle/ looks at."""
    return {
        "plan_version": 1,
        "target": "linux-x86_64-cpu",
        "variant": variant,
        "activations": "float",
        "capability": ["avx2", "fma"],
        "layout": "f32x16",
        "vocab_size": VOCAB,
        "kv": {"layers": 2, "kv_heads": 3, "head_dim": 8, "page_size": 16, "dtype": "float16"},
        "params": [{"name": "embed", "dtype": "float32", "shape": [2, 4]}],
        "functions": [
            {"name": "embed", "arena_bytes": 64},
            {"name": "batch_prefill", "arena_bytes": 4096},
        ],
        **changes,
    }


def parts(**changes: Any) -> BundleParts:
    """What the manifest says beyond the files."""
    values: dict[str, Any] = {
        "name": "stub",
        "target": "linux-x86_64-cpu",
        "architecture": "llama",
        "scheme": SCHEME,
        "limits": Limits(100, 32, 4),
        "variants": ("avx512", "avx2"),
        "source": "local",
        "vocab_size": VOCAB,
        "tokenizer_vocab_size": 258,
        "parameters": 8,
        "license": "Apache-2.0",
        "notes": ("for tests",),
        **changes,
    }
    return BundleParts(**values)


def write_files(root: Path, library: bytes = b"no library") -> Path:
    """All files of a bundle but bundle.json."""
    weights = bytes(range(32))
    index = {
        "params_version": 1,
        "layout": "f32x16",
        "shards": [
            {
                "path": "params/params_shard_0.bin",
                "size": len(weights),
                "sha256": hashlib.sha256(weights).hexdigest(),
            }
        ],
        "tensors": [{"name": "embed", "dtype": "float32", "shape": [2, 4]}],
    }
    golden = {
        "golden_version": 1,
        "prompt_token_ids": [65, 66],
        "greedy_token_ids": [65, 66, 65],
        "top_logits": [[65, 11.0]],
        "tolerance": 0.02,
    }
    files: dict[str, bytes] = {
        "lib/libmlcb.so": library,
        "lib/avx2.plan": json.dumps(plan("avx2")).encode(),
        "lib/avx512.plan": json.dumps(plan("avx512", capability=["avx9"])).encode(),
        "lib/kernels-avx2.so": b"kernels",
        "lib/kernels-avx512.so": b"more kernels",
        "bin/mlcb": b"#!/bin/sh\n",
        "include/mlcb.h": (INCLUDE / "mlcb.h").read_bytes(),
        "params/index.json": json.dumps(index).encode(),
        "params/params_shard_0.bin": weights,
        "tokenizer/tokenizer.json": b"{}",
        "chat.json": json.dumps(CHAT).encode(),
        "golden.json": json.dumps(golden).encode(),
        "licenses/LICENSE": b"Apache License",
    }
    for path, data in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return root


def make_bundle(root: Path, library: bytes = b"no library", **changes: Any) -> BundleManifest:
    """A whole bundle at ``root``."""
    return write_bundle(write_files(root, library), parts(**changes))
