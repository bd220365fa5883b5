"""Handles of a bundle's own runtime: an open bundle (text) and an engine (forward steps)."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Sequence
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
    RequestParams,
    Status,
    TextFlags,
    load_library,
    status_error,
)
from mlcbuild.bundle.messages import Message, messages_json
from mlcbuild.bundle.reader import Bundle, open_bundle
from mlcbuild.errors import UsageError

FINISH_NAMES = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCEL: "cancel",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One generation.

    Zero means: no limit but the window (``max_tokens``), greedy (``temperature``), off (``top_p``,
    ``top_k``).
    """

    token_ids: Sequence[int]
    max_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 0.0
    top_k: int = 0
    seed: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NativeEvent:
    """An event of the runtime. ``finish_reason`` is set on DONE, ``status`` on ERROR."""

    request_id: int
    kind: EventKind
    token_id: int
    text: str
    finish_reason: str | None
    status: int


def _int_array(values: Sequence[int]) -> ctypes.Array[c_int32]:
    for value in values:
        if not -(1 << 31) <= value < 1 << 31:
            raise UsageError(f"token id {value} is out of range")
    return (c_int32 * max(1, len(values)))(*values)


class NativeBundle:
    """A bundle opened by its own runtime library. Close it after its engines."""

    def __init__(self, bundle: Bundle, *, verify_full: bool = False) -> None:
        """Opens ``bundle``; ``verify_full`` also hashes the params.

        Raises what the runtime finds as an ``MlcbuildError``.
        """
        self.bundle = bundle
        self.library = load_library(bundle.file(bundle.manifest.runtime.library))
        self._handle = c_void_p()
        options = BundleOptions(ctypes.sizeof(BundleOptions), int(verify_full))
        encoded = str(bundle.path).encode("utf-8", "surrogateescape")
        self.check(self.library.mlcb_bundle_open(encoded, byref(options), byref(self._handle)))

    @classmethod
    def open(cls, path: Path, *, verify_full: bool = False) -> NativeBundle:
        """Reads the manifest of the folder ``path`` and opens it."""
        return cls(open_bundle(path), verify_full=verify_full)

    @property
    def handle(self) -> c_void_p:
        """The ``mlcb_bundle*``; ``UsageError`` once closed."""
        if not self._handle:
            raise UsageError("the bundle is closed", where=str(self.bundle.path))
        return self._handle

    def check(self, status: int) -> None:
        """Raises the exception of a status that is not OK."""
        if status != Status.OK:
            message = self.library.mlcb_last_error() or b""
            raise status_error(status, message.decode("utf-8", "replace"), str(self.bundle.path))

    def tokenize(self, text: str, flags: TextFlags = TextFlags.TOKENIZE_SPECIAL) -> list[int]:
        """Token ids of ``text``."""
        data = text.encode("utf-8")
        count = c_size_t()
        capacity = len(data) + 8  # a token stands for a byte or more, BOS comes on top
        while True:
            ids = (c_int32 * capacity)()
            status = self.library.mlcb_tokenize(
                self.handle, data, len(data), int(flags), ids, capacity, byref(count)
            )
            if status != Status.TOO_SMALL or count.value <= capacity:
                self.check(status)
                return ids[: count.value]
            capacity = count.value

    def detokenize(self, token_ids: Sequence[int], flags: TextFlags = TextFlags.NONE) -> bytes:
        """The bytes that the ids stand for (perhaps no whole UTF-8 characters at the ends)."""
        ids = _int_array(token_ids)
        size = c_size_t()
        capacity = 16 * len(token_ids) + 16
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            status = self.library.mlcb_detokenize(
                self.handle, ids, len(token_ids), int(flags), buffer, capacity, byref(size)
            )
            if status != Status.TOO_SMALL or size.value <= capacity:
                self.check(status)
                return buffer.raw[: size.value]
            capacity = size.value

    def render_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The conversation as text, with the model's chat template."""
        data = messages_json(messages)
        size = c_size_t()
        capacity = 2 * len(data) + 1024
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            status = self.library.mlcb_apply_chat_template(
                self.handle, data, int(add_generation_prompt), buffer, capacity, byref(size)
            )
            if status != Status.TOO_SMALL or size.value <= capacity:
                self.check(status)
                return buffer.raw[: size.value].decode("utf-8")
            capacity = size.value

    def close(self) -> None:
        """Closes the bundle; a second call does nothing."""
        if self._handle:
            self.library.mlcb_bundle_close(self._handle)
            self._handle = c_void_p()

    def __enter__(self) -> NativeBundle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
    ) -> None:
        """Zeros and None take the runtime's defaults (see mlcb.h)."""
        self.native = native
        self._library = native.library
        self._handle = c_void_p()
        # Poll and the use of the text that it returns must not be interleaved by two threads.
        self._poll_lock = threading.Lock()
        options = EngineOptions(
            ctypes.sizeof(EngineOptions),
            threads,
            max_batch_size,
            kv_tokens,
            None if activations is None else activations.encode(),
            None if variant is None else variant.encode(),
        )
        native.check(
            self._library.mlcb_engine_create(native.handle, byref(options), byref(self._handle))
        )

    @property
    def handle(self) -> c_void_p:
        """The ``mlcb_engine*``; ``UsageError`` once closed."""
        if not self._handle:
            raise UsageError("the engine is closed", where=str(self.native.bundle.path))
        return self._handle

    def info(self) -> dict[str, Any]:
        """What the runtime chose: variant, activations, threads, limits, memory in bytes."""
        value: dict[str, Any] = json.loads(self._library.mlcb_engine_info(self.handle))
        return value

    def submit(self, request: Request) -> int:
        """Queues a request and returns its id."""
        if not 0 <= request.seed < 1 << 64:
            raise UsageError(f"seed {request.seed} is not in 0..2^64-1")
        ids = _int_array(request.token_ids)
        stop = (c_char_p * max(1, len(request.stop)))(*(text.encode() for text in request.stop))
        params = RequestParams(
            struct_size=ctypes.sizeof(RequestParams),
            token_ids=ids,
            token_count=len(request.token_ids),
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=request.seed,
            ignore_eos=int(request.ignore_eos),
            stop=stop,
            stop_count=len(request.stop),
        )
        request_id = c_uint64()
        self.native.check(
            self._library.mlcb_request_submit(self.handle, byref(params), byref(request_id))
        )
        return request_id.value

    def cancel(self, request_id: int) -> None:
        """Cancels a request; one that has ended already is fine."""
        status = self._library.mlcb_request_cancel(self.handle, request_id)
        if status != Status.NOT_FOUND:
            self.native.check(status)

    def step(self) -> bool:
        """One forward step on this thread; whether requests remain."""
        busy = c_int32()
        self.native.check(self._library.mlcb_engine_step(self.handle, byref(busy)))
        return bool(busy.value)

    def poll(self, timeout_ms: int = 0) -> NativeEvent | None:
        """The next event, or None. Waiting needs the engine's own thread (mlcb_engine_start)."""
        event = Event(struct_size=ctypes.sizeof(Event))
        with self._poll_lock:
            self.native.check(self._library.mlcb_engine_poll(self.handle, byref(event), timeout_ms))
            if event.kind == EventKind.NONE:
                return None
            text = ctypes.string_at(event.text, event.text_size) if event.text else b""
        done = event.kind == EventKind.DONE
        return NativeEvent(
            request_id=event.request_id,
            kind=EventKind(event.kind),
            token_id=event.token_id,
            text=text.decode("utf-8"),
            finish_reason=FINISH_NAMES.get(FinishReason(event.finish_reason)) if done else None,
            status=event.status,
        )

    def logits_into(self, token_ids: Sequence[int], address: int, capacity: int) -> None:
        """Writes float32 [len(token_ids), vocab_size] to ``address`` (``capacity`` floats)."""
        pointer = ctypes.cast(address, ctypes.POINTER(c_float))
        self.native.check(
            self._library.mlcb_engine_logits(
                self.handle, _int_array(token_ids), len(token_ids), pointer, capacity
            )
        )

    def logits(self, token_ids: Sequence[int]) -> list[ctypes.Array[c_float]]:
        """A row of ``vocab_size`` floats for each position, without numpy."""
        vocab_size = self.native.bundle.manifest.model.vocab_size
        rows = ((c_float * vocab_size) * len(token_ids))()
        self.logits_into(token_ids, ctypes.addressof(rows), vocab_size * len(token_ids))
        return list(rows)

    def close(self) -> None:
        """Destroys the engine, dropping its requests; a second call does nothing."""
        if self._handle:
            self._library.mlcb_engine_destroy(self._handle)
            self._handle = c_void_p()

    def __enter__(self) -> NativeEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
