"""The ASGI application: OpenAI's routes over a ``Service``."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Coroutine, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from mlcbuild.server.access import Access
from mlcbuild.server.answers import Describe, EventStream, Prepare, while_client_waits
from mlcbuild.server.api_error import ApiError, ClientGoneError, describe_error
from mlcbuild.server.backend import Answer, AnswerStream, Completions
from mlcbuild.server.request_body import read_json_object
from mlcbuild.server.request_log import LogWriter, RequestLog, RequestRecord
from mlcbuild.server.service import Service, Status

_COMPLETION_TOKENS = 16  # OpenAI's default for plain completions
_TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def create_app(service: Service, write_log: LogWriter | None = None) -> ASGIApp:
    """The application; ``write_log`` is called once for each request that ends."""
    routes = _Routes(service)
    app: ASGIApp = _Application(
        routes=[
            Route("/health", routes.health, methods=["GET"]),
            Route("/metrics", routes.metrics, methods=["GET"]),
            Route("/v1/models", routes.models, methods=["GET"]),
            Route("/v1/models/{name:path}", routes.model, methods=["GET"]),
            Route("/v1/chat/completions", routes.chat, methods=["POST"]),
            Route("/v1/completions", routes.complete, methods=["POST"]),
        ],
        exception_handlers={ApiError: _answer_error, HTTPException: _answer_http_error},
    )
    app = Access(app, service.options)
    if service.options.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(service.options.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return RequestLog(app, service, write_log)


class _Application(Starlette):
    """Starlette without its answer to what nobody handles: RequestLog has that."""

    def build_middleware_stack(self) -> ASGIApp:
        """Error handlers around the router, nothing else."""
        self.router.redirect_slashes = False
        return ExceptionMiddleware(self.router, handlers=self.exception_handlers)


def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    record: RequestRecord = request.state.record
    record.error = record.error or error.code or "refused"
    return error.response()


def _answer_http_error(request: Request, error: Exception) -> Response:
    """What Starlette's router refuses."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path[:200], request.method
    code: str | None = None
    if error.status_code == 404:
        message, code = f"there is nothing at {path}", "unknown_url"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message, code = f"{path} takes {allowed}, not {method}", "method_not_allowed"
    else:
        message = error.detail
    headers = {key.lower(): value for key, value in (error.headers or {}).items()}
    return _answer_error(request, ApiError(error.status_code, message, code=code, headers=headers))


class _Routes:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._options = service.options

    async def health(self, request: Request) -> Response:
        """GET /health."""
        status = self._service.status
        ready = status is Status.READY
        return JSONResponse({"status": status.value}, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        engine = self._service.backend.prometheus_metrics()
        text = engine if engine.endswith("\n") else f"{engine}\n"
        return Response(text + self._service.prometheus(), media_type=_PROMETHEUS)

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        models = [self._describe_model(name) for name in self._options.model_names]
        return JSONResponse({"object": "list", "data": models})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/{name}."""
        return JSONResponse(
            self._describe_model(self._service.check_model(request.path_params["name"]))
        )

    def _describe_model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._service.created,
            "owned_by": "mlcbuild",
            "context_window_size": self._service.backend.context_window_size,
        }

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._complete(request, self._service.backend.chat.completions, "messages")

    async def complete(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self._complete(request, self._service.backend.completions, "prompt")

    async def _complete(
        self, request: Request, completions: Completions, prompt_param: str
    ) -> Response:
        service, record = self._service, request.state.record
        body = await read_json_object(
            request.receive,
            request.headers,
            max_bytes=self._options.max_body_bytes,
            seconds=self._options.body_seconds,
        )
        name = service.check_model(body.get("model"))
        self._check_limits(body)
        service.backend  # noqa: B018  (the server may be closing since)

        def describe(error: Exception) -> ApiError:
            known = describe_error(
                error, prompt_param=prompt_param, retry_after=service.retry_after
            )
            if known is not None:
                return known
            record.error = f"{type(error).__name__}: {error}"
            record.details = "".join(traceback.format_exception(error))
            return ApiError(500, f"internal error; the server's log has it as {record.request_id}")

        wants_usage = _wants_usage(body)

        def prepare(answer: Answer) -> bool:
            """Gives an answer the asked name; whether the client is to have it."""
            answer.model = name
            record.take_usage(answer)
            return wants_usage or bool(answer.choices)

        work = completions.create(self._for_engine(body))
        record.stream = body.get("stream") is True
        try:
            if record.stream:
                return await self._stream(work, request, describe, prepare)
            with service.request():
                answer = await while_client_waits(work, request.receive, service)
        except (ApiError, ClientGoneError):
            raise
        except Exception as error:
            raise describe(error) from error
        prepare(answer)
        return Response(answer.model_dump_json(), media_type="application/json")

    async def _stream(
        self,
        work: Coroutine[Any, Any, AnswerStream],
        request: Request,
        describe: Describe,
        prepare: Prepare,
    ) -> Response:
        """Answers with events, or with an error if the request fails before its first one."""
        service = self._service
        with service.request():
            chunks = await while_client_waits(work, request.receive, service)
            first = asyncio.ensure_future(anext_of(chunks))
            try:
                early = asyncio.wait({first}, timeout=self._options.comment_seconds)
                await while_client_waits(early, request.receive, service)
                if first.done() and not isinstance(first.exception(), StopAsyncIteration):
                    first.result()
            except BaseException:
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)
                await chunks.aclose()
                raise
        return EventStream(
            chunks,
            first,
            service=service,
            record=request.state.record,
            describe=describe,
            prepare=prepare,
        )

    def _check_limits(self, body: Mapping[str, Any]) -> None:
        """Refuses what the engine could do but this server does not offer."""
        prompt = body.get("prompt")
        several = isinstance(prompt, list) and any(isinstance(item, (str, list)) for item in prompt)
        prompts = len(prompt) if several and isinstance(prompt, list) else 1
        choices = body.get("n")
        texts = prompts * (choices if isinstance(choices, int) else 1)
        if texts > self._options.max_n:
            raise ApiError(
                400,
                f"the request asks for {texts} texts; this server writes at most "
                f"{self._options.max_n} for one request",
                param="n" if prompts == 1 else "prompt",
                code="invalid_value",
            )
        limit = self._options.max_tokens
        for name in _TOKEN_LIMITS:
            tokens = body.get(name)
            if limit and isinstance(tokens, int) and tokens > limit:
                raise ApiError(
                    400,
                    f"{name} is {tokens}; this server writes at most {limit} tokens",
                    param=name,
                    code="invalid_value",
                )

    def _for_engine(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The request as the engine gets it: its own model name, our limits, usage always told."""
        request = {**body, "model": self._service.backend.model_name}
        if self._options.max_tokens and all(body.get(name) is None for name in _TOKEN_LIMITS):
            # Plain completions have a small default of their own.
            least = _COMPLETION_TOKENS if "prompt" in body else self._options.max_tokens
            request["max_tokens"] = min(least, self._options.max_tokens)
        seconds = self._options.request_seconds
        timeout = body.get("timeout")
        if seconds and (timeout is None or (_is_number(timeout) and timeout > seconds)):
            request["timeout"] = seconds
        options = body.get("stream_options")
        if body.get("stream") is True and (options is None or isinstance(options, dict)):
            request["stream_options"] = {**(options or {}), "include_usage": True}
        return request


def _wants_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


async def anext_of(chunks: AnswerStream) -> Answer:
    """The next chunk, as a coroutine that a task can run."""
    return await chunks.__anext__()
