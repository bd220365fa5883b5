"""What a build would do and why, without doing it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mlcbuild.core import canonical_json
from mlcbuild.pipeline.action import Action
from mlcbuild.pipeline.graph import dependencies, topological
from mlcbuild.pipeline.keys import Change, KeyMaker, diff_fields
from mlcbuild.store.records import ActionRecord, LastAction
from mlcbuild.store.store import Store


@dataclass(frozen=True)
class Finding:
    """One action: whether its result is at hand, and if not, what differs from last time.

    ``changes`` are fields of its own key; ``upstream`` the labels of inputs that will run first
    (if these give the same bytes as before, this action is skipped after all). ``history`` is what
    changed when the subject's stage last became what it is now.
    """

    stage: str
    subject: str
    describe: str
    cached: bool
    never_built: bool = False
    lost: bool = False
    forced: bool = False
    changes: tuple[Change, ...] = ()
    upstream: tuple[str, ...] = ()
    history: tuple[Change, ...] = ()
    seconds: float | None = None  # how long it took last time, if known

    @property
    def label(self) -> str:
        """``stage subject``."""
        return f"{self.stage} {self.subject}"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it will run; root causes before consequences; empty when cached.

        What was never built needs no further reason; of several inputs that will run, one is named.
        """
        if self.cached:
            return ()
        found = ["forced"] if self.forced else []
        if self.lost:
            found.append("its stored result is damaged or gone")
        if self.never_built:
            return (*found, "never built")
        found += [str(change) for change in self.changes]
        if self.upstream:
            more = f" (and {len(self.upstream) - 1} more)" if len(self.upstream) > 1 else ""
            found.append(f"upstream {self.upstream[0]} will run{more}")
        return tuple(found)

    @property
    def is_root_cause(self) -> bool:
        """Whether it runs for a reason of its own."""
        return not self.cached and (bool(self.changes) or not self.upstream)

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "stage": self.stage,
            "subject": self.subject,
            "describe": self.describe,
            "state": "cached" if self.cached else "run",
            "reasons": list(self.reasons),
            "changes": [change.to_json() for change in self.changes],
            "upstream": list(self.upstream),
            "last_change": [change.to_json() for change in self.history],
            "last_seconds": self.seconds,
        }


def survey(
    store: Store,
    roots: Iterable[Action],
    *,
    force: Iterable[str] = (),
    keys: KeyMaker | None = None,
) -> list[Finding]:
    """A finding for every action, inputs before users; actions that builds share appear once.

    Raises ``SourceError`` when an input from outside the store is not there.
    """
    wanted = list(roots)
    order = topological(wanted)
    maker = keys if keys is not None else KeyMaker(store.stats)
    lost: set[str] = set()
    while True:
        walk = _Walk(store, maker, frozenset(force), lost)
        for action in order:
            walk.visit(action)
        new = walk.lost_results(wanted) - lost
        if not new:
            break
        lost |= new
    unique: dict[tuple[str, str], Finding] = {}
    for action in order:
        finding = walk.findings[id(action)]
        unique.setdefault((finding.stage, finding.subject), finding)
    return list(unique.values())


class _Walk:
    """One pass over the graph with a given set of results that are known to be lost."""

    def __init__(self, store: Store, keys: KeyMaker, force: frozenset[str], lost: set[str]) -> None:
        self._store = store
        self._keys = keys
        self._force = force
        self._lost = lost
        self._records: dict[int, ActionRecord] = {}
        self._needed: dict[int, ActionRecord] = {}  # cached results that a run will read
        self.findings: dict[int, Finding] = {}

    def visit(self, action: Action) -> None:
        """Find out about one action, whose inputs were visited before."""
        last = self._store.records.read_last(action.subject, action.stage)
        pending = [item for item in dependencies(action) if not self.findings[id(item)].cached]
        digests = self._input_digests(action, last)
        fields = self._keys.fields(action, digests)
        key = canonical_json.digest_of(fields)
        record = None if pending else self._store.records.read_action(key)
        forced = action.stage in self._force
        if record is not None and not forced and key not in self._lost:
            self._records[id(action)] = record
            self.findings[id(action)] = Finding(
                action.stage,
                action.subject,
                action.describe,
                cached=True,
                changes=() if last is None else tuple(diff_fields(last.fields, record.fields)),
                history=_history(last, key),
                seconds=record.seconds,
            )
            return
        changes = () if last is None else tuple(diff_fields(last.fields, fields))
        known = self._store.records.read_action(last.key) if last is not None else None
        self.findings[id(action)] = Finding(
            action.stage,
            action.subject,
            action.describe,
            cached=False,
            never_built=last is None,
            lost=last is not None and not changes and not pending and not forced,
            forced=forced,
            changes=changes,
            upstream=tuple(item.label for item in pending),
            history=_history(last, key),
            seconds=known.seconds if known is not None else None,
        )
        for item in dependencies(action):
            if id(item) in self._records:
                self._needed[id(item)] = self._records[id(item)]

    def _input_digests(self, action: Action, last: LastAction | None) -> dict[str, str]:
        """Known digests; for an input that will run, last time's, so that it shows no change."""
        digests: dict[str, str] = {}
        for name, item in action.inputs.items():
            if not isinstance(item, Action):
                digests[name] = self._keys.file_digest(item)
            elif id(item) in self._records:
                digests[name] = self._records[id(item)].tree.digest
            elif last is not None and name in last.fields["inputs"]:
                digests[name] = last.fields["inputs"][name]
            else:
                digests[name] = "(not built yet)"
        return digests

    def lost_results(self, roots: Iterable[Action]) -> set[str]:
        """Keys of cached results that would be read but whose bytes are gone."""
        wanted = dict(self._needed)
        for root in roots:
            if id(root) in self._records:
                wanted[id(root)] = self._records[id(root)]
        return {record.key for record in wanted.values() if self._store.missing_files(record.tree)}


def _history(last: LastAction | None, key: str) -> tuple[Change, ...]:
    if last is None or last.key != key or last.previous is None:
        return ()
    return tuple(diff_fields(last.previous, last.fields))
