"""What a build is given besides the recipe: the store, the lock file, switches, progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mlcbuild.core.progress import Progress
from mlcbuild.recipe.lock import RecipeLock
from mlcbuild.store.store import Store


@dataclass(frozen=True)
class HubOptions:
    """How the hub is reached: None is huggingface_hub's own default (HF_ENDPOINT, HF_HOME)."""

    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)
    cache: Path | None = None


@dataclass(frozen=True)
class BuildEnv:
    """Passed down from the command line; nothing but ``tuning`` may change the bytes of a bundle.

    ``tuning`` is the folder of records that builds use and tuning adds to: its best records are
    inputs of a build; None: only those that come with mlcbuild. ``lock.get(source)`` is the
    recorded resolution of a source, ``lock.put(source, record)`` writes one. ``dump_ir``: folder
    for the IR per phase, or None. ``threads``: worker threads that one stage may use; ``jobs``:
    actions that run at once.
    """

    store: Store
    lock: RecipeLock
    offline: bool = False
    dump_ir: Path | None = None
    progress: Progress = field(default_factory=Progress)
    jobs: int = 1
    threads: int = 1
    hub: HubOptions = field(default_factory=HubOptions)
    tuning: Path | None = None
