"""Emscripten: where it is found, what it sees of the environment, and what is said without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlcbuild.errors import ToolchainError
from mlcbuild.pipeline.stages import emscripten
from mlcbuild.pipeline.stages.emscripten import (
    Emscripten,
    can_be_steady,
    emscripten_environment,
    emscripten_versions,
    find_emscripten,
    steady_folder,
)
from mlcbuild.store.store import Store
from tests.unit.test_stages import context_for


def write_program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def install(folder: Path, script: str, version: str | None = None) -> Path:
    """An emcc of our own; gives the PATH on which it is found."""
    write_program(folder / "emcc", script)
    if version is not None:
        (folder / "emscripten-version.txt").write_text(f'"{version}"\n', encoding="utf-8")
    return folder


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))


def test_none_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(tmp_path, monkeypatch)
    with pytest.raises(ToolchainError, match=r"emcc was not found[^$]*apt install emscripten"):
        find_emscripten()


def test_the_version_is_read_without_starting_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(install(tmp_path / "a", "exit 1", "3.1.50"), monkeypatch)
    assert emscripten_versions(Store(tmp_path / "store")) == {"emscripten": "3.1.50"}


def test_what_is_below_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """clang, wasm-ld and wasm-opt can change without emcc: each says what it is."""
    root = install(tmp_path / "a", "exit 1", "3.1.6")
    settings = (
        "LLVM_ROOT = '{0}/llvm' # directory\nBINARYEN_ROOT = '{0}'\nCLANG_ADD_VERSION = '14'\n"
    )
    (root / ".emscripten").write_text(settings.format(tmp_path), encoding="utf-8")
    for name, says in (("llvm/clang-14", "clang 14.0.6"), ("bin/wasm-opt", "version 108")):
        write_program(tmp_path / name, f"echo {says}; echo more")
    use(root, monkeypatch)
    store = Store(tmp_path / "store")
    expected = {"emscripten": "3.1.6", "clang": "clang 14.0.6", "wasm-opt": "version 108"}
    assert emscripten_versions(store) == expected
    # Not asked again as long as it is the same file.
    monkeypatch.setattr(emscripten, "_first_line", lambda _: "asked")
    assert emscripten_versions(store) == expected
    write_program(tmp_path / "bin" / "wasm-opt", "echo version 109000")
    assert emscripten_versions(store) == {**expected, "wasm-opt": "asked"}


def test_one_below_it_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(install(tmp_path / "a", "exit 1", "3.1.6"), monkeypatch)
    write_program(tmp_path / "bin" / "clang", "echo broken >&2; exit 1")
    with pytest.raises(ToolchainError, match=r"clang does not tell its version\n.*broken"):
        emscripten_versions(Store(tmp_path / "store"))


def test_a_program_apart_from_its_installation_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(install(tmp_path / "a", "echo 'emcc (Emscripten ...) 4.0.2 (abc)'"), monkeypatch)
    assert find_emscripten().version == "4.0.2"


def test_an_old_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(install(tmp_path / "a", "exit 1", "3.1.5"), monkeypatch)
    with pytest.raises(ToolchainError, match=r"is Emscripten 3\.1\.5\n.*3\.1\.6 is the oldest"):
        find_emscripten()


def test_one_that_does_not_run_tells_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(install(tmp_path / "a", "echo no python here >&2; exit 1"), monkeypatch)
    with pytest.raises(ToolchainError, match=r"does not tell its version\n.*no python here"):
        find_emscripten()


def test_the_user_s_settings_are_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMCC_CFLAGS", "-O3")
    context = context_for(tmp_path / "context")
    tools = Emscripten(tmp_path / "emcc", tmp_path / "root", "3.1.6")
    env = emscripten_environment(context, tools)
    assert "EMCC_CFLAGS" not in env
    assert env["HOME"] == env["TMPDIR"] == str(context.scratch)
    assert env["PATH"].split(os.pathsep)[0] == str(tmp_path)


def test_its_libraries_are_its_own_where_they_can_be(tmp_path: Path) -> None:
    context = context_for(tmp_path / "context")
    root = tmp_path / "root"
    tools = Emscripten(root / "emcc", root, "3.1.6")
    root.mkdir()
    kept = str(context.tool_cache("emscripten"))
    assert emscripten_environment(context, tools)["EM_CACHE"] == kept
    (root / ".emscripten").write_text("FROZEN_CACHE = True\n", encoding="utf-8")
    assert "EM_CACHE" not in emscripten_environment(context, tools)
    (root / ".emscripten").unlink()
    (root / "cache").mkdir()
    assert "EM_CACHE" not in emscripten_environment(context, tools)


def test_folders_for_the_same_bytes_have_paths_of_one_length(tmp_path: Path) -> None:
    bases = (tmp_path / "a", tmp_path / "b" / "longer")
    for base in bases:
        base.mkdir(parents=True)
    assert all(can_be_steady(base) for base in bases)
    assert len({len(str(steady_folder(base))) for base in bases}) == 1
    deep = tmp_path / ("d" * 240)
    deep.mkdir()
    assert not can_be_steady(deep)
    assert steady_folder(deep).name == "steady"
