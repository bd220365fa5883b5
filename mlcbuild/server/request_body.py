"""The JSON object in a request's body, read with limits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pydantic_core
from starlette.types import Receive

from mlcbuild.server.api_error import ApiError, ClientGoneError

# A body beyond the limit is read this much further, so that the client gets to see the answer
# instead of a connection that breaks while it is still sending.
_DRAIN_FACTOR = 4
_MAX_DEPTH = 128


async def read_json_object(
    receive: Receive, headers: Mapping[str, str], *, max_bytes: int, seconds: float
) -> dict[str, Any]:
    """Reads and decodes the body.

    Raises ``ApiError``: 415 for another content type, 413 beyond ``max_bytes``, 408 if the body
    takes longer than ``seconds``, 400 if it is not a JSON object in UTF-8 or nests too deep.
    """
    content_type = headers.get("content-type", "")
    media_type, _, parameters = content_type.partition(";")
    if media_type.strip().lower() != "application/json":
        raise ApiError(
            415,
            f"the Content-Type is {content_type!r}, not application/json"
            if content_type
            else "there is no Content-Type; send application/json",
            code="unsupported_media_type",
        )
    charset = parameters.strip().lower()
    if charset.startswith("charset=") and charset[8:].strip('" ') not in ("utf-8", "utf8"):
        raise ApiError(415, f"the body's {charset} is not UTF-8", code="unsupported_media_type")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "compressed bodies are not supported", code="unsupported_media_type")
    try:
        body = await asyncio.wait_for(_read(receive, headers, max_bytes), seconds)
    except asyncio.TimeoutError:
        raise ApiError(
            408,
            f"the body did not arrive within {seconds:g} s",
            code="body_timeout",
            close=True,
        ) from None
    return decode_json_object(body)


async def _read(receive: Receive, headers: Mapping[str, str], max_bytes: int) -> bytes:
    announced = headers.get("content-length", "")
    too_large = announced.isdigit() and int(announced) > max_bytes
    if too_large and headers.get("expect", "").lower() == "100-continue":
        raise _too_large(max_bytes)
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        piece = message.get("body", b"")
        size += len(piece)
        if size > max_bytes:
            too_large = True
            pieces.clear()
        if too_large and size > _DRAIN_FACTOR * max_bytes:
            break
        if not too_large:
            pieces.append(piece)
        if not message.get("more_body", False):
            break
    if too_large:
        raise _too_large(max_bytes)
    return b"".join(pieces)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than {max_bytes} bytes",
        code="request_too_large",
        close=True,
    )


def decode_json_object(body: bytes) -> dict[str, Any]:
    """The object in ``body``; ``ApiError`` 400 says what is wrong with it and where."""
    if not body.strip():
        raise ApiError(400, "the body is empty; send a JSON object", code="invalid_json")
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ApiError(
            400, f"the body is not UTF-8: byte {error.start} is wrong", code="invalid_json"
        ) from None
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body is not a JSON object", code="invalid_json")
    if _deeper_than(value, _MAX_DEPTH):
        raise ApiError(400, f"the body nests deeper than {_MAX_DEPTH} levels", code="invalid_json")
    return value


def _deeper_than(value: object, levels: int) -> bool:
    """Whether containers nest more than ``levels`` deep; level by level, without recursion."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            item
            for container in layer
            for item in (container.values() if isinstance(container, dict) else container)  # type: ignore[attr-defined]
            if isinstance(item, (dict, list))
        ]
        if not layer:
            return False
    return True
