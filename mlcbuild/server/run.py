"""A server's life: sockets, loading, signals, the end."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from uvicorn.config import Config

from mlcbuild.errors import NetworkError, UsageError
from mlcbuild.server.app import create_app
from mlcbuild.server.backend import Backend
from mlcbuild.server.http_protocol import make_config
from mlcbuild.server.request_log import LogWriter
from mlcbuild.server.service import Service
from mlcbuild.server.signals import SignalServer

Engine = TypeVar("Engine", bound=Backend)

_BACKLOG = 1024
_MISSING = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # an address that this machine has not


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for every address of ``host``; port 0 takes a free one.

    Addresses that this machine lacks are left out, such as ::1 where IPv6 is off. Raises
    ``NetworkError`` if the port is taken or may not be used, ``UsageError`` for a host that has no
    address of this machine.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(
            f"{host} is no host name or address", why=str(error), hint="see --host"
        ) from None
    sockets: list[socket.socket] = []
    failed: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            sockets.append(_listen(family, (address[0], port, *address[2:])))
        except OSError as error:
            failed = error
            if error.errno not in _MISSING:
                break
        else:
            port = sockets[-1].getsockname()[1]
    if failed is not None and (failed.errno not in _MISSING or not sockets):
        for opened in sockets:
            opened.close()
        raise _explain_bind(failed, host, port) from None
    return sockets


def url_of(host: str, port: int) -> str:
    """The address of a server as browsers and clients take it."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


def _listen(family: int, address: tuple[Any, ...]) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
        opened.listen(_BACKLOG)
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened


def _explain_bind(error: OSError, host: str, port: int) -> NetworkError | UsageError:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return NetworkError(
            "the port is in use",
            where=where,
            why="another program listens there, maybe another mlcbuild serve",
            hint="stop it, or choose another with --port; --port 0 takes a free one",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return NetworkError(
            "this user may not use the port",
            where=where,
            hint="choose a --port from 1024 up",
        )
    if error.errno in _MISSING:
        return UsageError("this machine does not have the address", where=where, hint="see --host")
    return NetworkError("cannot listen", where=where, why=error.strerror or str(error))


class _GracefulServer(SignalServer):
    """The end of this server gives requests time, then a reason."""

    def __init__(self, config: Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def on_signal(self, number: int, frame: object) -> None:
        """Ends the server; a second signal cuts off what still runs."""
        del number, frame
        loop = self._loop
        if self.should_exit:  # for the second time: do not wait
            loop.call_soon_threadsafe(self._service.cut_off.set)
        self.should_exit = True
        self._service.close()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Runs until a signal comes."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for running requests for the grace period, then cuts them off."""
        self._service.close()
        cut = self._loop.call_later(self._service.options.grace_seconds, self._service.cut_off.set)
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()


async def run_server(
    service: Service,
    sockets: list[socket.socket],
    load: Callable[[], Awaitable[Engine]],
    *,
    write_log: LogWriter | None = None,
    on_ready: Callable[[Engine], None] | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM, closing the engine at the end.

    Connections are taken at once and get 503 until ``load`` has made the engine; ``on_ready`` is
    called then. An error of ``load`` ends the server and is raised.
    """
    app = create_app(service, write_log)
    options = service.options
    config = make_config(app, options.body_seconds, options.grace_seconds)
    server = _GracefulServer(config, service)
    loading = asyncio.ensure_future(load())

    def loaded(task: asyncio.Future[Engine]) -> None:
        if task.cancelled() or task.exception() is not None:
            server.should_exit = True
            return
        service.ready(task.result())
        if on_ready is not None and not server.should_exit:
            on_ready(task.result())

    loading.add_done_callback(loaded)
    try:
        await server.serve(sockets)
    finally:
        for opened in sockets:
            opened.close()
        if not loading.done():
            loading.cancel()
        (result,) = await asyncio.gather(loading, return_exceptions=True)
        if not isinstance(result, BaseException):
            await result.close()
    if isinstance(result, Exception):
        raise result
