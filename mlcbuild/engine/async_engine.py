"""AsyncEngine: the calls of Engine for asyncio, any number of them at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from mlcbuild.bundle.native import NativeEvent, Request
from mlcbuild.engine.answers import Chunk, ChunkMaker, Job, Whole
from mlcbuild.engine.base import EngineBase, EngineOptions, read_request
from mlcbuild.engine.generation import (
    EventMaker,
    Generation,
    GenerationCollector,
    GenerationOptions,
    TextMaker,
    check_prompts,
    native_request,
)
from mlcbuild.engine.hub import Flight, Mail
from mlcbuild.engine.prepare import Prompt
from mlcbuild.engine.protocol import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    Model,
    ModelList,
)
from mlcbuild.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

_T = TypeVar("_T")

# Threads that render, tokenize, compile grammars and submit, so that the loop never waits for it.
_PREPARERS = 4


class _Mailbox:
    """What came for a request, in the loop that waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.queue: asyncio.Queue[Mail] = asyncio.Queue()


def _dispatch(mail: Sequence[tuple[_Mailbox, Mail]]) -> None:
    """Wakes every loop once for all that came for it."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Mailbox, Mail]]] = {}
    for mailbox, item in mail:
        by_loop.setdefault(mailbox.loop, []).append((mailbox, item))
    for loop, batch in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed: nobody waits there
            loop.call_soon_threadsafe(_put, batch)


def _put(batch: Sequence[tuple[_Mailbox, Mail]]) -> None:
    for mailbox, item in batch:
        mailbox.queue.put_nowait(item)


class _Flight(Flight):
    """Requests whose events a task waits for."""

    mailbox: _Mailbox

    async def next_event(self) -> tuple[int, NativeEvent]:
        """(position of the request, event); waits for it, raises what went wrong."""
        return self.read(await self.mailbox.queue.get())


class AsyncStream(Generic[_T]):
    """An asynchronous iterator over what a request gives, chunk by chunk.

    Closing it, leaving its ``async with`` block, or cancelling the task that waits for a chunk
    cancels the request.
    """

    def __init__(self, flight: _Flight, maker: ChunkMaker[_T]) -> None:
        self._flight = flight
        self._maker = maker
        self._ready: deque[_T] = deque()
        self._closed = False

    def __aiter__(self) -> AsyncIterator[_T]:
        return self

    async def __anext__(self) -> _T:
        while not self._ready:
            if self._closed or self._maker.done:
                self._close()
                raise StopAsyncIteration
            try:
                position, event = await self._flight.next_event()
                self._ready.extend(self._maker.push(position, event))
            except BaseException:
                self._close()
                raise
        return self._ready.popleft()

    def _close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._flight.close()

    async def aclose(self) -> None:
        """Cancels the request if it has not ended; nothing more comes."""
        self._close()

    async def close(self) -> None:
        """The same, under the name that the openai package has for it."""
        self._close()

    async def __aenter__(self) -> AsyncStream[_T]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._close()


class AsyncChatCompletions:
    """``engine.chat.completions``."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @overload
    async def create(
        self, request: ChatCompletionRequest | Mapping[str, Any], /
    ) -> ChatCompletion | AsyncStream[ChatCompletionChunk]: ...
    @overload
    async def create(
        self, request: None = None, /, *, stream: Literal[True], **parameters: Any
    ) -> AsyncStream[ChatCompletionChunk]: ...
    @overload
    async def create(
        self, request: None = None, /, *, stream: Literal[False] = ..., **parameters: Any
    ) -> ChatCompletion: ...

    async def create(
        self,
        request: ChatCompletionRequest | Mapping[str, Any] | None = None,
        /,
        *,
        stream: bool | None = None,
        **parameters: Any,
    ) -> ChatCompletion | AsyncStream[ChatCompletionChunk]:
        """Answers a conversation: see ``Engine.chat.completions.create``.

        Cancelling the call cancels the request.
        """
        ready = read_request(ChatCompletionRequest, request, {**parameters, "stream": stream})
        return await self._engine._answer(partial(self._engine._chat_job, ready))


class AsyncChat:
    """``engine.chat``."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.completions = AsyncChatCompletions(engine)


class AsyncCompletions:
    """``engine.completions``."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @overload
    async def create(
        self, request: CompletionRequest | Mapping[str, Any], /
    ) -> Completion | AsyncStream[Completion]: ...
    @overload
    async def create(
        self, request: None = None, /, *, stream: Literal[True], **parameters: Any
    ) -> AsyncStream[Completion]: ...
    @overload
    async def create(
        self, request: None = None, /, *, stream: Literal[False] = ..., **parameters: Any
    ) -> Completion: ...

    async def create(
        self,
        request: CompletionRequest | Mapping[str, Any] | None = None,
        /,
        *,
        stream: bool | None = None,
        **parameters: Any,
    ) -> Completion | AsyncStream[Completion]:
        """Goes on after a text; parameters are those of ``CompletionRequest``."""
        ready = read_request(CompletionRequest, request, {**parameters, "stream": stream})
        return await self._engine._answer(partial(self._engine._completion_job, ready))


