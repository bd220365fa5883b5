"""What the global options and the environment say; the only place that reads the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from mlcbuild.core.progress import Progress, ProgressSink
from mlcbuild.pipeline.env import HubOptions
from mlcbuild.store.store import Store


def default_store(environment: Mapping[str, str]) -> Path:
    """``$MLCBUILD_STORE``, else ``mlcbuild`` in the user's cache folder."""
    if environment.get("MLCBUILD_STORE"):
        return Path(environment["MLCBUILD_STORE"])
    cache = environment.get("XDG_CACHE_HOME")
    base = Path(cache) if cache else Path.home() / ".cache"
    return base / "mlcbuild"


def default_database(environment: Mapping[str, str]) -> Path:
    """``$MLCBUILD_DB``, else ``mlcbuild/tuning`` in the user's data folder."""
    if environment.get("MLCBUILD_DB"):
        return Path(environment["MLCBUILD_DB"])
    data = environment.get("XDG_DATA_HOME")
    base = Path(data) if data else Path.home() / ".local" / "share"
    return base / "mlcbuild" / "tuning"


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


@dataclass(frozen=True)
class Settings:
    """Global options; ``hub`` is from the hub client's own variables."""

    store_path: Path
    db_path: Path
    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    color: bool = True
    hub: HubOptions = field(default_factory=HubOptions)

    @classmethod
    def from_environment(
        cls,
        store: Path | None,
        db: Path | None = None,
        *,
        as_json: bool,
        quiet: bool,
        verbose: bool,
        no_color: bool,
    ) -> Settings:
        """Options as given, the rest from the environment."""
        environment = os.environ
        hub_cache = environment.get("HF_HUB_CACHE")
        return cls(
            store_path=store if store is not None else default_store(environment),
            db_path=db if db is not None else default_database(environment),
            as_json=as_json,
            quiet=quiet,
            verbose=verbose,
            color=not no_color and not environment.get("NO_COLOR"),
            hub=HubOptions(
                endpoint=environment.get("HF_ENDPOINT") or None,
                token=environment.get("HF_TOKEN") or None,
                cache=Path(hub_cache) if hub_cache else None,
            ),
        )

    def open_store(self) -> Store:
        """The store; made if it is not there. It is closed when the command ends."""
        store = Store(self.store_path)
        click.get_current_context().call_on_close(store.close)
        return store

    def progress(self) -> Progress:
        """Progress as asked for: JSON events on stdout, a live display, lines, or nothing."""
        progress = Progress(self.make_sink())
        click.get_current_context().call_on_close(progress.close)
        return progress

    def make_sink(self) -> ProgressSink:
        """Where events go."""
        from mlcbuild.cli.output import JsonSink, PlainSink

        if self.as_json:
            return JsonSink(sys.stdout)
        if self.quiet:
            return PlainSink(sys.stderr, notes_only=True)
        if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            from mlcbuild.cli.live_display import LiveSink

            return LiveSink(sys.stderr, color=self.color, verbose=self.verbose)
        return PlainSink(sys.stderr, verbose=self.verbose)


def get_settings() -> Settings:
    """The settings of the running command (defaults when a command is called on its own)."""
    settings = click.get_current_context().find_object(Settings)
    if settings is not None:
        return settings
    return Settings.from_environment(
        None, as_json=False, quiet=False, verbose=False, no_color=False
    )
