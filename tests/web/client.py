"""MLC's client in a headless browser, over a bundle."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tests.unit.kernel_runner import Array
from tests.web.chromium import Chromium, PageError
from tests.web.site import Site

PAGE = Path(__file__).parent / "page"
START_SECONDS = 30.0


class Client:
    """The client has loaded the bundle in folder ``bundle``; ``profile`` is the browser's.

    No call may take longer than ``seconds``.
    """

    def __init__(self, bundle: Path, profile: Path, seconds: float = 300.0) -> None:
        self._seconds = seconds
        settings = json.loads((bundle / "mlc-chat-config.json").read_bytes())
        self._vocabulary = int(settings["vocab_size"])
        with ExitStack() as stack:
            self.site = stack.enter_context(Site({"page": PAGE, "bundle": bundle}))
            self.browser = stack.enter_context(Chromium(profile))
            self.browser.open(f"{self.site.url}/page/index.html")
            self._wait()
            self._call("test.load()")
            self._stack = stack.pop_all()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _wait(self) -> None:
        """Until the page's script has run."""
        end = time.monotonic() + START_SECONDS
        while not self.browser.evaluate("window.test !== undefined"):
            if time.monotonic() > end:
                raise PageError("\n".join(["the page's script did not run", *self.problems]))
            time.sleep(0.05)

    def _call(self, expression: str) -> Any:
        return self.browser.evaluate(expression, self._seconds)

    @property
    def problems(self) -> list[str]:
        """Errors and warnings that the console has shown."""
        return self.browser.problems

    def chat(self, *contents: str, **request: Any) -> dict[str, Any]:
        """The client's answer to messages of user and assistant in turn, and what was seen of it.

        ``fed`` are the tokens that the model has had since the conversation began, ``drawn`` those
        that the client drew for this answer.
        """
        roles = ("user", "assistant")
        messages = [
            {"role": roles[number % 2], "content": text} for number, text in enumerate(contents)
        ]
        whole = {"messages": messages, "ignore_eos": True, **request}
        answer: dict[str, Any] = self._call(f"test.chat({json.dumps(whole)})")
        return answer

    def logits(self, tokens: Sequence[int], prompt: int) -> Array:
        """As ``Reference.logits``: what the client would draw from."""
        count = self._call(f"test.logits('rows', {json.dumps(list(tokens))}, {prompt})")
        rows: Array = np.frombuffer(self.site.received.pop("rows"), np.float32)
        return rows.reshape(count, self._vocabulary)
