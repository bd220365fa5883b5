"""Bundles for WebAssembly: built by the real command, run in node, compared with Linux bundles."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlcbuild.bundle.manifest import MANIFEST_NAME
from mlcbuild.bundle.native import NativeBundle, NativeEngine
from mlcbuild.bundle.node import NodeBundle, NodeEngine
from mlcbuild.bundle.reader import open_bundle
from mlcbuild.bundle.selftest import greedy_token_ids
from mlcbuild.core.node import node_program
from mlcbuild.errors import MlcbuildError, UsageError
from tests.bench.bench_quality import divergence, log_softmax
from tests.conftest import BuildBundle, run_mlcbuild

WEB = "web-wasm32-cpu"
PROMPT = "The quick brown fox jumps over the lazy dog, one, two, three."


@pytest.fixture(scope="module")
def int4(tiny_bundle: BuildBundle) -> Path:
    return tiny_bundle("untied", "q4f16_1", WEB)


def logits(engine: NativeEngine | NodeEngine, ids: list[int]) -> npt.NDArray[np.float32]:
    return np.array([list(row) for row in engine.logits(ids)], np.float32)


def text_ids(bundle: Path) -> list[int]:
    with NativeBundle.open(bundle) as native:
        return native.tokenize(" ".join([PROMPT] * 6))[:256]


def test_the_interface_of_its_modules(int4: Path) -> None:
    script = Path(__file__).with_name("wasm_runtime.test.mjs")
    done = subprocess.run(
        [str(node_program()), "--test", "--test-reporter=tap", str(script)],
        env={**os.environ, "BUNDLE": str(int4)},
        capture_output=True,
        text=True,
        check=False,
    )
    counts = dict(re.findall(r"^# (\w+) (\d+)$", done.stdout, re.MULTILINE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(counts["pass"]) > 5
    assert counts["fail"] == counts["cancelled"] == counts["skipped"] == "0"


def test_what_is_in_it(int4: Path) -> None:
    manifest = open_bundle(int4).manifest
    kernels = {variant.name: variant.kernels for variant in manifest.variants}
    assert kernels == {
        "relaxed": "lib/mlcb-relaxed.wasm",
        "simd128": "lib/mlcb-simd128.wasm",
        "simd128-float": "lib/mlcb-simd128.wasm",
    }
    assert manifest.runtime.library == "lib/mlcb-simd128.wasm"
    assert manifest.runtime.executable is None
    assert (int4 / "platform" / "web" / "mlcb.js").is_file()
    for module in (int4 / "lib").glob("*.wasm"):
        data = module.read_bytes()
        assert len(data) < 2_500_000, module.name
        # No path of the machine that built it.
        assert str(Path.home()).encode() not in data
        assert b"/usr/" not in data
        assert b"/tmp/" not in data


def test_float32_answers_as_on_linux(tiny_bundle: BuildBundle) -> None:
    native_path, web_path = (tiny_bundle("untied", "q0f32", t) for t in ("linux-x86_64-cpu", WEB))
    with NativeBundle.open(native_path) as native, NodeBundle.open(web_path) as web:
        prompt = native.tokenize(PROMPT)
        assert web.tokenize(PROMPT) == prompt
        with native.open_engine(threads=1, variant="avx2") as engine:
            expected = greedy_token_ids(engine, prompt, 32, "")
        with web.open_engine() as engine_in_node:
            assert greedy_token_ids(engine_in_node, prompt, 32, "") == expected


def test_int4_computes_as_on_linux(tiny_bundle: BuildBundle, int4: Path) -> None:
    """Teacher-forced, against float activations there: the reference mode."""
    linux = tiny_bundle("untied", "q4f16_1")
    ids = text_ids(linux)
    with NativeBundle.open(linux) as native:
        with native.open_engine(threads=1, activations="float", variant="avx2-float") as engine:
            reference = log_softmax(logits(engine, ids))
        with native.open_engine(threads=1, activations="int8", variant="avx2") as engine:
            fast = logits(engine, ids)
    with NodeBundle.open(int4) as web:
        assert web.module == "lib/mlcb-relaxed.wasm"
        found = {}
        for variant in ("relaxed", "simd128", "simd128-float"):
            activations = "float" if variant.endswith("float") else "int8"
            with web.open_engine(variant=variant, activations=activations) as engine_in_node:
                found[variant] = logits(engine_in_node, ids)
    chances = log_softmax(found["simd128-float"])
    assert (chances.argmax(axis=1) == reference.argmax(axis=1)).mean() >= 0.99
    assert divergence(reference, chances).mean() <= 1e-3
    # The integer sums are exact, what is around them is rounded in another order.
    for variant in ("relaxed", "simd128"):
        assert np.abs(found[variant] - fast).max() < 0.05 * np.abs(fast).max(), variant


def test_verify_runs_the_self_test_in_node(int4: Path) -> None:
    result = run_mlcbuild("verify", int4)
    assert result.returncode == 0, result.stderr
    assert "self-test passed on simd128-float" in result.stdout


def test_a_process_does_not_load_it(int4: Path) -> None:
    with pytest.raises(UsageError, match="for browsers and node"):
        NativeBundle.open(int4)


# Each nests as deep as the runtime lets it: a stack that is too small would end the module.
DEEP = {
    "calls": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "calls in a loop": "{% macro f(n) %}{% for i in [n] %}{% if true %}{{ [f(i + 1)] | join }}"
    "{% endif %}{% endfor %}{% endmacro %}{{ f(0) }}",
    "brackets": "{{ " + "(" * 39 + "1" + ")" * 39 + " }}",
    "lists": "{{ " + "[" * 39 + "]" * 39 + " }}",
}


@pytest.mark.parametrize("name", DEEP)
def test_templates_end_before_the_stack_does(int4: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(int4, copy)
    chat = json.loads((copy / "chat.json").read_bytes())
    (copy / "chat.json").write_text(json.dumps({**chat, "template": DEEP[name]}), encoding="utf-8")
    list_again(copy)
    with NodeBundle.open(copy) as web:
        try:
            web.render_chat([{"role": "user", "content": "x"}])
        except MlcbuildError as error:
            assert "nested too deeply" in str(error), error  # noqa: PT017 - rendering is fine, too
        assert web.tokenize("still here")


def list_again(bundle: Path) -> None:
    """Makes bundle.json name the files as they are now."""
    from mlcbuild.bundle.manifest import BundleManifest, FileEntry, tree_digest
    from mlcbuild.bundle.tree import hash_file, list_payload

    manifest: dict[str, Any] = json.loads((bundle / MANIFEST_NAME).read_bytes())
    (bundle / MANIFEST_NAME).unlink()
    files = []
    for path in list_payload(bundle):
        digest, size = hash_file(bundle / path)
        files.append(FileEntry(path=path, size=size, sha256=digest))
    record = {**manifest, "files": files, "tree_digest": tree_digest(files)}
    (bundle / MANIFEST_NAME).write_bytes(BundleManifest(**record).to_bytes())
