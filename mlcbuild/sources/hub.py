"""Model repositories on the Hugging Face hub, through huggingface_hub."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlcbuild.core.atomic import format_bytes, free_bytes, is_disk_full
from mlcbuild.core.progress import Progress, Task
from mlcbuild.errors import InternalError, MlcbuildError, NetworkError, ResourceError, SourceError
from mlcbuild.sources.files import is_wanted, wanted_patterns
from mlcbuild.sources.reference import SourceRef
from mlcbuild.sources.resolved import (
    HashFile,
    ResolvedFile,
    ResolvedSource,
    check_file,
    git_sha1,
)
from mlcbuild.sources.safetensors_dir import read_front_matter_license

_SHA256 = re.compile(r"[0-9a-f]{64}")
_TOKEN_PAGE = "https://huggingface.co/settings/tokens"


def resolve_hub(
    ref: SourceRef,
    *,
    offline: bool,
    endpoint: str | None,
    token: str | None,
    hub_cache: Path | None,
) -> ResolvedSource:
    """Pins a repository to a commit and lists the needed files with sizes and digests.

    Offline, what the hub's own cache holds is used. Raises SourceError, NetworkError.
    """
    if ref.repo is None:
        raise InternalError("a hub source has no repository")
    if offline:
        return _resolve_cached(ref, ref.repo, hub_cache)
    from huggingface_hub import HfApi

    with _hub_errors(ref.repo, ref.revision, hub_cache):
        api = HfApi(endpoint=endpoint, token=token, library_name="mlcbuild")
        info = api.model_info(ref.repo, revision=ref.revision, files_metadata=True)
    if info.sha is None:
        raise SourceError(f"the hub names no commit for {ref.repo}", where=ref.text)
    files = [_resolved_file(item) for item in info.siblings or () if is_wanted(item.rfilename)]
    names = [item.rfilename for item in info.siblings or ()]
    _check_weights(ref, names)
    return ResolvedSource(
        source=ref.text,
        kind="hf",
        name=ref.repo,
        revision=info.sha,
        files=tuple(sorted(files, key=lambda file: file.path)),
        license=_card_license(info.card_data),
    )


def fetch_hub(
    resolved: ResolvedSource,
    *,
    offline: bool,
    endpoint: str | None,
    token: str | None,
    hub_cache: Path | None,
    hash_file: HashFile,
    progress: Progress,
) -> Path:
    """The folder of the pinned commit in the hub's cache, every needed file there and checked."""
    from huggingface_hub import snapshot_download

    total = sum(file.size for file in resolved.files)
    with (
        progress.task(f"fetch {resolved.name}", total, "B") as task,
        _hub_errors(resolved.name, resolved.revision, hub_cache, total),
    ):
        folder = Path(
            snapshot_download(
                resolved.name,
                revision=resolved.revision,
                allow_patterns=[_literal(file.path) for file in resolved.files],
                cache_dir=hub_cache,
                endpoint=endpoint,
                token=token,
                local_files_only=offline,
                library_name="mlcbuild",
                tqdm_class=_bar_class(task),
            )
        )
    missing = [file.path for file in resolved.files if not (folder / file.path).exists()]
    if missing and offline:
        raise _offline(resolved.name, resolved.revision, f"not in the cache: {', '.join(missing)}")
    with progress.task(f"check {resolved.name}", total, "B") as task:
        for file in resolved.files:
            check_file(folder / file.path, file, hash_file)
            task.advance(file.size)
    return folder


def _resolved_file(item: Any) -> ResolvedFile:
    if item.size is None:
        raise SourceError(f"the hub states no size for {item.rfilename}")
    lfs = item.lfs
    return ResolvedFile(
        path=item.rfilename,
        size=int(item.size if lfs is None else lfs.size),
        sha256=None if lfs is None else lfs.sha256,
        git_sha1=item.blob_id if lfs is None else None,
    )


def _resolve_cached(ref: SourceRef, repo: str, hub_cache: Path | None) -> ResolvedSource:
    from huggingface_hub import snapshot_download

    with _hub_errors(repo, ref.revision, hub_cache):
        try:
            folder = Path(
                snapshot_download(
                    repo,
                    revision=ref.revision,
                    allow_patterns=wanted_patterns(),
                    cache_dir=hub_cache,
                    local_files_only=True,
                )
            )
        except FileNotFoundError as error:
            raise _offline(repo, ref.revision, "this revision is not in the cache") from error
    files = []
    for path in sorted(folder.iterdir()):
        if not is_wanted(path.name):
            continue
        # The cache names the blobs of large files after their sha256.
        blob = path.resolve().name
        sha256 = blob if _SHA256.fullmatch(blob) else None
        git_id = None if sha256 else git_sha1(path.read_bytes())
        files.append(ResolvedFile(path.name, path.stat().st_size, sha256, git_id))
    _check_weights(ref, [file.path for file in files])
    return ResolvedSource(
        source=ref.text,
        kind="hf",
        name=repo,
        revision=folder.name,
        files=tuple(files),
        license=read_front_matter_license(folder / "README.md"),
    )


