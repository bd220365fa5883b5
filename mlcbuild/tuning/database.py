"""The tuning database: a folder of append-only segments, one for each writer.

A segment is a text file of records, a line each. Writers never share one, so nothing has to be
locked to write; a kill in the middle of a line costs that line. Records have ids made of their
content, so reading segments twice, or merging what was merged, changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlcbuild.core.atomic import disk_guard, fsync_directory, write_atomic
from mlcbuild.errors import SourceError
from mlcbuild.tuning.record import CONFIRMED, RecordError, RecordKey, TuningRecord

SEGMENT_SUFFIX = ".jsonl"
SHIPPED = Path(__file__).parent / "data"

# Trials of a workload that prune keeps besides the confirmed records.
KEPT_TRIALS = 16


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no record: where, and why."""

    path: Path
    number: int
    why: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}: {self.why}"


@dataclass(frozen=True)
class Contents:
    """What was read: records without doubles, in the order of their dates, and bad lines."""

    records: tuple[TuningRecord, ...] = ()
    bad: tuple[BadLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome of a merge: records that were new, that were there, and lines left out."""

    added: int
    known: int
    bad: tuple[BadLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Pruned:
    """The outcome of a prune; ``busy`` segments belong to a running writer and stay as they are."""

    kept: int
    dropped: int
    busy: int


def read_lines(path: Path, lines: Iterable[bytes]) -> Contents:
    """The records among the lines of one file; empty lines are nothing."""
    records: list[TuningRecord] = []
    bad: list[BadLine] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            if not isinstance(data, dict):
                raise RecordError("not a record")
            records.append(TuningRecord.from_json(data))
        except RecordError as error:
            bad.append(BadLine(path, number, str(error)))
        except ValueError:  # of json and of UTF-8
            torn = "cut off in the middle" if not line.endswith(b"\n") else "not JSON"
            bad.append(BadLine(path, number, torn))
    return Contents(tuple(records), tuple(bad))


def read_file(path: Path) -> Contents:
    """The records of a file of lines, or of one that ``export`` compressed (``.zst``).

    SourceError if it cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(
            "the records cannot be read", where=str(path), why=error.strerror or str(error)
        ) from error
    if path.suffix == ".zst":
        import zstandard

        try:
            data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        except zstandard.ZstdError as error:
            raise SourceError(
                "the records cannot be unpacked", where=str(path), why=str(error)
            ) from error
    return read_lines(path, data.splitlines(keepends=True))


def encode_records(records: Iterable[TuningRecord], *, compress: bool = False) -> bytes:
    """Lines of records in the order of their ids: equal sets give equal bytes."""
    data = b"".join(record.line() for record in sorted(records, key=lambda record: record.id))
    if compress:
        import zstandard

        return zstandard.ZstdCompressor(level=19).compress(data)
    return data


class Segment:
    """A segment being written; its file is there with the first record."""

    def __init__(self, folder: Path) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = f"{stamp}-{os.getpid()}-{secrets.token_hex(4)}{SEGMENT_SUFFIX}"
        self.path = folder / name
        self._descriptor: int | None = None

    def append(self, record: TuningRecord) -> None:
        """Write one record so that it survives a kill and, once this returns, a power cut."""
        with disk_guard(self.path, "tuning records"):
            if self._descriptor is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(self.path, flags, 0o644)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # prune leaves it alone
                fsync_directory(self.path.parent)
            line = record.line()
            written = os.write(self._descriptor, line)
            if written != len(line):  # the rest of a line on its own would be a bad line
                os.write(self._descriptor, b"\n" + line)
            os.fsync(self._descriptor)

    def close(self) -> None:
        """No more records."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@dataclass(frozen=True)
class Database:
    """The records of a folder, and besides those of ``others`` that are only read."""

    folder: Path
    others: tuple[Path, ...] = field(default=())

    def segments(self) -> list[Path]:
        """Files of records, the folder's own last."""
        found: list[Path] = []
        for folder in (*self.others, self.folder):
            if folder.is_dir():
                found += sorted(p for p in folder.iterdir() if p.suffix == SEGMENT_SUFFIX)
        return list(dict.fromkeys(found))

    def read(self, reader: Callable[[Path], Contents] = read_file) -> Contents:
        """Every record once. ``reader`` reads a segment (a build remembers what it read)."""
        records: dict[str, TuningRecord] = {}
        bad: list[BadLine] = []
        for path in self.segments():
            try:
                contents = reader(path)
            except SourceError:
                if path.exists():
                    raise
                continue  # pruned since it was listed
            records.update((record.id, record) for record in contents.records)
            bad.extend(contents.bad)
        ordered = sorted(records.values(), key=lambda record: (record.date, record.id))
        return Contents(tuple(ordered), tuple(bad))

    @contextlib.contextmanager
    def writer(self) -> Iterator[Segment]:
        """A new segment for as long as the block runs."""
        segment = Segment(self.folder)
        try:
            yield segment
        finally:
            segment.close()

    def merge(self, contents: Contents) -> Merged:
        """Add the records that the folder does not have, all or none of them."""
        own = {record.id for record in Database(self.folder).read().records}
        new = {record.id: record for record in contents.records if record.id not in own}
        if new:
            write_atomic(Segment(self.folder).path, encode_records(new.values()))
        unique = len({record.id for record in contents.records})
        return Merged(len(new), unique - len(new), contents.bad)

    def prune(self, keep: Callable[[TuningRecord], bool] | None = None) -> Pruned:
        """Keep what ``superseded`` does not name and ``keep`` wants, in one segment.

        The new segment is there before the old ones go: a kill in between leaves doubles, which
        count once.
        """
        held: list[tuple[Path, int]] = []
        busy = 0
        try:
            for path in Database(self.folder).segments():
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(descriptor)
                    busy += 1
                    continue
                held.append((path, descriptor))
            records: dict[str, TuningRecord] = {}
            for path, _ in held:
                records.update((r.id, r) for r in read_file(path).records)
            drop = superseded(tuple(records.values()))
            kept = [r for r in records.values() if r.id not in drop and (keep is None or keep(r))]
            if kept:
                write_atomic(Segment(self.folder).path, encode_records(kept))
            for path, _ in held:
                path.unlink()
            return Pruned(len(kept), len(records) - len(kept), busy)
        finally:
            for _, descriptor in held:
                os.close(descriptor)


def superseded(records: Sequence[TuningRecord]) -> set[str]:
    """Ids that no build and no search needs.

    Of the confirmed records of a key all but the newest of each device, and of its trials all but
    the fastest ones.
    """
    drop: set[str] = set()
    groups: dict[tuple[RecordKey, tuple[tuple[str, str], ...], str], list[TuningRecord]] = {}
    for record in records:
        groups.setdefault((record.key, record.device, record.kind), []).append(record)
    for (_, _, kind), group in groups.items():
        if kind == CONFIRMED:
            ranked = sorted(group, key=_age, reverse=True)
            drop.update(record.id for record in ranked[1:])
        else:
            ranked = sorted(group, key=lambda r: (min(r.seconds, default=1e9), r.id))
            drop.update(record.id for record in ranked[KEPT_TRIALS:])
    return drop


def _age(record: TuningRecord) -> tuple[str, str]:
    return record.date, record.id


def best_records(
    records: Iterable[TuningRecord], device: str | None = None
) -> dict[RecordKey, TuningRecord]:
    """For every key the confirmed record to use.

    Of one device the newest, because a comparison takes in the winner of the one before; among
    devices the one with the greatest speedup. ``device``: only devices whose name holds this
    text. The order of segments decides nothing.
    """
    newest: dict[tuple[RecordKey, tuple[tuple[str, str], ...]], TuningRecord] = {}
    for record in records:
        if record.kind != CONFIRMED or record.speedup is None:
            continue
        if device is not None and device.lower() not in dict(record.device).get("name", "").lower():
            continue
        held = newest.get((record.key, record.device))
        if held is None or _age(record) > _age(held):
            newest[record.key, record.device] = record
    best: dict[RecordKey, TuningRecord] = {}
    for record in newest.values():
        held = best.get(record.key)
        rank = (record.speedup or 0.0, record.id)
        if held is None or rank > (held.speedup or 0.0, held.id):
            best[record.key] = record
    return best
