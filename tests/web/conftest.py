"""Bundles for browsers, built once in a session."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import run_mlcbuild
from tests.parity import tiny_llama
from tests.web.chromium import find_chromium

RECIPE = """\
schema = 1
name = "tiny-web"

[model]
source = "{source}"

[quantization]
schemes = ["{scheme}"]

[targets]
names = ["web-wasm32-webgpu"]

[targets.web-wasm32-webgpu]
optimize = "1"

[runtime]
context_window_size = 512
prefill_chunk_size = 64
max_batch_size = 1
kv_dtype = "float32"
"""


@pytest.fixture(scope="session")
def tiny_web_bundle(
    bundle_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Builds a scheme of the tied variant of ``tests.parity.tiny_llama`` for browsers."""
    import os

    if os.environ.get("DEVB"):
        return lambda scheme: Path(f"/tmp/w/cl/out/tiny/{scheme}/web-wasm32-webgpu")
    base = tmp_path_factory.mktemp("tiny-web")

    def build(scheme: str) -> Path:
        find_chromium()  # skips before anything is built
        if shutil.which("emcc") is None:
            pytest.skip("no Emscripten (Debian: apt install emscripten)")
        source = tiny_llama.write_checkpoint(base / "model")
        recipe = base / f"{scheme}.toml"
        recipe.write_text(RECIPE.format(source=source, scheme=scheme), encoding="utf-8")
        result = run_mlcbuild("--store", bundle_store, "make", recipe, "--out", base / "out")
        assert result.returncode == 0, result.stderr
        return Path(result.stdout.splitlines()[-1])

    return build
