"""Headless Chromium for tests: its own debugging protocol over a pipe, and nothing in between."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--mute-audio",
    "--remote-debugging-pipe",
    # A software GPU, the same on every machine.
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
)
SECONDS = 300.0
# The protocol wants descriptors 3 and 4.
_LAUNCH = """\
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for number, end in enumerate(ends, 3):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str:
    """The program; the test is skipped where there is none."""
    for name in PROGRAMS:
        found = shutil.which(name)
        if found is not None:
            return found
    pytest.skip("no Chromium (Debian: apt install chromium)")


class PageError(AssertionError):
    """What a call of a page threw, or that the browser is gone."""


class Chromium:
    """A browser with one page, which is where ``call`` and ``problems`` belong."""

    def __init__(self, profile: Path) -> None:
        self.problems: list[str] = []  # errors and warnings of the page, as the console has them
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        launch = [sys.executable, "-c", _LAUNCH, str(to_browser), str(from_browser)]
        command = [find_chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._log = profile.with_suffix(".log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*launch, *command],
                pass_fds=(to_browser, from_browser),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        os.close(to_browser)
        os.close(from_browser)
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()
        self._session: str | None = None
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        """Takes the browser's only page as the one to talk with."""
        targets = self._send("Target.getTargets")["targetInfos"]
        (page,) = (target["targetId"] for target in targets if target["type"] == "page")
        attached = self._send("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self._send(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the browser."""
        with contextlib.suppress(PageError, OSError):
            self._session = None
            self._send("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        self._reader.join()
        os.close(self._read)

    def open(self, url: str) -> None:
        """Goes to ``url``; its scripts may still run when this returns."""
        result = self._send("Page.navigate", url=url)
        if "errorText" in result:
            raise PageError(f"{url}: {result['errorText']}")

    def evaluate(self, expression: str, seconds: float = SECONDS) -> Any:
        """The value of a JavaScript expression, awaited; PageError with what it threw."""
        result = self._send(
            "Runtime.evaluate",
            seconds,
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in result:
            raise PageError(_thrown(result["exceptionDetails"]))
        return result["result"].get("value")

    def screenshot(self, width: int, height: int) -> str:
        """A PNG in base 64, of a window of that size."""
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        return str(self._send("Page.captureScreenshot", format="png")["data"])

    def _send(self, method: str, seconds: float = SECONDS, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer: queue.Queue[dict[str, Any]] = queue.Queue(1)
        self._answers[number] = answer
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = memoryview(json.dumps(message).encode() + b"\0")
        while data:
            data = data[os.write(self._write, data) :]
        try:
            found = answer.get(timeout=seconds)
        except queue.Empty:
            raise PageError(f"{method} took more than {seconds:.0f} s") from None
        if "error" in found:
            raise PageError(f"{method}: {found['error']['message']}")
        result: dict[str, Any] = found["result"]
        return result

    def _listen(self) -> None:
        for message in _messages(self._read):
            if "id" in message:
                self._answers.pop(message["id"]).put(message)
            else:
                self._notice(message["method"], message["params"])
        for answer in list(self._answers.values()):
            answer.put({"error": {"message": f"the browser ended, see {self._log}"}})

    def _notice(self, event: str, params: Mapping[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.problems.append(_thrown(params["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            words = (item.get("value", item.get("description", "")) for item in params["args"])
            self.problems.append(f"{params['type']}: {' '.join(map(str, words))}")
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            entry = params["entry"]
            self.problems.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")


def _messages(descriptor: int) -> Iterator[dict[str, Any]]:
    """What the browser says, one after the other, until it ends."""
    rest = b""
    while data := os.read(descriptor, 1 << 20):
        *whole, rest = (rest + data).split(b"\0")
        for text in whole:
            yield json.loads(text)


def _thrown(details: Mapping[str, Any]) -> str:
    exception = details.get("exception", {})
    return str(exception.get("description") or exception.get("value") or details["text"])
