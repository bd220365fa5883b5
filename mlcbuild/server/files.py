"""Runs a ``FileServer`` until a signal comes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from mlcbuild.server.file_tree import FileServer
from mlcbuild.server.http_protocol import make_config
from mlcbuild.server.signals import SignalServer

_HEADER_SECONDS = 30.0
_GRACE_SECONDS = 1  # a download goes on where it was cut off: nobody waits for its end


async def serve_files(
    app: FileServer,
    sockets: Sequence[socket.socket],
    on_ready: Callable[[], None] | None = None,
) -> None:
    """Serves on listening ``sockets`` until SIGINT or SIGTERM; they are closed at the end."""
    config = make_config(app, _HEADER_SECONDS, _GRACE_SECONDS)
    config.timeout_graceful_shutdown = _GRACE_SECONDS
    server = SignalServer(config)
    serving = asyncio.ensure_future(server.serve(list(sockets)))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if on_ready is not None and server.started:
            on_ready()
        await serving
    finally:
        for opened in sockets:
            opened.close()
