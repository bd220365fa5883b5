"""The C interface of a bundle's runtime (mlcb.h) for ctypes: structs, prototypes, errors."""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import IntEnum, IntFlag
from pathlib import Path

from mlcbuild.bundle.manifest import ABI_VERSION
from mlcbuild.errors import (
    InternalError,
    MlcbuildError,
    ResourceError,
    UsageError,
    VerificationError,
)


class Status(IntEnum):
    """``mlcb_status``."""

    OK = 0
    ARGUMENT = 1
    TOO_SMALL = 2
    TOO_LONG = 3
    NOT_FOUND = 4
    UNSUPPORTED = 5
    BUSY = 6
    DEADLINE = 7
    GRAMMAR = 8
    BUNDLE = 20
    VERSION = 21
    HASH = 22
    DEVICE = 40
    MEMORY = 41
    IO = 42
    KERNEL = 60
    INTERNAL = 61


class TextFlags(IntFlag):
    """Flags of mlcb_tokenize and mlcb_detokenize."""

    NONE = 0
    TOKENIZE_SPECIAL = 1
    TOKENIZE_BOS = 2
    DETOKENIZE_SPECIAL = 4
    DETOKENIZE_INSIDE = 8


class EventKind(IntEnum):
    """``mlcb_event_kind``."""

    NONE = 0
    TOKEN = 1
    DONE = 2
    ERROR = 3


class FinishReason(IntEnum):
    """``mlcb_finish_reason``."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    CANCEL = 3
    DEADLINE = 4


class GrammarKind(IntEnum):
    """``mlcb_grammar_kind``."""

    NONE = 0
    JSON = 1
    JSON_SCHEMA = 2
    REGEX = 3
    EBNF = 4
    STRUCTURE = 5


class BundleOptions(Structure):
    """``mlcb_bundle_options``."""

    _fields_ = [("struct_size", c_size_t), ("verify_full", c_int32)]


class EngineOptions(Structure):
    """``mlcb_engine_options``."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("threads", c_int32),
        ("max_batch_size", c_int32),
        ("kv_tokens", c_int64),
        ("kv_bytes", c_uint64),
        ("mode", c_char_p),
        ("max_waiting", c_int32),
        ("no_prefix_cache", c_int32),
        ("speculation", c_char_p),
        ("speculation_tokens", c_int32),
        ("draft", c_void_p),
        ("profile", c_int32),
        ("activations", c_char_p),
        ("variant", c_char_p),
    ]


class LogitBias(Structure):
    """``mlcb_logit_bias``."""

    _fields_ = [("token_id", c_int32), ("bias", c_float)]


class RequestParams(Structure):
    """``mlcb_request_params``."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("token_ids", POINTER(c_int32)),
        ("token_count", c_size_t),
        ("n", c_int32),
        ("max_tokens", c_int32),
        ("temperature", c_float),
        ("top_p", c_float),
        ("top_k", c_int32),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("seed", c_uint64),
        ("logit_bias", POINTER(LogitBias)),
        ("logit_bias_count", c_size_t),
        ("logprobs", c_int32),
        ("top_logprobs", c_int32),
        ("ignore_eos", c_int32),
        ("stop", POINTER(c_char_p)),
        ("stop_count", c_size_t),
        ("stop_token_ids", POINTER(c_int32)),
        ("stop_token_count", c_size_t),
        ("timeout_ms", c_int32),
        ("grammar_kind", c_int32),
        ("grammar", c_char_p),
    ]


class TokenLogprob(Structure):
    """``mlcb_token_logprob``."""

    _fields_ = [("token_id", c_int32), ("logprob", c_float)]


class Event(Structure):
    """``mlcb_event``."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("request_id", c_uint64),
        ("kind", c_int32),
        ("choice", c_int32),
        ("token_id", c_int32),
        ("finish_reason", c_int32),
        ("status", c_int32),
        ("text", c_void_p),
        ("text_size", c_size_t),
        ("logprob", c_float),
        ("top_logprobs", POINTER(TokenLogprob)),
        ("top_logprob_count", c_size_t),
        ("stop_string", c_char_p),
        ("prompt_tokens", c_int32),
        ("cached_tokens", c_int32),
        ("completion_tokens", c_int32),
        ("queue_seconds", c_double),
        ("first_token_seconds", c_double),
        ("total_seconds", c_double),
    ]


