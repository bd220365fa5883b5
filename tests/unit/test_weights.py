"""Params on disk, and the mapping of checkpoint tensors to parameters."""

from __future__ import annotations

import dataclasses
import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from mlcbuild.core import atomic
from mlcbuild.errors import InternalError, ResourceError, SourceError, VerificationError
from mlcbuild.weights import shards
from mlcbuild.weights.mapping import ParamRule, check_consumed, read_param
from mlcbuild.weights.reader import open_params, verify_hashes
from mlcbuild.weights.shards import ShardWriter

ARRAYS: dict[str, npt.NDArray[Any]] = {
    "a": np.arange(7, dtype=np.float32),
    "b": np.arange(40, dtype=np.uint32).reshape(5, 8),
    "c": np.arange(6, dtype=np.float16).reshape(3, 2).T,  # not contiguous
    "d": np.ones((3, 3), ml_dtypes.bfloat16),
}


def _write(folder: Path, **options: Any) -> None:
    with ShardWriter(folder, "nk", **options) as writer:
        for name, array in ARRAYS.items():
            writer.add(name, array, "raw")


def test_round_trip(tmp_path: Path) -> None:
    _write(tmp_path / "params")
    params = open_params(tmp_path / "params")
    assert params.layout == "nk"
    assert list(params.tensors) == list(ARRAYS)
    for name, array in ARRAYS.items():
        entry = params.tensors[name]
        assert entry.offset % 64 == 0
        assert entry.shape == array.shape
        np.testing.assert_array_equal(params.read(name), array)
    verify_hashes(params)
    index = json.loads((tmp_path / "params/index.json").read_bytes())
    assert index["shards"][0]["path"] == "params/params_shard_0.bin"
    assert index["shards"][0]["size"] == params.total_bytes


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name in ("new", "there"):
        _write(tmp_path / name, max_shard_bytes=256)
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("new", "there")
    )
    assert first == second


def test_shards_are_split_by_size(tmp_path: Path) -> None:
    _write(tmp_path / "params", max_shard_bytes=128)
    params = open_params(tmp_path / "params")
    # "b" alone is larger than a shard may be and gets its own; "c" and "d" share one.
    assert [entry.shard for entry in params.tensors.values()] == [0, 1, 2, 2]
    assert params.tensors["d"].offset == 64


def _write_twice(folder: Path) -> None:
    with ShardWriter(folder, "nk") as writer:
        for _ in range(2):
            writer.add("a", ARRAYS["a"], "raw")


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name in ("new", "there"):
        with pytest.raises(InternalError, match="a is written twice"):
            _write_twice(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert list((tmp_path / "there").iterdir()) == []


def test_disk_too_small_is_found_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="not enough disk space for the params") as caught:
        ShardWriter(tmp_path / "params", "nk", expected_bytes=1 << 60)
    assert "it needs" in (caught.value.why or "")
    assert list(tmp_path.iterdir()) == []


def test_disk_full_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shards, "_sync", full)
    with pytest.raises(ResourceError, match="the disk is full") as caught:
        _write(tmp_path / "params", expected_bytes=1000)
    assert "they need 1.0 kB" in (caught.value.why or "")
    assert atomic.format_bytes(1000) == "1.0 kB"
    assert list(tmp_path.iterdir()) == []


def test_damaged_params(tmp_path: Path) -> None:
    folder = tmp_path / "params"
    _write(folder)
    shard = folder / "params_shard_0.bin"
    data = bytearray(shard.read_bytes())
    data[3] ^= 1
    shard.write_bytes(data)
    with pytest.raises(VerificationError, match="bytes were altered") as caught:
        verify_hashes(open_params(folder))
    assert caught.value.where == str(shard)
    shard.write_bytes(data[:-1])
    with pytest.raises(VerificationError, match=f"{len(data) - 1:,} bytes, {len(data):,} were"):
        open_params(folder)
    shard.unlink()
    with pytest.raises(VerificationError, match="shard is missing"):
        open_params(folder)
    index = json.loads((folder / "index.json").read_bytes())
    (folder / "index.json").write_text(json.dumps({**index, "params_version": 9}))
    with pytest.raises(VerificationError, match="have version 9, this mlcbuild reads version 1"):
        open_params(folder)


@dataclasses.dataclass
class _Checkpoint:
    tensors: Mapping[str, npt.NDArray[Any]]
    location: str = "here"

    def read(self, name: str) -> npt.NDArray[Any]:
        return self.tensors[name]


def _rules() -> tuple[ParamRule, ...]:
    return (
        ParamRule("embed", ("embed",), "one", "embedding", ((4, 2),), ("head",)),
        ParamRule("gate_up", ("gate", "up"), "concat_rows", "linear", ((3, 2), (1, 2))),
        ParamRule("norm", ("norm",), "one", "norm", ((2,),), hint="look closer"),
    )


def _tensors() -> dict[str, npt.NDArray[Any]]:
    generator = np.random.default_rng(1)
    shapes = {"embed": (4, 2), "gate": (3, 2), "up": (1, 2), "norm": (2,)}
    return {name: generator.standard_normal(shape) for name, shape in shapes.items()}


def test_mapping_reads_and_stacks() -> None:
    tensors = {**_tensors(), "layers.0.rotary_emb.inv_freq": np.ones(3)}
    checkpoint = _Checkpoint(tensors)
    check_consumed(_rules(), checkpoint)
    stacked = read_param(_rules()[1], checkpoint)
    assert stacked.shape == _rules()[1].shape == (4, 2)
    np.testing.assert_array_equal(stacked, np.concatenate([tensors["gate"], tensors["up"]]))
    assert read_param(_rules()[2], checkpoint) is tensors["norm"]


def test_mapping_lists_every_problem() -> None:
    tensors = _tensors()
    tensors["norms"] = tensors.pop("norm")
    tensors["up"] = np.ones((2, 2))
    tensors["extra"] = np.ones(1)
    with pytest.raises(SourceError, match="does not fit the model:") as caught:
        check_consumed(_rules(), _Checkpoint(tensors))
    message = caught.value.message
    assert "up has shape [2, 2], the config says [1, 2]" in message
    assert "norm is missing (is it norms?)" in message
    assert "norms is not used" in message
    assert "extra is not used" in message
    assert caught.value.hint == "look closer"


def test_a_duplicate_must_be_equal() -> None:
    tensors = _tensors()
    tensors["head"] = tensors["embed"].copy()
    checkpoint = _Checkpoint(tensors)
    check_consumed(_rules(), checkpoint)
    read_param(_rules()[0], checkpoint)
    tensors["head"][0, 0] += 1
    with pytest.raises(SourceError, match="head differs from embed"):
        read_param(_rules()[0], checkpoint)


def test_one_source_for_two_parameters_is_our_own_fault() -> None:
    rule = _rules()[0]
    with pytest.raises(InternalError, match="embed is used by embed and by twin"):
        check_consumed((rule, dataclasses.replace(rule, name="twin")), _Checkpoint(_tensors()))
