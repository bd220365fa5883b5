"""What a built bundle promises: the real model, through the real commands and the shipped files."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlcbuild.bundle.reader import open_bundle
from mlcbuild.core.cpuinfo import host_features
from mlcbuild.engine import Engine
from mlcbuild.engine.bench import BenchPlan, run_bench
from tests.bench.bench_quality import Floats, divergence, log_softmax
from tests.conftest import Arrays, run_mlcbuild
from tests.e2e.dequantized import reference_logits

QUESTION = "What is the capital of France?"
PROMPTS = (
    QUESTION,
    "Name three colours.",
    "Write one sentence about the sea and one about the mountains.",
    "2, 4, 8, 16, what comes next?",
)
MOST_BYTES = 1_700_000


@pytest.fixture(scope="module")
def engine(smollm2_int4: Path) -> Iterator[Engine]:
    with Engine(smollm2_int4, threads=2) as opened:
        yield opened


def test_the_answer_names_paris(smollm2_int4: Path) -> None:
    result = run_mlcbuild("run", smollm2_int4, "--prompt", QUESTION)
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout


def test_a_copy_answers_with_an_empty_environment(smollm2_int4: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "bundle"
    shutil.copytree(smollm2_int4, copy)
    command = [str(copy / "bin" / "mlcb"), "--prompt", QUESTION]
    result = subprocess.run(command, env={}, cwd="/", text=True, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    assert result.stderr == ""


def test_nothing_of_the_compiler_is_inside(smollm2_int4: Path) -> None:
    names = [path.name for path in smollm2_int4.rglob("*") if path.is_file()]
    assert not [name for name in names if "tvm" in name.lower()]
    libraries = [*(smollm2_int4 / "lib").glob("*.so"), smollm2_int4 / "bin" / "mlcb"]
    assert len(libraries) == 2 + len(open_bundle(smollm2_int4).manifest.variants)
    for library in libraries:
        assert library.stat().st_size < MOST_BYTES, library.name
        listing = subprocess.run(
            ["ldd", str(library)], text=True, capture_output=True, check=True
        ).stdout
        needed = {Path(line.split()[0]).name.split(".")[0] for line in listing.splitlines()}
        allowed = {"linux-vdso", "libc", "libm", "libpthread", "libdl", "ld-linux-x86-64"}
        assert needed <= allowed, library.name


def test_a_batch_gives_the_same_text_as_one_by_one(engine: Engine) -> None:
    prompts = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    alone = [engine.generate(prompt, max_tokens=48) for prompt in prompts]
    together = engine.generate_batch(prompts, max_tokens=48)
    assert [item.text for item in together] == [item.text for item in alone]
    assert len({item.text for item in alone}) == len(PROMPTS)


def test_sampling_repeats_with_its_seed(engine: Engine) -> None:
    first = engine.generate(PROMPTS[2], max_tokens=32, temperature=0.9, top_p=0.95, seed=7)
    again, _ = engine.generate_batch(
        [PROMPTS[2], PROMPTS[1]], max_tokens=32, temperature=0.9, top_p=0.95, seed=7
    )
    other = engine.generate(PROMPTS[2], max_tokens=32, temperature=0.9, top_p=0.95, seed=8)
    assert again.text == first.text
    assert other.text != first.text


def test_a_long_prompt_in_chunks_equals_short_steps(engine: Engine) -> None:
    """300 tokens are three prefill chunks; one token at a time must lead to the same logits."""
    ids = engine.tokenize(" ".join(f"number {i}" for i in range(200)))[:300]
    whole = engine.logits(ids)
    assert np.array_equal(whole[:40], engine.logits(ids[:40]))
    greedy = engine.generate(ids, max_tokens=1, ignore_eos=True).token_ids
    assert list(greedy) == [int(whole[-1].argmax())]


def test_variants_agree(smollm2_int4: Path) -> None:
    """Float variants within rounding; int8 ones as close as int8 activations are to float ones.

    An activation at the edge between two int8 codes can fall to either side where sums are added
    up in another order, and what follows from it is not small.
    """
    variants = [
        variant
        for variant in open_bundle(smollm2_int4).manifest.variants
        if set(variant.capability) <= host_features()
    ]
    chances: dict[str, list[Floats]] = {"float": [], "int8": []}
    logits: dict[str, Any] = {}
    for variant in variants:
        with Engine(smollm2_int4, variant=variant.name, activations=variant.activations) as engine:
            ids = engine.tokenize(" ".join([*PROMPTS, *reversed(PROMPTS)]))
            logits[variant.name] = engine.logits(ids)
            chances[variant.activations].append(log_softmax(logits[variant.name]))
    if {"amx", "avx512vnni"} <= logits.keys():  # the same sums in the same order
        assert logits["amx"].tobytes() == logits["avx512vnni"].tobytes()
    reference = chances["float"][0]
    for other in chances["float"][1:]:
        assert divergence(reference, other).mean() < 1e-5
        assert (reference.argmax(axis=1) == other.argmax(axis=1)).all()
    assert chances["int8"]
    for other in chances["int8"]:
        assert divergence(reference, other).mean() < 0.02
        assert (reference.argmax(axis=1) == other.argmax(axis=1)).mean() > 0.85


def test_kernels_stay_below_the_limits_of_their_arithmetic(smollm2_int4: Path) -> None:
    plan = BenchPlan(prefill=(64,), decode=4, batch=(1,), repeat=1, threads=1, profile=True)
    record = run_bench(smollm2_int4, plan)
    limits = record["limits"]
    assert limits["int8"]["gops"] > limits["float"]["gops"] > 1
    assert limits["read_gbytes"] > 1
    work = {item["name"]: item for item in record["results"][0]["profile"]["kernels"]}
    products = [item for item in work.values() if item["ops"]]
    # 105 M weights in 30 layers of SmolLM2 for every row, the output matrix for one; attention.
    layers = 30 * (960 * 576 + 576 * 576 + 3072 * 576 + 576 * 1536)
    seen = 64 * 65 // 2
    assert sum(item["ops"] for item in products) == (
        2 * (64 * layers + 49152 * 576) + 30 * 4 * 576 * seen
    )
    for item in products:
        # Room for a machine that was busy while the limits were measured, not for a wrong unit.
        assert 0 < item["gops_per_s"] < 3 * limits["int8"]["gops"], item


@pytest.mark.parametrize("variant", ["untied", "qwen2"])
def test_float_mode_computes_with_the_stored_weights(
    variant: str, tiny_bundle: Callable[[str, str], Path], tiny_reference: Arrays
) -> None:
    """The 4-bit kernels with float activations against numpy over dequantized weights."""
    bundle = tiny_bundle(variant, "q4f16_1")
    ids = tiny_reference["ids"].tolist()
    with Engine(bundle, activations="float") as engine:
        found = engine.logits(ids)
    assert np.abs(found - reference_logits(bundle, ids)).max() < 2e-3


def test_an_altered_byte_is_found_and_named(smollm2_int4: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(smollm2_int4, copy)
    shard = copy / "params" / "params_shard_0.bin"
    with shard.open("r+b") as file:
        file.seek(1_000_000)
        byte = file.read(1)
        file.seek(1_000_000)
        file.write(bytes([byte[0] ^ 1]))
    result = run_mlcbuild("verify", copy)
    assert result.returncode == 6
    assert "params_shard_0.bin" in result.stderr
    program = str(copy / "bin" / "mlcb")
    full = subprocess.run(
        [program, "--verify", "--prompt", "x"], text=True, capture_output=True, check=False
    )
    assert full.returncode == 6
    assert "params_shard_0.bin" in full.stderr
    with shard.open("r+b") as file:
        file.truncate(1_000_000)
    short = subprocess.run([program, "--prompt", "x"], text=True, capture_output=True, check=False)
    assert short.returncode == 6
    assert "params_shard_0.bin" in short.stderr
    library = copy / "lib" / "kernels-avx2.so"
    library.write_bytes(library.read_bytes()[:-1] + b"\x7f")
    shutil.copyfile(smollm2_int4 / "params" / "params_shard_0.bin", shard)
    altered = subprocess.run(
        [program, "--prompt", "x"], text=True, capture_output=True, check=False
    )
    assert altered.returncode == 6
    assert "kernels-avx2.so" in altered.stderr


def test_an_archive_holds_the_bundle(
    tiny_bundle: Callable[[str, str], Path], tmp_path: Path
) -> None:
    bundle = tiny_bundle("untied", "q4f16_1")
    packed = run_mlcbuild("archive", bundle, "--out", tmp_path / "a.tar.zst")
    assert packed.returncode == 0, packed.stderr
    again = run_mlcbuild("archive", bundle, "--out", tmp_path / "b.tar.zst")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "a.tar.zst").read_bytes() == (tmp_path / "b.tar.zst").read_bytes()
    unpacked = run_mlcbuild("unpack", tmp_path / "a.tar.zst", tmp_path / "bundle")
    assert unpacked.returncode == 0, unpacked.stderr
    names = {path.relative_to(bundle) for path in bundle.rglob("*")}
    assert {path.relative_to(tmp_path / "bundle") for path in (tmp_path / "bundle").rglob("*")} == (
        names
    )
    assert run_mlcbuild("verify", tmp_path / "bundle").returncode == 0
