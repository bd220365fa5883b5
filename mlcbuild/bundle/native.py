"""Handles of a bundle's own runtime: an open bundle (text) and an engine (forward steps)."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_float, c_int32, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from mlcbuild.bundle.abi import (
    BundleOptions,
    EngineOptions,
    Event,
    EventKind,
    FinishReason,
    GrammarKind,
    LogitBias,
    RequestParams,
    Status,
    TextFlags,
    load_library,
    status_error,
)
from mlcbuild.bundle.reader import Bundle, open_bundle
from mlcbuild.errors import UsageError

FINISH_NAMES = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCEL: "cancel",
    FinishReason.DEADLINE: "deadline",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, from which ``n`` texts are made.

    Zero means: no limit but the window (``max_tokens``), greedy (``temperature``), off (``top_p``,
    ``top_k``, ``min_p``, the penalties, ``timeout_ms``). ``logit_bias``: (token id, what is added
    to its logit; -inf forbids it). ``logprobs``: tell each token's log probability, and those of
    the ``top_logprobs`` likeliest. ``stop`` and ``stop_token_ids`` come on top of the model's own.
    ``grammar`` is what ``grammar_kind`` says.
    """

    token_ids: Sequence[int]
    max_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 0.0
    top_k: int = 0
    seed: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    n: int = 1
    min_p: float = 0.0
    repetition_penalty: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    stop_token_ids: tuple[int, ...] = ()
    timeout_ms: int = 0
    grammar_kind: GrammarKind = GrammarKind.NONE
    grammar: str | None = None


@dataclass(frozen=True, slots=True)
class RequestUsage:
    """What a request took: tokens, and seconds from its submission.

    ``cached_tokens``: of the prompt, found in the prefix cache; ``completion_tokens``: of one
    choice.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_seconds: float
    first_token_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class NativeEvent:
    """An event of the runtime.

    ``text``: whole characters that became final. ``logprob`` and ``top_logprobs`` (likeliest
    first) are set on TOKEN if asked for, ``finish_reason``, ``stop_string`` and ``usage`` on DONE,
    ``status`` on ERROR.
    """

    request_id: int
    kind: EventKind
    token_id: int
    text: str
    finish_reason: str | None
    status: int
    choice: int = 0
    logprob: float = 0.0
    top_logprobs: tuple[tuple[int, float], ...] = ()
    stop_string: str | None = None
    usage: RequestUsage | None = None


def _int32(value: int, name: str) -> int:
    if not -(1 << 31) <= value < 1 << 31:
        raise UsageError(f"{name} {value} is out of range")
    return value


def _int_array(values: Sequence[int], name: str = "token id") -> ctypes.Array[c_int32]:
    for value in values:
        _int32(value, name)
    return (c_int32 * max(1, len(values)))(*values)


def _utf8(text: str, name: str, *, terminated: bool = False) -> bytes:
    """``text`` for the runtime, which ends a ``terminated`` string at its first NUL."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name} is no Unicode text", why=f"half a surrogate pair at {error.start}"
        ) from None
    if terminated and b"\0" in data:
        raise UsageError(f"{name} holds a NUL character")
    return data


def _optional(text: str | None, name: str) -> bytes | None:
    return None if text is None else _utf8(text, name, terminated=True)


def json_text(value: object, name: str) -> str:
    """JSON for the runtime: keys stay in their order, which templates show to the model."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON", why=str(error)) from None


def conversation_json(
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    continue_final_message: bool = False,
    now: int | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """What ``mlcb_apply_chat_template`` takes; see ``NativeBundle.render_chat``."""
    conversation: dict[str, Any] = {
        "messages": [dict(message) for message in messages],
        "add_generation_prompt": add_generation_prompt,
    }
    if tools is not None:
        conversation["tools"] = [dict(tool) for tool in tools]
    if continue_final_message:
        conversation["continue_final_message"] = True
    if now is not None:
        conversation["now"] = now
    if variables:
        conversation["variables"] = dict(variables)
    return json_text(conversation, "the conversation")


class _Gate:
    """Counts the calls on a handle, so that it is given back after the last one only."""

    def __init__(self, what: str, where: str) -> None:
        self._what = what
        self._where = where
        self._condition = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Keeps the handle open; ``UsageError`` once it is closed."""
        with self._condition:
            if self._closed:
                raise UsageError(f"the {self._what} is closed", where=self._where)
            self._inside += 1
        try:
            yield
        finally:
            with self._condition:
                self._inside -= 1
                if self._inside == 0:
                    self._condition.notify_all()

    def close(self) -> bool:
        """Lets nobody in, waits for those inside; False if it was closed already."""
        with self._condition:
            if self._closed:
                return False
            self._closed = True
            self._condition.wait_for(lambda: self._inside == 0)
            return True