class AsyncModels:
    """``engine.models``."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def list(self) -> ModelList:
        """The one model of the bundle."""
        return self._engine._models()

    async def retrieve(self, model: str) -> Model:
        """The model of that name; ``ModelNotFoundError``."""
        return self._engine._model(model)


class AsyncEngine(EngineBase):
    """Runs a bundle for asyncio; any number of tasks may use it at once, in any loop.

    Close it, or use it with ``async with``. Calls about text (``tokenize``, ``render_chat``) and
    figures are the same as Engine's and return at once.
    """

    def __init__(self, bundle: str | Path, **options: Unpack[EngineOptions]) -> None:
        """Opens the bundle in folder ``bundle``, as ``Engine`` does.

        That takes a moment in which the loop stands still: ``await AsyncEngine.open(...)`` does it
        on another thread.
        """
        super().__init__(bundle, _dispatch, **options)
        self._preparers = ThreadPoolExecutor(_PREPARERS, "mlcbuild-prepare")
        self.chat = AsyncChat(self)
        self.completions = AsyncCompletions(self)
        self.models = AsyncModels(self)

    @classmethod
    async def open(cls, bundle: str | Path, **options: Unpack[EngineOptions]) -> AsyncEngine:
        """An engine over the bundle in folder ``bundle``; the loop goes on meanwhile."""
        opening = asyncio.ensure_future(asyncio.to_thread(partial(cls, bundle, **options)))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise

    # ---- model ---------------------------------------------------------------------------------

    async def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits of every position of a fresh sequence: float32 [len(token_ids), vocab_size]."""
        return await asyncio.wrap_future(self._submit(partial(self._logits, token_ids)))

    async def generate(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Generation:
        """Generates after ``prompt``: see ``Engine.generate``."""
        return (await self.generate_choices(prompt, 1, **options))[0]

    async def generate_choices(
        self, prompt: Prompt, n: int, **options: Unpack[GenerationOptions]
    ) -> list[Generation]:
        """``n`` texts after one prompt, which is read once."""
        return (await self._collect([prompt], n, **options))[0]

    async def generate_batch(
        self, prompts: Sequence[Prompt], **options: Unpack[GenerationOptions]
    ) -> list[Generation]:
        """Generates after every prompt, all of them in flight together."""
        return [choices[0] for choices in await self._collect(prompts, 1, **options)]

    async def stream(
        self, prompt: Prompt, **options: Unpack[GenerationOptions]
    ) -> AsyncStream[str]:
        """As ``generate``, but gives the text in pieces of whole characters as it comes."""
        requests, flight = await self._fly(self._natives([prompt], 1, **options))
        return AsyncStream(flight, TextMaker(requests[0]))

    async def stream_events(
        self, prompt: Prompt, *, n: int = 1, **options: Unpack[GenerationOptions]
    ) -> AsyncStream[NativeEvent]:
        """As ``stream``, but gives the runtime's events (choice, token id, text, logprobs)."""
        requests, flight = await self._fly(self._natives([prompt], n, **options))
        return AsyncStream(flight, EventMaker(requests[0]))

    # ---- requests in flight --------------------------------------------------------------------

    def _natives(
        self, prompts: Sequence[Prompt], n: int, **options: Unpack[GenerationOptions]
    ) -> Callable[[], tuple[list[Request], list[Request]]]:
        def prepare() -> tuple[list[Request], list[Request]]:
            check_prompts(prompts)
            requests = [native_request(self._builder, prompt, n, **options) for prompt in prompts]
            return requests, requests

        return prepare

    async def _fly(self, prepare: Callable[[], tuple[_T, Sequence[Request]]]) -> tuple[_T, _Flight]:
        """Prepares requests and submits them, on another thread; what was prepared, the flight."""
        mailbox = _Mailbox(asyncio.get_running_loop())

        def take_off() -> tuple[_T, _Flight]:
            prepared, requests = prepare()
            return prepared, _Flight(self._hub, requests, mailbox)

        future = self._submit(take_off)
        flying = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(flying)
        except asyncio.CancelledError:
            # Nobody waits for its error any more; unread, asyncio would print it.
            flying.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            if not future.cancel():
                future.add_done_callback(_give_up)
            raise

    def _submit(self, work: Callable[[], _T]) -> Future[_T]:
        try:
            return self._preparers.submit(work)
        except RuntimeError:  # its threads have ended
            raise UsageError("the engine is closed", where=str(self._native.bundle.path)) from None

    async def _collect(
        self, prompts: Sequence[Prompt], n: int, **options: Unpack[GenerationOptions]
    ) -> list[list[Generation]]:
        requests, flight = await self._fly(self._natives(prompts, n, **options))
        collectors = [GenerationCollector(request) for request in requests]
        try:
            while not all(collector.done for collector in collectors):
                position, event = await flight.next_event()
                collectors[position].push(event)
        finally:
            flight.close()
        return [collector.results() for collector in collectors]

    async def _answer(
        self, make_job: Callable[[], Job[Chunk, Whole]]
    ) -> Whole | AsyncStream[Chunk]:
        def prepare() -> tuple[Job[Chunk, Whole], Sequence[Request]]:
            job = make_job()
            return job, job.prepared.natives

        job, flight = await self._fly(prepare)
        stream = AsyncStream(flight, job.maker)
        if job.prepared.stream:
            return stream
        async with stream:
            async for chunk in stream:
                job.assembler.add(chunk)
        return job.assembler.result()

    # ---- life ----------------------------------------------------------------------------------

    async def drain(self, timeout: float | None = None) -> bool:
        """Waits until no request is in flight; False if ``timeout`` seconds were not enough."""
        return await asyncio.to_thread(self._hub.wait_idle, timeout)

    async def close(self) -> None:
        """Frees the engine and unmaps the bundle; what still runs gets an error.

        ``drain`` first lets it end. A second call does nothing.
        """
        await asyncio.to_thread(self._close_all)

    def _close_all(self) -> None:
        self._hub.close()
        self._preparers.shutdown(wait=True)
        self._close_bundles()

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _give_up(future: Future[tuple[Any, _Flight]]) -> None:
    """Cancels a request whose task was cancelled while it was being submitted."""
    if not future.cancelled() and future.exception() is None:
        future.result()[1].close()


def _close_unwanted(opening: asyncio.Future[AsyncEngine]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()._close_all()
