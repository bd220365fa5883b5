"""Writing, opening and verifying bundles."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlcbuild.bundle.manifest import BundleManifest, path_problem, read_manifest
from mlcbuild.bundle.reader import open_bundle, verify_bundle
from mlcbuild.bundle.writer import write_bundle
from mlcbuild.errors import StageError, VerificationError
from tests.unit import stub_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    stub_bundle.make_bundle(tmp_path / "bundle")
    return tmp_path / "bundle"


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = bundle / "bundle.json"
    record = json.loads(file.read_bytes())
    change(record)
    file.write_text(json.dumps(record))


def test_manifest_says_what_lies_there(bundle: Path) -> None:
    manifest = open_bundle(bundle).manifest
    assert [variant.name for variant in manifest.variants] == ["avx512", "avx2"]
    assert manifest.variants[0].capability == ["avx9"]
    assert [entry.path for entry in manifest.files] == sorted(
        str(path.relative_to(bundle))
        for path in bundle.rglob("*")
        if path.is_file() and path.name != "bundle.json"
    )
    assert manifest.memory.weights_bytes == 32
    assert manifest.memory.kv_bytes_per_token == 2 * 2 * 3 * 8 * 2
    assert manifest.memory.kv_bytes == 7 * 16 * 4 * 192  # 100 tokens are 7 pages of 16
    assert manifest.memory.arena_bytes == 4096
    assert manifest.memory.total_bytes == 32 + 7 * 16 * 4 * 192 + 4096
    assert BundleManifest.model_validate_json(manifest.to_bytes(), strict=True) == manifest


def test_same_files_same_bytes(tmp_path: Path) -> None:
    first = stub_bundle.make_bundle(tmp_path / "one")
    second = stub_bundle.make_bundle(tmp_path / "two")
    assert first.tree_digest == second.tree_digest
    assert (tmp_path / "one/bundle.json").read_bytes() == (
        tmp_path / "two/bundle.json"
    ).read_bytes()


def test_attestations_are_outside_the_payload(bundle: Path) -> None:
    digest = read_manifest(bundle).tree_digest
    (bundle / "attest").mkdir()
    (bundle / "attest/quality.json").write_text("{}")
    assert verify_bundle(bundle).ok
    assert write_bundle(bundle, stub_bundle.parts()).tree_digest == digest


def test_intact_bundle_verifies(bundle: Path) -> None:
    report = verify_bundle(bundle)
    report.check()
    assert report.bytes_hashed == read_manifest(bundle).payload_bytes
    assert verify_bundle(bundle, full=False).bytes_hashed == report.bytes_hashed - 32


def test_every_problem_is_named_with_both_values(bundle: Path) -> None:
    shard = bundle / "params/params_shard_0.bin"
    expected_shard = read_manifest(bundle).entry("params/params_shard_0.bin")
    assert expected_shard is not None
    data = bytearray(shard.read_bytes())
    data[5] ^= 1
    shard.write_bytes(data)
    (bundle / "lib/kernels-avx2.so").write_bytes(b"kern")
    (bundle / "licenses/LICENSE").unlink()
    (bundle / "lib/extra.so").write_bytes(b"x")
    (bundle / "chat.json").rename(bundle / "chat2.json")
    (bundle / "chat.json").symlink_to("chat2.json")
    report = verify_bundle(bundle)
    assert {(problem.kind, problem.path) for problem in report.problems} == {
        ("altered", "params/params_shard_0.bin"),
        ("size", "lib/kernels-avx2.so"),
        ("missing", "licenses/LICENSE"),
        ("unexpected", "lib/extra.so"),
        ("unexpected", "chat2.json"),
        ("refused", "chat.json"),
    }
    with pytest.raises(VerificationError) as error:
        report.check()
    text = str(error.value)
    assert error.value.exit_code == 6
    assert "lib/kernels-avx2.so: 4 bytes, the manifest says 7 bytes" in text
    assert expected_shard.sha256 in text
    altered = next(problem for problem in report.problems if problem.kind == "altered")
    assert altered.found is not None
    assert altered.found in text
    quick = verify_bundle(bundle, full=False)
    assert "altered" not in {problem.kind for problem in quick.problems}


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda b: (b / "params/params_shard_0.bin").write_bytes(b"short"), "5 bytes"),
        (lambda b: (b / "lib/libmlcb.so").unlink(), "lib/libmlcb.so: missing"),
        (lambda b: (b / "bundle.json").unlink(), "it holds no bundle.json"),
        (lambda b: (b / "bundle.json").write_bytes(b"{"), "not JSON"),
        (lambda b: (b / "bundle.json").write_bytes(b"[]"), "not a JSON object"),
        (lambda b: edit_manifest(b, lambda m: m.update(bundle_version=7)), "bundle_version is 7"),
        (lambda b: edit_manifest(b, lambda m: m.pop("abi_version")), "abi_version is missing"),
        (lambda b: edit_manifest(b, lambda m: m.update(surprise=1)), "surprise"),
        (lambda b: edit_manifest(b, lambda m: m["memory"].update(kv_bytes=-1)), "memory.kv_bytes"),
        (lambda b: edit_manifest(b, lambda m: m["files"].reverse()), "not sorted"),
        (lambda b: edit_manifest(b, lambda m: m["files"][0].update(size=9)), "tree_digest"),
        (lambda b: edit_manifest(b, lambda m: m.update(chat="c.json")), "c.json is referred to"),
        (lambda b: edit_manifest(b, lambda m: m.update(chat="../c.json")), "'..' part"),
        (lambda b: edit_manifest(b, lambda m: m["files"][0].update(path="/etc/x")), "absolute"),
    ],
)
def test_damage_is_found_at_open(bundle: Path, damage: Callable[[Path], object], what: str) -> None:
    damage(bundle)
    with pytest.raises(VerificationError) as error:
        open_bundle(bundle)
    assert what in str(error.value)


def test_other_versions_are_named_before_anything_else(bundle: Path) -> None:
    edit_manifest(bundle, lambda m: m.update(plan_version=9, something_new=True))
    with pytest.raises(VerificationError, match="plan_version is 9, this mlcbuild reads 1"):
        verify_bundle(bundle)


def test_version_of_an_inner_file(bundle: Path) -> None:
    chat = json.loads((bundle / "chat.json").read_bytes())
    (bundle / "chat.json").write_text(json.dumps({**chat, "chat_version": 3}))
    with pytest.raises(VerificationError, match=r"chat\.json: chat_version is 3"):
        verify_bundle(bundle)


def test_not_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="there is no such folder"):
        open_bundle(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("lib/a.so", True),
        ("a", True),
        ("..a/b..", True),
        ("", False),
        ("/a", False),
        ("a//b", False),
        ("a/../b", False),
        ("./a", False),
        ("a/", False),
        ("a\\b", False),
        ("C:/a", False),
        ("a\0b", False),
    ],
)
def test_paths(path: str, allowed: bool) -> None:
    assert (path_problem(path) is None) == allowed


def test_writer_names_every_missing_part(tmp_path: Path) -> None:
    root = stub_bundle.write_files(tmp_path / "b")
    (root / "chat.json").unlink()
    (root / "lib/kernels-avx512.so").unlink()
    with pytest.raises(StageError, match=r"chat\.json, lib/kernels-avx512\.so"):
        write_bundle(root, stub_bundle.parts())
    assert not (root / "bundle.json").exists()


def test_writer_refuses_parts_of_different_builds(tmp_path: Path) -> None:
    root = stub_bundle.write_files(tmp_path / "b")
    plan = stub_bundle.plan("avx2", layout="i4x16", vocab_size=9)
    plan["params"] = [{"name": "embed", "dtype": "float16", "shape": [2, 4]}]
    (root / "lib/avx2.plan").write_text(json.dumps(plan))
    (root / "params/params_shard_0.bin").write_bytes(b"0" * 32)
    with pytest.raises(StageError) as error:
        write_bundle(root, stub_bundle.parts(tokenizer_vocab_size=999))
    text = str(error.value)
    for part in (
        "layout is 'i4x16'",
        "vocab_size is 9",
        "embed as float16",
        "params_shard_0",
        "999",
    ):
        assert part in text


def test_writer_refuses_links_and_other_versions(tmp_path: Path) -> None:
    root = stub_bundle.write_files(tmp_path / "b")
    (root / "chat.json").write_text('{"chat_version": 3}')
    with pytest.raises(StageError, match="chat_version is 3, this mlcbuild writes 2"):
        write_bundle(root, stub_bundle.parts())
    os.symlink("chat.json", root / "link.json")
    with pytest.raises(VerificationError, match=r"link\.json"):
        write_bundle(root, stub_bundle.parts())


def test_bundle_without_self_test(tmp_path: Path) -> None:
    root = stub_bundle.write_files(tmp_path / "b")
    (root / "golden.json").unlink()
    assert write_bundle(root, stub_bundle.parts()).golden is None
    assert open_bundle(root).manifest.golden is None