class NativeBundle:
    """A bundle opened by its own runtime library. Usable from any thread."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        verify_full: bool = False,
        library: ctypes.CDLL | None = None,
        closed_name: str = "bundle",
    ) -> None:
        """Opens ``bundle``; ``verify_full`` also hashes the params.

        ``library``: another bundle's runtime that opens this one, as a draft for it.
        ``closed_name``: what users have closed when a call comes too late. Raises what the runtime
        finds as an ``MlcbuildError``.
        """
        self.bundle = bundle
        if bundle.manifest.is_wasm:
            raise UsageError(
                "the bundle is for browsers and node, this process cannot run it",
                where=str(bundle.path),
                hint="mlcbuild serve-web BUNDLE shows it in a browser, mlcbuild verify tries it in "
                "node; docs/web-api.md tells how to use it",
            )
        if library is None:
            library = load_library(bundle.file(bundle.manifest.runtime.library))
        self.library = library
        self._gate = _Gate(closed_name, str(bundle.path))
        self._handle = c_void_p()
        options = BundleOptions(ctypes.sizeof(BundleOptions), int(verify_full))
        encoded = str(bundle.path).encode("utf-8", "surrogateescape")
        self.check(self.library.mlcb_bundle_open(encoded, byref(options), byref(self._handle)))

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        verify_full: bool = False,
        library: ctypes.CDLL | None = None,
        closed_name: str = "bundle",
    ) -> NativeBundle:
        """Reads the manifest of the folder ``path`` and opens it."""
        return cls(
            open_bundle(path), verify_full=verify_full, library=library, closed_name=closed_name
        )

    @contextmanager
    def use(self) -> Iterator[c_void_p]:
        """The ``mlcb_bundle*``, open until the block ends; ``UsageError`` once closed."""
        with self._gate.enter():
            yield self._handle

    def require(self, function: str, what: str) -> None:
        """Raises ``UsageError`` if the runtime has no ``function``, with which it can ``what``."""
        if not hasattr(self.library, function):
            raise UsageError(
                f"the bundle's runtime cannot {what}",
                where=str(self.bundle.path),
                why=f"it has no {function}: an older mlcbuild made it",
                hint="build the bundle again",
            )

    def check(self, status: int) -> None:
        """Raises the exception of a status that is not OK."""
        if status != Status.OK:
            message = self.library.mlcb_last_error() or b""
            raise status_error(status, message.decode("utf-8", "replace"), str(self.bundle.path))

    def fill(
        self, call: Callable[[ctypes.Array[ctypes.c_char], int, Any], int], capacity: int
    ) -> bytes:
        """The bytes that a function of the runtime writes, however many they are."""
        size = c_size_t()
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            status = call(buffer, capacity, byref(size))
            if status != Status.TOO_SMALL or size.value <= capacity:
                self.check(status)
                return buffer.raw[: size.value]
            capacity = size.value

    def tokenize(self, text: str, flags: TextFlags = TextFlags.TOKENIZE_SPECIAL) -> list[int]:
        """Token ids of ``text``."""
        data = _utf8(text, "the text")
        count = c_size_t()
        capacity = len(data) + 8  # a token stands for a byte or more, BOS comes on top
        with self.use() as handle:
            while True:
                ids = (c_int32 * capacity)()
                status = self.library.mlcb_tokenize(
                    handle, data, len(data), int(flags), ids, capacity, byref(count)
                )
                if status != Status.TOO_SMALL or count.value <= capacity:
                    self.check(status)
                    return ids[: count.value]
                capacity = count.value

    def detokenize(self, token_ids: Sequence[int], flags: TextFlags = TextFlags.NONE) -> bytes:
        """The bytes that the ids stand for (perhaps no whole UTF-8 characters at the ends)."""
        ids = _int_array(token_ids)
        with self.use() as handle:
            return self.fill(
                lambda buffer, capacity, size: self.library.mlcb_detokenize(
                    handle, ids, len(token_ids), int(flags), buffer, capacity, size
                ),
                16 * len(token_ids) + 16,
            )

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        now: int | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as text, with the model's chat template.

        ``tools``: OpenAI's function tools; ``continue_final_message`` leaves the last message open;
        ``now``: seconds since 1970, for templates that tell the date; ``variables``: what else the
        template may ask for.
        """
        conversation = conversation_json(
            messages,
            add_generation_prompt,
            tools=tools,
            continue_final_message=continue_final_message,
            now=now,
            variables=variables,
        )
        data = _utf8(conversation, "the conversation")
        with self.use() as handle:
            return self.fill(
                lambda buffer, capacity, size: self.library.mlcb_apply_chat_template(
                    handle, data, buffer, capacity, size
                ),
                2 * len(data) + 1024,
            ).decode("utf-8")

    def check_grammar(self, kind: GrammarKind, grammar: str | None) -> None:
        """Compiles a grammar and keeps it; ``GrammarError`` says what is wrong with it."""
        data = _optional(grammar, "the grammar")
        with self.use() as handle:
            self.check(self.library.mlcb_grammar_check(handle, int(kind), data))

    def tool_grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        tool_choice: str | Mapping[str, Any],
        *,
        parallel: bool = True,
    ) -> str:
        """The grammar (kind STRUCTURE) under which the model must call one of ``tools``.

        ``tool_choice``: "required" or OpenAI's object that names a function.
        """
        tools_json = _utf8(json_text([dict(tool) for tool in tools], "tools"), "tools")
        choice_json = _utf8(json_text(tool_choice, "tool_choice"), "tool_choice")
        with self.use() as handle:
            return self.fill(
                lambda buffer, capacity, size: self.library.mlcb_tool_grammar(
                    handle, tools_json, choice_json, int(parallel), buffer, capacity, size
                ),
                4 * len(tools_json) + 1024,
            ).decode("utf-8")

    def output_parser(self, *, tools: bool, reasoning: bool, prompt: str = "") -> OutputParser:
        """A parser that tells text, reasoning and tool calls apart.

        ``prompt``: the text before (its end is enough), which may open or close the reasoning.
        """
        return OutputParser(self, tools=tools, reasoning=reasoning, prompt=prompt)

    def open_engine(
        self,
        *,
        threads: int = 0,
        activations: str | None = None,
        variant: str | None = None,
        max_batch_size: int = 0,
    ) -> NativeEngine:
        """An engine with these of its options."""
        return NativeEngine(
            self,
            threads=threads,
            activations=activations,
            variant=variant,
            max_batch_size=max_batch_size,
        )

    def close(self) -> None:
        """Closes the bundle after the calls that run; a second call does nothing."""
        if self._gate.close():
            self.library.mlcb_bundle_close(self._handle)

    def __enter__(self) -> NativeBundle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class OutputParser:
    """Tells apart what a model writes, by the bundle's conventions. For one thread at a time."""

    def __init__(
        self, native: NativeBundle, *, tools: bool, reasoning: bool, prompt: str = ""
    ) -> None:
        """What is not looked for stays content."""
        self._native = native
        self._library = native.library
        self._handle = c_void_p()
        options = json.dumps({"tools": tools, "reasoning": reasoning, "prompt": prompt}).encode()
        with native.use() as bundle:
            native.check(
                self._library.mlcb_output_parser_create(bundle, options, byref(self._handle))
            )

    def push(self, text: str, *, last: bool = False) -> list[dict[str, Any]]:
        """The deltas of the next piece of text, as mlcb.h describes them; ``last``: the end."""
        if not self._handle:
            raise UsageError("the output parser is closed")
        data = _utf8(text, "the text")
        found = c_char_p()
        # A parser may look into its bundle, which must stay open as long.
        with self._native.use():
            self._native.check(
                self._library.mlcb_output_parser_push(
                    self._handle, data, len(data), int(last), byref(found)
                )
            )
            deltas: list[dict[str, Any]] = json.loads(found.value or b"[]")
        return deltas

    def close(self) -> None:
        """Frees the parser; a second call does nothing."""
        if self._handle:
            self._library.mlcb_output_parser_destroy(self._handle)
            self._handle = c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()


