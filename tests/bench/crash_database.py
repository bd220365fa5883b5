"""Kills writers of a tuning database with SIGKILL while they write; nothing written may be lost.

    python tests/bench/crash_database.py --kills 200

Two writers append to one database all the time; each is killed after a random moment and another
takes its place. Every record whose writing had returned must be read, at most one line of each
killed writer may be damaged, and merging into another database twice must give it all, once.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mlcbuild.tuning.database import Database

ROOT = Path(__file__).parents[2]


def start(folder: Path, first: int) -> subprocess.Popen[str]:
    """A writer whose records are numbered from ``first``."""
    command = [sys.executable, "-m", "tests.unit.tuning_records", str(folder), str(first)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def kill(writer: subprocess.Popen[str], after: float) -> set[str]:
    """End a writer some time after its first record; the ids that it said were written."""
    assert writer.stdout is not None
    said = [writer.stdout.readline()]
    time.sleep(after)
    writer.kill()
    said += writer.stdout.read().split("\n")
    writer.wait()
    return {line.strip() for line in said if len(line.strip()) == 16}


def main() -> int:
    """Kill, read, compare; 1 if something is lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "records"
        written: set[str] = set()
        writers = [start(folder, 0), start(folder, 1_000_000)]
        for number in range(2, options.kills + 2):
            written |= kill(writers.pop(0), rng.random() * 0.1)
            if number < options.kills:
                writers.append(start(folder, number * 1_000_000))
            if not writers:
                break
        contents = Database(folder).read()
        found = {record.id for record in contents.records}
        other = Database(Path(base) / "other")
        first, second = other.merge(contents), other.merge(contents)
        merged = {record.id for record in other.read().records}
        print(
            f"{options.kills} writers killed, two at a time: {len(written)} records written, "
            f"{len(written - found)} of them lost, {len(contents.bad)} lines cut off and left out"
        )
        print(f"merged once: {first.added} added; again: {second.added} added")
        good = written <= found and len(contents.bad) <= options.kills
        return 0 if good and merged == found and second.added == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
