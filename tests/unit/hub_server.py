"""A loopback server that speaks the part of the hub's protocol that fetching a model needs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeRepo:
    """What the hub holds; ``refuse`` (status, error code, message) answers every request."""

    name: str
    files: dict[str, bytes]
    card: dict[str, Any] = field(default_factory=dict)
    refuse: tuple[int, str, str] | None = None
    altered: dict[str, bytes] = field(default_factory=dict)  # sent instead of what is announced


@dataclass
class FakeHub:
    """The running server: its address, and the paths that were asked for."""

    endpoint: str
    requests: list[str]


def is_large(name: str) -> bool:
    """Large files are the ones that the hub keeps in LFS and knows the sha256 of."""
    return name.endswith(".safetensors")


def _git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _etag(name: str, data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if is_large(name) else _git_id(data)


def _sibling(name: str, data: bytes) -> dict[str, Any]:
    item: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": _git_id(data)}
    if is_large(name):
        digest = hashlib.sha256(data).hexdigest()
        item["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
    return item


def _tree_entry(name: str, data: bytes) -> dict[str, Any]:
    item: dict[str, Any] = {
        "type": "file",
        "path": name,
        "size": len(data),
        "oid": _git_id(data),
    }
    if is_large(name):
        digest = hashlib.sha256(data).hexdigest()
        item["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 134}
    return item


@contextlib.contextmanager
def serve(repo: FakeRepo) -> Iterator[FakeHub]:
    """Serves ``repo`` on a free port of this machine while the block runs."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def log_message(self, format: str, *args: Any) -> None:
            """Tests need no log."""

        def _answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            requests.append(f"{self.command} {path}")
            if repo.refuse is not None:
                status, code, message = repo.refuse
                self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message}, body)
                return
            api, files = f"/api/models/{repo.name}", f"/{repo.name}/resolve/"
            if path.startswith(files):
                revision, _, name = path.removeprefix(files).partition("/")
                self._send_file(revision, name, body)
            elif path == api or path.startswith(f"{api}/revision/"):
                revision = path.removeprefix(api).removeprefix("/revision/") or "main"
                if revision not in ("main", COMMIT):
                    self._missing("RevisionNotFound", body)
                    return
                self._send_json(
                    {
                        "id": repo.name,
                        "sha": COMMIT,
                        "cardData": repo.card,
                        "siblings": [_sibling(*item) for item in repo.files.items()],
                    },
                    body,
                )
            elif path == f"{api}/tree/{COMMIT}":
                self._send_json([_tree_entry(*item) for item in repo.files.items()], body)
            else:
                self._missing("RepoNotFound", body)

        def _send_file(self, revision: str, name: str, body: bool) -> None:
            if revision != COMMIT or name not in repo.files:
                self._missing("EntryNotFound", body)
                return
            announced = repo.files[name]
            sent = repo.altered.get(name, announced)
            headers = {"ETag": f'"{_etag(name, announced)}"', "X-Repo-Commit": COMMIT}
            if is_large(name):
                headers["X-Linked-Etag"] = headers["ETag"]
                headers["X-Linked-Size"] = str(len(announced))
            self._send(200, sent, headers, body)

        def _missing(self, code: str, body: bool) -> None:
            self._send(404, b"{}", {"X-Error-Code": code}, body)

        def _send_json(self, value: Any, body: bool) -> None:
            data = json.dumps(value).encode()
            self._send(200, data, {"Content-Type": "application/json"}, body)

        def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield FakeHub(f"http://127.0.0.1:{server.server_address[1]}", requests)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