class NativeEngine:
    """An engine over an open bundle: one call here is one call of the C interface."""

    def __init__(
        self,
        native: NativeBundle,
        *,
        threads: int = 0,
        activations: str | None = None,
        variant: str | None = None,
        max_batch_size: int = 0,
        kv_tokens: int = 0,
        kv_bytes: int = 0,
        mode: str | None = None,
        max_waiting: int = 0,
        prefix_cache: bool = True,
        speculation: str | None = None,
        speculation_tokens: int = 0,
        draft: NativeBundle | None = None,
        profile: bool = False,
    ) -> None:
        """Zeros and None take the runtime's defaults (see mlcb.h).

        ``draft`` must have been opened with ``native.library``.
        """
        self.native = native
        self._library = native.library
        self._gate = _Gate("engine", str(native.bundle.path))
        self._handle = c_void_p()
        # Poll and the use of the text that it returns must not be interleaved by two threads.
        self._poll_lock = threading.Lock()
        if not 0 <= kv_bytes < 1 << 64:
            raise UsageError(f"kv_bytes {kv_bytes} is out of range")
        if not 0 <= kv_tokens < 1 << 63:
            raise UsageError(f"kv_tokens {kv_tokens} is out of range")
        options = EngineOptions(
            struct_size=ctypes.sizeof(EngineOptions),
            threads=_int32(threads, "threads"),
            max_batch_size=_int32(max_batch_size, "max_batch_size"),
            kv_tokens=kv_tokens,
            kv_bytes=kv_bytes,
            mode=_optional(mode, "mode"),
            max_waiting=_int32(max_waiting, "max_waiting"),
            no_prefix_cache=int(not prefix_cache),
            speculation=_optional(speculation, "speculation"),
            speculation_tokens=_int32(speculation_tokens, "speculation_tokens"),
            profile=int(profile),
            activations=_optional(activations, "activations"),
            variant=_optional(variant, "variant"),
        )
        with native.use() as bundle:
            if draft is None:
                status = self._create(bundle, options)
            else:
                with draft.use() as draft_handle:
                    options.draft = draft_handle
                    status = self._create(bundle, options)
        native.check(status)

    def _create(self, bundle: c_void_p, options: EngineOptions) -> int:
        status: int = self._library.mlcb_engine_create(bundle, byref(options), byref(self._handle))
        return status

    @contextmanager
    def use(self) -> Iterator[c_void_p]:
        """The ``mlcb_engine*``, alive until the block ends; ``UsageError`` once closed."""
        with self._gate.enter():
            yield self._handle

    def info(self) -> dict[str, Any]:
        """What the runtime chose: variant, activations, threads, limits, memory in bytes."""
        with self.use() as handle:
            value: dict[str, Any] = json.loads(self._library.mlcb_engine_info(handle))
        return value

    def metrics(self, format_name: str = "json") -> str:
        """What the engine has done and holds: as JSON, or as "prometheus" text."""
        data = _utf8(format_name, "the format", terminated=True)
        with self.use() as handle:
            return self.native.fill(
                lambda buffer, capacity, size: self._library.mlcb_engine_metrics(
                    handle, data, buffer, capacity, size
                ),
                1 << 14,
            ).decode("utf-8")

    def limits(self) -> dict[str, Any]:
        """What this machine can do at most with the engine's threads and instructions.

        ``read_gbytes`` in 1e9 bytes a second; ``float`` and ``int8``: ``{"gops", "instructions"}``
        in 1e9 operations a second, or None where the runtime knows no loop. The first call measures
        for about half a second. Raises ``UsageError`` if the bundle's runtime is older than this.
        """
        self.native.require("mlcb_engine_limits", "measure what the machine can do")
        with self.use() as handle:
            text = self.native.fill(
                lambda buffer, capacity, size: self._library.mlcb_engine_limits(
                    handle, buffer, capacity, size
                ),
                1 << 10,
            )
        value: dict[str, Any] = json.loads(text)
        return value

    def clear_cache(self) -> None:
        """Forgets every page that no request holds."""
        with self.use() as handle:
            self.native.check(self._library.mlcb_engine_clear_cache(handle))

    def submit(self, request: Request) -> int:
        """Queues a request and returns its id."""
        if not 0 <= request.seed < 1 << 64:
            raise UsageError(f"seed {request.seed} is not in 0..2^64-1")
        stops = [_utf8(text, "a stop string", terminated=True) for text in request.stop]
        biases = [LogitBias(_int32(token, "token id"), bias) for token, bias in request.logit_bias]
        params = RequestParams(
            struct_size=ctypes.sizeof(RequestParams),
            token_ids=_int_array(request.token_ids),
            token_count=len(request.token_ids),
            n=_int32(request.n, "n"),
            max_tokens=_int32(request.max_tokens, "max_tokens"),
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=_int32(request.top_k, "top_k"),
            min_p=request.min_p,
            repetition_penalty=request.repetition_penalty,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            seed=request.seed,
            logit_bias=(LogitBias * max(1, len(biases)))(*biases),
            logit_bias_count=len(biases),
            logprobs=int(request.logprobs),
            top_logprobs=_int32(request.top_logprobs, "top_logprobs"),
            ignore_eos=int(request.ignore_eos),
            stop=(c_char_p * max(1, len(stops)))(*stops),
            stop_count=len(stops),
            stop_token_ids=_int_array(request.stop_token_ids, "stop token id"),
            stop_token_count=len(request.stop_token_ids),
            timeout_ms=_int32(request.timeout_ms, "timeout_ms"),
            grammar_kind=int(request.grammar_kind),
            grammar=_optional(request.grammar, "the grammar"),
        )
        request_id = c_uint64()
        with self.use() as handle:
            self.native.check(
                self._library.mlcb_request_submit(handle, byref(params), byref(request_id))
            )
        return request_id.value

    def cancel(self, request_id: int) -> None:
        """Cancels a request; one that has ended already is fine."""
        with self.use() as handle:
            status = self._library.mlcb_request_cancel(handle, request_id)
            if status != Status.NOT_FOUND:
                self.native.check(status)

    def step(self) -> bool:
        """One forward step on this thread; whether requests remain."""
        busy = c_int32()
        with self.use() as handle:
            self.native.check(self._library.mlcb_engine_step(handle, byref(busy)))
        return bool(busy.value)

    def start(self) -> None:
        """Steps on a thread of the engine's own from now on."""
        with self.use() as handle:
            self.native.check(self._library.mlcb_engine_start(handle))

    def stop(self) -> None:
        """Stops the engine's own thread; requests stay."""
        with self.use() as handle:
            self.native.check(self._library.mlcb_engine_stop(handle))

    def poll(self, timeout_ms: int = 0) -> NativeEvent | None:
        """The next event, or None. Waiting needs the engine's own thread (``start``)."""
        event = Event(struct_size=ctypes.sizeof(Event))
        with self.use() as handle, self._poll_lock:
            self.native.check(self._library.mlcb_engine_poll(handle, byref(event), timeout_ms))
            return _read_event(event)

    def logits_into(self, token_ids: Sequence[int], address: int, capacity: int) -> None:
        """Writes float32 [len(token_ids), vocab_size] to ``address`` (``capacity`` floats)."""
        pointer = ctypes.cast(address, ctypes.POINTER(c_float))
        ids = _int_array(token_ids)
        with self.use() as handle:
            self.native.check(
                self._library.mlcb_engine_logits(handle, ids, len(token_ids), pointer, capacity)
            )

    def logits(self, token_ids: Sequence[int]) -> list[ctypes.Array[c_float]]:
        """A row of ``vocab_size`` floats for each position, without numpy."""
        vocab_size = self.native.bundle.manifest.model.vocab_size
        rows = ((c_float * vocab_size) * len(token_ids))()
        self.logits_into(token_ids, ctypes.addressof(rows), vocab_size * len(token_ids))
        return list(rows)

    def close(self) -> None:
        """Destroys the engine after the calls that run, dropping its requests.

        A second call does nothing.
        """
        if self._gate.close():
            self._library.mlcb_engine_destroy(self._handle)

    def __enter__(self) -> NativeEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _read_event(event: Event) -> NativeEvent | None:
    """A copy of what the runtime told; None where it told nothing."""
    if event.kind == EventKind.NONE:
        return None
    data = ctypes.string_at(event.text, event.text_size) if event.text else b""
    text = data.decode("utf-8", "replace")
    if event.kind == EventKind.TOKEN:
        top = event.top_logprobs[: event.top_logprob_count] if event.top_logprob_count else ()
        return NativeEvent(
            request_id=event.request_id,
            kind=EventKind.TOKEN,
            token_id=event.token_id,
            text=text,
            finish_reason=None,
            status=Status.OK,
            choice=event.choice,
            logprob=event.logprob,
            top_logprobs=tuple((item.token_id, item.logprob) for item in top),
        )
    if event.kind == EventKind.ERROR:
        return NativeEvent(event.request_id, EventKind.ERROR, -1, text, None, event.status)
    return NativeEvent(
        request_id=event.request_id,
        kind=EventKind.DONE,
        token_id=-1,
        text=text,
        finish_reason=FINISH_NAMES.get(FinishReason(event.finish_reason)),
        status=Status.OK,
        choice=event.choice,
        stop_string=event.stop_string.decode("utf-8", "replace") if event.stop_string else None,
        usage=RequestUsage(
            prompt_tokens=event.prompt_tokens,
            cached_tokens=event.cached_tokens,
            completion_tokens=event.completion_tokens,
            queue_seconds=event.queue_seconds,
            first_token_seconds=event.first_token_seconds,
            total_seconds=event.total_seconds,
        ),
    )
