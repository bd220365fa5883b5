"""Stages: what is in their keys, what they refuse, and that a crash of native code is an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlcbuild.arch.llama.config import LlamaConfig, tiny_config, to_hf
from mlcbuild.core import canonical_json
from mlcbuild.core.process import ProcessRunner
from mlcbuild.core.progress import Progress
from mlcbuild.errors import RecipeError, StageError, VerificationError
from mlcbuild.pipeline.action import Action, ActionContext, FileInput
from mlcbuild.pipeline.build import build_graph
from mlcbuild.pipeline.env import BuildEnv
from mlcbuild.pipeline.graph import topological
from mlcbuild.pipeline.keys import KeyMaker
from mlcbuild.pipeline.stages import native_child, runtime
from mlcbuild.pipeline.stages.files import MODEL
from mlcbuild.pipeline.stages.lower import choose_window
from mlcbuild.pipeline.stages.native_child import run_native
from mlcbuild.quant.schemes import get_scheme
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.recipe.lock import RecipeLock
from mlcbuild.spec.kv import Window
from mlcbuild.spec.limits import Limits
from mlcbuild.store.store import Store
from tests.parity import tiny_llama

LIMITS = Limits(context_window_size=64, prefill_chunk_size=16, max_batch_size=2)


def context_for(
    folder: Path, inputs: Mapping[str, Path] | None = None, params: Mapping[str, Any] | None = None
) -> ActionContext:
    for name in ("out", "scratch"):
        (folder / name).mkdir(parents=True)
    return ActionContext(
        inputs=inputs or {},
        out=folder / "out",
        params=params or {},
        scratch=folder / "scratch",
        log=folder / "log",
        progress=Progress(),
        threads=1,
        processes=ProcessRunner(),
        tool_cache=lambda name: folder / name,
    )


def spec_of(source: Path, **changes: Any) -> BuildSpec:
    spec = BuildSpec("tiny", "q4f16_1", "linux-x86_64-cpu", str(source), LIMITS)
    return replace(spec, base_dir=source.parent, **changes)


def graph_of(folder: Path, **changes: Any) -> list[Action]:
    """Every action of a bundle of a tiny checkpoint below ``folder``."""
    source = tiny_llama.write_checkpoint(folder / "model")
    env = BuildEnv(Store(folder / "store"), RecipeLock(None))
    return topological([build_graph(spec_of(source, **changes), env).verify])


@pytest.fixture(scope="module")
def actions(tmp_path_factory: pytest.TempPathFactory) -> list[Action]:
    return graph_of(tmp_path_factory.mktemp("graph"))


def stages(actions: list[Action], name: str) -> list[Action]:
    found = [action for action in actions if action.stage == name]
    assert found
    return found


# -- keys ----------------------------------------------------------------------------------------


def own_fields(folder: Path, actions: list[Action]) -> list[Any]:
    keys = KeyMaker(Store(folder / "keys").stats)
    return [
        keys.fields(
            action,
            {
                name: keys.file_digest(item) if isinstance(item, FileInput) else item.label
                for name, item in action.inputs.items()
            },
        )
        for action in actions
    ]


def test_keys_hold_no_place_of_this_machine(tmp_path: Path) -> None:
    first = own_fields(tmp_path / "a", graph_of(tmp_path / "a"))
    second = own_fields(tmp_path / "b", graph_of(tmp_path / "b"))
    assert first == second
    assert str(tmp_path) not in canonical_json.encode(first).decode("utf-8")


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({"limits": replace(LIMITS, max_batch_size=3)}, "lower"),
        ({"limits": replace(LIMITS, kv_dtype="float32")}, "lower"),
        ({"sliding_window_size": 16}, "lower"),
        ({"sliding_window_size": 16, "attention_sink_size": 4}, "lower"),
        ({"tie_word_embeddings": True}, "quantize"),
        ({"recipe": "other"}, "assemble"),
        ({"bundle_options": {"license": "mit"}}, "assemble"),
    ],
)
def test_what_changes_an_output_changes_its_key(
    tmp_path: Path, actions: list[Action], changes: dict[str, Any], stage: str
) -> None:
    others = stages(graph_of(tmp_path, **changes), stage)
    for before, after in zip(stages(actions, stage), others, strict=True):
        assert before.params != after.params


def test_a_change_of_the_limits_quantizes_nothing_again(
    tmp_path: Path, actions: list[Action]
) -> None:
    others = graph_of(tmp_path, limits=replace(LIMITS, max_batch_size=3))
    for stage in ("inspect", "quantize", "pack", "tokenizer", "runtime", "compile", "link"):
        for before, after in zip(stages(actions, stage), stages(others, stage), strict=True):
            assert before.params == after.params


@pytest.mark.parametrize(
    ("own", "size", "sinks", "chosen"),
    [
        (Window(), None, None, Window()),
        (Window(), 16, None, Window(16)),
        (Window(), 16, 4, Window(16, 4)),
        (Window(24), None, None, Window(24)),
        (Window(24), 16, 4, Window(16, 4)),
        (Window(24), 24, 4, Window(24, 4)),
        # Nothing is hidden within the context of 64.
        (Window(64), None, None, Window()),
        (Window(63), None, None, Window(63)),
    ],
)
def test_the_window_of_a_build(
    own: Window, size: int | None, sinks: int | None, chosen: Window
) -> None:
    assert choose_window(own, size, sinks, LIMITS) == chosen


def test_a_window_larger_than_the_model_has_is_refused() -> None:
    with pytest.raises(StageError, match=r"size 32 is larger than the model's own window, 24"):
        choose_window(Window(24), 32, None, LIMITS)


@pytest.mark.parametrize(
    ("stage", "foreign"),
    [
        ("quantize", ("nn/", "kernels/", "passes/", "targets/", "arch/llama/model.py")),
        ("inspect", ("nn/", "kernels/", "passes/", "quant/", "arch/llama/model.py")),
        ("pack", ("kernels/", "passes/", "sources/", "arch/llama/")),
        ("lower", ("sources/", "weights/", "bundle/", "quant/groupwise.py")),
        ("schedule", ("kernels/cpu/linear_int4.py", "passes/", "nn/", "quant/", "tuning/")),
        ("compile", ("tuning/", "passes/", "nn/", "quant/", "sources/", "bundle/")),
        ("link", ("kernels/", "passes/", "nn/", "quant/", "sources/", "bundle/")),
        ("assemble", ("kernels/", "passes/", "nn/", "quant/", "weights/")),
    ],
)
def test_a_stage_depends_on_its_own_code_only(
    tmp_path: Path, actions: list[Action], stage: str, foreign: tuple[str, ...]
) -> None:
    (fields, *_) = own_fields(tmp_path, stages(actions, stage))
    assert [name for name in fields["code"] if name.startswith(foreign)] == []


def test_every_source_of_the_runtime_is_listed_once() -> None:
    by_platform = {
        platform: [
            path for unit in runtime.read_units(runtime.ROOT, platform) for path in unit.paths
        ]
        for platform in runtime.PLATFORMS
    }
    for listed in by_platform.values():
        assert len(listed) == len(set(listed))
    found = {
        path.relative_to(runtime.ROOT).as_posix() for path in (runtime.ROOT / "src").glob("**/*.cc")
    }
    assert found == set().union(*by_platform.values())
    assert [path for path in by_platform["posix"] if path not in by_platform["web"]] == [
        "src/core/os_posix.cc"
    ]


def test_lowering_depends_on_what_is_imported_by_name(
    tmp_path: Path, actions: list[Action]
) -> None:
    (fields, *_) = own_fields(tmp_path, stages(actions, "lower"))
    expected = {
        "arch/llama/model.py",
        "arch/qwen2/config.py",
        "kernels/cpu/attention.py",
        "nn/attention.py",
        "passes/fuse_residual.py",
        "quant/layers.py",
    }
    assert expected <= set(fields["code"])


def test_the_compiler_is_told_the_processor() -> None:
    """Nothing may be left for the compiler to find out about this machine."""
    from mlcbuild.targets.registry import get_target, target_names

    for name in target_names():
        for _, capabilities in get_target(name).capabilities():
            assert capabilities.llvm_cpu not in ("", "native")


def test_a_scheme_without_a_layout_is_refused(tmp_path: Path) -> None:
    source = tiny_llama.write_checkpoint(tmp_path / "model")
    env = BuildEnv(Store(tmp_path / "store"), RecipeLock(None))
    scheme = replace(get_scheme("q0f16"), weight_dtype="float8")
    with pytest.raises(RecipeError, match="does not hold q0f16"):
        build_graph(spec_of(source), env, scheme)


# -- lower ---------------------------------------------------------------------------------------


def lower(folder: Path, config: LlamaConfig, actions: list[Action], **limits: int) -> ActionContext:
    """Runs the first lower action of a graph over another model."""
    pytest.importorskip("tvm")
    action = stages(actions, "lower")[0]
    model = folder / "model"
    model.mkdir(parents=True)
    description = {"architecture": "llama", "config": to_hf(config)}
    (model / MODEL).write_text(json.dumps(description), encoding="utf-8")
    params: dict[str, Any] = dict(action.params)
    params["limits"] = {**params["limits"], **limits}
    context = context_for(folder, {"model": model}, params)
    action.run(context)
    return context


def test_lower_is_told_apart_by_its_outputs(tmp_path: Path, actions: list[Action]) -> None:
    context = lower(tmp_path / "a", tiny_config(), actions)
    again = lower(tmp_path / "b", tiny_config(), actions)
    names = sorted(path.name for path in context.out.iterdir())
    assert names == ["kernels.json", "plan.json", "schedules.json"]
    for name in names:
        assert (context.out / name).read_bytes() == (again.out / name).read_bytes()
    prefix = json.loads((context.out / "plan.json").read_bytes())["symbol_prefix"]
    assert prefix in (context.out / "kernels.json").read_text(encoding="utf-8")


def test_a_window_beyond_the_model_is_refused(tmp_path: Path, actions: list[Action]) -> None:
    with pytest.raises(StageError, match="4096 is beyond") as caught:
        lower(tmp_path, tiny_config(), actions, context_window_size=4096)
    assert caught.value.hint is not None
    assert str(tiny_config().max_position_embeddings) in caught.value.hint


def test_a_size_without_a_kernel_names_the_variant(tmp_path: Path, actions: list[Action]) -> None:
    with pytest.raises(StageError, match="no paged_attention kernel") as caught:
        lower(tmp_path, replace(tiny_config(), head_dim=38), actions)
    assert caught.value.where == "linux-x86_64-cpu, variant amx"
    assert caught.value.hint is not None


# -- native code ---------------------------------------------------------------------------------

CRASH = """
import os
print("opening the bundle", flush=True)
print("the self-test of the variant avx9", flush=True)
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "why"),
    [("os.abort()", "SIGABRT"), ("os._exit(3)", "exit code 3"), ("raise OSError('no')", "no")],
)
def test_a_crash_names_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, why: str
) -> None:
    (tmp_path / "crashing_child.py").write_text(CRASH.format(ending=ending), encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(native_child, "MODULE", "crashing_child")
    with pytest.raises(StageError, match="failed at the self-test of the variant avx9") as caught:
        run_native(context_for(tmp_path / "run"), "verify", tmp_path)
    assert caught.value.why is not None
    assert why in caught.value.why
    assert caught.value.hint is not None
    assert str(tmp_path / "run" / "log") in caught.value.hint


def test_an_error_of_the_child_keeps_its_class(tmp_path: Path) -> None:
    """An empty folder is no bundle: the child says so as it would here."""
    with pytest.raises(VerificationError) as caught:
        run_native(context_for(tmp_path / "run"), "verify", tmp_path, threads=1, where="tiny")
    assert "bundle.json" in str(caught.value)