# name: (result, arguments). Handles are void pointers; out parameters are byref()s.
_PROTOTYPES: dict[str, tuple[object, list[object]]] = {
    "mlcb_abi_version": (c_uint32, []),
    "mlcb_last_error": (c_char_p, []),
    "mlcb_bundle_open": (c_int32, [c_char_p, POINTER(BundleOptions), POINTER(c_void_p)]),
    "mlcb_bundle_close": (None, [c_void_p]),
    "mlcb_bundle_manifest": (c_char_p, [c_void_p]),
    "mlcb_tokenize": (
        c_int32,
        [
            c_void_p,
            c_char_p,
            c_size_t,
            c_uint32,
            POINTER(c_int32),
            c_size_t,
            POINTER(c_size_t),
        ],
    ),
    "mlcb_detokenize": (
        c_int32,
        [
            c_void_p,
            POINTER(c_int32),
            c_size_t,
            c_uint32,
            c_void_p,
            c_size_t,
            POINTER(c_size_t),
        ],
    ),
    "mlcb_apply_chat_template": (
        c_int32,
        [c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_size_t)],
    ),
    "mlcb_grammar_check": (c_int32, [c_void_p, c_int32, c_char_p]),
    "mlcb_tool_grammar": (
        c_int32,
        [c_void_p, c_char_p, c_char_p, c_int32, c_void_p, c_size_t, POINTER(c_size_t)],
    ),
    "mlcb_output_parser_create": (c_int32, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "mlcb_output_parser_destroy": (None, [c_void_p]),
    "mlcb_output_parser_push": (
        c_int32,
        [c_void_p, c_char_p, c_size_t, c_int32, POINTER(c_char_p)],
    ),
    "mlcb_engine_create": (c_int32, [c_void_p, POINTER(EngineOptions), POINTER(c_void_p)]),
    "mlcb_engine_destroy": (None, [c_void_p]),
    "mlcb_engine_info": (c_char_p, [c_void_p]),
    "mlcb_request_submit": (c_int32, [c_void_p, POINTER(RequestParams), POINTER(c_uint64)]),
    "mlcb_request_cancel": (c_int32, [c_void_p, c_uint64]),
    "mlcb_engine_step": (c_int32, [c_void_p, POINTER(c_int32)]),
    "mlcb_engine_start": (c_int32, [c_void_p]),
    "mlcb_engine_stop": (c_int32, [c_void_p]),
    "mlcb_engine_poll": (c_int32, [c_void_p, POINTER(Event), c_int32]),
    "mlcb_engine_metrics": (
        c_int32,
        [c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_size_t)],
    ),
    "mlcb_engine_clear_cache": (c_int32, [c_void_p]),
    "mlcb_engine_logits": (
        c_int32,
        [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_float), c_size_t],
    ),
}

# Functions that a runtime of before them lacks; who calls one looks whether it is there.
_LATER_PROTOTYPES: dict[str, tuple[object, list[object]]] = {
    "mlcb_engine_limits": (c_int32, [c_void_p, c_void_p, c_size_t, POINTER(c_size_t)]),
}


class PromptTooLongError(UsageError):
    """A prompt does not fit the context window."""


class BusyError(UsageError):
    """As many requests wait as may: the same request may succeed later."""


class DeadlineError(UsageError):
    """A request's time ran out before its first token."""


class GrammarError(UsageError):
    """A grammar, JSON schema or regular expression is not valid, or not supported.

    ``param``: the parameter of a request that it came in, if it is known.
    """

    param: str | None = None


_ERRORS: dict[int, type[MlcbuildError]] = {
    Status.ARGUMENT: UsageError,
    Status.TOO_SMALL: InternalError,
    Status.TOO_LONG: PromptTooLongError,
    Status.NOT_FOUND: UsageError,
    Status.UNSUPPORTED: UsageError,
    Status.BUSY: BusyError,
    Status.DEADLINE: DeadlineError,
    Status.GRAMMAR: GrammarError,
    Status.BUNDLE: VerificationError,
    Status.VERSION: VerificationError,
    Status.HASH: VerificationError,
    Status.DEVICE: ResourceError,
    Status.MEMORY: ResourceError,
    Status.IO: ResourceError,
}

_HINTS: dict[int, str] = {
    Status.TOO_LONG: "shorten the prompt, or build with a larger context_window_size",
    Status.BUSY: "try again later, or raise max_waiting",
    Status.DEADLINE: "raise the timeout, or send fewer requests at once",
    Status.BUNDLE: "`mlcbuild verify` lists everything that is wrong with a bundle",
    Status.VERSION: "build the bundle again with one mlcbuild",
    Status.HASH: "`mlcbuild verify` lists every altered file; fetch or build the bundle again",
    Status.DEVICE: "`mlcbuild inspect` lists the variants and what each needs",
    Status.MEMORY: "lower the batch size or kv_tokens, or free memory",
}


def status_error(status: int, message: str, where: str | None = None) -> MlcbuildError:
    """The exception for a status of the runtime that is not OK.

    The runtime puts ``why: ...`` and ``hint: ...`` on lines of their own, as this package does.
    """
    head: list[str] = []
    marked: dict[str, str] = {}
    for line in message.splitlines():
        key, _, value = line.partition(": ")
        if key in ("why", "hint") and value:
            marked[key] = value
        else:
            head.append(line)
    text = "; ".join(head) or f"the runtime reports status {status}"
    return _ERRORS.get(status, InternalError)(
        text,
        where=None if where is not None and where in text else where,
        why=marked.get("why"),
        hint=marked.get("hint", _HINTS.get(status)),
    )


def load_library(path: Path) -> ctypes.CDLL:
    """The runtime library at ``path`` with every prototype set.

    Raises ``VerificationError`` if it does not load, lacks a function, or speaks another version of
    the interface (both versions are named).
    """
    try:
        library = ctypes.CDLL(str(path))
        version_of = library.mlcb_abi_version
    except (OSError, AttributeError) as error:
        raise VerificationError(
            "the bundle's runtime library does not load",
            where=str(path),
            why=str(error),
            hint="the bundle is for another system, or damaged: see `mlcbuild verify`",
        ) from None
    version_of.restype = c_uint32
    version = version_of()
    if version != ABI_VERSION:
        raise VerificationError(
            "the bundle's runtime speaks another version of the interface",
            where=str(path),
            why=f"the library has ABI version {version}, this mlcbuild {ABI_VERSION}",
            hint="use the mlcbuild that made the bundle, or build it again",
        )
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(library, name, None)
        if function is None:
            raise VerificationError(f"the bundle's runtime lacks {name}", where=str(path))
        function.restype = result
        function.argtypes = arguments
    for name, (result, arguments) in _LATER_PROTOTYPES.items():
        function = getattr(library, name, None)
        if function is not None:
            function.restype = result
            function.argtypes = arguments
    return library
