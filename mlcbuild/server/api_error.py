"""Errors as OpenAI's clients know them: a status and {"error": {message, type, param, code}}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from mlcbuild.bundle.abi import BusyError, DeadlineError, GrammarError, PromptTooLongError
from mlcbuild.errors import MlcbuildError, ResourceError, UsageError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class ClientGoneError(Exception):
    """The client left before its answer was whole."""


class ApiError(Exception):
    """An answer that is not 2xx.

    ``param`` names the field at fault, ``code`` is for programs. ``close`` ends the connection
    after the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        if close:
            self.headers["connection"] = "close"

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, default),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """The answer."""
        return JSONResponse(self.body(), self.status, self.headers)


def describe_error(error: Exception, *, prompt_param: str, retry_after: int) -> ApiError | None:
    """The answer for what the engine raised; None: a bug of ours.

    ``prompt_param``: the field that holds the prompt; ``retry_after``: seconds, for a full queue.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BusyError):
        return ApiError(
            429,
            "as many requests are waiting as the server takes; try again later",
            code="server_busy",
            headers={"retry-after": str(retry_after)},
        )
    if isinstance(error, DeadlineError):
        return ApiError(504, _sentence(error), code="request_timeout")
    if isinstance(error, PromptTooLongError):
        return ApiError(400, _sentence(error), param=prompt_param, code="context_length_exceeded")
    if isinstance(error, GrammarError):
        param = getattr(error, "param", None) or "response_format"
        return ApiError(400, _sentence(error), param=param, code="invalid_grammar")
    if isinstance(error, ResourceError):
        return ApiError(
            503,
            _sentence(error),
            code="server_overloaded",
            headers={"retry-after": str(retry_after)},
        )
    if isinstance(error, UsageError):
        # The engine's errors about a request carry OpenAI's two fields.
        code = getattr(error, "code", None) or "invalid_value"
        return ApiError(
            404 if code == "model_not_found" else 400,
            _sentence(error),
            param=getattr(error, "param", None),
            code=code,
        )
    return None


def _sentence(error: MlcbuildError) -> str:
    """Message, reason and next step on one line; ``where`` stays out: it may be a path of ours."""
    return "; ".join(part for part in (error.message, error.why, error.hint) if part)
