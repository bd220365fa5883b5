"""Hub sources, against a loopback server that speaks the real client's protocol."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mlcbuild.arch.llama.config import tiny_config
from mlcbuild.errors import MlcbuildError, NetworkError, SourceError
from mlcbuild.sources.checkpoint import open_checkpoint
from mlcbuild.sources.hub import _translate
from mlcbuild.sources.reference import parse_source
from mlcbuild.sources.resolve import fetch, resolve
from mlcbuild.sources.resolved import ResolvedSource
from tests.unit.hub_server import COMMIT, FakeRepo, serve
from tests.unit.tiny_checkpoint import random_tensors, save_folder

NAME = "acme/tiny"


@pytest.fixture(autouse=True)
def _plain_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Xet transfers, no retries that wait, and no token of whoever runs the tests."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = save_folder(tmp_path_factory.mktemp("model"), random_tensors(tiny_config()), shards=2)
    content = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    content["README.md"] = b"---\nlicense: mit\n---\n"
    content["LICENSE"] = b"MIT"
    content["pytorch_model.bin"] = b"not wanted"
    content["onnx/model.safetensors"] = b"not wanted"
    return content


def _repo(files: dict[str, bytes]) -> FakeRepo:
    return FakeRepo(NAME, dict(files), {"license": "mit"})


def test_resolves_once_then_needs_no_network(files: dict[str, bytes], tmp_path: Path) -> None:
    ref = parse_source(f"hf:{NAME}", tmp_path)
    cache = tmp_path / "hub"
    with serve(_repo(files)) as hub:
        resolved = resolve(ref, cache_dir=tmp_path, endpoint=hub.endpoint, hub_cache=cache)
        assert resolved.revision == COMMIT
        assert resolved.license == "mit"
        names = [file.path for file in resolved.files]
        assert "pytorch_model.bin" not in names
        assert "onnx/model.safetensors" not in names
        assert all(file.sha256 or file.git_sha1 for file in resolved.files)
        folder = fetch(resolved, tmp_path, endpoint=hub.endpoint, hub_cache=cache)
    assert {path.name for path in folder.iterdir()} == set(names)
    assert open_checkpoint(folder).license_id == "mit"

    record = json.loads(json.dumps(resolved.to_json()))
    pinned = resolve(ref, record, offline=True, cache_dir=tmp_path)
    assert pinned == resolved
    assert ResolvedSource.from_json(record) == resolved
    assert fetch(pinned, tmp_path, offline=True, hub_cache=cache) == folder
    # Without a lock file, the hub's own cache answers offline, with the same digests.
    exact = parse_source(f"hf:{NAME}@{COMMIT}", tmp_path)
    cached = resolve(exact, offline=True, cache_dir=tmp_path, hub_cache=cache)
    assert cached.identity() == resolved.identity()


def test_pinned_source_imports_no_hub_client(tmp_path: Path) -> None:
    record = {"source": f"hf:{NAME}", "kind": "hf", "name": NAME, "revision": COMMIT, "files": []}
    code = (
        "import sys, json; from pathlib import Path\n"
        "from mlcbuild.sources.reference import parse_source\n"
        "from mlcbuild.sources.resolve import resolve\n"
        f"resolve(parse_source('hf:{NAME}', Path('.')), json.loads({json.dumps(record)!r}),"
        " cache_dir=Path('.'))\n"
        "heavy = {'huggingface_hub', 'tvm', 'numpy'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("refuse", "message", "hint"),
    [
        ((401, "GatedRepo", ""), "is gated and no valid token", "HF_TOKEN"),
        ((403, "GatedRepo", ""), "licence of acme/tiny has not been accepted", "accept"),
        ((404, "RepoNotFound", ""), "does not exist or is private", "check its name"),
        (
            (401, "", "Invalid credentials in Authorization header"),
            "the hub refused the token",
            "HF_TOKEN",
        ),
        ((403, "", "needs more scopes"), "the token may not read", "scope"),
    ],
)
def test_tells_refusals_apart(
    files: dict[str, bytes],
    tmp_path: Path,
    refuse: tuple[int, str, str],
    message: str,
    hint: str,
) -> None:
    repo = _repo(files)
    repo.refuse = refuse
    with serve(repo) as hub, pytest.raises(SourceError, match=message) as caught:
        resolve(parse_source(f"hf:{NAME}", tmp_path), cache_dir=tmp_path, endpoint=hub.endpoint)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_missing_revision(files: dict[str, bytes], tmp_path: Path) -> None:
    ref = parse_source(f"hf:{NAME}@v9", tmp_path)
    with serve(_repo(files)) as hub, pytest.raises(SourceError, match="has no revision 'v9'"):
        resolve(ref, cache_dir=tmp_path, endpoint=hub.endpoint)


def test_no_network(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{probe.getsockname()[1]}"
    ref = parse_source(f"hf:{NAME}", tmp_path)
    with pytest.raises(NetworkError, match="cannot be reached"):
        resolve(ref, cache_dir=tmp_path, endpoint=endpoint, hub_cache=tmp_path / "hub")
    with pytest.raises(NetworkError, match="not complete in its cache"):
        resolve(ref, offline=True, cache_dir=tmp_path, hub_cache=tmp_path / "hub")


def test_altered_file_is_named(files: dict[str, bytes], tmp_path: Path) -> None:
    repo = _repo(files)
    name = "model-00001-of-00002.safetensors"
    data = bytearray(files[name])
    data[-1] ^= 1
    repo.altered[name] = bytes(data)
    with serve(repo) as hub:
        ref = parse_source(f"hf:{NAME}", tmp_path)
        resolved = resolve(ref, cache_dir=tmp_path, endpoint=hub.endpoint)
        with pytest.raises(SourceError, match=f"{name} has the sha256"):
            fetch(resolved, tmp_path, endpoint=hub.endpoint, hub_cache=tmp_path / "hub")


def test_repository_without_safetensors(files: dict[str, bytes], tmp_path: Path) -> None:
    repo = FakeRepo(NAME, {"config.json": b"{}", "model.gguf": b"GGUF"})
    with serve(repo) as hub, pytest.raises(SourceError, match=r"no model\*.safetensors") as caught:
        resolve(parse_source(f"hf:{NAME}", tmp_path), cache_dir=tmp_path, endpoint=hub.endpoint)
    assert caught.value.why == "its weights are model.gguf"


def test_disk_full_names_need_and_free(tmp_path: Path) -> None:
    error = _translate(OSError(28, "No space left on device"), NAME, COMMIT, tmp_path, 5_000_000)
    assert isinstance(error, MlcbuildError)
    assert error.exit_code == 7
    assert "5.0 MB" in (error.why or "")
    assert "are free" in (error.why or "")
