"""A bundle as one file: a .tar.zst whose bytes depend on the bundle's content only."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import zstandard

from mlcbuild.bundle.client_manifest import read_any_manifest
from mlcbuild.bundle.manifest import MANIFEST_NAME, path_problem
from mlcbuild.bundle.reader import verify_bundle
from mlcbuild.bundle.tree import walk_files
from mlcbuild.core.atomic import disk_guard
from mlcbuild.errors import SourceError, VerificationError

# Packed weights are close to incompressible: a higher level costs minutes and wins under 1 %.
_LEVEL = 3
_CHUNK = 1 << 20


def write_archive(bundle: Path, out: Path, *, root: str | None = None) -> Path:
    """Packs the folder ``bundle`` into ``out`` (a .tar.zst) and returns ``out``.

    Equal bundles give equal bytes: entries sorted by path below one folder ``root`` (the manifest's
    name by default), times, owners and groups zeroed, modes 0755 for the executables of bin/ and
    0644 otherwise, one compression thread at a fixed level. The file appears atomically.
    """
    manifest = read_any_manifest(bundle)
    top = root or f"{manifest.name}-{manifest.scheme['name']}-{manifest.target}"
    problem = path_problem(top)
    if problem is not None or "/" in top:
        raise VerificationError(f"{top!r} cannot be the folder of an archive", why=problem)
    files, refused = walk_files(bundle)
    if refused:
        raise VerificationError(
            "a bundle may hold plain files only", where=str(bundle), why=", ".join(refused)
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    try:
        with disk_guard(out, out.name, manifest.payload_bytes), os.fdopen(handle, "wb") as raw:
            compressor = zstandard.ZstdCompressor(level=_LEVEL, threads=0, write_checksum=True)
            with compressor.stream_writer(raw, closefd=False) as stream:
                _write_tar(bundle, files, top, stream)
            raw.flush()
            os.fsync(raw.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, out)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return out


def _write_tar(bundle: Path, files: list[str], top: str, stream: object) -> None:
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for path in files:
            info = tarfile.TarInfo(f"{top}/{path}")
            info.size = (bundle / path).stat().st_size
            info.mode = 0o755 if path.startswith("bin/") else 0o644
            with open(bundle / path, "rb") as file:
                tar.addfile(info, file)


def unpack_archive(archive: Path, out_dir: Path) -> Path:
    """Unpacks a bundle archive so that the bundle lies at ``out_dir``, verified in full.

    Refuses absolute paths, ``..``, links and special entries before writing them, and leaves
    nothing behind when it fails. ``out_dir`` must not exist. Raises ``SourceError`` (no such
    file), ``VerificationError`` or ``ResourceError`` (disk full).
    """
    if out_dir.exists():
        raise VerificationError(
            "the folder to unpack into exists", where=str(out_dir), hint="name a new folder"
        )
    if not archive.is_file():
        raise SourceError("there is no such archive", where=str(archive))
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=out_dir.parent, prefix=f".{out_dir.name}."))
    try:
        with disk_guard(out_dir, "the bundle"), open(archive, "rb") as raw:
            _extract(raw, temporary, archive)
        if not (temporary / MANIFEST_NAME).is_file():
            raise VerificationError(
                "this archive holds no bundle", where=str(archive), why=f"no {MANIFEST_NAME} in it"
            )
        verify_bundle(temporary, full=True).check()
        os.chmod(temporary, 0o755)
        os.replace(temporary, out_dir)
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise VerificationError(
            "the archive is damaged or cut off",
            where=str(archive),
            why=str(error),
            hint="fetch it again",
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return out_dir


def _extract(raw: BinaryIO, out_dir: Path, archive: Path) -> None:
    with (
        zstandard.ZstdDecompressor().stream_reader(raw, closefd=False) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        for member in tar:
            problem = path_problem(member.name.rstrip("/"))
            if problem is None and not (member.isreg() or member.isdir()):
                problem = "it is a link or a special file"
            if problem is not None:
                raise VerificationError(
                    f"the archive's entry {member.name!r} is refused",
                    where=str(archive),
                    why=problem,
                )
            if member.isdir():
                continue
            inner = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            target = out_dir / inner
            source = tar.extractfile(member)
            if source is None or target == out_dir:
                raise VerificationError(
                    f"the archive's entry {member.name!r} lies outside its one folder",
                    where=str(archive),
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "wb") as file:
                shutil.copyfileobj(source, file, _CHUNK)
            os.chmod(target, 0o755 if member.mode & 0o100 else 0o644)
