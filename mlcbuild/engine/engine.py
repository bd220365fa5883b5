"""Engine: OpenAI's calls, generation, streaming and logits through a bundle's own runtime."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
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

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

_T = TypeVar("_T")


def _dispatch(mail: Sequence[tuple[SimpleQueue[Mail], Mail]]) -> None:
    for mailbox, item in mail:
        mailbox.put(item)


class _Flight(Flight):
    """Requests whose events a thread waits for."""

    mailbox: SimpleQueue[Mail]

    def next_event(self) -> tuple[int, NativeEvent]:
        """(position of the request, event); waits for it, raises what went wrong."""
        return self.read(self.mailbox.get())


class Stream(Generic[_T]):
    """An iterator over what a request gives, chunk by chunk.

    Closing it, leaving its ``with`` block or an exception while waiting cancels the request.
    """

    def __init__(self, flight: _Flight, maker: ChunkMaker[_T]) -> None:
        self._flight = flight
        self._maker = maker
        self._ready: deque[_T] = deque()
        self._closed = False

    def __iter__(self) -> Iterator[_T]:
        return self

    def __next__(self) -> _T:
        while not self._ready:
            if self._closed or self._maker.done:
                self.close()
                raise StopIteration
            try:
                position, event = self._flight.next_event()
                self._ready.extend(self._maker.push(position, event))
            except BaseException:
                self.close()
                raise
        return self._ready.popleft()

    def close(self) -> None:
        """Cancels the request if it has not ended; nothing more comes."""
        self._closed = True
        self._ready.clear()
        self._flight.close()

    def __enter__(self) -> Stream[_T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()


class ChatCompletions:
    """``engine.chat.completions``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @overload
    def create(
        self,
        request: ChatCompletionRequest | Mapping[str, Any],
        /,
    ) -> ChatCompletion | Stream[ChatCompletionChunk]: ...
    @overload
    def create(
        self, request: None = None, /, *, stream: Literal[True], **parameters: Any
    ) -> Stream[ChatCompletionChunk]: ...
    @overload
    def create(
        self, request: None = None, /, *, stream: Literal[False] = ..., **parameters: Any
    ) -> ChatCompletion: ...

    def create(
        self,
        request: ChatCompletionRequest | Mapping[str, Any] | None = None,
        /,
        *,
        stream: bool | None = None,
        **parameters: Any,
    ) -> ChatCompletion | Stream[ChatCompletionChunk]:
        """Answers a conversation.

        Parameters are those of ``ChatCompletionRequest``, by keyword or as a request that is ready.
        With ``stream=True`` the chunks come as they are made. Raises ``InvalidRequestError``,
        ``PromptTooLongError``, ``GrammarError``, ``BusyError``, ``DeadlineError``.
        """
        ready = read_request(ChatCompletionRequest, request, {**parameters, "stream": stream})
        return self._engine._answer(self._engine._chat_job(ready))


class Chat:
    """``engine.chat``."""

    def __init__(self, engine: Engine) -> None:
        self.completions = ChatCompletions(engine)


