"""Bundles for browsers: the one that was asked for and those beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlcbuild.bundle.client_manifest import AnyManifest
from mlcbuild.bundle.manifest import MANIFEST_NAME
from mlcbuild.bundle.reader import open_any_manifest
from mlcbuild.errors import MlcbuildError, UsageError

WEB_TARGETS = "web-"  # what the names of targets for browsers begin with


@dataclass(frozen=True, slots=True)
class WebBundle:
    """A bundle for browsers in ``folder``, whose files all have the size that is listed."""

    folder: Path
    manifest: AnyManifest


def open_web_bundles(path: Path) -> tuple[list[WebBundle], list[str]]:
    """The bundle in folder ``path``, then what lies beside it: same model, same scheme.

    The page of a bundle offers the engine of the other target as well, and looks for it there.
    Also gives why a neighbour is left out, a line for each that should have been one. Raises
    ``UsageError`` for a bundle that no browser runs, ``VerificationError`` for a damaged one.
    """
    manifest = open_any_manifest(path)
    if not manifest.target.startswith(WEB_TARGETS):
        raise UsageError(
            "the bundle is not for browsers",
            where=str(path),
            why=f"its target is {manifest.target}",
            hint="mlcbuild run, chat and serve use it; for the web, build the target "
            "web-wasm32-webgpu or web-wasm32-cpu",
        )
    chosen = WebBundle(path.resolve(), manifest)
    bundles, notes = {manifest.target: chosen}, []
    for folder in sorted(chosen.folder.parent.iterdir()):
        if folder == chosen.folder or not folder.name.startswith(WEB_TARGETS):
            continue
        if folder.is_symlink() or not (folder / MANIFEST_NAME).is_file():
            continue
        try:
            other = open_any_manifest(folder)
        except MlcbuildError as error:
            why = f" ({error.why})" if error.why else ""
            notes.append(f"{folder.name} is left out: {error.message}{why}")
            continue
        if _model_of(other) == _model_of(manifest) and other.target.startswith(WEB_TARGETS):
            bundles.setdefault(other.target, WebBundle(folder, other))
    return list(bundles.values()), notes


def _model_of(manifest: AnyManifest) -> tuple[str, object]:
    return manifest.name, manifest.scheme.get("name")
