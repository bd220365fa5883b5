"""A web server for a test's browser: files by name, and what a page sends back."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".json": "application/json",
    ".wasm": "application/wasm",
}


class Site:
    """``folders`` are served by the first part of a path; ``received`` is what was posted."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self.folders = dict(folders)
        self.received: dict[str, bytes] = {}
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site._answer(self)

            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                site.received[self.path.strip("/")] = self.rfile.read(size)
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the browser's console tells what failed."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Site:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        # MLC's client asks for files of a model in the form of a hub's addresses.
        path_only = request.path.split("?")[0].replace("/resolve/main/", "/")
        first, _, rest = path_only.strip("/").partition("/")
        folder = self.folders.get(first)
        path = None if folder is None else folder / rest
        if path is None or not path.is_file():
            request.send_error(204 if first == "favicon.ico" else 404)
            return
        data = path.read_bytes()
        request.send_response(200)
        kind = _TYPES.get(path.suffix, "application/octet-stream")
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(data)))
        request.send_header("Cache-Control", "no-store")
        request.end_headers()
        request.wfile.write(data)
