"""Llama configs of every age, rope frequencies, weight rules, and the registry."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlcbuild.arch.llama.config import LlamaConfig, read_config, tiny_config, to_hf
from mlcbuild.arch.llama.rope import RopeConfig
from mlcbuild.arch.llama.weights import param_rules
from mlcbuild.arch.registry import architectures, get_architecture
from mlcbuild.errors import SourceError
from mlcbuild.sources.checkpoint import open_checkpoint
from mlcbuild.weights.mapping import check_consumed
from tests.unit.tiny_checkpoint import random_tensors, save_folder

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _hf(**changes: Any) -> dict[str, Any]:
    """A 4.x config without rope keys; None removes a key."""
    record = {**to_hf(tiny_config()), "rope_parameters": None, **changes}
    return {key: value for key, value in record.items() if value is not None}


@pytest.mark.parametrize(
    "rope",
    [
        RopeConfig(),
        RopeConfig(theta=5e5, rope_type="linear", factor=4.0),
        RopeConfig(theta=5e5, rope_type="llama3", factor=8.0),
        RopeConfig(rope_type="frequency_factors", frequency_factors=(1.0,) * 16),
    ],
)
def test_config_round_trips(rope: RopeConfig) -> None:
    config = dataclasses.replace(
        tiny_config(), rope=rope, attention_bias=True, output_bias=True, mlp_bias=True
    )
    assert read_config(to_hf(config)) == config


def test_rope_of_every_age() -> None:
    expected = RopeConfig(theta=5e5, rope_type="llama3", factor=8.0)
    scaling = dict(LLAMA3)
    assert read_config(_hf(rope_theta=5e5, rope_scaling=scaling)).rope == expected
    old = {"type": "llama3", **{key: LLAMA3[key] for key in LLAMA3 if key != "rope_type"}}
    assert read_config(_hf(rope_theta=5e5, rope_scaling=old)).rope == expected
    new = {**LLAMA3, "rope_theta": 5e5}
    assert read_config(_hf(rope_parameters=new)).rope == expected
    assert read_config(_hf(rope_theta=1e6)).rope == RopeConfig(theta=1e6)
    assert read_config(_hf()).rope == RopeConfig(theta=1e4)  # Llama 1 and 2 state nothing
    linear = {"type": "linear", "factor": 2.0}
    assert read_config(_hf(rope_theta=1e4, rope_scaling=linear)).rope.factor == 2.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 2.0}}, "'yarn' is not"),
        ({"rope_theta": 1e4, "rope_scaling": {"factor": 2.0}}, "state no rope_type"),
        ({"rope_scaling": LLAMA3}, "rope_theta is missing"),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear"}}, "needs factor"),
        (
            {"rope_theta": 1e4, "rope_scaling": {**LLAMA3, "mscale": 2}},
            "unknown parameters: mscale",
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "rope_type": "default"}},
            "rope_type is 'default' but type is 'linear'",
        ),
        ({"rope_theta": -1}, "rope_theta is -1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"sliding_window": 4096}, "sliding_window = 4096"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"rms_norm_eps": None}, "rms_norm_eps is missing"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"attention_scale": 2.0}, "attention_scale = 2.0"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized with awq"),
        ({"hidden_size": 66, "head_dim": None}, "not a multiple of num_attention_heads"),
    ],
)
def test_refuses_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        read_config(_hf(**changes), where="model/config.json")
    assert message in caught.value.message
    assert caught.value.where == "model/config.json"


def test_harmless_and_neutral_keys_are_accepted() -> None:
    plain = read_config(_hf())
    noisy = _hf(torch_dtype="float16", use_cache=True, rope_interleaved=False, pretraining_tp=2)
    noisy["sliding_window"] = None
    noisy["something_new"] = None
    assert read_config(noisy) == plain


def _qwen2(**changes: Any) -> dict[str, Any]:
    record = _hf(use_sliding_window=True, sliding_window=24, max_window_layers=0, **changes)
    return {key: value for key, value in record.items() if not key.endswith("_bias")}


def test_windows_of_qwen2() -> None:
    read = get_architecture("qwen2").config.read_config
    assert read(_qwen2()).sliding_window == 24
    assert read({**_qwen2(), "layer_types": ["sliding_attention"] * 2}).sliding_window == 24
    # No layer is above max_window_layers, or windows are not used at all.
    assert read({**_qwen2(), "max_window_layers": 2}).sliding_window == 0
    assert read({**_qwen2(), "use_sliding_window": False}).sliding_window == 0
    assert read({**_qwen2(), "sliding_window": None}).sliding_window == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_window_layers": 1}, "a sliding window in 1 of 2 layers"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "a sliding window in 1 of 2 layers",
        ),
        (
            {"use_sliding_window": False, "layer_types": ["sliding_attention"] * 2},
            "use_sliding_window is not true",
        ),
        ({"layer_types": ["full_attention"]}, "names 1 layers of 2"),
        ({"layer_types": ["linear", "linear"]}, "unknown kinds: linear"),
        ({"layer_types": "full_attention"}, "a list was expected"),
        ({"use_sliding_window": "yes"}, "use_sliding_window is 'yes'"),
        ({"sliding_window": -4}, "sliding_window is -4"),
        ({"max_window_layers": "all"}, "max_window_layers is 'all'"),
    ],
)
def test_windows_of_qwen2_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        get_architecture("qwen2").config.read_config({**_qwen2(), **changes}, where="here")
    assert message in caught.value.message
    assert caught.value.where == "here"


def test_windows_of_mistral() -> None:
    read = get_architecture("mistral").config.read_config
    plain = {key: value for key, value in _hf().items() if not key.endswith("_bias")}
    assert read(plain).sliding_window == 4096  # transformers' own default
    assert read({**plain, "sliding_window": None}).sliding_window == 0
    assert read({**plain, "sliding_window": 24}).sliding_window == 24
    with pytest.raises(SourceError, match="sliding_window is 'long'"):
        read({**plain, "sliding_window": "long"})
    with pytest.raises(SourceError, match="attention_bias is no key"):
        read({**plain, "attention_bias": True})


def test_token_ids_and_defaults() -> None:
    config = read_config(_hf(eos_token_id=[1, 2], bos_token_id=None, num_key_value_heads=None))
    assert config.eos_token_ids == (1, 2)
    assert config.bos_token_id is None
    assert config.num_key_value_heads == config.num_attention_heads
    assert read_config(_hf(head_dim=None)).head_dim == 16
    assert read_config(_hf(eos_token_id=7)).eos_token_ids == (7,)


def test_inv_freq_against_the_published_formula() -> None:
    """In double precision; float32 steps differ by a few units in the last place."""
    config = RopeConfig(theta=5e5, rope_type="llama3", factor=8.0)
    base = 5e5 ** -(np.arange(0, 128, 2) / 128)
    wavelength = 2 * np.pi / base
    smooth = np.clip((8192 / wavelength - 1) / 3, 0, 1)
    expected = (1 - smooth) * base / 8 + smooth * base
    values = np.array(config.inv_freq(128))
    np.testing.assert_allclose(values, expected, rtol=5e-7)
    assert (values == values.astype(np.float32)).all()
    assert len(set(values / base > 0.999)) == 2  # some kept, some stretched
    linear = RopeConfig(rope_type="linear", factor=4.0)
    np.testing.assert_allclose(
        np.array(linear.inv_freq(64)) * 4, RopeConfig().inv_freq(64), rtol=1e-7
    )


def test_rules_in_model_order() -> None:
    names = [rule.name for rule in param_rules(tiny_config())]
    assert names[:7] == [
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.qkv_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.mlp.gate_up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
    ]
    assert names[-1] == "model.norm.weight"
    assert "lm_head.weight" not in names
    biased = dataclasses.replace(tiny_config(), attention_bias=True, tie_word_embeddings=False)
    rules = {rule.name: rule for rule in param_rules(biased)}
    assert rules["model.layers.1.self_attn.qkv_proj.bias"].shape == (256,)
    assert "model.layers.1.self_attn.o_proj.bias" not in rules
    assert list(rules)[-1] == "lm_head.weight"


def test_untied_model_without_lm_head(tmp_path: Path) -> None:
    tensors = random_tensors(tiny_config())
    untied = dataclasses.replace(tiny_config(), tie_word_embeddings=False)
    checkpoint = open_checkpoint(save_folder(tmp_path, tensors, untied))
    with pytest.raises(SourceError, match=r"lm_head.weight is missing") as caught:
        check_consumed(param_rules(LlamaConfig.from_hf(checkpoint.config)), checkpoint)
    assert "tie_word_embeddings = true" in (caught.value.hint or "")
    told = LlamaConfig.from_hf(checkpoint.config, tie_word_embeddings=True)
    check_consumed(param_rules(told), checkpoint)


def test_registry() -> None:
    assert "llama" in architectures()
    assert get_architecture("llama").weights.param_rules is param_rules
    with pytest.raises(SourceError, match="'lama' are not supported") as caught:
        get_architecture("lama")
    assert "llama" in (caught.value.hint or "")


def test_listing_imports_nothing() -> None:
    code = (
        "import sys; from mlcbuild.arch.registry import architectures; architectures()\n"
        "from mlcbuild.quant.schemes import scheme_names; scheme_names()\n"
        "loaded = {'tvm', 'numpy', 'mlcbuild.arch.llama.config'} & set(sys.modules)\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
