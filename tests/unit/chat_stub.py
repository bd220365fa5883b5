"""``mlcbuild chat`` over an engine that says the question again, for tests in a terminal.

STUB_PAUSE: seconds before each word; STUB_OWN_TEMPERATURE: the bundle says its temperature.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import mlcbuild.engine
from mlcbuild.bundle.abi import PromptTooLongError
from mlcbuild.cli import chat_command
from mlcbuild.cli.main import run
from mlcbuild.engine import protocol
from mlcbuild.errors import InternalError

WINDOW = 40
HEADER: dict[str, Any] = {"id": "chatcmpl-1", "created": 1, "model": "stub"}


class StubEngine:
    """The shape of ``Engine``. A token is a word; some words cause trouble.

    "fail": an error before the answer; "break": one after its first word; "think": reasoning comes
    first; "odd": control characters. ``requests`` are the parameters of every request.
    """

    model_name = "stub"
    context_window_size = WINDOW

    def __init__(self, bundle: object = None, **options: Any) -> None:
        self.options = options
        self.pause = float(os.environ.get("STUB_PAUSE", "0"))
        self.requests: list[dict[str, Any]] = []
        self.streams: list[StubStream] = []
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    def __enter__(self) -> StubEngine:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def metrics(self) -> dict[str, Any]:
        kv = {"total_pages": 10, "used_pages": 1, "cached_pages": 2, "page_bytes": 1_000_000}
        return {"kv": kv}

    def _create(self, **parameters: Any) -> StubStream:
        request = protocol.parse_request(protocol.ChatCompletionRequest, parameters)
        self.requests.append(parameters)
        size = sum(len(str(message.content).split()) for message in request.messages)
        if size > WINDOW:
            raise PromptTooLongError(f"{size} tokens do not fit the context window of {WINDOW}")
        self.streams.append(StubStream(self, request, size))
        return self.streams[-1]


class StubStream:
    """The chunks of one answer."""

    def __init__(self, engine: StubEngine, request: Any, size: int) -> None:
        self.engine = engine
        self.closed = False
        self.request = request
        self.size = size
        self.chunks = self._make()

    def __enter__(self) -> StubStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.closed = True

    def __iter__(self) -> Iterator[Any]:
        return self.chunks

    def _make(self) -> Iterator[Any]:
        question = str(self.request.messages[-1].content)
        words = question.split()
        if "fail" in words:
            raise InternalError("the engine failed", hint="try again")
        if "think" in words:
            yield chunk(reasoning_content="hmm ")
        if "odd" in words:
            words.append("\x1b[2J\x07")
        limit = self.request.token_limit
        room = WINDOW - self.size
        made = words[: min(room, limit if limit is not None else room)]
        for number, word in enumerate(made):
            time.sleep(self.engine.pause)
            yield chunk(content=word if number == 0 else f" {word}")
            if "break" in words:
                raise InternalError("the engine broke")
        yield chunk(finish="stop" if len(made) == len(words) else "length")
        details = protocol.PromptTokensDetails(cached_tokens=self.size // 2)
        yield protocol.ChatCompletionChunk(
            **HEADER,
            choices=[],
            usage=protocol.CompletionUsage(
                prompt_tokens=self.size,
                completion_tokens=len(made),
                total_tokens=self.size + len(made),
                prompt_tokens_details=details,
            ),
        )


def chunk(finish: Any = None, **delta: Any) -> protocol.ChatCompletionChunk:
    choice = protocol.ChunkChoice(
        index=0, delta=protocol.ChoiceDelta(**delta), finish_reason=finish
    )
    return protocol.ChatCompletionChunk(**HEADER, choices=[choice])


if __name__ == "__main__":
    chat_command.has_own_temperature = lambda bundle: bool(os.environ.get("STUB_OWN_TEMPERATURE"))
    mlcbuild.engine.Engine = StubEngine  # type: ignore[misc, assignment]
    sys.exit(run(["chat", "bundle", *sys.argv[1:]]))
