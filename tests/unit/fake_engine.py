"""An engine for the server's tests: it says the prompt again, word by word, and keeps a diary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from mlcbuild.bundle.abi import BusyError
from mlcbuild.engine import protocol

CREATED = 1_700_000_000


class FakeEngine:
    """The shape of ``AsyncEngine``.

    ``pause``: seconds before each word. ``capacity``: requests at once; more are ``BusyError``.
    ``failure``: raised by the next request as it starts; ``late_failure``: after its first word.
    ``started``, ``finished``, ``cancelled`` count requests; ``held`` is what runs now.
    """

    model_name = "fake"
    context_window_size = 100

    def __init__(self, *, pause: float = 0.0, capacity: int = 1000) -> None:
        self.pause = pause
        self.capacity = capacity
        self.failure: Exception | None = None
        self.late_failure: Exception | None = None
        self.json_answer: object = {"city": "Paris"}
        self.started = self.finished = self.cancelled = self.held = 0
        self.requests: list[Mapping[str, Any]] = []
        self.closed = False
        self.chat = _Chat(self)
        self.completions = _Completions(self, chat=False)

    def prometheus_metrics(self) -> str:
        return f"# TYPE fake_pages_used gauge\nfake_pages_used {self.held}\n"

    async def close(self) -> None:
        self.closed = True


class _Chat:
    def __init__(self, engine: FakeEngine) -> None:
        self.completions = _Completions(engine, chat=True)


class _Completions:
    def __init__(self, engine: FakeEngine, *, chat: bool) -> None:
        self.engine = engine
        self.chat = chat

    async def create(self, request: Mapping[str, Any], /) -> Any:
        engine = self.engine
        kind: Any = protocol.ChatCompletionRequest if self.chat else protocol.CompletionRequest
        parsed = protocol.parse_request(kind, request)
        engine.requests.append(request)
        if engine.failure is not None:
            failure, engine.failure = engine.failure, None
            raise failure
        if engine.held >= engine.capacity:
            raise BusyError("as many requests wait as may")
        answer = _Answer(engine, parsed, self.chat)
        if parsed.stream:
            return answer.chunks()
        pieces = [piece async for piece in answer.words()]
        return answer.whole(pieces)


class _Answer:
    """What becomes of one request."""

    def __init__(self, engine: FakeEngine, request: Any, chat: bool) -> None:
        self.engine = engine
        self.request = request
        self.chat = chat
        self.tool = chat and request.must_call_tool
        if chat:
            content = request.messages[-1].content
            text = content if isinstance(content, str) else content[0].text
            limit = request.token_limit
        else:
            text, limit = str(request.prompt), request.max_tokens
        if self.tool or request.json_format:
            text = json.dumps(engine.json_answer)
        self.prompt_tokens = len(text.split())
        words = text.split(" ")
        self.texts = [word if i == 0 else f" {word}" for i, word in enumerate(words)][:limit]
        self.finish: Any = "length" if limit is not None and limit < len(words) else "stop"
        engine.started += 1
        engine.held += 1

    async def words(self) -> AsyncIterator[str]:
        engine = self.engine
        done = False
        try:
            for word in self.texts:
                if engine.pause:
                    await asyncio.sleep(engine.pause)
                yield word
                if engine.late_failure is not None:
                    failure, engine.late_failure = engine.late_failure, None
                    raise failure
            done = True
        finally:
            engine.held -= 1
            if done:
                engine.finished += 1
            else:
                engine.cancelled += 1

    @property
    def choices(self) -> range:
        return range(self.request.n or 1)

    def common(self) -> dict[str, Any]:
        return {
            "id": "chatcmpl-1" if self.chat else "cmpl-1",
            "created": CREATED,
            "model": self.engine.model_name,
        }

    def usage(self) -> protocol.CompletionUsage:
        made = len(self.texts) * len(self.choices)
        return protocol.CompletionUsage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=made,
            total_tokens=self.prompt_tokens + made,
        )

    def logprobs(self, words: list[str]) -> protocol.ChoiceLogprobs | None:
        if not self.request.logprobs:
            return None
        return protocol.ChoiceLogprobs(
            content=[
                protocol.TokenLogprob(token=word, logprob=-0.5, bytes=list(word.encode()))
                for word in words
            ]
        )

    def whole(self, pieces: list[str]) -> Any:
        text = "".join(pieces)
        if not self.chat:
            return protocol.Completion(
                **self.common(),
                choices=[
                    protocol.CompletionChoice(index=i, text=text, finish_reason=self.finish)
                    for i in self.choices
                ],
                usage=self.usage(),
            )
        message = protocol.ChatCompletionMessage(content=text)
        if self.tool:
            function = protocol.ReturnedFunction(name=self.tool_name, arguments=text)
            call = protocol.ReturnedToolCall(id="call_1", function=function)
            message = protocol.ChatCompletionMessage(tool_calls=[call])
        return protocol.ChatCompletion(
            **self.common(),
            choices=[
                protocol.ChatChoice(
                    index=i,
                    message=message,
                    logprobs=self.logprobs(pieces),
                    finish_reason="tool_calls" if self.tool else self.finish,
                )
                for i in self.choices
            ],
            usage=self.usage(),
        )

    @property
    def tool_name(self) -> str:
        return str(self.request.tools[0].function.name)

    async def chunks(self) -> AsyncIterator[Any]:
        words = self.words()
        first = True
        try:
            async for word in words:
                for i in self.choices:
                    yield self.chunk(i, word, first=first)
                first = False
        finally:
            await words.aclose()  # type: ignore[attr-defined]
        for i in self.choices:
            yield self.chunk(i, None, first=False)
        if self.request.stream_options and self.request.stream_options.include_usage:
            kind: Any = protocol.ChatCompletionChunk if self.chat else protocol.Completion
            yield kind(**self.common(), choices=[], usage=self.usage())

    def chunk(self, index: int, word: str | None, *, first: bool) -> Any:
        finish: Any = None if word is not None else self.finish
        if not self.chat:
            choice = protocol.CompletionChoice(index=index, text=word or "", finish_reason=finish)
            return protocol.Completion(**self.common(), choices=[choice])
        role: Any = "assistant" if first else None
        delta = protocol.ChoiceDelta(role=role, content=word)
        if self.tool and word is not None:
            name = self.tool_name if first else None
            call = protocol.DeltaToolCall(
                index=0,
                id="call_1" if first else None,
                type="function" if first else None,
                function=protocol.DeltaFunction(name=name, arguments=word),
            )
            delta = protocol.ChoiceDelta(role=role, tool_calls=[call])
        if finish is not None and self.tool:
            finish = "tool_calls"
        return protocol.ChatCompletionChunk(
            **self.common(),
            choices=[
                protocol.ChunkChoice(
                    index=index,
                    delta=delta,
                    finish_reason=finish,
                    logprobs=self.logprobs([word]) if word is not None else None,
                )
            ],
        )
