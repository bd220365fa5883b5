"""mlcbuild unpack: a bundle out of its archive, checked."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("unpack")
@click.argument("archive", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
def command(archive: Path, folder: Path) -> None:
    """Unpack ARCHIVE so that the bundle lies at FOLDER, a new folder; every file is checked."""
    from mlcbuild.bundle.archive import unpack_archive

    click.echo(str(unpack_archive(archive, folder)))
