"""Requests in flight: the engine steps on its own thread, one more thread hands out its events."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mlcbuild.bundle.abi import EventKind, status_error
from mlcbuild.bundle.native import NativeEngine, NativeEvent, Request
from mlcbuild.errors import InternalError, MlcbuildError, UsageError

# While requests run, the poller looks up this often whether the engine is being closed.
_POLL_MS = 50
# Events that are handed out together at most.
_BATCH = 256

# An event, or why there will be no more.
Item: TypeAlias = NativeEvent | MlcbuildError
# Takes what came for one mailbox's request: (position of the request in its mailbox, item).
Mail: TypeAlias = tuple[int, Item]
# Hands over, on the poller's thread, what came at once: (mailbox, mail).
Dispatch: TypeAlias = Callable[[Sequence[tuple[Any, Mail]]], None]


@dataclass(slots=True)
class _Flight:
    mailbox: Any
    position: int
    choices: int  # that have not ended


@dataclass(slots=True)
class _State:
    flights: dict[int, _Flight] = field(default_factory=dict)
    # Requests that nobody waits for any more, with the choices that have not ended.
    abandoned: dict[int, int] = field(default_factory=dict)
    # Events that came before `submit` knew the id of their request.
    early: dict[int, list[NativeEvent]] = field(default_factory=dict)
    submitting: int = 0
    closed: bool = False

    @property
    def busy(self) -> bool:
        return bool(self.flights or self.abandoned or self.early or self.submitting)


class RequestHub:
    """Submits requests and delivers their events; usable from any thread."""

    def __init__(self, engine: NativeEngine, dispatch: Dispatch) -> None:
        """Starts ``engine``'s thread; the hub closes it at the end."""
        self._engine = engine
        self._dispatch = dispatch
        self.where = str(engine.native.bundle.path)
        # Reentrant: a stream that is forgotten gives its request up wherever Python collects it.
        self._changed = threading.Condition(threading.RLock())
        self._state = _State()
        engine.start()
        self._poller = threading.Thread(target=self._run, name="mlcbuild-events", daemon=True)
        self._poller.start()
        _open_hubs.add(self)

    def submit(self, request: Request, mailbox: Any, position: int = 0) -> int:
        """Queues a request, whose events go to ``mailbox`` from now on; returns its id."""
        state = self._state
        with self._changed:
            if state.closed:
                raise self._closed()
            state.submitting += 1
            self._changed.notify_all()
        request_id = None
        try:
            request_id = self._engine.submit(request)
        finally:
            with self._changed:
                state.submitting -= 1
                if request_id is not None:
                    early = state.early.pop(request_id, [])
                    flight = _Flight(mailbox, position, max(1, request.n))
                    state.flights[request_id] = flight
                    if state.closed:
                        state.flights.clear()
                        raise self._closed()
                    mail = [post for event in early for post in self._sort(event)]
                    if mail:
                        self._dispatch(mail)
                if state.submitting == 0:
                    # What is left belongs to a submit that an interrupt cut off.
                    state.early.clear()
        return request_id

    def abandon(self, request_id: int) -> None:
        """Cancels a request and drops what still comes of it; one that has ended is fine."""
        state = self._state
        with self._changed:
            flight = state.flights.pop(request_id, None)
            if flight is None:
                return
            state.abandoned[request_id] = flight.choices
        # The engine may have been closed meanwhile; then the request is gone anyway.
        with suppress(MlcbuildError):
            self._engine.cancel(request_id)

    @property
    def in_flight(self) -> int:
        """Requests that somebody waits for."""
        return len(self._state.flights)

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Waits until no request is left; False if ``timeout`` seconds were not enough."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._state.busy, timeout)

    def close(self) -> None:
        """Drops what runs, whose mailboxes are told, and destroys the engine.

        A second call does nothing.
        """
        state = self._state
        with self._changed:
            if state.closed:
                return
            state.closed = True
            flights = dict(state.flights)
            state.flights.clear()
            self._changed.notify_all()
        for request_id in flights:
            with suppress(MlcbuildError):
                self._engine.cancel(request_id)
        self._poller.join()
        self._engine.close()
        _open_hubs.discard(self)
        self._dispatch(
            [(flight.mailbox, (flight.position, self._closed())) for flight in flights.values()]
        )

    def _closed(self) -> UsageError:
        return UsageError("the engine was closed while a request was running", where=self.where)

    # ---- the poller's thread -------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._state.closed or self._state.busy)
                if self._state.closed:
                    return
            try:
                events = self._collect()
            except MlcbuildError as error:
                self._fail(error)
                continue
            except Exception as error:  # a bug here must not leave everybody waiting
                self._fail(InternalError("the engine's events do not read", why=repr(error)))
                continue
            with self._changed:
                mail = [post for event in events for post in self._sort(event)]
                if mail and not self._state.closed:
                    self._dispatch(mail)
                if not self._state.busy:
                    self._changed.notify_all()

    def _collect(self) -> list[NativeEvent]:
        """Waits for an event and takes those that are there with it."""
        events: list[NativeEvent] = []
        event = self._engine.poll(_POLL_MS)
        while event is not None:
            events.append(event)
            event = self._engine.poll() if len(events) < _BATCH else None
        return events

    def _sort(self, event: NativeEvent) -> list[tuple[Any, Mail]]:
        """Who gets an event: its mailbox, or nobody (yet)."""
        state = self._state
        request_id = event.request_id
        flight = state.flights.get(request_id)
        if flight is None:
            if request_id in state.abandoned:
                state.abandoned[request_id] = _left(event, state.abandoned[request_id])
                if not state.abandoned[request_id]:
                    del state.abandoned[request_id]
            elif state.submitting:
                state.early.setdefault(request_id, []).append(event)
            return []
        flight.choices = _left(event, flight.choices)
        if not flight.choices:
            del state.flights[request_id]
        return [(flight.mailbox, (flight.position, event))]

    def _fail(self, error: MlcbuildError) -> None:
        """Tells everybody that no events will come."""
        state = self._state
        with self._changed:
            flights = list(state.flights.values())
            state.flights.clear()
            state.abandoned.clear()
            state.early.clear()
            self._changed.notify_all()
        self._dispatch([(flight.mailbox, (flight.position, error)) for flight in flights])


def _left(event: NativeEvent, choices: int) -> int:
    """Choices of a request that have not ended after ``event``."""
    if event.kind == EventKind.ERROR:
        return 0
    return choices - (event.kind == EventKind.DONE)


class Flight:
    """Requests that were submitted together, whose events go to one mailbox."""

    def __init__(self, hub: RequestHub, requests: Sequence[Request], mailbox: Any) -> None:
        """Submits ``requests``: all of them, or none if one is refused."""
        self.mailbox = mailbox
        self._hub = hub
        self._ids: list[int] = []
        try:
            for position, request in enumerate(requests):
                self._ids.append(hub.submit(request, mailbox, position))
        except BaseException:
            self.close()
            raise

    def read(self, mail: Mail) -> tuple[int, NativeEvent]:
        """(position of the request, event) in mail; raises what went wrong instead."""
        position, item = mail
        if isinstance(item, MlcbuildError):
            raise item
        if item.kind == EventKind.ERROR:
            raise status_error(item.status, item.text, self._hub.where)
        return position, item

    def close(self) -> None:
        """Cancels what has not ended."""
        for request_id in self._ids:
            self._hub.abandon(request_id)


# The engines' threads must not run into the end of the process.
_open_hubs: weakref.WeakSet[RequestHub] = weakref.WeakSet()


def _close_all() -> None:
    for hub in list(_open_hubs):
        hub.close()


atexit.register(_close_all)
