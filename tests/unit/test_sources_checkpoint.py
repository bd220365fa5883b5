"""Checkpoints: Hugging Face folders and GGUF files, whole and damaged."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from mlcbuild.arch.llama.config import LlamaConfig, read_config, tiny_config
from mlcbuild.arch.llama.rope import RopeConfig
from mlcbuild.arch.llama.weights import param_rules
from mlcbuild.errors import SourceError
from mlcbuild.sources.checkpoint import open_checkpoint
from mlcbuild.weights.mapping import check_consumed
from tests.unit.tiny_checkpoint import random_tensors, save_folder, save_gguf

TOKENS = ["<|end|>", "<|pad|>", "a", "b", "ab", "Ġ", "Ġa", "1"]
TYPES = [3, 4, 1, 1, 1, 1, 1, 1]
MERGES = ["a b", "Ġ a"]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    return save_folder(folder, random_tensors(tiny_config()), shards=3)


@pytest.fixture
def folder(sharded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sharded, tmp_path / "model")


def test_reads_tensors_as_views(sharded: Path) -> None:
    checkpoint = open_checkpoint(sharded)
    expected = random_tensors(tiny_config())
    assert set(checkpoint.tensors) == set(expected)
    for name, values in expected.items():
        read = checkpoint.read(name)
        assert read.dtype == ml_dtypes.bfloat16
        assert read.flags.writeable is False
        assert not read.flags.owndata
        assert read.tobytes() == values.tobytes()
    assert checkpoint.stats.stored_as == ("BF16",)
    assert checkpoint.stats.parameters == sum(values.size for values in expected.values())
    check_consumed(param_rules(tiny_config()), checkpoint)


def test_reads_the_files_beside(folder: Path) -> None:
    assert open_checkpoint(folder).tokenizer_json() is None
    (folder / "tokenizer.json").write_bytes(b"{}")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "x"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (folder / "LICENSE.txt").write_text("mine")
    (folder / "README.md").write_text("---\nlicense: other\nlicense_name: mine\n---\n# Tiny\n")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tokenizer_json() == b"{}"
    assert checkpoint.tokenizer_config == {"eos_token": "x", "chat_template": "{{ messages }}"}
    assert checkpoint.generation_config == {"eos_token_id": [1, 2]}
    assert [path.name for path in checkpoint.license_files] == ["LICENSE.txt"]
    assert checkpoint.license_id == "mine"


def test_every_missing_shard_is_listed(folder: Path) -> None:
    (folder / "model-00001-of-00003.safetensors").unlink()
    (folder / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(SourceError, match=r"2 of 3 shards are missing: .*00001.*00003"):
        open_checkpoint(folder)


def test_truncated_shard(folder: Path) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate(size - 1000)
    with pytest.raises(SourceError, match=f"has {size - 1000:,} bytes, {size:,} were") as caught:
        open_checkpoint(folder)
    assert caught.value.where == str(path)
    with open(path, "r+b") as file:
        file.truncate(100)
    with pytest.raises(SourceError, match="the file is truncated: it has 100 bytes, at least"):
        open_checkpoint(folder)


def test_index_and_shards_that_disagree(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["model.norm.weight"]
    index["weight_map"]["model.extra.weight"] = "model-00001-of-00003.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(SourceError) as caught:
        open_checkpoint(folder)
    assert "holds model.norm.weight, which the index does not list" in caught.value.message
    assert "lacks model.extra.weight, which the index puts there" in caught.value.message


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "its header would have"),
        ((5).to_bytes(8, "little") + b"{bad}", "its header is not JSON"),
        (
            (73).to_bytes(8, "little")
            + b'{"w":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}'.ljust(73)
            + bytes(4),
            "shape and size of tensor w disagree",
        ),
        (
            (73).to_bytes(8, "little")
            + b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(73)
            + bytes(9),
            "5 bytes follow the last tensor",
        ),
    ],
)
def test_bad_header(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(SourceError, match="not a valid safetensors file") as caught:
        open_checkpoint(tmp_path)
    assert why in (caught.value.why or "")


def test_prequantized_checkpoints_are_refused(tmp_path: Path) -> None:
    config = tiny_config()
    by_config = save_folder(
        tmp_path / "a",
        random_tensors(config),
        extra_config={"quantization_config": {"quant_method": "gptq"}},
    )
    with pytest.raises(SourceError, match=r"already quantized \(gptq\)"):
        open_checkpoint(by_config)
    tensors = {**random_tensors(config), "model.x.weight_scale_inv": np.ones(1, np.float32)}
    by_name = save_folder(tmp_path / "b", tensors)
    with pytest.raises(SourceError, match=r"already quantized \(weight_scale_inv\)"):
        open_checkpoint(by_name)


def test_weights_of_an_integer_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"w": np.ones((2, 2), np.int32)}, tmp_path / "model.safetensors")
    with pytest.raises(SourceError, match="has type I32, which is not a weight type"):
        open_checkpoint(tmp_path).read("w")


def test_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"neither a config.json nor a GGUF file"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(SourceError, match="no safetensors weights") as caught:
        open_checkpoint(tmp_path)
    assert "pytorch_model.bin" in (caught.value.why or "")


def _gguf(path: Path, config: LlamaConfig | None = None, **options: Any) -> Path:
    config = config or tiny_config()
    tensors = random_tensors(config, dtype=np.float32)
    return save_gguf(path, tensors, config, TOKENS, TYPES, MERGES, **options)


def test_gguf_gives_back_the_original(tmp_path: Path) -> None:
    config = dataclasses.replace(tiny_config(), rope=RopeConfig(theta=5e5), rms_norm_eps=1e-6)
    checkpoint = open_checkpoint(_gguf(tmp_path / "tiny.gguf", config))
    assert read_config(checkpoint.config) == config
    expected = random_tensors(config, dtype=np.float32)
    assert set(checkpoint.tensors) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(checkpoint.read(name), values)
    check_consumed(param_rules(config), checkpoint)
    assert checkpoint.notes == ()


def test_gguf_dequantizes_and_says_so(tmp_path: Path) -> None:
    config = dataclasses.replace(tiny_config(), tie_word_embeddings=False)
    path = _gguf(tmp_path / "tiny.gguf", config, quantization="Q8_0")
    checkpoint = open_checkpoint(tmp_path)  # the only GGUF file of a folder
    assert checkpoint.location == str(path)
    assert checkpoint.config["tie_word_embeddings"] is False
    for name, values in random_tensors(config, dtype=np.float32).items():
        np.testing.assert_allclose(checkpoint.read(name), values, atol=1.5e-3)
    assert "Q8_0 (8-bit)" in checkpoint.notes[0]


def test_gguf_rope_factors(tmp_path: Path) -> None:
    factors = [1.0] * 15 + [8.0]
    checkpoint = open_checkpoint(_gguf(tmp_path / "tiny.gguf", rope_factors=factors))
    config = read_config(checkpoint.config)
    assert config.rope.frequency_factors == tuple(factors)
    plain = tiny_config().inv_freq()
    assert config.inv_freq()[-1] == pytest.approx(plain[-1] / 8, rel=1e-6)


def test_gguf_unknown_model_key(tmp_path: Path) -> None:
    path = _gguf(tmp_path / "tiny.gguf", extra={"llama.expert_count": 8})
    with pytest.raises(SourceError, match=r"unknown model keys: llama.expert_count"):
        open_checkpoint(path)


def test_gguf_truncated(tmp_path: Path) -> None:
    path = _gguf(tmp_path / "tiny.gguf")
    size = path.stat().st_size
    for keep in (size - 5000, 300, 2):
        with open(path, "r+b") as file:
            file.truncate(keep)
        with pytest.raises(SourceError, match="not a readable GGUF file or is truncated"):
            open_checkpoint(path)


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2", "gpt-2"])
def test_gguf_tokenizer_loads(tmp_path: Path, pre: str) -> None:
    from tokenizers import Tokenizer

    checkpoint = open_checkpoint(_gguf(tmp_path / "tiny.gguf", pre=pre))
    data = checkpoint.tokenizer_json()
    assert data is not None
    assert data == open_checkpoint(tmp_path).tokenizer_json()
    tokenizer = Tokenizer.from_str(data.decode())
    expected = [4, 6, 2, 0, 7]  # "ab", " a", "a", the control token, "1"
    if pre == "llama-bpe":
        expected = [0, *expected]  # such files put BOS in front
    assert tokenizer.encode("ab aa<|end|>1").ids == expected
    config = checkpoint.tokenizer_config
    assert config["chat_template"] == "{{ messages }}"
    assert config["eos_token"] == "<|end|>"
    assert config["add_bos_token"] is (pre == "llama-bpe")


def test_gguf_unknown_tokenizer(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(_gguf(tmp_path / "tiny.gguf", pre="mystery"))
    with pytest.raises(SourceError, match="pre-tokenizer 'mystery' is not known"):
        checkpoint.tokenizer_json()
