"""From the runtime's events to OpenAI's answers: chunk by chunk, or chunks put together."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from mlcbuild.bundle.abi import EventKind
from mlcbuild.bundle.native import NativeEvent, OutputParser, RequestUsage
from mlcbuild.engine.prepare import Prepared
from mlcbuild.engine.protocol import (
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChoiceDelta,
    ChoiceLogprobs,
    ChunkChoice,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionUsage,
    DeltaFunction,
    DeltaToolCall,
    FinishReason,
    PromptTokensDetails,
    ReturnedFunction,
    ReturnedToolCall,
    Timings,
    TokenLogprob,
    TopLogprob,
)

# The bytes of a token.
TokenBytes = Callable[[int], bytes]

_LOWEST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI says this for "cannot be"

AnswerKind = TypeVar("AnswerKind", ChatCompletionChunk, Completion)
Chunk = TypeVar("Chunk")
ChunkIn = TypeVar("ChunkIn", contravariant=True)
Whole = TypeVar("Whole", covariant=True)


@dataclass(frozen=True, slots=True)
class Header:
    """What all chunks of an answer say alike."""

    id: str
    created: int
    model: str
    fingerprint: str

    @classmethod
    def new(cls, prefix: str, model: str, fingerprint: str) -> Header:
        """A header with an id of its own, made now."""
        return cls(f"{prefix}-{secrets.token_hex(12)}", int(time.time()), model, fingerprint)

    def bare(self, kind: type[AnswerKind]) -> AnswerKind:
        """An answer without choices."""
        return kind(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[],
            system_fingerprint=self.fingerprint,
        )


class ChunkMaker(Protocol[Chunk]):
    """Turns events into chunks."""

    @property
    def done(self) -> bool:
        """Whether every choice has ended: no more events are needed."""

    def push(self, position: int, event: NativeEvent) -> list[Chunk]:
        """The chunks that an event of the request at ``position`` gives, maybe none."""


class Assembler(Protocol[ChunkIn, Whole]):
    """Puts chunks together."""

    def add(self, chunk: ChunkIn) -> None:
        """Takes the next chunk."""

    def result(self) -> Whole:
        """The whole."""


@dataclass(frozen=True, slots=True)
class Job(Generic[Chunk, Whole]):
    """A request with what makes its answer: ``maker``, and ``assembler`` if it does not stream."""

    prepared: Prepared
    maker: ChunkMaker[Chunk]
    assembler: Assembler[Chunk, Whole]


class _Tally:
    """Usage of all choices of all prompts of a request."""

    def __init__(self, prompts: list[int]) -> None:
        self._prompt_tokens = list(prompts)
        self._cached = [0] * len(prompts)
        self._completion_tokens = 0
        self._slowest: RequestUsage | None = None

    def add(self, position: int, usage: RequestUsage | None, seen: int) -> None:
        """Counts a choice that ended after ``seen`` tokens; ``usage`` is what the runtime says."""
        if usage is None:
            self._completion_tokens += seen
            return
        self._prompt_tokens[position] = usage.prompt_tokens
        self._cached[position] = max(self._cached[position], usage.cached_tokens)
        self._completion_tokens += usage.completion_tokens
        if self._slowest is None or usage.total_seconds > self._slowest.total_seconds:
            self._slowest = usage

    def usage(self) -> CompletionUsage:
        """The sums."""
        prompt = sum(self._prompt_tokens)
        return CompletionUsage(
            prompt_tokens=prompt,
            completion_tokens=self._completion_tokens,
            total_tokens=prompt + self._completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._cached)),
        )

    def timings(self) -> Timings | None:
        """Of the choice that took longest."""
        if self._slowest is None:
            return None
        return Timings(
            queue_seconds=self._slowest.queue_seconds,
            first_token_seconds=self._slowest.first_token_seconds,
            total_seconds=self._slowest.total_seconds,
        )


def _finish(event: NativeEvent) -> tuple[FinishReason, str | None]:
    """finish_reason and stop_reason of a DONE event."""
    if event.finish_reason == "stop":
        return "stop", event.stop_string
    if event.finish_reason == "length":
        return "length", None
    # A deadline or a cancellation cut the text off; OpenAI has no word for that.
    return "length", event.finish_reason


# ---- chat ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _ChatState:
    """One choice of a chat."""

    parser: OutputParser
    started: bool = False
    ended: bool = False
    tokens: int = 0
    calls: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)  # not sent yet


class ChatStream:
    """Chunks of a chat's answer. Reasoning and tool calls are told apart from text."""

    def __init__(self, prepared: Prepared, header: Header, token_bytes: TokenBytes) -> None:
        self._prepared = prepared
        self._header = header
        self._token_bytes = token_bytes
        self._choices = [_ChatState(parser) for parser in prepared.parsers]
        self._tally = _Tally([len(native.token_ids) for native in prepared.natives])

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.ended for choice in self._choices)

    def push(self, position: int, event: NativeEvent) -> list[ChatCompletionChunk]:
        """The chunks that an event gives."""
        state = self._choices[event.choice]
        if state.ended:
            return []
        chunks: list[ChatCompletionChunk] = []
        if not state.started:
            state.started = True
            # Text may still be held back: clients learn now that the answer has begun.
            chunks.append(self._chunk(event.choice, ChoiceDelta(role="assistant", content="")))
        last = event.kind == EventKind.DONE
        if event.kind == EventKind.TOKEN:
            state.tokens += 1
            if self._prepared.logprobs:
                state.logprobs.append(self._logprob(event))
        for delta in state.parser.push(event.text, last=last) if event.text or last else ():
            made = self._delta(state, delta)
            if made is None:  # a second call where one was asked for
                return [*chunks, *self._end(position, event.choice, "tool_calls", None, None)]
            chunks.append(self._chunk(event.choice, made, state))
        if last:
            reason, stop_reason = _finish(event)
            if state.calls and reason == "stop":
                reason = "tool_calls"
            chunks += self._end(position, event.choice, reason, stop_reason, event.usage)
        return chunks

    def _delta(self, state: _ChatState, delta: dict[str, object]) -> ChoiceDelta | None:
        call = delta.get("tool_call")
        if not isinstance(call, dict):
            return ChoiceDelta(
                content=_text(delta, "content"),
                reasoning_content=_text(delta, "reasoning_content"),
            )
        number = int(call["index"])
        if number > 0 and self._prepared.one_tool_call:
            return None
        new = number >= state.calls
        state.calls = max(state.calls, number + 1)
        return ChoiceDelta(
            tool_calls=[
                DeltaToolCall(
                    index=number,
                    id=f"call_{secrets.token_hex(12)}" if new else None,
                    type="function" if new else None,
                    function=DeltaFunction(
                        name=call.get("name"), arguments=call.get("arguments") or ""
                    ),
                )
            ]
        )

    def _end(
        self,
        position: int,
        choice: int,
        reason: FinishReason,
        stop_reason: str | None,
        usage: RequestUsage | None,
    ) -> list[ChatCompletionChunk]:
        state = self._choices[choice]
        state.ended = True
        state.parser.close()
        self._tally.add(position, usage, state.tokens)
        chunk = self._chunk(choice, ChoiceDelta(), state)
        chunk.choices[0].finish_reason = reason
        chunk.choices[0].stop_reason = stop_reason
        chunks = [chunk]
        if self.done and self._prepared.include_usage:
            last = self._header.bare(ChatCompletionChunk)
            last.usage = self._tally.usage()
            last.timings = self._tally.timings()
            last.seed = self._prepared.seed
            chunks.append(last)
        return chunks

    def _chunk(
        self, choice: int, delta: ChoiceDelta, state: _ChatState | None = None
    ) -> ChatCompletionChunk:
        chunk = self._header.bare(ChatCompletionChunk)
        logprobs = None
        if state is not None and state.logprobs:
            logprobs = ChoiceLogprobs(content=state.logprobs)
            state.logprobs = []
        chunk.choices.append(ChunkChoice(index=choice, delta=delta, logprobs=logprobs))
        return chunk

    def _logprob(self, event: NativeEvent) -> TokenLogprob:
        known = self._known(event.token_id, event.logprob)
        return TokenLogprob(
            token=known.token,
            logprob=known.logprob,
            bytes=known.bytes,
            top_logprobs=[self._known(token, value) for token, value in event.top_logprobs],
        )

    def _known(self, token: int, logprob: float) -> TopLogprob:
        data = self._token_bytes(token)
        return TopLogprob(
            token=data.decode("utf-8", "replace"),
            bytes=list(data),
            logprob=max(logprob, _LOWEST_LOGPROB),
        )


