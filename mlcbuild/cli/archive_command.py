"""mlcbuild archive: a bundle as one file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mlcbuild.cli._bundle_options import bundle_argument, json_option


@click.command("archive")
@bundle_argument
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="The file to write. Default: NAME-SCHEME-TARGET.tar.zst in this folder.",
)
@json_option
def command(bundle: Path, out: Path | None, as_json: bool) -> None:
    """Pack BUNDLE into one .tar.zst file and print its path.

    Every file is checked first. Equal bundles give equal bytes.
    """
    from mlcbuild.bundle.archive import write_archive
    from mlcbuild.bundle.reader import open_any_manifest, verify_bundle
    from mlcbuild.core.stat_cache import hash_file

    manifest = open_any_manifest(bundle)
    verify_bundle(bundle, full=True).check()
    name = f"{manifest.name}-{manifest.scheme['name']}-{manifest.target}.tar.zst"
    path = write_archive(bundle, out if out is not None else Path(name))
    if not as_json:
        click.echo(str(path))
        return
    digest = hash_file(path)
    click.echo(json.dumps({"path": str(path), "size": path.stat().st_size, "sha256": digest}))
