"""Reading, merging, validating and expanding recipes; lock files; the JSON Schema."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlcbuild.cli.output import error_text
from mlcbuild.core.stat_cache import StatCache
from mlcbuild.errors import RecipeError, UsageError
from mlcbuild.quant.schemes import scheme_names
from mlcbuild.recipe.json_schema import json_schema
from mlcbuild.recipe.load import ValidationCache, load_recipe
from mlcbuild.recipe.locate import find_lines
from mlcbuild.recipe.lock import RecipeLock, lock_path
from mlcbuild.recipe.problems import RecipeProblems
from mlcbuild.recipe.recipe import KnownNames
from mlcbuild.targets.registry import target_names

ROOT = Path(__file__).parents[2]
FAILING = ROOT / "tests" / "failing_recipes"
KNOWN = KnownNames(
    schemes=("q0f32", "q0f16", "q4f16_1", "q4f32_1"),
    targets=("linux-x86_64-cpu", "windows-x86_64-cpu"),
)
GOOD = """\
name = "good"
[model]
source = "./model"
[quantization]
schemes = ["q4f16_1", "q0f32"]
[targets]
names = ["linux-x86_64-cpu", "windows-x86_64-cpu"]
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write a recipe and give its path."""

    def write(text: str, name: str = "recipe.toml") -> Path:
        path: Path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


# -- failing recipes --------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.stem for path in FAILING.glob("*.toml")))
def test_failing_recipe(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FAILING)
    with pytest.raises(RecipeError) as caught:
        load_recipe(Path(f"{name}.toml"), KNOWN)
    assert caught.value.exit_code == 2
    text = error_text(caught.value) + "\n"
    expected = FAILING / f"{name}.txt"
    if os.environ.get("UPDATE_EXPECTED"):
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")


def test_every_problem_has_a_record() -> None:
    with pytest.raises(RecipeProblems) as caught:
        load_recipe(FAILING / "unknown_names.toml", KNOWN)
    record = caught.value.to_json()
    problems = record["problems"]
    assert isinstance(problems, list)
    assert problems[1] == {
        "file": str(FAILING / "unknown_names.toml"),
        "line": 7,
        "key": "quantization.schemes[0]",
        "message": 'unknown quantization scheme "q4f61_1"',
        "why": None,
        "hint": 'did you mean "q4f16_1"?',
    }


def test_a_missing_recipe_has_a_hint(write: Any) -> None:
    path = write(GOOD, "smollm.toml")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path.with_name("smolm.toml"), KNOWN)
    assert caught.value.hint == 'did you mean "smollm.toml"?'


# -- good recipes -----------------------------------------------------------------------------


def test_defaults_and_matrix(write: Any) -> None:
    specs = load_recipe(write(GOOD), KNOWN).expand(KNOWN)
    assert [spec.subject for spec in specs] == [
        "good/q4f16_1/linux-x86_64-cpu",
        "good/q0f32/linux-x86_64-cpu",
        "good/q4f16_1/windows-x86_64-cpu",
        "good/q0f32/windows-x86_64-cpu",
    ]
    assert specs[0].limits.context_window_size == 4096
    assert specs[0].limits.prefill_chunk_size == 512
    assert specs[0].limits.max_batch_size == 8


def test_options_narrow_or_override_the_matrix(write: Any) -> None:
    recipe = load_recipe(write(GOOD), KNOWN)
    narrow = recipe.expand(KNOWN, ["q0f32"], ["linux-x86_64-cpu"])
    assert [spec.subject for spec in narrow] == ["good/q0f32/linux-x86_64-cpu"]
    other = recipe.expand(KNOWN, ["q4f32_1"])
    assert {spec.scheme for spec in other} == {"q4f32_1"}
    with pytest.raises(UsageError, match="q4f61_1") as caught:
        recipe.expand(KNOWN, ["q4f61_1"])
    assert caught.value.hint == 'did you mean "q4f16_1"?'


def test_target_options_reach_their_target_only(write: Any) -> None:
    text = GOOD + '[targets.linux-x86_64-cpu]\narch = ["a", "b"]\ntensor_parallel = 2\n'
    linux, _, windows, _ = load_recipe(write(text), KNOWN).expand(KNOWN)
    assert linux.target_options == {"arch": ["a", "b"], "tensor_parallel": 2}
    assert windows.target_options == {}


def test_extends_merges_tables_and_replaces_lists(write: Any) -> None:
    write(GOOD + "[runtime]\nmax_batch_size = 2\ncontext_window_size = 1024\n", "base/base.toml")
    text = (
        'name = "child"\nextends = "base/base.toml"\n[quantization]\nschemes = ["q0f16"]\n'
        "[runtime]\nmax_batch_size = 3\n"
    )
    recipe = load_recipe(write(text), KNOWN)
    (spec, _) = recipe.expand(KNOWN)
    assert (spec.recipe, spec.scheme) == ("child", "q0f16")
    assert spec.limits.max_batch_size == 3
    assert spec.limits.context_window_size == 1024
    expected = (recipe.path.parent / "base" / "model").resolve()
    assert spec.resolve_path(spec.source).resolve() == expected, "a path belongs to its own file"


def test_comments_change_nothing(write: Any) -> None:
    plain = load_recipe(write(GOOD), KNOWN).expand(KNOWN)
    commented = load_recipe(write("# a comment\n" + GOOD), KNOWN).expand(KNOWN)
    assert plain == commented


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda p: p.stem)
def test_shipped_recipes_are_valid(path: Path) -> None:
    known = KnownNames(schemes=scheme_names(), targets=target_names())
    recipe = load_recipe(path, known)
    assert recipe.name == path.stem
    assert recipe.expand(known)


# -- lines ------------------------------------------------------------------------------------


def test_find_lines() -> None:
    text = '''\
name = "x"
text = """
[not.a.table]
no = "key"
"""
list = [
  "a", # ] in a comment
  "b]",
]
inline = { key = 1 }
[model]
"quoted key" = 1
a.b = 2
[targets."linux-x86_64-cpu"]
deep = 1
  [[array]]
  x = 1
'''
    lines = find_lines(text)
    assert lines == {
        ("name",): 1,
        ("text",): 2,
        ("list",): 6,
        ("inline",): 10,
        ("model",): 11,
        ("model", "quoted key"): 12,
        ("model", "a", "b"): 13,
        ("model", "a"): 13,
        ("targets", "linux-x86_64-cpu"): 14,
        ("targets", "linux-x86_64-cpu", "deep"): 15,
        ("array",): 16,
        ("array", "x"): 17,
    }


# -- cache of validations ---------------------------------------------------------------------


def test_a_known_recipe_needs_no_pydantic(write: Any, tmp_path: Path) -> None:
    path = write(GOOD)
    code = (
        "import sys; from pathlib import Path\n"
        "from mlcbuild.core.stat_cache import StatCache\n"
        "from mlcbuild.recipe.load import ValidationCache, load_recipe\n"
        "from mlcbuild.recipe.recipe import KnownNames\n"
        "known = KnownNames(('q0f32', 'q4f16_1'), ('linux-x86_64-cpu', 'windows-x86_64-cpu'))\n"
        "cache = ValidationCache(Path(sys.argv[2]), StatCache())\n"
        "print(len(load_recipe(Path(sys.argv[1]), known, cache).expand(known)))\n"
        "print('pydantic' in sys.modules)"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code, str(path), str(tmp_path / "cache")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert outputs == [["4", "True"], ["4", "False"]]


def test_a_cached_recipe_equals_a_fresh_one_and_changes_are_seen(
    write: Any, tmp_path: Path
) -> None:
    stats = StatCache()
    cache = ValidationCache(tmp_path / "cache", stats)
    fresh = load_recipe(write(GOOD), KNOWN, cache).expand(KNOWN)
    assert load_recipe(write(GOOD), KNOWN, cache).expand(KNOWN) == fresh
    bad = write(GOOD.replace("q0f32", "q1f1"))
    for _ in range(2):
        with pytest.raises(RecipeError):
            load_recipe(bad, KNOWN, cache)
    smaller = KnownNames(schemes=("q0f32",), targets=KNOWN.targets)
    with pytest.raises(RecipeError, match="q4f16_1"):
        load_recipe(write(GOOD), smaller, cache)
    stats.close()


# -- lock files -------------------------------------------------------------------------------


def test_lock_file_round_trip(tmp_path: Path) -> None:
    path = lock_path(tmp_path / "x.toml")
    assert path.name == "x.lock"
    lock = RecipeLock(path)
    assert lock.get("hf:a/b") is None
    lock.put("hf:a/b", {"revision": "abc", "files": [{"path": "f", "size": 1}]})
    before = path.stat().st_mtime_ns
    lock.put("hf:a/b", {"files": ({"size": 1, "path": "f"},), "revision": "abc"})
    assert path.stat().st_mtime_ns == before, "an equal record writes nothing"
    assert RecipeLock(path).get("hf:a/b") == lock.get("hf:a/b")
    assert RecipeLock(path).sources() == ("hf:a/b",)


@pytest.mark.parametrize("text", ["{", "[]", '{"lock_version": 9}', '{"lock_version": 1}'])
def test_a_damaged_lock_file_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.lock"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        RecipeLock(path)
    assert caught.value.where == str(path)


# -- JSON Schema ------------------------------------------------------------------------------


def test_the_committed_schema_is_up_to_date() -> None:
    committed = (ROOT / "recipes" / "schema.json").read_text(encoding="utf-8")
    assert committed == json_schema(), "run: make schema"
