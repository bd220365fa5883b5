"""The bundles' page on a plain static host, with the engines replaced by stubs, in Chromium."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn import Server

from mlcbuild.bundle.client_manifest import read_any_manifest
from mlcbuild.bundle.manifest import MANIFEST_NAME
from mlcbuild.server.file_tree import FileServer, FileTree, ServedFile
from mlcbuild.server.http_protocol import make_config
from mlcbuild.server.run import open_sockets
from tests.web.chromium import Chromium

ROOT = Path(__file__).parents[2]
PAGE_FILES = ROOT / "mlcbuild" / "runtime_stub" / "platform" / "web"
STUBS = ROOT / "tests" / "web" / "stubs"
WEB = "platform/web/"


def page_files(*, stubs: bool = True) -> dict[str, bytes]:
    """The page as assembly lays it into a bundle."""
    files = {
        f"{WEB}{path.relative_to(PAGE_FILES).as_posix()}": path.read_bytes()
        for path in PAGE_FILES.rglob("*")
        if path.is_file()
    }
    files["index.html"] = files.pop(f"{WEB}index.html")
    if stubs:
        files |= {f"{WEB}{path.name}": path.read_bytes() for path in STUBS.iterdir()}
    return files


def plain_tree(folder: Path) -> FileTree:
    """A bundle as a host serves it that knows nothing of any client: no aliases."""
    manifest = read_any_manifest(folder)
    files = {entry.path: ServedFile(entry.size, entry.sha256) for entry in manifest.files}
    content = (folder / MANIFEST_NAME).read_bytes()
    files[MANIFEST_NAME] = ServedFile(len(content), "0" * 64, content)
    return FileTree(folder.name, folder, files, "index.html")


class Host:
    """Serves ``/site/target/...`` of every site.

    A path in ``held`` waits until it is taken out; one in ``cut`` breaks off after so many bytes,
    once. ``asked`` are the paths and ranges of the requests.
    """

    def __init__(self, sites: Mapping[str, FileServer]) -> None:
        self.sites = dict(sites)
        self.held: set[str] = set()
        self.cut: dict[str, int] = {}
        self.asked: list[tuple[str, str]] = []
        self.url = ""
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Host:
        self._sockets = open_sockets("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._sockets[0].getsockname()[1]}"
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.held.clear()
        self._stop.set()
        self._thread.join()

    async def _serve(self) -> None:
        config = make_config(self._answer, 30, 0)
        config.timeout_graceful_shutdown = 1
        server = Server(config)
        serving = asyncio.ensure_future(server.serve(self._sockets))
        while not server.started:
            await asyncio.sleep(0.01)
        self._ready.set()
        while not self._stop.is_set():
            await asyncio.sleep(0.02)
        server.should_exit = True
        await serving

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.asked.append((path, Headers(scope=scope).get("range", "")))
        if path == "/favicon.ico":  # what Chromium asks for beside files that are no pages
            await Response(status_code=204)(scope, receive, send)
            return
        while path in self.held:
            await asyncio.sleep(0.01)
        site, _, rest = path.removeprefix("/").partition("/")
        app = self.sites.get(site)
        if app is None:
            await Response(status_code=404)(scope, receive, send)
            return
        left = self.cut.pop(path, None)

        async def send_less(message: Message) -> None:
            nonlocal left
            if left is not None and message["type"] == "http.response.body":
                await send({**message, "body": message["body"][:left], "more_body": True})
                left -= len(message["body"][:left])
                if left == 0:
                    await asyncio.sleep(0.2)  # what was sent must have arrived
                    raise ConnectionAbortedError
            else:
                await send(message)

        with contextlib.suppress(ConnectionAbortedError):
            await app({**scope, "path": f"/{rest}"}, receive, send_less)


class Browser(Chromium):
    """A browser whose workers' consoles count as well, with a keyboard and eyes."""

    _spare = itertools.count(1_000_000_000)

    def __init__(self, profile: Path) -> None:
        super().__init__(profile)
        self._send(
            "Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True
        )
        self.window(1280, 800)

    def __enter__(self) -> Browser:
        return self

    def _notice(self, event: str, params: Mapping[str, Any]) -> None:
        if event == "Target.attachedToTarget" and params["targetInfo"]["type"] == "worker":
            # The listening thread may not wait for an answer.
            for method in ("Runtime.enable", "Log.enable"):
                number = next(self._spare)
                self._answers[number] = queue.Queue(1)
                text = {"id": number, "method": method, "sessionId": params["sessionId"]}
                os.write(self._write, json.dumps(text).encode() + b"\0")
        super()._notice(event, params)

    def window(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the page, and the user's preference."""
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str, text: str = "") -> None:
        """One key; ``text`` is what it writes."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, " ": 32, "ArrowDown": 40, "ArrowUp": 38}
        common: dict[str, Any] = {
            "key": key,
            "code": key,
            "windowsVirtualKeyCode": codes.get(key, 0),
        }
        self._send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self._send("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text: str) -> None:
        """Text into what has the focus."""
        self._send("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """Clicks an element where it is seen."""
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'nearest'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._send(
                "Input.dispatchMouseEvent",
                type=kind,
                x=place[0],
                y=place[1],
                button="left",
                clickCount=1,
            )

    def wait(self, condition: str, seconds: float = 15) -> None:
        """Until a JavaScript expression is true."""
        end = time.monotonic() + seconds
        attempt = (
            f"(() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }})()"
        )
        while not self.evaluate(attempt):
            if time.monotonic() > end:
                shown = self.evaluate("document.body.innerText")
                raise AssertionError(f"{condition}\n{shown}\n{self.problems}")
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        """What is shown of an element."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def picture(self, path: Path) -> None:
        """Saves what is seen."""
        data = self._send("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