class Completions:
    """``engine.completions``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @overload
    def create(
        self, request: CompletionRequest | Mapping[str, Any], /
    ) -> Completion | Stream[Completion]: ...
    @overload
    def create(
        self, request: None = None, /, *, stream: Literal[True], **parameters: Any
    ) -> Stream[Completion]: ...
    @overload
    def create(
        self, request: None = None, /, *, stream: Literal[False] = ..., **parameters: Any
    ) -> Completion: ...

    def create(
        self,
        request: CompletionRequest | Mapping[str, Any] | None = None,
        /,
        *,
        stream: bool | None = None,
        **parameters: Any,
    ) -> Completion | Stream[Completion]:
        """Goes on after a text; parameters are those of ``CompletionRequest``."""
        ready = read_request(CompletionRequest, request, {**parameters, "stream": stream})
        return self._engine._answer(self._engine._completion_job(ready))


class Models:
    """``engine.models``."""

    def __init__(self, engine: EngineBase) -> None:
        self._engine = engine

    def list(self) -> ModelList:
        """The one model of the bundle."""
        return self._engine._models()

    def retrieve(self, model: str) -> Model:
        """The model of that name; ``ModelNotFoundError``."""
        return self._engine._model(model)


class Engine(EngineBase):
    """Runs a bundle. Usable from any number of threads at once.

    Close it, or use it as a context manager. Calls at the level of tokens (``generate``,
    ``stream``, ...) are greedy unless told otherwise; ``chat.completions`` and ``completions``
    follow the request, else the bundle's own sampling, else OpenAI's.
    """

    def __init__(self, bundle: str | Path, **options: Unpack[EngineOptions]) -> None:
        """Opens the bundle in folder ``bundle``; ``EngineOptions`` says how to run it.

        Raises ``VerificationError`` for a damaged bundle, ``ResourceError`` if no variant fits this
        CPU or memory is short, ``UsageError`` for bad options.
        """
        super().__init__(bundle, _dispatch, **options)
        self.chat = Chat(self)
        self.completions = Completions(self)
        self.models = Models(self)

    # ---- model ---------------------------------------------------------------------------------

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits of every position of a fresh sequence: float32 [len(token_ids), vocab_size]."""
        return self._logits(token_ids)

    def generate(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Generation:
        """Generates after ``prompt`` (see ``prompt_token_ids``) as ``GenerationOptions`` say.

        The same request with the same seed gives the same text whatever runs beside it. Raises
        ``PromptTooLongError``, and ``UsageError`` for options out of range.
        """
        return self.generate_choices(prompt, 1, **options)[0]

    def generate_choices(
        self, prompt: Prompt, n: int, **options: Unpack[GenerationOptions]
    ) -> list[Generation]:
        """``n`` texts after one prompt, which is read once."""
        return self._collect([native_request(self._builder, prompt, n, **options)])[0]

    def generate_batch(
        self, prompts: Sequence[Prompt], **options: Unpack[GenerationOptions]
    ) -> list[Generation]:
        """Generates after every prompt, all of them in flight together.

        The runtime queues what exceeds its batch. The results are in the prompts' order, each what
        ``generate`` gives.
        """
        check_prompts(prompts)
        requests = [native_request(self._builder, prompt, 1, **options) for prompt in prompts]
        return [choices[0] for choices in self._collect(requests)]

    def stream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Stream[str]:
        """As ``generate``, but gives the text in pieces of whole characters as it comes."""
        request = native_request(self._builder, prompt, 1, **options)
        return Stream(self._fly([request]), TextMaker(request))

    def stream_events(
        self, prompt: Prompt, *, n: int = 1, **options: Unpack[GenerationOptions]
    ) -> Stream[NativeEvent]:
        """As ``stream``, but gives the runtime's events (choice, token id, text, logprobs)."""
        request = native_request(self._builder, prompt, n, **options)
        return Stream(self._fly([request]), EventMaker(request))

    # ---- requests in flight --------------------------------------------------------------------

    def _fly(self, requests: Sequence[Request]) -> _Flight:
        return _Flight(self._hub, requests, SimpleQueue())

    def _collect(self, requests: Sequence[Request]) -> list[list[Generation]]:
        collectors = [GenerationCollector(request) for request in requests]
        flight = self._fly(requests)
        try:
            while not all(collector.done for collector in collectors):
                position, event = flight.next_event()
                collectors[position].push(event)
        finally:
            flight.close()
        return [collector.results() for collector in collectors]

    def _answer(self, job: Job[Chunk, Whole]) -> Whole | Stream[Chunk]:
        stream = Stream(self._fly(job.prepared.natives), job.maker)
        if job.prepared.stream:
            return stream
        with stream:
            for chunk in stream:
                job.assembler.add(chunk)
        return job.assembler.result()

    # ---- life ----------------------------------------------------------------------------------

    def drain(self, timeout: float | None = None) -> bool:
        """Waits until no request is in flight; False if ``timeout`` seconds were not enough."""
        return self._hub.wait_idle(timeout)

    def close(self) -> None:
        """Frees the engine and unmaps the bundle; requests in flight are dropped.

        A second call does nothing.
        """
        self._hub.close()
        self._close_bundles()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