def _check_weights(ref: SourceRef, names: list[str]) -> None:
    if "config.json" not in names:
        raise SourceError(
            f"the repository {ref.repo} has no config.json",
            where=ref.text,
            hint="name a repository that holds a model in the Hugging Face format",
        )
    if any(is_wanted(name) and name.endswith(".safetensors") for name in names):
        return
    others = [name for name in names if name.endswith((".gguf", ".bin", ".pth", ".safetensors"))]
    raise SourceError(
        f"the repository {ref.repo} has no model*.safetensors",
        where=ref.text,
        why=f"its weights are {', '.join(others[:4])}" if others else "it holds no weights",
        hint="download a GGUF file and name its path" if _has_gguf(others) else None,
    )


def _has_gguf(names: list[str]) -> bool:
    return any(name.endswith(".gguf") for name in names)


def _card_license(card: Any) -> str | None:
    if card is None:
        return None
    license_id = card.get("license")
    if license_id == "other":
        license_id = card.get("license_name") or license_id
    return None if license_id is None else str(license_id)


def _literal(name: str) -> str:
    """A pattern that matches this name only."""
    return re.sub(r"([*?[])", r"[\1]", name)


def _bar_class(task: Task) -> type:
    """A silent progress bar that reports downloaded bytes to ``task``."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class SilentBar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._reports = kwargs.get("desc", "").startswith("Reconstructing")
            kwargs["disable"] = True
            kwargs.pop("name", None)
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> bool | None:
            if self._reports and n:
                task.advance(int(n))
            return None

    return SilentBar


@contextlib.contextmanager
def _hub_errors(
    repo: str, revision: str | None, hub_cache: Path | None, need: int | None = None
) -> Iterator[None]:
    try:
        yield
    except MlcbuildError:
        raise
    except Exception as error:
        raise _translate(error, repo, revision, hub_cache, need) from error


def _translate(
    error: Exception, repo: str, revision: str | None, hub_cache: Path | None, need: int | None
) -> MlcbuildError:
    from huggingface_hub import errors

    where = f"hf:{repo}" + (f"@{revision}" if revision else "")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return _gated(repo, where, status)
    if isinstance(error, errors.RepositoryNotFoundError):
        return SourceError(
            f"the repository {repo} does not exist or is private",
            where=where,
            hint="check its name; for a private one give a token that may read it (HF_TOKEN)",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return SourceError(
            f"the repository {repo} has no revision {revision!r}",
            where=where,
            hint="use a branch, a tag or a commit that its history shows",
        )
    if isinstance(error, errors.EntryNotFoundError) and status == 404:
        return SourceError(
            f"a file of {repo} is missing on the hub",
            where=where,
            why=_first_line(error),
            hint="remove the source's entry from the lock file to pin it again",
        )
    if status == 401:
        return SourceError(
            "the hub refused the token",
            where=where,
            why="it is wrong, or was revoked",
            hint=f"make a new one at {_TOKEN_PAGE} and set HF_TOKEN, or unset it",
        )
    if status == 403:
        return SourceError(
            f"the token may not read {repo}",
            where=where,
            why=_first_line(error),
            hint=f"give it the scope to read this repository at {_TOKEN_PAGE}",
        )
    if status is not None:
        return NetworkError(
            f"the hub answered with status {status}",
            where=where,
            why=_first_line(error),
            hint="wait a little, then run again; what was fetched is kept",
        )
    if is_disk_full(error):
        folder = hub_cache or Path.cwd()
        wanted = f"it needs {format_bytes(need)}" if need is not None else "more is needed"
        return ResourceError(
            f"the disk is full while fetching {repo}",
            where=str(hub_cache) if hub_cache else where,
            why=f"{wanted}, {format_bytes(free_bytes(folder))} are free" if hub_cache else wanted,
            hint="make room, or set HF_HOME to a folder on a larger disk",
        )
    if isinstance(error, (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError)):
        return _offline(repo, revision, _first_line(error))
    if type(error).__module__.partition(".")[0].startswith("httpx") or isinstance(
        error, (ConnectionError, TimeoutError)
    ):
        return _offline(repo, revision, _first_line(error))
    if isinstance(error, OSError) and "size" in str(error).lower():
        return SourceError(
            f"a file of {repo} arrived incomplete",
            where=where,
            why=_first_line(error),
            hint="run again; what was fetched is kept",
        )
    return SourceError(f"{repo} cannot be fetched", where=where, why=_first_line(error))


def _gated(repo: str, where: str, status: int | None) -> SourceError:
    if status == 401:
        return SourceError(
            f"the repository {repo} is gated and no valid token was given",
            where=where,
            hint=f"accept its licence at https://huggingface.co/{repo}, make a token at"
            f" {_TOKEN_PAGE} and set HF_TOKEN",
        )
    return SourceError(
        f"the licence of {repo} has not been accepted with this account",
        where=where,
        why="the repository is gated and the token's account is not on its list",
        hint=f"accept the licence at https://huggingface.co/{repo}, then run again",
    )


def _offline(repo: str, revision: str | None, why: str) -> NetworkError:
    return NetworkError(
        f"the hub cannot be reached and {repo} is not complete in its cache",
        where=f"hf:{repo}" + (f"@{revision}" if revision else ""),
        why=why,
        hint="connect to the network and run again, or name a local folder as the source",
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
