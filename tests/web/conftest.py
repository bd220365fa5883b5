"""Bundles for browsers, built once in a session."""

from __future__ import annotations

import json
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

# Every conversation has a system part, as those of SmolLM2 and Qwen2.5 have.
SYSTEM = "<|im_start|>system\nBe kind.<|im_end|>\n"
SYSTEM_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}" + SYSTEM + "{% endif %}" + tiny_llama.CHAT_TEMPLATE
)


@pytest.fixture(scope="session")
def tiny_web_bundle(
    bundle_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Builds a scheme of the tied variant of ``tests.parity.tiny_llama`` for browsers."""
    base = tmp_path_factory.mktemp("tiny-web")

    def build(scheme: str) -> Path:
        find_chromium()  # skips before anything is built
        if shutil.which("emcc") is None:
            pytest.skip("no Emscripten (Debian: apt install emscripten)")
        source = tiny_llama.write_checkpoint(base / "model")
        settings = json.loads((source / "tokenizer_config.json").read_bytes())
        settings["chat_template"] = SYSTEM_TEMPLATE
        text = json.dumps(settings)
        (source / "tokenizer_config.json").write_text(text, encoding="utf-8")
        recipe = base / f"{scheme}.toml"
        recipe.write_text(RECIPE.format(source=source, scheme=scheme), encoding="utf-8")
        result = run_mlcbuild("--store", bundle_store, "make", recipe, "--out", base / "out")
        assert result.returncode == 0, result.stderr
        return Path(result.stdout.splitlines()[-1])

    return build
