"""mlcbuild db: look at tuning records, move them between machines, tidy them up."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mlcbuild.cli.context import Settings, get_settings
from mlcbuild.errors import SourceError, UsageError

if TYPE_CHECKING:
    from mlcbuild.tuning.database import BadLine, Contents, Database
    from mlcbuild.tuning.record import TuningRecord

Command = TypeVar("Command", bound=Callable[..., Any])

_ID = 16


def _filters(function: Command) -> Command:
    """Adds --device, --isa and --kernel, which narrow what is shown or moved."""
    for option in reversed(
        (
            click.option("--device", metavar="TEXT", help="Only of devices whose name holds this."),
            click.option("--isa", metavar="NAME", help="Only for this instruction set."),
            click.option("--kernel", metavar="TEXT", help="Only workloads whose name holds this."),
        )
    ):
        function = option(function)
    return function


_json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")


@click.group("db")
def command() -> None:
    """Look at, move and tidy the tuning database (--db FOLDER chooses another one)."""


@command.command("list")
@_filters
@click.option("--all", "trials", is_flag=True, help="Also single trials of searches.")
@_json_option
def list_records(
    device: str | None, isa: str | None, kernel: str | None, trials: bool, as_json: bool
) -> None:
    """Show the comparisons with the default that the database holds, those of mlcbuild included."""
    from mlcbuild.tuning.record import CONFIRMED

    contents = _database(get_settings(), shipped=True).read()
    chosen = [
        record
        for record in _matching(contents.records, device, isa, kernel)
        if trials or record.kind == CONFIRMED
    ]
    _show(chosen, contents.bad, as_json)


@command.command("best")
@_filters
@_json_option
def best(device: str | None, isa: str | None, kernel: str | None, as_json: bool) -> None:
    """Show the record that a build uses for each workload."""
    from mlcbuild.tuning.database import best_records

    contents = _database(get_settings(), shipped=True).read()
    chosen = best_records(_matching(contents.records, device, isa, kernel)).values()
    _show(sorted(chosen, key=lambda r: (r.isa, str(r.workload))), contents.bad, as_json)


@command.command("show")
@click.argument("record_id", metavar="ID")
@_json_option
def show(record_id: str, as_json: bool) -> None:
    """Show everything about the record whose id begins with ID."""
    contents = _database(get_settings(), shipped=True).read()
    found = [record for record in contents.records if record.id.startswith(record_id)]
    if len(found) != 1 or not record_id:
        raise UsageError(
            f"{len(found) or 'no'} record{'s' if len(found) != 1 else ''} with the id {record_id}",
            hint="mlcbuild db list --all shows the ids",
        )
    if as_json or get_settings().as_json:
        click.echo(json.dumps([found[0].to_json()], ensure_ascii=False))
        return
    for line in _details(found[0]):
        click.echo(line)


@command.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_filters
@click.option("--best", "only_best", is_flag=True, help="Only the records that builds use.")
@_json_option
def export(
    file: Path,
    device: str | None,
    isa: str | None,
    kernel: str | None,
    only_best: bool,
    as_json: bool,
) -> None:
    """Write records to FILE, one JSON object per line (compressed if FILE ends in .zst)."""
    from mlcbuild.core.atomic import write_atomic
    from mlcbuild.tuning.database import best_records, encode_records

    contents = _database(get_settings()).read()
    chosen: Sequence[TuningRecord] = _matching(contents.records, device, isa, kernel)
    if only_best:
        chosen = tuple(best_records(chosen).values())
    write_atomic(file, encode_records(chosen, compress=file.suffix == ".zst"))
    _warn(contents.bad)
    if as_json or get_settings().as_json:
        click.echo(json.dumps([record.to_json() for record in chosen], ensure_ascii=False))
    else:
        click.echo(f"{file}: {_count(len(chosen), 'record')}")


@command.command("import")
@click.argument("source", type=click.Path(path_type=Path))
@_json_option
def import_records(source: Path, as_json: bool) -> None:
    """Add the records of SOURCE: an exported file, or a bundle that holds records."""
    _merge(_read_source(source), as_json)


@command.command("merge")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@_json_option
def merge(folder: Path, as_json: bool) -> None:
    """Add the records of another database. Doing it twice changes nothing."""
    from mlcbuild.tuning.database import Database

    if not folder.is_dir():
        raise SourceError("there is no such folder", where=str(folder))
    other = Database(folder)
    if not other.segments():
        raise SourceError(
            "the folder is no tuning database",
            where=str(folder),
            why="it holds no .jsonl files",
            hint="for a single file, or a bundle, use mlcbuild db import",
        )
    _merge(other.read(), as_json)


@command.command("prune")
@click.option("--outdated", is_flag=True, help="Also drop records of other versions of TVM.")
@_json_option
def prune(outdated: bool, as_json: bool) -> None:
    """Drop older comparisons and all but the fastest trials of each workload."""
    from mlcbuild.pipeline.tuning import compiler_version

    version = compiler_version()
    keep = (lambda record: record.key.tvm == version) if outdated else None
    report = _database(get_settings()).prune(keep)
    if as_json or get_settings().as_json:
        click.echo(
            json.dumps({"kept": report.kept, "dropped": report.dropped, "busy": report.busy})
        )
        return
    busy = f"; {_count(report.busy, 'file')} in use left as it is" if report.busy else ""
    click.echo(f"{_count(report.dropped, 'record')} dropped, {report.kept} kept{busy}")


def _database(settings: Settings, *, shipped: bool = False) -> Database:
    from mlcbuild.tuning.database import SHIPPED, Database

    return Database(settings.db_path, (SHIPPED,) if shipped else ())


def _matching(
    records: Sequence[TuningRecord], device: str | None, isa: str | None, kernel: str | None
) -> tuple[TuningRecord, ...]:
    return tuple(
        record
        for record in records
        if (device is None or device.lower() in dict(record.device).get("name", "").lower())
        and (isa is None or record.isa == isa)
        and (kernel is None or kernel in str(record.workload))
    )


def _show(records: Sequence[TuningRecord], bad: Sequence[BadLine], as_json: bool) -> None:
    _warn(bad)
    if as_json or get_settings().as_json:
        click.echo(json.dumps([record.to_json() for record in records], ensure_ascii=False))
        return
    if not records:
        click.echo("no records: mlcbuild tune RECIPE makes some", err=True)
    for record in records:
        click.echo(_row(record))


def _row(record: TuningRecord) -> str:
    device = dict(record.device).get("name", "?")
    if record.speedup is None:
        result = f"{min(record.seconds, default=0.0) * 1e6:8.1f} us"
    elif record.speedup > 1.0:
        result = f"{record.speedup:10.2f}x"
    else:
        result = "  as default"
    return (
        f"{record.id[:_ID]}  {record.isa:<11}{record.workload!s:<42}{result}  "
        f"{record.date[:10]}  {device}"
    )


def _details(record: TuningRecord) -> list[str]:
    decisions = ", ".join(f"{name} {value}" for name, value in record.decisions)
    runs = ", ".join(f"{value * 1e6:.1f}" for value in record.seconds)
    rows = [
        ("id", record.id),
        ("kind", record.kind),
        ("workload", f"{record.workload} ({record.key.workload})"),
        ("arguments", ", ".join(f"{name} {value}" for name, value in record.workload.args)),
        ("decisions", decisions),
        ("speedup", "not compared" if record.speedup is None else f"{record.speedup:.3f}"),
        ("microseconds", runs),
        ("applies to", f"{record.isa} ({record.key.capabilities}), TVM {record.key.tvm}"),
        ("template", str(record.key.template)),
        ("device", ", ".join(f"{name} {value}" for name, value in record.device)),
        ("date", record.date),
        ("tools", ", ".join(f"{name} {value}" for name, value in record.tools)),
        ("trace", record.trace or "none: these are the template's default decisions"),
    ]
    return [f"{name:<14}{value}" for name, value in rows]


def _read_source(source: Path) -> Contents:
    """The records of an exported file or of a bundle; SourceError if it holds none at all."""
    from mlcbuild.tuning.database import Database, read_file

    if source.is_dir():
        folder = source / "tuning"
        if not folder.is_dir():
            raise SourceError(
                "the folder holds no tuning records",
                where=str(source),
                why="a bundle has them if its recipe says tuning_records = true in [bundle]",
                hint="for the folder of another database use mlcbuild db merge",
            )
        return Database(folder).read()
    contents: Contents = read_file(source)
    if not contents.records and contents.bad:
        raise SourceError(
            "the file holds no tuning records", where=str(source), why=str(contents.bad[0].why)
        )
    return contents


def _merge(contents: Contents, as_json: bool) -> None:
    merged = _database(get_settings()).merge(contents)
    _warn(merged.bad)
    if as_json or get_settings().as_json:
        bad = [str(line) for line in merged.bad]
        click.echo(json.dumps({"added": merged.added, "known": merged.known, "bad": bad}))
        return
    click.echo(f"{_count(merged.added, 'record')} added, {merged.known} were there")


def _warn(bad: Sequence[BadLine]) -> None:
    for line in bad:
        click.echo(f"warning: {line}; the line is left out", err=True)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
