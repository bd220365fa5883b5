"""fetch: brings the files of a pinned source into the store."""

from __future__ import annotations

import glob
from pathlib import Path

from mlcbuild.core.atomic import copy_file
from mlcbuild.core.canonical_json import Json
from mlcbuild.pipeline.action import Action, ActionContext, ActionInput, FileInput
from mlcbuild.pipeline.env import BuildEnv
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.sources.reference import parse_source
from mlcbuild.sources.resolve import fetch, resolve
from mlcbuild.sources.resolved import ResolvedSource


def resolve_source(spec: BuildSpec, env: BuildEnv) -> ResolvedSource:
    """The pinned source of ``spec``: from the recipe's lock, or resolved now and written there."""
    text = spec.source
    if spec.revision is not None and text.startswith("hf:") and "@" not in text:
        text = f"{text}@{spec.revision}"
    ref = parse_source(text, spec.base_dir)
    resolved = resolve(
        ref,
        env.lock.get(text),
        env.offline,
        cache_dir=env.store.tool_cache("sources"),
        hash_file=env.store.stats.file_digest,
        endpoint=env.hub.endpoint,
        token=env.hub.token,
        hub_cache=env.hub.cache,
        progress=env.progress,
    )
    if resolved.location is None:
        env.lock.put(text, resolved.to_json())  # type: ignore[arg-type]
    return resolved


def source_input(spec: BuildSpec, env: BuildEnv, resolved: ResolvedSource) -> ActionInput:
    """What later stages read the checkpoint from."""
    if resolved.location is not None:
        # Only the files that a build reads: others beside them change nothing.
        names = tuple(glob.escape(file.path) for file in resolved.files)
        return FileInput(resolved.location, names if resolved.location.is_dir() else ())
    identity: dict[str, Json] = dict(resolved.identity())  # type: ignore[arg-type]

    def run(context: ActionContext) -> None:
        found = fetch(
            resolved,
            env.store.tool_cache("sources"),
            context.progress,
            offline=env.offline,
            hash_file=env.store.stats.file_digest,
            endpoint=env.hub.endpoint,
            token=env.hub.token,
            hub_cache=env.hub.cache,
        )
        if found.is_file():
            _copy(found, context.out / found.name)
            return
        for name in sorted({file.path for file in resolved.files}):
            _copy(found / name, context.out / name)

    return Action(
        stage="fetch",
        version=1,
        subject=spec.recipe,
        run=run,
        params=identity,
        long=True,
        describe=f"fetch {resolved.source}",
    )


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    copy_file(source.resolve(), target, durable=False)
