"""Files of a browser's bundle: params in shards, and the client's configuration."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from mlcbuild.bundle.web_chat import WebConversation
from mlcbuild.bundle.web_config import sampling_notes, tokenizer_info, web_config
from mlcbuild.errors import ResourceError
from mlcbuild.spec.limits import Limits
from mlcbuild.weights import tensor_cache
from mlcbuild.weights.reader import open_params
from mlcbuild.weights.shards import ParamIndex, ShardWriter


def params_in(folder: Path) -> ParamIndex:
    random = np.random.default_rng(0)
    with ShardWriter(folder, "nk") as writer:
        writer.add("a.q_weight", random.integers(0, 2**32, (8, 4), np.uint32), "nk")
        writer.add("a.q_scale", random.standard_normal((8, 1)).astype(np.float16), "nk")
        writer.add("large", random.standard_normal((40, 40)).astype(np.float32), "nk")
        writer.add("norm", np.ones(3, np.float32), "raw")
    return open_params(folder)


def test_every_tensor_reads_back_as_the_client_reads_it(tmp_path: Path) -> None:
    params = params_in(tmp_path / "nk")
    out = tmp_path / "web"
    out.mkdir()
    files = tensor_cache.write_tensor_cache(params, out, parameters=1859, max_shard_bytes=1000)
    assert sorted(files) == sorted(path.name for path in out.iterdir())
    index = json.loads((out / "tensor-cache.json").read_bytes())
    assert index["metadata"]["ParamSize"] == 4
    found = {}
    for shard in index["records"]:
        data = (out / shard["dataPath"]).read_bytes()
        assert (shard["format"], shard["nbytes"]) == ("raw-shard", len(data))
        assert shard["md5sum"] == hashlib.md5(data).hexdigest()
        for record in shard["records"]:
            assert record["format"] == "raw"
            piece = data[record["byteOffset"] : record["byteOffset"] + record["nbytes"]]
            found[record["name"]] = np.frombuffer(piece, record["dtype"]).reshape(record["shape"])
    assert list(found) == list(params.tensors)
    assert len(index["records"]) == 3, "the large tensor has a shard of its own"
    for name, values in found.items():
        np.testing.assert_array_equal(values, params.read(name))


def test_a_tensor_that_no_browser_binds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = params_in(tmp_path / "nk")
    assert tensor_cache.check_bindings(params) == tensor_cache.DEFAULT_BINDING_BYTES
    monkeypatch.setattr(tensor_cache, "MAX_BINDING_BYTES", 6399)
    with pytest.raises(ResourceError, match="tensor large"):
        tensor_cache.check_bindings(params)


def test_the_configuration_has_what_the_client_asks_for() -> None:
    conversation = WebConversation(
        1, "<s>", "{system_message}", "", "U", "A", "", "", "\n", "\n", (), (2,)
    )
    record = web_config(
        conversation,
        model_type="llama",
        scheme="q4f16_1",
        vocab_size=512,
        limits=Limits(256, 64, 1),
        tokenizer={"decoder": {"type": "ByteLevel"}},
        sampling={"temperature": 0.6, "top_k": 20},
    )
    assert record["temperature"] == 0.6
    (note,) = sampling_notes({"temperature": 0.6, "top_k": 20, "min_p": 0.05, "top_p": 0.9})
    assert "sample with top_k 20, min_p 0.05: " in note
    assert sampling_notes({"top_p": 0.9}) == sampling_notes(None) == []
    assert (record["top_p"], record["repetition_penalty"]) == (1.0, 1.0)
    windows = (record["context_window_size"], record["sliding_window_size"])
    assert windows == (256, -1), "the client takes exactly one of them"
    assert record["tokenizer_files"] == ["tokenizer.json"]
    assert record["conv_template"]["system_prefix_token_ids"] == [1]


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        ({"decoder": {"type": "ByteLevel"}}, ("byte_level", False, False)),
        (
            {
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [{"type": "Prepend", "prepend": "\u2581"}],
                },
                "decoder": {
                    "type": "Sequence",
                    "decoders": [
                        {"type": "ByteFallback"},
                        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                    ],
                },
            },
            ("byte_fallback", True, True),
        ),
        (
            {
                "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"},
                "decoder": {"type": "Metaspace"},
            },
            ("raw", True, True),
        ),
    ],
)
def test_tokenizer_info(tokenizer: dict[str, object], expected: tuple[str, bool, bool]) -> None:
    assert tuple(tokenizer_info(tokenizer).values()) == expected
