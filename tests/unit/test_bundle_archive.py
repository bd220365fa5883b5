"""Bundles as one file."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
import zstandard

from mlcbuild.bundle.archive import unpack_archive, write_archive
from mlcbuild.bundle.reader import verify_bundle
from mlcbuild.errors import SourceError, VerificationError
from tests.unit import stub_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    stub_bundle.make_bundle(tmp_path / "bundle")
    return tmp_path / "bundle"


def pack(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    path.write_bytes(zstandard.compress(raw.getvalue()))
    return path


def test_equal_bundles_give_equal_archives(bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "copy"
    stub_bundle.make_bundle(other)
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    first = write_archive(bundle, tmp_path / "a.tar.zst")
    second = write_archive(other, tmp_path / "b.tar.zst")
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.tar.zst",
        "b.tar.zst",
        "bundle",
        "elsewhere",
    ]


def test_round_trip(bundle: Path, tmp_path: Path) -> None:
    archive = write_archive(bundle, tmp_path / "a.tar.zst")
    out = unpack_archive(archive, tmp_path / "new" / "out")
    assert verify_bundle(out).ok
    assert (out / "bundle.json").read_bytes() == (bundle / "bundle.json").read_bytes()
    assert os.access(out / "bin/mlcb", os.X_OK)
    assert not os.access(out / "chat.json", os.X_OK)
    with pytest.raises(VerificationError, match="exists"):
        unpack_archive(archive, out)


@pytest.mark.parametrize("cut", [10, 200])
def test_cut_off_archive(bundle: Path, tmp_path: Path, cut: int) -> None:
    archive = write_archive(bundle, tmp_path / "a.tar.zst")
    archive.write_bytes(archive.read_bytes()[:-cut])
    with pytest.raises(VerificationError):
        unpack_archive(archive, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.zst", "bundle"]


def test_hostile_entries_write_nothing(tmp_path: Path) -> None:
    link = tarfile.TarInfo("b/lib")
    link.type = tarfile.SYMTYPE
    link.linkname = "/etc"
    hostile = {
        "up": [(tarfile.TarInfo("b/../../evil"), b"x")],
        "root": [(tarfile.TarInfo("/evil"), b"x")],
        "link": [(link, b"")],
        "flat": [(tarfile.TarInfo("evil"), b"x")],
    }
    for name, members in hostile.items():
        archive = pack(tmp_path / f"{name}.tar.zst", members)
        with pytest.raises(VerificationError):
            unpack_archive(archive, tmp_path / "deep" / "out")
    assert list((tmp_path / "deep").iterdir()) == []
    assert not (tmp_path / "evil").exists()


def test_archive_without_bundle_or_missing(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.tar.zst", [(tarfile.TarInfo("b/file"), b"x")])
    with pytest.raises(VerificationError, match="holds no bundle"):
        unpack_archive(archive, tmp_path / "out")
    with pytest.raises(SourceError):
        unpack_archive(tmp_path / "none.tar.zst", tmp_path / "out")


def test_altered_content_is_refused(bundle: Path, tmp_path: Path) -> None:
    (bundle / "licenses/LICENSE").write_bytes(b"Apache Licence")
    archive = write_archive(bundle, tmp_path / "a.tar.zst")
    with pytest.raises(VerificationError, match="licenses/LICENSE: altered"):
        unpack_archive(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()