def _text(delta: dict[str, object], name: str) -> str | None:
    value = delta.get(name)
    return value if isinstance(value, str) else None


class ChatAssembler:
    """Puts the chunks of a chat together: the answer of a request that does not stream."""

    def __init__(self, prepared: Prepared) -> None:
        self._seed = prepared.seed
        self._logprobs = prepared.logprobs
        self._choices = [_ChatParts(index) for index in range(prepared.choices)]
        self._last: ChatCompletionChunk | None = None

    def add(self, chunk: ChatCompletionChunk) -> None:
        """Takes the next chunk."""
        self._last = chunk
        for choice in chunk.choices:
            self._choices[choice.index].add(choice)

    def result(self) -> ChatCompletion:
        """The answer, once all chunks are there."""
        last = self._last
        assert last is not None
        return ChatCompletion(
            id=last.id,
            created=last.created,
            model=last.model,
            choices=[parts.choice(self._logprobs) for parts in self._choices],
            usage=last.usage,
            system_fingerprint=last.system_fingerprint,
            seed=self._seed,
            timings=last.timings,
        )


@dataclass(slots=True)
class _ChatParts:
    """What chunks have told of one choice."""

    index: int
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ReturnedToolCall] = field(default_factory=list)
    arguments: list[list[str]] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    stop_reason: str | None = None

    def add(self, choice: ChunkChoice) -> None:
        delta = choice.delta
        self.content.append(delta.content or "")
        self.reasoning.append(delta.reasoning_content or "")
        for piece in delta.tool_calls or ():
            function = piece.function or DeltaFunction()
            if piece.id is not None:
                named = ReturnedFunction(name=function.name or "", arguments="")
                self.calls.append(ReturnedToolCall(id=piece.id, function=named))
                self.arguments.append([])
            self.arguments[piece.index].append(function.arguments or "")
        if choice.logprobs is not None:
            self.logprobs += choice.logprobs.content or ()
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason
            self.stop_reason = choice.stop_reason

    def choice(self, logprobs: bool) -> ChatChoice:
        content, reasoning = "".join(self.content), "".join(self.reasoning)
        for call, pieces in zip(self.calls, self.arguments, strict=True):
            call.function.arguments = "".join(pieces)
        return ChatChoice(
            index=self.index,
            message=ChatCompletionMessage(
                content=content if content or not self.calls else None,
                reasoning_content=reasoning or None,
                tool_calls=self.calls or None,
            ),
            logprobs=ChoiceLogprobs(content=self.logprobs) if logprobs else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


# ---- plain texts ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _TextState:
    """One choice of one prompt."""

    echo: str
    ended: bool = False
    tokens: int = 0
    offset: int = 0  # characters of the text before the next token
    logprobs: CompletionLogprobs | None = None  # not sent yet


class CompletionStream:
    """Chunks of plain texts; a choice's index counts the choices of earlier prompts too."""

    def __init__(self, prepared: Prepared, header: Header, token_bytes: TokenBytes) -> None:
        self._prepared = prepared
        self._header = header
        self._token_bytes = token_bytes
        self._tally = _Tally([len(native.token_ids) for native in prepared.natives])
        echo = prepared.echo or ("",) * len(prepared.natives)
        self._choices = [
            _TextState(text, offset=len(text)) for text in echo for _ in range(prepared.choices)
        ]

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.ended for choice in self._choices)

    def push(self, position: int, event: NativeEvent) -> list[Completion]:
        """The chunks that an event gives."""
        index = position * self._prepared.choices + event.choice
        state = self._choices[index]
        if event.kind == EventKind.TOKEN:
            state.tokens += 1
            if self._prepared.logprobs:
                self._add_logprob(state, event)
        text = state.echo + event.text
        state.echo = ""
        chunks: list[Completion] = []
        last = event.kind == EventKind.DONE
        if text or last:
            chunk = self._header.bare(Completion)
            reason, stop_reason = _finish(event) if last else (None, None)
            chunk.choices.append(
                CompletionChoice(
                    index=index,
                    text=text,
                    logprobs=state.logprobs,
                    finish_reason=reason,  # type: ignore[arg-type]  # there are no tools here
                    stop_reason=stop_reason,
                )
            )
            state.logprobs = None
            chunks.append(chunk)
        if last:
            state.ended = True
            self._tally.add(position, event.usage, state.tokens)
            if self.done and self._prepared.include_usage:
                ending = self._header.bare(Completion)
                ending.usage = self._tally.usage()
                ending.timings = self._tally.timings()
                ending.seed = self._prepared.seed
                chunks.append(ending)
        return chunks

    def _add_logprob(self, state: _TextState, event: NativeEvent) -> None:
        if state.logprobs is None:
            state.logprobs = CompletionLogprobs(
                top_logprobs=[] if self._prepared.top_logprobs else None
            )
        token = self._spell(event.token_id)
        state.logprobs.tokens.append(token)
        state.logprobs.token_logprobs.append(max(event.logprob, _LOWEST_LOGPROB))
        state.logprobs.text_offset.append(state.offset)
        state.offset += len(token)
        if state.logprobs.top_logprobs is not None:
            likely: dict[str, float] = {}
            for other, value in event.top_logprobs:
                # Tokens of one spelling (pieces of characters): the likelier one stays.
                likely.setdefault(self._spell(other), max(value, _LOWEST_LOGPROB))
            state.logprobs.top_logprobs.append(likely)

    def _spell(self, token: int) -> str:
        return self._token_bytes(token).decode("utf-8", "replace")


