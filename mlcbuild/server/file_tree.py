"""An ASGI application that serves listed files for browsers, and nothing else of the disk."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from mlcbuild.server.byte_range import is_known, wanted_range

_CHUNK = 1 << 18  # bytes
_METHODS = "GET, HEAD, OPTIONS"
_OTHER_TYPE = "application/octet-stream"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".ts": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
}
# Pages get SharedArrayBuffer and precise clocks; pages of other origins may load what is here.
_HEADERS = {
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "cross-origin-resource-policy": "cross-origin",
    "access-control-allow-origin": "*",
    "access-control-expose-headers": "accept-ranges, content-length, content-range, etag",
    "cache-control": "no-cache",
    "x-content-type-options": "nosniff",
}
_PREFLIGHT = {
    "access-control-allow-methods": _METHODS,
    "access-control-allow-headers": "range, if-range, if-none-match, if-match, cache-control",
    "access-control-max-age": "600",
}


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A file's bytes and sha256 (hex); ``content``, if it is served from memory."""

    size: int
    sha256: str
    content: bytes | None = None

    @property
    def etag(self) -> str:
        """A strong ETag: equal tags mean equal bytes."""
        return f'"{self.sha256}"'


@dataclass(frozen=True, slots=True)
class FileTree:
    """Files of ``folder`` by path, served below ``/name/``; the folder itself is ``index``.

    ``aliases`` are prefixes below which the same files are found once more.
    """

    name: str
    folder: Path
    files: Mapping[str, ServedFile]
    index: str | None = None
    aliases: Sequence[str] = ()

    def find(self, path: str) -> str | None:
        """The listed path that ``path``, which follows ``/name/``, means; None if there is none."""
        for alias in self.aliases:
            if path.startswith(alias) and path not in self.files:
                path = path[len(alias) :]
                break
        if path == "" and self.index is not None:
            path = self.index
        hidden = any(part.startswith(".") for part in path.split("/"))
        return path if path in self.files and not hidden else None


@dataclass
class FileServer:
    """The application; the first tree is where ``/`` leads. ``log`` is told what was refused."""

    trees: Sequence[FileTree]
    log: Callable[[str, str, int], None] | None = None
    _by_name: dict[str, FileTree] = field(init=False)

    def __post_init__(self) -> None:
        self._by_name = {tree.name: tree for tree in reversed(self.trees)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        response = self._answer(scope["method"], scope["path"], Headers(scope=scope))
        for name, value in _HEADERS.items():
            response.headers[name] = value
        if response.status_code >= 400 and self.log is not None:
            self.log(scope["method"], scope["path"], response.status_code)
        await response(scope, receive, send)

    def _answer(self, method: str, path: str, headers: Headers) -> Response:
        if method == "OPTIONS":
            return Response(status_code=204, headers={"allow": _METHODS, **_PREFLIGHT})
        if method not in ("GET", "HEAD"):
            return _refuse(405, f"{method} is not served here", {"allow": _METHODS})
        name, slash, rest = path.removeprefix("/").partition("/")
        if not name and not rest:
            return _redirect(self.trees[0])
        tree = self._by_name.get(name)
        if tree is None:
            return _refuse(404, f"there is nothing at {path}; /{self.trees[0].name}/ is served")
        if not slash:
            return _redirect(tree)
        found = tree.find(rest)
        if found is None:
            what = f"the bundle has no file {rest}" if rest else "the bundle has no page"
            return _refuse(404, f"{what}; bundle.json lists what it has")
        return _file(tree, found, method, headers)


def _redirect(tree: FileTree) -> Response:
    return Response(status_code=307, headers={"location": f"/{quote(tree.name)}/"})


def _refuse(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{text}\n", status, headers)


def _file(tree: FileTree, path: str, method: str, headers: Headers) -> Response:
    entry = tree.files[path]
    common = {"etag": entry.etag, "accept-ranges": "bytes"}
    if is_known(headers.get("if-none-match"), entry.etag):
        return Response(status_code=304, headers=common)
    # Ranges are defined for GET alone.
    asked = headers.get("range") if method == "GET" else None
    part = wanted_range(asked, headers.get("if-range"), entry.size, entry.etag)
    if part == "unsatisfiable":
        beyond = {**common, "content-range": f"bytes */{entry.size}"}
        return _refuse(416, f"{path} has {entry.size} bytes", beyond)
    status, first, end = 200, 0, entry.size
    if part != "whole":
        status, (first, end) = 206, part
        common["content-range"] = f"bytes {first}-{end - 1}/{entry.size}"
    common["content-type"] = _TYPES.get(Path(path).suffix.lower(), _OTHER_TYPE)
    common["content-length"] = str(end - first)
    if entry.content is not None:
        return Response(entry.content[first:end], status, common)
    try:
        file = _open(tree.folder, path, entry.size)
    except OSError as error:
        return _refuse(500, f"{path} cannot be read: {error.strerror}")
    if file is None:
        return _refuse(500, f"{path} has changed since the server started; start it again")
    return _FileResponse(file, first, end, status, common)


def _open(folder: Path, path: str, size: int) -> BinaryIO | None:
    """The file, without going through a link; None if it is another one than at the start."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    current = folder
    for part in path.split("/")[:-1]:
        current = current / part
        if current.is_symlink():
            return None
    file = os.fdopen(os.open(folder / path, flags), "rb")
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size == size:
        return file
    file.close()
    return None


class _FileResponse(Response):
    """The bytes [first, end) of an open file, read as the client takes them."""

    def __init__(
        self, file: BinaryIO, first: int, end: int, status: int, headers: Mapping[str, str]
    ) -> None:
        super().__init__(None, status, headers)
        self._file = file
        self._first = first
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends them; a client that leaves ends it."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        with self._file as file:
            await send({"type": "http.response.start", **start})
            file.seek(self._first)
            left = self._end - self._first if scope["method"] != "HEAD" else 0
            gone = asyncio.ensure_future(_until_gone(receive))
            try:
                while left > 0 and not gone.done():
                    data = await asyncio.to_thread(file.read, min(left, _CHUNK))
                    if not data:
                        raise OSError("the file was cut off while it was being sent")
                    left -= len(data)
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            finally:
                gone.cancel()
                await asyncio.gather(gone, return_exceptions=True)
            if left == 0:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
