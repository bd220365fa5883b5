"""uvicorn's HTTP/1.1 protocol with two changes: slow headers end, bad HTTP gets OpenAI's error."""

from __future__ import annotations

import asyncio
import logging

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from mlcbuild.server.api_error import ApiError


def http_protocol(header_seconds: float) -> type[asyncio.Protocol]:
    """The protocol class for uvicorn's ``http`` option.

    A connection on which the headers of a request are not there ``header_seconds`` after they began
    is closed. The first request begins with the connection; later ones have uvicorn's keep-alive
    time to begin.
    """

    class Protocol(H11Protocol):
        """One connection."""

        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._patience = self.loop.call_later(header_seconds, self._give_up)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_headers()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch_headers()

        def _watch_headers(self) -> None:
            """Gives a request that has begun, and has not all its headers yet, some time."""
            if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
                self._stop_waiting()
            elif self._patience is None and self.conn.trailing_data[0]:
                self._patience = self.loop.call_later(header_seconds, self._give_up)

        def _stop_waiting(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def _give_up(self) -> None:
            self._patience = None
            if not self.transport.is_closing():
                self.transport.close()

        def send_400_response(self, msg: str) -> None:
            """Answers what is not HTTP, if an answer can still be given.

            A request whose body turns out to be broken may run already: it has lost its client.
            """
            if self.cycle is not None and not self.cycle.response_complete:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                error = ApiError(400, "this is not a valid HTTP/1.1 request", code="invalid_http")
                response = error.response()
                body = bytes(response.body)
                headers = [*response.raw_headers, (b"connection", b"close")]
                for event in (
                    h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                    h11.Data(data=body),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

    return Protocol


def make_config(app: object, header_seconds: float, grace_seconds: float) -> Config:
    """The configuration of uvicorn: HTTP/1.1 only, no logging set-up of its own."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # our own log tells more
    return Config(
        app,  # type: ignore[arg-type]
        loop="asyncio",
        http=http_protocol(header_seconds),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=60,
        # Ours comes first: it tells clients why. uvicorn's is for what does not listen.
        timeout_graceful_shutdown=int(grace_seconds) + 5,
    )
