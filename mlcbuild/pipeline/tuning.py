"""Which tuning records a build uses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlcbuild.core.canonical_json import Json
from mlcbuild.core.versions import installed_version
from mlcbuild.errors import SourceError, UsageError
from mlcbuild.kernels.registry import get_spaces
from mlcbuild.pipeline.env import BuildEnv
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.store.store import Store
from mlcbuild.tuning.database import SHIPPED, BadLine, Contents, Database, best_records, read_file
from mlcbuild.tuning.record import CONFIRMED, RecordKey, TuningRecord, capabilities_digest

COMPILER = "apache-tvm"


def database_of(spec: BuildSpec, env: BuildEnv) -> Database:
    """The records that a build sees: the recipe's folder or the user's, and the shipped ones.

    Without either of them a folder that does not exist stands for an empty database.
    """
    if spec.tuning.database is not None:
        return Database(spec.resolve_path(spec.tuning.database), (SHIPPED,))
    return Database(env.tuning if env.tuning is not None else SHIPPED, (SHIPPED,))


def writable_database(spec: BuildSpec, env: BuildEnv) -> Database:
    """As ``database_of``, for adding to it. UsageError if neither recipe nor user has a folder."""
    if spec.tuning.database is None and env.tuning is None:
        raise UsageError(
            "there is no tuning database to write to",
            hint="give a folder with --db, or tuning.database in the recipe",
        )
    return database_of(spec, env)


def compiler_version() -> str:
    """TVM's version, as records name it."""
    return installed_version(COMPILER) or "none"


def record_key(capabilities: Capabilities, workload_digest: str) -> RecordKey:
    """The key of records that apply here to a workload."""
    return RecordKey(
        workload_digest,
        capabilities_digest(capabilities),
        compiler_version(),
        get_spaces(capabilities).TEMPLATE_VERSION,
    )


class BuildRecords:
    """The best records that a build's database holds, read once."""

    def __init__(self, spec: BuildSpec, env: BuildEnv) -> None:
        contents = database_of(spec, env).read(_remembering(env.store))
        for line in contents.bad:
            env.progress.note(f"{line} (the tuning record is left out)")
        self._best = best_records(contents.records)
        self._keep = bool(spec.bundle_options.get("tuning_records"))

    @property
    def kept(self) -> bool:
        """Whether the recipe wants the records that are used in the bundle."""
        return self._keep

    def usable(self, capabilities: Capabilities) -> dict[str, dict[str, Json]]:
        """The best record of every workload for ``capabilities``, by the workload's digest.

        ``stored``, the record's line, is there only if records are kept.
        """
        found: dict[str, dict[str, Json]] = {}
        for key, record in self._best.items():
            if key != record_key(capabilities, key.workload):
                continue
            entry: dict[str, Json] = {
                "id": record.id,
                "decisions": dict(record.decisions),
                "speedup": record.speedup,
            }
            if self._keep:
                entry["stored"] = record.line().decode("utf-8")
            found[key.workload] = entry
        return found


def _remembering(store: Store) -> Callable[[Path], Contents]:
    """Reads a segment's confirmed records; those of an unchanged file are remembered."""

    def parse(path: Path) -> str:
        contents = read_file(path)
        records = [record.to_json() for record in contents.records if record.kind == CONFIRMED]
        bad = [[line.number, line.why] for line in contents.bad]
        return json.dumps({"records": records, "bad": bad})

    def read(path: Path) -> Contents:
        try:
            text = store.stats.compute("tuning", path, parse)
        except (SourceError, FileNotFoundError):
            text = parse(path)  # a tuner is adding to it: as it is now
        known: Mapping[str, Any] = json.loads(text)
        return Contents(
            tuple(TuningRecord.from_json(record) for record in known["records"]),
            tuple(BadLine(path, number, why) for number, why in known["bad"]),
        )

    return read
