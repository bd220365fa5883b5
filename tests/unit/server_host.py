"""A real server on a free port of the loopback, in a thread, over a fake engine."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn import Server

from mlcbuild.server.app import create_app
from mlcbuild.server.http_protocol import make_config
from mlcbuild.server.options import ServerOptions
from mlcbuild.server.request_log import RequestRecord
from mlcbuild.server.run import open_sockets
from mlcbuild.server.service import Service
from tests.unit.fake_engine import FakeEngine


class ServerHost:
    """Serves ``engine`` within a ``with`` block; ``records`` are the requests that have ended."""

    def __init__(self, engine: FakeEngine, *, send_buffer: int = 0, **options: Any) -> None:
        self.engine = engine
        self.send_buffer = send_buffer  # of the server's sockets, in bytes; 0: as they are
        self.options = ServerOptions(**{"model_names": ("fake", "alias"), **options})
        self.records: list[RequestRecord] = []
        self.service = Service(self.options)
        self.port = 0
        self._open = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> ServerHost:
        self._sockets = open_sockets("127.0.0.1", 0)
        self.port = self._sockets[0].getsockname()[1]
        if self.send_buffer:
            self._sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer)
        self.service.ready(self.engine)
        self._app = create_app(self.service, self.records.append)
        self._server = Server(make_config(self._count, self.options.body_seconds, 1))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        wait_until(lambda: self._server.started)
        return self

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1

    def _run(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            await self._server.serve(self._sockets)

        asyncio.run(main())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.loop.call_soon_threadsafe(self.service.cut_off.set)
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()

    def start_afresh(self, engine: FakeEngine) -> None:
        """Another engine and no records; what still runs ends before."""
        wait_until(lambda: self._open == 0)
        self.engine = engine
        self.service.ready(engine)
        self.service.answered.clear()
        self.records.clear()

    def exchange(self, data: bytes, *, timeout: float = 5.0) -> bytes:
        """Sends bytes and reads until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as connection:
            connection.sendall(data)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
            return answer

    def request(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """One request on a connection of its own."""
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        fields = {"Host": f"127.0.0.1:{self.port}", "Connection": "close"}
        if body is not None:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        fields |= headers or {}
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items()), "", ""]
        return Reply(self.exchange("\r\n".join(lines).encode("latin-1") + (body or b"")))


class Reply:
    """A parsed answer."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        if self.headers.get("transfer-encoding") == "chunked":
            self.body = _dechunk(self.body)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error; that it has OpenAI's four fields is checked on the way."""
        error: dict[str, Any] = self.json()["error"]
        assert sorted(error) == ["code", "message", "param", "type"]
        assert error["message"]
        return error


def _dechunk(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        body += rest[:length]
        if length == 0:
            break
        data = rest[length + 2 :]
    return body


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Waits for what another thread will do."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