class CompletionAssembler:
    """Puts the chunks of plain texts together."""

    def __init__(self, prepared: Prepared) -> None:
        self._seed = prepared.seed
        count = prepared.choices * len(prepared.natives)
        self._texts: list[list[str]] = [[] for _ in range(count)]
        self._logprobs: list[CompletionLogprobs | None] = [None] * count
        self._ends: list[CompletionChoice | None] = [None] * count
        self._last: Completion | None = None

    def add(self, chunk: Completion) -> None:
        """Takes the next chunk."""
        self._last = chunk
        for choice in chunk.choices:
            self._texts[choice.index].append(choice.text)
            self._ends[choice.index] = choice
            if choice.logprobs is not None:
                known = self._logprobs[choice.index]
                self._logprobs[choice.index] = (
                    choice.logprobs if known is None else _joined(known, choice.logprobs)
                )

    def result(self) -> Completion:
        """The answer, once all chunks are there."""
        last = self._last
        assert last is not None
        return Completion(
            id=last.id,
            created=last.created,
            model=last.model,
            choices=[
                CompletionChoice(
                    index=index,
                    text="".join(self._texts[index]),
                    logprobs=self._logprobs[index],
                    finish_reason=None if end is None else end.finish_reason,
                    stop_reason=None if end is None else end.stop_reason,
                )
                for index, end in enumerate(self._ends)
            ],
            usage=last.usage,
            system_fingerprint=last.system_fingerprint,
            seed=self._seed,
            timings=last.timings,
        )


def _joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    first.tokens += second.tokens
    first.token_logprobs += second.token_logprobs
    first.text_offset += second.text_offset
    if first.top_logprobs is not None and second.top_logprobs is not None:
        first.top_logprobs += second.top_logprobs
    return first
