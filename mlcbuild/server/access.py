"""Who may talk to the server: keys, and the names that it answers to."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mlcbuild.server.api_error import ApiError
from mlcbuild.server.options import ServerOptions

# Whoever starts and watches the server must see whether it is up.
_OPEN_PATHS = ("/health",)


class Access:
    """ASGI middleware: 401 without a key, 403 for a Host that is not ours.

    A page in a browser can point a name of its own at 127.0.0.1 and so reach a server on this
    machine (DNS rebinding); the Host header then tells. With keys that gains nothing, so names
    are checked only without.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._keys = tuple(_digest(key.encode()) for key in options.api_keys)
        self._hosts = frozenset(name.lower() for name in options.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets the request in, or answers it."""
        refusal = self._refusal(scope["path"], Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            scope["state"]["record"].error = refusal.code
            await refusal.response()(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        if not self._keys:
            return None if self._knows_host(headers.get("host", "")) else _foreign_host(headers)
        if path in _OPEN_PATHS:
            return None
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            message = "there is no API key; send it as Authorization: Bearer KEY"
        elif self._knows_key(key.strip()):
            return None
        else:
            message = "the API key is not known here"
        challenge = {"www-authenticate": "Bearer"}
        return ApiError(401, message, code="invalid_api_key", headers=challenge)

    def _knows_key(self, key: str) -> bool:
        """Compares with every key, in a time that tells nothing about them."""
        digest = _digest(key.encode("latin-1", "replace"))
        found = False
        for known in self._keys:
            found |= hmac.compare_digest(digest, known)
        return found

    def _knows_host(self, host: str) -> bool:
        if "*" in self._hosts:
            return True
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name is not None and name in self._hosts


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _foreign_host(headers: Headers) -> ApiError:
    name = headers.get("host", "")[:100]
    return ApiError(
        403,
        f"this server does not answer to the name {name!r}; see --allowed-host",
        code="unknown_host",
    )
