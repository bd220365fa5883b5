"""Python's view of a bundle: logits, generation and streaming through the bundle's own runtime."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from mlcbuild.bundle.abi import EventKind, TextFlags, status_error
from mlcbuild.bundle.manifest import BundleManifest
from mlcbuild.bundle.messages import Message
from mlcbuild.bundle.native import NativeBundle, NativeEngine, NativeEvent, Request
from mlcbuild.errors import InternalError, MlcbuildError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

# Text, a conversation, or token ids.
Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation.

    ``finish_reason``: "stop", "length" or "cancel"; ``token_ids`` are the sampled ids.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str


class GenerationOptions(TypedDict, total=False):
    """How to generate; every key may be left out.

    ``max_tokens``: 0 (the default) goes on to the end of the context window. ``temperature``: 0 is
    greedy. ``top_p``: 1 is off; ``top_k``: 0 is off. ``seed``: 0..2^64-1. ``stop``: strings that
    end the text before them, besides the model's own stop tokens. ``raw``: a text prompt goes in
    without the chat template. ``ignore_eos``: only ``max_tokens`` stops.
    """

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: str | Sequence[str]
    raw: bool
    ignore_eos: bool


class Engine:
    """Runs a bundle.

    Usable from several threads: whoever waits for a token runs the next step for all requests in
    flight. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        bundle: str | Path,
        *,
        threads: int = 0,
        activations: str | None = None,
        variant: str | None = None,
        max_batch_size: int = 0,
        kv_tokens: int = 0,
        verify_full: bool = False,
    ) -> None:
        """Opens the bundle in folder ``bundle``.

        ``threads``: 0 takes one for each CPU that the process may use; ``activations``: "int8",
        "float" or None for the bundle's best; ``variant``: a kernel library by name, None for the
        best that this CPU runs; ``max_batch_size`` and ``kv_tokens``: 0 takes the bundle's limits;
        ``verify_full`` hashes the params first. Raises ``VerificationError`` for a damaged bundle,
        ``ResourceError`` if no variant fits this CPU or memory is short, ``UsageError`` for bad
        options.
        """
        self._step_lock = threading.Lock()  # held by the thread that steps
        self._events_lock = threading.Lock()  # guards _events and _abandoned
        self._events: dict[int, deque[NativeEvent]] = {}
        self._abandoned: set[int] = set()
        self._native = NativeBundle.open(Path(bundle), verify_full=verify_full)
        try:
            self._engine = NativeEngine(
                self._native,
                threads=threads,
                activations=activations,
                variant=variant,
                max_batch_size=max_batch_size,
                kv_tokens=kv_tokens,
            )
        except BaseException:
            self._native.close()
            raise

    @property
    def manifest(self) -> BundleManifest:
        """The bundle's manifest."""
        return self._native.bundle.manifest

    @property
    def info(self) -> dict[str, Any]:
        """What the runtime chose: variant, activations, threads, limits, memory in bytes."""
        return self._engine.info()

    # ---- text ----------------------------------------------------------------------------------

    def tokenize(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        """Token ids of ``text``.

        ``special`` recognizes special tokens in it; ``bos`` puts BOS in front where the model wants
        one before a raw prompt.
        """
        flags = TextFlags.TOKENIZE_SPECIAL if special else TextFlags.NONE
        return self._native.tokenize(text, flags | TextFlags.TOKENIZE_BOS if bos else flags)

    def detokenize(self, token_ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ``token_ids``; bytes that are no UTF-8 become U+FFFD.

        ``special`` keeps special tokens.
        """
        flags = TextFlags.DETOKENIZE_SPECIAL if special else TextFlags.NONE
        return self._native.detokenize(token_ids, flags).decode("utf-8", "replace")

    def render_chat(self, messages: Sequence[Message], *, generation_prompt: bool = True) -> str:
        """A conversation as the text that the model sees."""
        return self._native.render_chat(messages, generation_prompt)

    def prompt_token_ids(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """The ids that ``generate`` starts from.

        A text is one user message, or with ``raw`` goes in as it is; messages are rendered with
        the chat template; ids are taken as they are.
        """
        if isinstance(prompt, str):
            if raw:
                return self.tokenize(prompt, bos=True)
            prompt = [{"role": "user", "content": prompt}]
        messages = [item for item in prompt if isinstance(item, Mapping)]
        if not messages:
            try:
                return [index(item) for item in prompt if not isinstance(item, Mapping)]
            except TypeError as error:
                raise UsageError("a token id is not an integer", why=str(error)) from None
        if len(messages) != len(prompt) or raw:
            raise UsageError("a prompt is a text, messages or token ids, not a mixture")
        # The rendered text holds BOS where the template puts one, so none is added here.
        try:
            text = self.render_chat(messages)
        except UsageError:
            bundle = self._native.bundle
            if bundle.read_json(bundle.manifest.chat)["roles"]:
                raise
            raise UsageError(
                "the model has no chat template",
                where=str(bundle.path),
                hint="give the text as it is: --raw on the command line, raw=True in Python",
            ) from None
        return self.tokenize(text)

    # ---- model ---------------------------------------------------------------------------------

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits of every position of a fresh sequence: float32 [len(token_ids), vocab_size]."""
        import numpy as np

        rows = np.empty((len(token_ids), self.manifest.model.vocab_size), np.float32)
        ids = [int(token) for token in token_ids]
        self._engine.logits_into(ids, rows.ctypes.data, rows.size)
        return rows

    def generate(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Generation:
        """Generates after ``prompt`` (see ``prompt_token_ids``) as ``GenerationOptions`` say.

        The same request with the same seed gives the same text whatever runs beside it. Raises
        ``PromptTooLongError``, and ``UsageError`` for options out of range.
        """
        return self._collect(self._submit(self._request(prompt, **options)))

    def stream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Iterator[str]:
        """As ``generate``, but yields the text in pieces of whole characters as it comes.

        Closing the iterator, or an exception in the loop around it, cancels the request.
        """
        events = self.stream_events(prompt, **options)
        return (event.text for event in events if event.text)

    def stream_events(
        self, prompt: Prompt, **options: Unpack[GenerationOptions]
    ) -> Iterator[NativeEvent]:
        """As ``stream``, but yields the runtime's events (token id, text, finish reason)."""
        return self._run_lazily(self._request(prompt, **options))

    def generate_batch(
        self, prompts: Sequence[Prompt], **options: Unpack[GenerationOptions]
    ) -> list[Generation]:
        """Generates after every prompt, all of them in flight together.

        The runtime queues what exceeds its batch. The results are in the prompts' order, each what
        ``generate`` gives.
        """
        requests = [self._request(prompt, **options) for prompt in prompts]
        pending: list[int] = []
        results: list[Generation] = []
        try:
            for request in requests:
                pending.append(self._submit(request))
            while pending:
                results.append(self._collect(pending.pop(0)))
        finally:
            for request_id in pending:
                self._abandon(request_id)
        return results

    # ---- requests in flight --------------------------------------------------------------------

    def _request(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 0,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        raw: bool = False,
        ignore_eos: bool = False,
    ) -> Request:
        if isinstance(stop, str):
            stop = (stop,)
        if any(not text for text in stop):
            raise UsageError("an empty stop string would stop everything")
        return Request(
            token_ids=self.prompt_token_ids(prompt, raw=raw),
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            ignore_eos=ignore_eos,
            stop=tuple(stop),
        )

    def _submit(self, request: Request) -> int:
        # Registered under the lock, so that no other thread's step can deliver an event before.
        with self._events_lock:
            request_id = self._engine.submit(request)
            self._events[request_id] = deque()
        return request_id

    def _collect(self, request_id: int) -> Generation:
        token_ids: list[int] = []
        pieces: list[str] = []
        finish_reason = "cancel"
        for event in self._run(request_id):
            pieces.append(event.text)
            if event.kind == EventKind.TOKEN:
                token_ids.append(event.token_id)
            elif event.finish_reason is not None:
                finish_reason = event.finish_reason
        return Generation("".join(pieces), tuple(token_ids), finish_reason)

    def _run_lazily(self, request: Request) -> Iterator[NativeEvent]:
        # Submitted at the first event, so that an iterator nobody starts leaves nothing running.
        yield from self._run(self._submit(request))

    def _run(self, request_id: int) -> Iterator[NativeEvent]:
        """The events of one request up to DONE; cancels it if the caller leaves before that."""
        finished = False
        try:
            while not finished:
                event = self._next_event(request_id)
                finished = event.kind in (EventKind.DONE, EventKind.ERROR)
                if event.kind == EventKind.ERROR:
                    raise status_error(event.status, event.text, str(self._native.bundle.path))
                yield event
        finally:
            if finished:
                with self._events_lock:
                    self._events.pop(request_id, None)
            else:
                self._abandon(request_id)

    def _next_event(self, request_id: int) -> NativeEvent:
        while True:
            event = self._take(request_id)
            if event is not None:
                return event
            with self._step_lock:
                # Another thread may have stepped while this one waited for the lock.
                event = self._take(request_id)
                if event is not None:
                    return event
                busy = self._engine.step()
                self._deliver()
            if not busy and not self._events.get(request_id):
                raise InternalError(
                    f"the runtime lost request {request_id}: it is idle and reported no end"
                )

    def _take(self, request_id: int) -> NativeEvent | None:
        with self._events_lock:
            queue = self._events.get(request_id)
            if queue is None:
                raise UsageError("the engine was closed while a request was running")
            return queue.popleft() if queue else None

    def _deliver(self) -> None:
        """Hands the runtime's events to the requests that they belong to."""
        with self._events_lock:
            while (event := self._engine.poll()) is not None:
                queue = self._events.get(event.request_id)
                if queue is not None:
                    queue.append(event)
                elif event.kind in (EventKind.DONE, EventKind.ERROR):
                    self._abandoned.discard(event.request_id)

    def _abandon(self, request_id: int) -> None:
        with self._events_lock:
            if self._events.pop(request_id, None) is None:
                return
            self._abandoned.add(request_id)
            # The engine may have been closed meanwhile; then the request is gone anyway.
            with suppress(MlcbuildError):
                self._engine.cancel(request_id)

    # ---- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Frees the engine and unmaps the bundle; requests in flight are dropped.

        A second call does nothing.
        """
        with self._step_lock, self._events_lock:
            self._events.clear()
            self._engine.close()
            self._native.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
