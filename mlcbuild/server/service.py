"""The state of a server: its engine, whether it is ready, what is in flight, counts."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from mlcbuild.server.api_error import ApiError
from mlcbuild.server.backend import Backend
from mlcbuild.server.options import ServerOptions

_LONGEST_RETRY_SECONDS = 30


class Status(Enum):
    """Where a server is in its life."""

    LOADING = "loading"
    READY = "ready"
    CLOSING = "closing"


class Service:
    """One engine and the requests that it answers.

    Belongs to one event loop; nothing here is for other threads.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.status = Status.LOADING
        self.created = int(time.time())
        self.cut_off = asyncio.Event()  # set when running requests must end at once
        self.in_flight = 0
        self.answered: Counter[tuple[str, int]] = Counter()  # by endpoint and HTTP status
        self._backend: Backend | None = None
        self._typical_seconds = 1.0

    def ready(self, backend: Backend) -> None:
        """Takes the engine and answers from now on."""
        self._backend = backend
        if self.status is Status.LOADING:
            self.status = Status.READY

    def close(self) -> None:
        """Lets nobody new in."""
        self.status = Status.CLOSING

    @property
    def backend(self) -> Backend:
        """The engine. Raises ``ApiError`` 503 while there is none to use."""
        if self.status is not Status.READY or self._backend is None:
            raise ApiError(
                503,
                "the model is being loaded"
                if self.status is Status.LOADING
                else "the server is shutting down",
                code=f"server_{self.status.value}",
                headers={"retry-after": "1"},
            )
        return self._backend

    @property
    def retry_after(self) -> int:
        """Seconds until a place should be free: how long a request takes, shared by those here."""
        seconds = self._typical_seconds / max(1, self.in_flight)
        return max(1, min(_LONGEST_RETRY_SECONDS, math.ceil(seconds)))

    @contextmanager
    def request(self) -> Iterator[None]:
        """Counts a request as in flight."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def note_duration(self, seconds: float) -> None:
        """Learns from a whole answer how long one takes."""
        self._typical_seconds += 0.1 * (seconds - self._typical_seconds)

    def check_model(self, model: object) -> str:
        """The name that a request gives; ``ApiError`` 404 if no model has it."""
        if model is None:
            raise ApiError(
                400,
                f"model is missing; there is {self.options.model_names[0]}",
                param="model",
                code="missing_parameter",
            )
        if not isinstance(model, str):
            raise ApiError(400, "model is not a string", param="model", code="invalid_value")
        if model not in self.options.model_names:
            known = ", ".join(self.options.model_names)
            raise ApiError(
                404,
                f"there is no model {model[:100]!r}; there is {known}",
                param="model",
                code="model_not_found",
            )
        return model

    def prometheus(self) -> str:
        """The server's own figures."""
        lines = [
            "# HELP mlcbuild_http_requests_total Requests that were answered.",
            "# TYPE mlcbuild_http_requests_total counter",
            *(
                f'mlcbuild_http_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}'
                for (endpoint, status), count in sorted(self.answered.items())
            ),
            "# HELP mlcbuild_http_requests_in_flight Completions that are being answered.",
            "# TYPE mlcbuild_http_requests_in_flight gauge",
            f"mlcbuild_http_requests_in_flight {self.in_flight}",
        ]
        return "\n".join(lines) + "\n"
