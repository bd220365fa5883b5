"""What a server allows and who may talk to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerOptions:
    """Limits and access; the engine has its own options.

    ``model_names``: names that requests may give, the first is the one that is listed first.
    ``api_keys``: any of them lets a request in; none: everybody may ask. ``cors_origins``: origins
    whose pages may read answers; ``*`` is all. ``allowed_hosts``: names in the Host header that are
    served when there is no key; ``*`` is all.

    Sizes are bytes, times seconds. ``max_n``: texts for one request. ``max_tokens`` of a text and
    ``request_seconds``: 0 is no limit. ``body_seconds``: for the headers of a request, and again
    for its body. ``comment_seconds``: silence after which a stream sends a comment.
    ``stall_seconds``: how long a client may leave an answer unread. ``grace_seconds``: time for
    running requests when the server is told to stop.
    """

    model_names: tuple[str, ...]
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ("*",)
    max_body_bytes: int = 4 << 20
    max_n: int = 32
    max_tokens: int = 0
    request_seconds: float = 0.0
    body_seconds: float = 30.0
    comment_seconds: float = 15.0
    stall_seconds: float = 60.0
    grace_seconds: float = 10.0
