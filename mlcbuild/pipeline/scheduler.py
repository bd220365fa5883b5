"""Runs what is not in the store, inputs first; everything else is a look-up."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlcbuild.core import canonical_json
from mlcbuild.core.atomic import disk_guard, is_disk_full, remove_tree
from mlcbuild.core.process import ProcessRunner
from mlcbuild.core.progress import Progress
from mlcbuild.errors import InternalError, MlcbuildError, ResourceError, SourceError, StageError
from mlcbuild.pipeline.action import Action, ActionContext, FileInput
from mlcbuild.pipeline.graph import dependencies, topological
from mlcbuild.pipeline.keys import KeyMaker
from mlcbuild.store.records import ActionRecord
from mlcbuild.store.store import LostOutputError, Store


@dataclass(frozen=True)
class BuildResult:
    """The outcome of a run, by root in the order given: a record, or the error that stopped it."""

    records: tuple[ActionRecord | None, ...]
    errors: tuple[MlcbuildError | None, ...]

    @property
    def first_error(self) -> MlcbuildError | None:
        """The error that decides the exit code."""
        return next((error for error in self.errors if error is not None), None)


@dataclass
class _Pass:
    """State of one walk over the graph."""

    order: list[Action]
    records: dict[int, ActionRecord] = field(default_factory=dict)
    failures: dict[int, MlcbuildError] = field(default_factory=dict)
    lost: list[LostOutputError] = field(default_factory=list)


class Scheduler:
    """Brings roots up to date.

    ``force``: names of stages that run even if their result is known (once per key).
    ``keep_going``: one root's failure does not stop the others. ``jobs``: actions at once.
    """

    def __init__(
        self,
        store: Store,
        progress: Progress,
        *,
        jobs: int = 1,
        threads: int = 1,
        force: Iterable[str] = (),
        keep_going: bool = False,
        keys: KeyMaker | None = None,
    ) -> None:
        self._store = store
        self._progress = progress
        self._jobs = max(1, jobs)
        self._threads = max(1, threads)
        self._force = frozenset(force)
        self._forced: set[str] = set()  # keys that already ran again
        self._keep_going = keep_going
        self._keys = keys if keys is not None else KeyMaker(store.stats)
        self._processes = ProcessRunner()
        self._cancelled = threading.Event()
        self._told: set[tuple[str, str]] = set()

    def run(self, roots: Iterable[Action]) -> BuildResult:
        """Build ``roots``. Errors of the user's kind come back in the result.

        An interrupt kills the tools that run and goes on as ``KeyboardInterrupt``; finished
        actions are kept. A result whose bytes were lost is made again.
        """
        wanted = list(roots)
        order = topological(wanted)
        with self._store.in_use(self._waiting_for_gc):
            for _ in range(2 * len(order) + 2):
                state = _Pass(order)
                try:
                    self._walk(state)
                except KeyboardInterrupt:
                    self._cancelled.set()
                    self._processes.cancel()
                    raise
                self._check_roots(state, wanted)
                if not state.lost:
                    return BuildResult(
                        tuple(state.records.get(id(root)) for root in wanted),
                        tuple(_error_of(state, root) for root in wanted),
                    )
                self._forget_lost(state)
        raise InternalError(
            "results in the store keep getting lost",
            where=str(self._store.root),
            why="another program removes or changes files there, or the disk is failing",
        )

    # -- walking -------------------------------------------------------------------------------

    def _walk(self, state: _Pass) -> None:
        if self._jobs == 1:
            for action in state.order:
                if not self._evaluate(state, action):
                    return
            return
        waiting = {
            id(action): {id(item) for item in dependencies(action)} for action in state.order
        }
        by_id = {id(action): action for action in state.order}
        ready: queue.Queue[Action | None] = queue.Queue()
        done: queue.Queue[tuple[Action, bool | BaseException]] = queue.Queue()

        def work() -> None:
            while (action := ready.get()) is not None:
                try:
                    done.put((action, self._evaluate(state, action)))
                except BaseException as error:  # handed to the main thread below
                    done.put((action, error))

        workers = [threading.Thread(target=work, daemon=True) for _ in range(self._jobs)]
        for worker in workers:
            worker.start()
        try:
            running = 0
            for key in [key for key, needs in waiting.items() if not needs]:
                del waiting[key]
                ready.put(by_id[key])
                running += 1
            stopping = False
            while running:
                action, outcome = done.get()
                running -= 1
                if isinstance(outcome, BaseException):
                    raise outcome
                stopping = stopping or not outcome
                for key in list(waiting):
                    waiting[key].discard(id(action))
                    if not waiting[key] and not stopping:
                        del waiting[key]
                        ready.put(by_id[key])
                        running += 1
        finally:
            for _ in workers:
                ready.put(None)

    def _evaluate(self, state: _Pass, action: Action) -> bool:
        """Bring one action up to date; False ends the walk."""
        if self._cancelled.is_set():
            raise KeyboardInterrupt
        if any(id(item) not in state.records for item in dependencies(action)):
            return True  # an input failed; only reached with keep_going
        try:
            state.records[id(action)] = self._bring_up(state, action)
        except LostOutputError as error:
            state.lost.append(error)
            return False
        except MlcbuildError as error:
            state.failures[id(action)] = error
            self._progress.emit(
                "stage_failed", stage=action.stage, subject=action.subject, message=error.message
            )
            return self._keep_going
        return True

    def _bring_up(self, state: _Pass, action: Action) -> ActionRecord:
        digests = {
            name: state.records[id(item)].tree.digest
            if isinstance(item, Action)
            else self._keys.file_digest(item)
            for name, item in action.inputs.items()
        }
        fields = self._keys.fields(action, digests)
        key = canonical_json.digest_of(fields)
        record = self._known(action, key)
        if record is None:
            with self._store.lock_key(key, self._waiting_for(action), self._cancelled):
                record = self._known(action, key) or self._execute(state, action, key, fields)
        else:
            self._tell("stage_cached", action, key)
        self._store.records.record_last(action.subject, action.stage, record)
        return record

    def _known(self, action: Action, key: str) -> ActionRecord | None:
        if action.stage in self._force and key not in self._forced:
            return None
        return self._store.records.read_action(key)

    # -- running one action --------------------------------------------------------------------

    def _execute(
        self, state: _Pass, action: Action, key: str, fields: Mapping[str, Any]
    ) -> ActionRecord:
        inputs = {
            name: self._store.materialize(state.records[id(item)].tree)
            if isinstance(item, Action)
            else item.path
            for name, item in action.inputs.items()
        }
        log = self._store.log_path(action.stage, key)
        log.unlink(missing_ok=True)
        self._tell("stage_run", action, key, describe=action.describe)
        started = time.monotonic()
        with disk_guard(self._store.root, f"the result of {action.label}"):
            work = self._store.work_folder()
        try:
            out, scratch = work / "out", work / "scratch"
            out.mkdir()
            scratch.mkdir()
            descriptor = self._store.session_descriptor
            self._processes.inherit((descriptor,) if descriptor is not None else ())
            context = ActionContext(
                inputs=inputs,
                out=out,
                params=action.params,
                scratch=scratch,
                log=log,
                progress=self._progress,
                threads=self._threads,
                processes=self._processes,
                tool_cache=self._store.tool_cache,
                journal=self._store.journal(key) if action.long else None,
            )
            self._call(action, context)
            self._check_unchanged(action, fields)
            tree = self._store.put_tree(out)
        finally:
            with contextlib.suppress(OSError):
                remove_tree(work)
        old = self._store.records.read_action(key)
        record = ActionRecord(key, fields, tree, time.monotonic() - started)
        self._store.records.write_action(record)
        if action.stage in self._force:
            self._forced.add(key)
        if action.long:
            self._store.drop_journal(key)
        if old is not None and old.tree.digest != tree.digest:
            self._progress.note(
                f"warning: {action.label} gave other bytes than before for the same key; "
                "it is not deterministic"
            )
        self._progress.emit(
            "stage_done",
            stage=action.stage,
            subject=action.subject,
            key=key,
            seconds=round(record.seconds, 3),
            files=len(tree.files),
            bytes=tree.size,
        )
        return record

    def _call(self, action: Action, context: ActionContext) -> None:
        """Run the stage's function; whatever it raises becomes an error with a class."""
        try:
            action.run(context)
        except LostOutputError as error:
            raise StageError(f"stage {action.stage} failed", where=action.subject) from error
        except MlcbuildError:
            raise
        except MemoryError as error:
            raise ResourceError(
                f"stage {action.stage} ran out of memory",
                where=action.subject,
                hint="close other programs, or use fewer --jobs",
            ) from error
        except Exception as error:
            if is_disk_full(error):
                with disk_guard(self._store.root, f"the result of {action.label}"):
                    raise
            with context.log.open("a", encoding="utf-8") as file:
                file.write(traceback.format_exc())
            detail = str(error).strip() or "no message"
            raise StageError(
                f"stage {action.stage} failed: {type(error).__name__}: {_first_lines(detail)}",
                where=action.subject,
                hint=f"the whole story is in {context.log}",
            ) from error

    def _check_unchanged(self, action: Action, fields: Mapping[str, Any]) -> None:
        """A file that changed under a running stage must not end up under its old digest."""
        for name, item in action.inputs.items():
            if not isinstance(item, FileInput):
                continue
            if self._keys.file_digest(item) != fields["inputs"][name]:
                raise SourceError(
                    f"{item.path.name} changed while {action.stage} read it",
                    where=str(item.path),
                    hint="wait until whatever writes it is done, then run again",
                )

    # -- lost bytes ----------------------------------------------------------------------------

    def _check_roots(self, state: _Pass, roots: Iterable[Action]) -> None:
        for root in roots:
            record = state.records.get(id(root))
            if record is not None:
                missing = self._store.missing_files(record.tree)
                if missing:
                    state.lost.append(LostOutputError(record.tree, missing))

    def _forget_lost(self, state: _Pass) -> None:
        """Drop the records whose bytes are gone, so that the next walk makes them again."""
        digests = {error.tree.digest for error in state.lost}
        for action in state.order:
            record = state.records.get(id(action))
            if record is not None and record.tree.digest in digests:
                self._store.records.forget_action(record.key)
                self._progress.note(
                    f"warning: the stored result of {action.label} is damaged or gone; "
                    "building it again"
                )

    # -- talk ----------------------------------------------------------------------------------

    def _tell(self, event: str, action: Action, key: str, **more: object) -> None:
        if (event, key) not in self._told:
            self._told.add((event, key))
            self._progress.emit(event, stage=action.stage, subject=action.subject, key=key, **more)

    def _waiting_for(self, action: Action) -> Any:
        def announce(holder: str) -> None:
            who = holder or "another process"
            self._progress.note(f"waiting for {who}, which builds {action.label}")

        return announce

    def _waiting_for_gc(self, holder: str) -> None:
        self._progress.note(f"waiting for {holder or 'another process'}, which cleans the store")


def _error_of(state: _Pass, root: Action) -> MlcbuildError | None:
    """Why a root has no record: its own failure or that of something it needs."""
    if id(root) in state.records:
        return None
    for action in topological([root]):
        if id(action) in state.failures:
            return state.failures[id(action)]
    first = next(iter(state.failures.values()), None)
    return first or InternalError(f"{root.label} was not built")


def _first_lines(text: str, limit: int = 4) -> str:
    lines = text.splitlines()
    return "\n".join(lines[:limit]) + (" ..." if len(lines) > limit else "")
