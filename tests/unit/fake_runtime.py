"""The runtime's C interface for tests: thin, with failures as exceptions."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from mlcbuild.bundle import abi
from mlcbuild.bundle.abi import EventKind, FinishReason, Status


class RuntimeFailure(Exception):
    """A call that did not return MLCB_OK."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{Status(status).name}: {message}")
        self.status = status
        self.message = message


@dataclass
class Outcome:
    """What became of a request."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: int = FinishReason.NONE
    status: int = Status.OK
    message: str = ""
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    stop_string: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)  # queue, first token, total

    @property
    def done(self) -> bool:
        """Whether its last event has come."""
        return self.finish != FinishReason.NONE or self.status != Status.OK


class Closing:
    """A handle that is given back at the end of a ``with`` block."""

    def close(self) -> None:
        """Give the handle back."""
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Runtime:
    """A loaded ``libmlcb.so``."""

    def __init__(self, path: Path) -> None:
        self.library = abi.load_library(path)

    def check(self, status: int) -> None:
        """Raise RuntimeFailure unless ``status`` is OK."""
        if status != Status.OK:
            raise RuntimeFailure(status, self.library.mlcb_last_error().decode())

    def open(self, folder: Path, *, verify_full: bool = False) -> Bundle:
        """The bundle in ``folder``."""
        options = abi.BundleOptions(ctypes.sizeof(abi.BundleOptions), int(verify_full))
        handle = ctypes.c_void_p()
        path = str(folder).encode()
        self.check(self.library.mlcb_bundle_open(path, ctypes.byref(options), ctypes.byref(handle)))
        return Bundle(self, handle)


class Bundle(Closing):
    """An open bundle."""

    def __init__(self, runtime: Runtime, handle: ctypes.c_void_p) -> None:
        self.runtime = runtime
        self.handle = handle

    def __enter__(self) -> Bundle:
        return self

    def close(self) -> None:
        """Close it; a second time does nothing."""
        self.runtime.library.mlcb_bundle_close(self.handle)
        self.handle = ctypes.c_void_p()

    @property
    def manifest(self) -> str:
        """Text of bundle.json."""
        manifest: bytes = self.runtime.library.mlcb_bundle_manifest(self.handle)
        return manifest.decode()

    def tokenize(self, text: str, flags: int = abi.TextFlags.TOKENIZE_SPECIAL) -> list[int]:
        """Token ids of ``text``."""
        raw = text.encode()
        ids = (ctypes.c_int32 * (len(raw) + 1))()
        count = ctypes.c_size_t()
        call = self.runtime.library.mlcb_tokenize
        self.runtime.check(
            call(self.handle, raw, len(raw), flags, ids, len(ids), ctypes.byref(count))
        )
        return list(ids[: count.value])

    def engine(self, **options: Any) -> Engine:
        """An engine; options are those of mlcb_engine_options."""
        wishes = abi.EngineOptions(struct_size=ctypes.sizeof(abi.EngineOptions), **options)
        handle = ctypes.c_void_p()
        create = self.runtime.library.mlcb_engine_create
        self.runtime.check(create(self.handle, ctypes.byref(wishes), ctypes.byref(handle)))
        return Engine(self.runtime, handle)


class Engine(Closing):
    """An engine whose steps run on the caller's thread, unless ``start`` was called."""

    def __init__(self, runtime: Runtime, handle: ctypes.c_void_p) -> None:
        self.runtime = runtime
        self.library = runtime.library
        self.handle = handle
        self.outcomes: dict[int, Outcome] = {}  # of each request's first choice
        self.choices: dict[int, list[Outcome]] = {}

    def __enter__(self) -> Engine:
        return self

    def close(self) -> None:
        """Destroy it; a second time does nothing."""
        self.library.mlcb_engine_destroy(self.handle)
        self.handle = ctypes.c_void_p()

    @property
    def info(self) -> dict[str, Any]:
        """What mlcb_engine_info tells."""
        info: dict[str, Any] = json.loads(self.library.mlcb_engine_info(self.handle))
        return info

    def metrics(self) -> dict[str, Any]:
        """What mlcb_engine_metrics tells as JSON."""
        figures: dict[str, Any] = json.loads(self.metrics_text("json"))
        return figures

    def metrics_text(self, form: str) -> str:
        """What mlcb_engine_metrics tells."""
        text = ctypes.create_string_buffer(1 << 20)
        size = ctypes.c_size_t()
        call = self.library.mlcb_engine_metrics
        self.runtime.check(call(self.handle, form.encode(), text, len(text), ctypes.byref(size)))
        return text.raw[: size.value].decode()

    def clear_cache(self) -> None:
        """Forget what the prefix cache keeps."""
        self.runtime.check(self.library.mlcb_engine_clear_cache(self.handle))

    def submit(
        self,
        tokens: Sequence[int],
        stop: Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        logit_bias: Sequence[tuple[int, float]] = (),
        **params: Any,
    ) -> int:
        """Submit a request; params are those of mlcb_request_params."""
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        stops = (ctypes.c_char_p * len(stop))(*[text.encode() for text in stop])
        stop_ids = (ctypes.c_int32 * len(stop_token_ids))(*stop_token_ids)
        biases = (abi.LogitBias * len(logit_bias))(*[abi.LogitBias(*bias) for bias in logit_bias])
        request = abi.RequestParams(
            struct_size=ctypes.sizeof(abi.RequestParams),
            token_ids=ids,
            token_count=len(tokens),
            stop=stops,
            stop_count=len(stop),
            stop_token_ids=stop_ids,
            stop_token_count=len(stop_token_ids),
            logit_bias=biases,
            logit_bias_count=len(logit_bias),
            **params,
        )
        request_id = ctypes.c_uint64()
        self.runtime.check(
            self.library.mlcb_request_submit(
                self.handle, ctypes.byref(request), ctypes.byref(request_id)
            )
        )
        choices = [Outcome() for _ in range(params.get("n") or 1)]
        self.choices[request_id.value] = choices
        self.outcomes[request_id.value] = choices[0]
        return request_id.value

    def cancel(self, request_id: int) -> None:
        """Cancel a request."""
        self.runtime.check(self.library.mlcb_request_cancel(self.handle, request_id))

    def step(self) -> bool:
        """One step; whether requests remain."""
        busy = ctypes.c_int32()
        self.runtime.check(self.library.mlcb_engine_step(self.handle, ctypes.byref(busy)))
        return bool(busy.value)

    def poll(self, timeout_ms: int = 0) -> bool:
        """Take one event into ``outcomes``; whether there was one."""
        event = abi.Event(struct_size=ctypes.sizeof(abi.Event))
        self.runtime.check(
            self.library.mlcb_engine_poll(self.handle, ctypes.byref(event), timeout_ms)
        )
        if event.kind == EventKind.NONE:
            return False
        outcome = self.choices[event.request_id][event.choice]
        assert not outcome.done, "an event after the last"
        text = ctypes.string_at(event.text, event.text_size).decode()
        if event.kind == EventKind.ERROR:
            for choice in self.choices[event.request_id]:
                if not choice.done:
                    choice.status, choice.message = event.status, text
            return True
        outcome.text += text
        if event.kind == EventKind.TOKEN:
            outcome.tokens.append(event.token_id)
            outcome.logprobs.append(event.logprob)
            top = event.top_logprobs[: event.top_logprob_count] if event.top_logprobs else []
            outcome.top_logprobs.append([(entry.token_id, entry.logprob) for entry in top])
        else:
            outcome.finish = event.finish_reason
            outcome.stop_string = event.stop_string.decode() if event.stop_string else None
            outcome.prompt_tokens = event.prompt_tokens
            outcome.cached_tokens = event.cached_tokens
            outcome.completion_tokens = event.completion_tokens
            outcome.seconds = (
                event.queue_seconds,
                event.first_token_seconds,
                event.total_seconds,
            )
        return True

    def run(self, after_step: Callable[[int], None] | None = None) -> dict[int, Outcome]:
        """Step until nothing is left; the outcomes by request id."""
        steps = 0
        busy = True
        while busy:
            busy = self.step()
            steps += 1
            while self.poll():
                pass
            if after_step is not None:
                after_step(steps)
        return self.outcomes

    def generate(self, tokens: Sequence[int], **params: Any) -> Outcome:
        """Run one request, with whatever else was submitted."""
        request_id = self.submit(tokens, **params)
        return self.run()[request_id]

    def logits(self, tokens: Sequence[int], vocab: int = 264) -> npt.NDArray[np.float32]:
        """Logits of every position, [tokens, vocab]."""
        out = np.zeros((len(tokens), vocab), np.float32)
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        target = out.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        call = self.library.mlcb_engine_logits
        self.runtime.check(call(self.handle, ids, len(tokens), target, out.size))
        return out
