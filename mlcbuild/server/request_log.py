"""One record for each request: the outermost layer counts, times, names and logs them."""

from __future__ import annotations

import json
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlcbuild.server.api_error import ApiError, ClientGoneError
from mlcbuild.server.service import Service

ENDPOINTS = (
    "/health",
    "/metrics",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
)
# nginx's number for a client that left; nothing is sent with it.
CLIENT_LEFT = 499
_LONGEST_PATH = 200


@dataclass
class RequestRecord:
    """What became of a request. Times are seconds; ``error`` is a code or a word."""

    method: str
    path: str
    request_id: str = field(default_factory=lambda: f"req_{uuid.uuid4().hex}")
    started: float = field(default_factory=time.perf_counter)
    status: int = 0
    stream: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    first_token_seconds: float | None = None
    seconds: float = 0.0
    error: str | None = None
    details: str | None = None  # a traceback

    def take_usage(self, answer: Any) -> None:
        """Keeps the usage and timings that an answer tells."""
        usage = getattr(answer, "usage", None)
        if usage is not None:
            self.prompt_tokens = usage.prompt_tokens
            self.completion_tokens = usage.completion_tokens
            details = getattr(usage, "prompt_tokens_details", None)
            self.cached_tokens = getattr(details, "cached_tokens", None)
        timings = getattr(answer, "timings", None)
        if timings is not None:
            self.first_token_seconds = timings.first_token_seconds

    @property
    def endpoint(self) -> str:
        """The path of the interface that it belongs to, or "other"."""
        if self.path.startswith("/v1/models/"):
            return "/v1/models"
        return self.path if self.path in ENDPOINTS else "other"

    @property
    def is_probe(self) -> bool:
        """Whether it is a monitor's regular visit, which nobody wants to see every time."""
        return self.endpoint in ("/health", "/metrics") and self.status == 200


LogWriter = Callable[[RequestRecord], None]


def text_line(record: RequestRecord) -> str:
    """``12:00:01 POST /v1/completions 200  12 + 30 tokens  431 ms``."""
    parts = [time.strftime("%H:%M:%S"), record.method, record.path, str(record.status)]
    if record.prompt_tokens is not None:
        cached = f" ({record.cached_tokens} cached)" if record.cached_tokens else ""
        parts.append(f" {record.prompt_tokens}{cached} + {record.completion_tokens} tokens ")
    parts.append(f"{record.seconds * 1000:.0f} ms")
    if record.first_token_seconds is not None:
        parts.append(f"(first token {record.first_token_seconds * 1000:.0f} ms)")
    if record.error is not None:
        parts.append(f" {record.error}")
    line = " ".join(parts)
    return f"{line}\n{record.details}" if record.details else line


def json_line(record: RequestRecord) -> str:
    """The record as one JSON object."""
    first = record.first_token_seconds
    values = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "event": "request",
        "request_id": record.request_id,
        "method": record.method,
        "path": record.path,
        "status": record.status,
        "stream": record.stream,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "ms": round(record.seconds * 1000, 1),
        "first_token_ms": None if first is None else round(first * 1000, 1),
        "error": record.error,
        "traceback": record.details,
    }
    return json.dumps({key: value for key, value in values.items() if value is not None})


class RequestLog:
    """ASGI middleware that nothing gets past: what is not handled inside is a 500 here."""

    def __init__(self, app: ASGIApp, service: Service, write: LogWriter | None) -> None:
        self._app = app
        self._service = service
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request and logs it."""
        raw_path = scope.get("raw_path") or b""
        record = RequestRecord(
            scope["method"], raw_path.decode("ascii", "backslashreplace")[:_LONGEST_PATH]
        )
        scope.setdefault("state", {})["record"] = record

        async def send_and_watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = record.request_id
            await send(message)

        try:
            await self._app(scope, receive, send_and_watch)
        except ClientGoneError:
            record.error = "client left"
            if record.status == 0:
                record.status = CLIENT_LEFT
        except Exception as error:  # a bug of ours: the client gets one line, the log the rest
            record.error = f"{type(error).__name__}: {error}"
            record.details = traceback.format_exc()
            if record.status != 0:
                raise
            answer = ApiError(
                500, f"internal error; the server's log has it as {record.request_id}"
            )
            await answer.response()(scope, receive, send_and_watch)
        finally:
            record.seconds = time.perf_counter() - record.started
            self._service.answered[record.endpoint, record.status] += 1
            if record.completion_tokens is not None:
                self._service.note_duration(record.seconds)
            if self._write is not None and not record.is_probe:
                self._write(record)
