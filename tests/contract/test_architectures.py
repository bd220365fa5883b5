"""What every architecture in mlcbuild/arch must offer; a new folder is tested by being there."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from mlcbuild.arch.registry import Architecture, architectures, get_architecture
from mlcbuild.errors import SourceError
from mlcbuild.spec.attention import AttentionSpec
from mlcbuild.weights.mapping import check_consumed, read_param
from tests.contract.memory_checkpoint import MemoryCheckpoint, random_checkpoint

FUNCTIONS = {"embed", "batch_prefill"}  # that every plan must have


@pytest.fixture(params=architectures())
def architecture(request: pytest.FixtureRequest) -> Architecture:
    return get_architecture(request.param)


@pytest.fixture
def tiny(architecture: Architecture) -> Any:
    return architecture.config.tiny_config()


def test_there_is_one() -> None:
    assert "llama" in architectures()


def test_the_folder_is_a_model_type(architecture: Architecture) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", architecture.name)


def test_the_config_survives_a_round_trip(architecture: Architecture, tiny: Any) -> None:
    config = architecture.config.to_hf(tiny)
    assert config["model_type"] == architecture.name
    assert architecture.config.read_config(config) == tiny


def test_an_unknown_config_key_is_refused(architecture: Architecture, tiny: Any) -> None:
    config = architecture.config.to_hf(tiny) | {"residual_twist": 2.0}
    with pytest.raises(SourceError, match="residual_twist"):
        architecture.config.read_config(config, where="here")


def test_a_missing_config_key_is_named(architecture: Architecture, tiny: Any) -> None:
    config = architecture.config.to_hf(tiny)
    del config["hidden_size"]
    with pytest.raises(SourceError, match="hidden_size") as caught:
        architecture.config.read_config(config, where="here")
    assert caught.value.where is not None
    assert "here" in caught.value.where


def test_an_unknown_rope_type_is_refused(architecture: Architecture, tiny: Any) -> None:
    config = architecture.config.to_hf(tiny)
    config["rope_parameters"] = {"rope_type": "spiral", "rope_theta": 10000.0}
    with pytest.raises(SourceError, match="spiral"):
        architecture.config.read_config(config)


def test_each_source_tensor_is_used_once(architecture: Architecture, tiny: Any) -> None:
    rules = architecture.weights.param_rules(tiny)
    names = [rule.name for rule in rules]
    sources = [source for rule in rules for source in rule.sources]
    assert len(set(names)) == len(names)
    assert len(set(sources)) == len(sources)
    check_consumed(rules, random_checkpoint(rules))


def test_gaps_and_leftovers_are_refused(architecture: Architecture, tiny: Any) -> None:
    rules = architecture.weights.param_rules(tiny)
    tensors = dict(random_checkpoint(rules).tensors)
    for name in tensors:
        fewer = {key: value for key, value in tensors.items() if key != name}
        with pytest.raises(SourceError, match=re.escape(name)):
            check_consumed(rules, MemoryCheckpoint(fewer))
    with pytest.raises(SourceError, match=r"extra\.weight"):
        check_consumed(rules, MemoryCheckpoint(tensors | {"extra.weight": tensors[name]}))


def test_the_model_has_exactly_the_parameters_of_the_rules(
    architecture: Architecture, tiny: Any
) -> None:
    rules = architecture.weights.param_rules(tiny)
    checkpoint = random_checkpoint(rules)
    expected = {rule.name: tuple(read_param(rule, checkpoint).shape) for rule in rules}
    model = architecture.model.Model(tiny)
    found = {
        name: tuple(int(size) for size in parameter.shape)
        for name, parameter in model.named_parameters()
    }
    assert found == expected
    assert list(found) == list(expected), "the model's order is the order on disk"


def test_the_model_has_the_functions_of_a_plan(architecture: Architecture, tiny: Any) -> None:
    model = architecture.model.Model(tiny)
    module, _ = model.export_tvm(spec=model.get_spec())
    assert {name.name_hint for name in module.get_global_vars()} >= FUNCTIONS


def test_the_attention_spec_fits_the_config(architecture: Architecture, tiny: Any) -> None:
    spec = architecture.model.attention_spec(tiny)
    assert isinstance(spec, AttentionSpec)
    assert spec.heads % spec.kv_heads == 0
    assert len(spec.inv_freq) * 2 == spec.rotary_dim <= spec.head_dim


@pytest.mark.parametrize("module", ["config", "weights"])
def test_reading_a_config_does_not_load_the_compiler(
    architecture: Architecture, module: str
) -> None:
    code = (
        "import sys\n"
        f"import mlcbuild.arch.{architecture.name}.{module}\n"
        "assert 'tvm' not in sys.modules, 'tvm was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_model_type_is_answered_with_a_hint() -> None:
    with pytest.raises(SourceError, match="lama2") as caught:
        get_architecture("lama2")
    assert "llama" in str(caught.value)
