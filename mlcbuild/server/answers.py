"""Answers that end when nobody waits for them any more: whole ones and event streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from mlcbuild.server.api_error import ApiError, ClientGoneError
from mlcbuild.server.backend import Answer, AnswerStream
from mlcbuild.server.request_log import RequestRecord
from mlcbuild.server.service import Service

T = TypeVar("T")
Describe = Callable[[Exception], ApiError]
Prepare = Callable[[Answer], bool]

# The engine ends a request at its deadline by itself; this much later the server does.
_DEADLINE_SLACK_SECONDS = 5.0
# For what is said to a client as its stream is cut off.
_LAST_WORDS_SECONDS = 1.0
_TICK_SECONDS = 1.0
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would hold events back
}


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_client_waits(work: Coroutine[Any, Any, T], receive: Receive, service: Service) -> T:
    """The result of ``work``, which is cancelled when the client leaves, time is up, or we close.

    Raises ``ClientGoneError`` or ``ApiError`` then.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(wait_for_disconnect(receive))
    cut = asyncio.ensure_future(service.cut_off.wait())
    try:
        done, _ = await asyncio.wait(
            {task, gone, cut},
            timeout=_allowed_seconds(service),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if task in done:
            return task.result()
        if gone in done:
            raise ClientGoneError
        raise _interruption(service)
    finally:
        await _cancel(task, gone, cut)


def _allowed_seconds(service: Service) -> float | None:
    seconds = service.options.request_seconds
    return seconds + _DEADLINE_SLACK_SECONDS if seconds > 0 else None


def _interruption(service: Service) -> ApiError:
    if service.cut_off.is_set():
        return ApiError(503, "the server is shutting down", code="server_closing")
    return ApiError(504, "the request took longer than the server allows", code="request_timeout")


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def encode_event(json_text: str) -> bytes:
    """A server-sent event."""
    return b"data: " + json_text.encode("utf-8") + b"\n\n"


class EventStream(Response):
    """Chunks as server-sent events, as OpenAI sends them.

    The request is given up when the client leaves, does not read for ``stall_seconds``, or the
    server closes. Comments keep the connection alive while nothing comes.
    """

    def __init__(
        self,
        chunks: AnswerStream,
        first: asyncio.Future[Answer],
        *,
        service: Service,
        record: RequestRecord,
        describe: Describe,
        prepare: Prepare,
    ) -> None:
        """``first``: the first chunk, maybe still to come.

        ``describe`` makes an ``ApiError`` of what the engine raises; ``prepare`` completes a chunk
        and tells whether the client gets it.
        """
        super().__init__(headers=_HEADERS)
        # Starlette would announce a length.
        self.raw_headers = [(k, v) for k, v in self.raw_headers if k != b"content-length"]
        self._chunks = chunks
        self._first = first
        self._service = service
        self._record = record
        self._describe = describe
        self._prepare = prepare
        self._last_sent = 0.0
        self._sending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream."""

        async def timed_send(message: Message) -> None:
            self._sending, self._last_sent = True, asyncio.get_running_loop().time()
            await send(message)
            self._sending, self._last_sent = False, asyncio.get_running_loop().time()

        with self._service.request():
            pump = asyncio.ensure_future(self._pump(timed_send))
            gone = asyncio.ensure_future(wait_for_disconnect(receive))
            cut = asyncio.ensure_future(self._service.cut_off.wait())
            ticker = asyncio.ensure_future(self._keep_alive(timed_send))
            try:
                done, _ = await asyncio.wait(
                    {pump, gone, cut, ticker},
                    timeout=_allowed_seconds(self._service),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                await _cancel(pump, gone, cut, ticker, self._first)
                await self._chunks.aclose()
            if pump in done:
                pump.result()
            elif gone in done or ticker in done:
                raise ClientGoneError
            else:
                await self._end(_interruption(self._service), send)

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            chunk = await self._first
            while True:
                if self._prepare(chunk):
                    await _send_body(send, encode_event(chunk.model_dump_json()))
                chunk = await self._chunks.__anext__()
        except StopAsyncIteration:
            await _send_body(send, b"data: [DONE]\n\n", more=False)
        except Exception as error:  # the status is out: what went wrong comes as an event
            await self._send_error(self._describe(error), send)

    async def _send_error(self, error: ApiError, send: Send) -> None:
        self._record.error = self._record.error or error.code or error.message
        text = error.response().body.decode()  # type: ignore[union-attr]
        await _send_body(send, encode_event(text) + b"data: [DONE]\n\n", more=False)

    async def _end(self, error: ApiError, send: Send) -> None:
        """Tells a client why its stream ends early, if it listens at all."""
        try:
            await asyncio.wait_for(self._send_error(error, send), _LAST_WORDS_SECONDS)
        except asyncio.TimeoutError:
            raise ClientGoneError from None

    async def _keep_alive(self, send: Send) -> None:
        """Sends comments in silence; returns when the client has stopped reading."""
        options = self._service.options
        tick = min(_TICK_SECONDS, options.comment_seconds, options.stall_seconds)
        while True:
            await asyncio.sleep(tick)
            silent = asyncio.get_running_loop().time() - self._last_sent
            if self._sending:
                if silent >= options.stall_seconds:
                    return
            elif silent >= options.comment_seconds:
                await _send_body(send, b": keep-alive\n\n")


async def _send_body(
    send: Callable[[Message], Awaitable[None]], data: bytes, *, more: bool = True
) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})
