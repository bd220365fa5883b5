"""Calls at the level of tokens: their options, and texts put together from the runtime's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from mlcbuild.bundle.abi import EventKind, GrammarKind
from mlcbuild.bundle.native import NativeEvent, Request, RequestUsage
from mlcbuild.engine.options import checked_options
from mlcbuild.engine.prepare import Prompt, RequestBuilder, grammar_of, timeout_ms
from mlcbuild.engine.protocol import GrammarSpec, parse_part
from mlcbuild.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A sampled token, its log probability, and (id, log probability) of the likeliest tokens."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation.

    ``finish_reason``: "stop", "length", "deadline" or "cancel"; ``token_ids`` are the sampled ids;
    ``logprobs``: one for each of them if asked for; ``stop_string``: what ended the text, if a stop
    string did; ``usage``: tokens and seconds (not compared).
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[ScoredToken, ...] = ()
    stop_string: str | None = None
    usage: RequestUsage | None = field(default=None, compare=False)


class GenerationOptions(TypedDict, total=False):
    """How to generate; every key may be left out.

    ``max_tokens``: 0 (the default) goes on to the end of the context window. ``temperature``: 0
    (the default) is greedy. ``top_p``: 1 is off; ``top_k``, ``min_p``: 0 is off.
    ``repetition_penalty`` (1 is off) counts the prompt too, ``presence_penalty`` and
    ``frequency_penalty`` (0 is off) the text only. ``logit_bias``: what is added to the logits of
    token ids, -inf forbids one. ``seed``: 0..2^64-1. ``stop``: strings that end the text before
    them, ``stop_token_ids``: tokens that end it, besides the model's own. ``logprobs``: tell log
    probabilities; ``top_logprobs``: and those of so many likeliest tokens. ``raw``: a text prompt
    goes in without the chat template. ``ignore_eos``: the model's own stop tokens do not count.
    ``timeout``: seconds, after which the text ends with what there is. ``grammar``: what the text
    must be, ``{"type": "regex", "value": "[0-9]+"}`` (``protocol.GrammarSpec``).
    """

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    logprobs: bool
    top_logprobs: int
    raw: bool
    ignore_eos: bool
    timeout: float | None
    grammar: GrammarSpec | Mapping[str, Any] | None


def native_request(
    builder: RequestBuilder, prompt: Prompt, n: int, **options: Unpack[GenerationOptions]
) -> Request:
    """What the runtime takes for ``n`` texts after a prompt."""
    given = checked_options(options, GenerationOptions)
    stop = given.pop("stop", ())
    if isinstance(stop, str):
        stop = (stop,)
    if any(not text for text in stop):
        raise UsageError("an empty stop string would stop everything")
    if n < 1:
        raise UsageError(f"n is {n}, at least 1 is needed")
    grammar = given.pop("grammar", None)
    kind, text = GrammarKind.NONE, None
    if grammar is not None:
        if not isinstance(grammar, GrammarSpec):
            grammar = parse_part(GrammarSpec, grammar, "grammar")
        kind, text = grammar_of(grammar)
    return Request(
        token_ids=builder.prompt_token_ids(prompt, raw=given.pop("raw", False)),
        n=n,
        stop=tuple(stop),
        stop_token_ids=tuple(given.pop("stop_token_ids", ())),
        logit_bias=tuple(given.pop("logit_bias", {}).items()),
        timeout_ms=timeout_ms(given.pop("timeout", None)),
        grammar_kind=kind,
        grammar=text,
        **given,
    )


def check_prompts(prompts: object) -> None:
    """Refuses a text where a list of prompts is meant: its letters are no prompts."""
    if isinstance(prompts, (str, bytes)):
        raise UsageError("prompts are a list, not one text", hint="put it in brackets")


@dataclass(slots=True)
class _Parts:
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    scores: list[ScoredToken] = field(default_factory=list)


class GenerationCollector:
    """Puts the events of one request together."""

    def __init__(self, request: Request) -> None:
        self._logprobs = request.logprobs
        self._parts = [_Parts() for _ in range(request.n)]
        self._results: dict[int, Generation] = {}

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return len(self._results) == len(self._parts)

    def push(self, event: NativeEvent) -> None:
        """Takes the next event."""
        parts = self._parts[event.choice]
        parts.pieces.append(event.text)
        if event.kind == EventKind.TOKEN:
            parts.token_ids.append(event.token_id)
            if self._logprobs:
                parts.scores.append(ScoredToken(event.token_id, event.logprob, event.top_logprobs))
            return
        self._results[event.choice] = Generation(
            text="".join(parts.pieces),
            token_ids=tuple(parts.token_ids),
            finish_reason=event.finish_reason or "cancel",
            logprobs=tuple(parts.scores),
            stop_string=event.stop_string,
            usage=event.usage,
        )

    def results(self) -> list[Generation]:
        """The choices in their order."""
        return [self._results[choice] for choice in range(len(self._parts))]


class EventMaker:
    """The events of one request as they are."""

    def __init__(self, request: Request) -> None:
        self._open = request.n

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return self._open == 0

    def push(self, position: int, event: NativeEvent) -> list[NativeEvent]:
        """The event."""
        del position
        self._open -= event.kind == EventKind.DONE
        return [event]


class TextMaker:
    """The pieces of text in the events of one request."""

    def __init__(self, request: Request) -> None:
        self._events = EventMaker(request)

    @property
    def done(self) -> bool:
        """Whether the text has ended."""
        return self._events.done

    def push(self, position: int, event: NativeEvent) -> list[str]:
        """The text, if there is any."""
        self._events.push(position, event)
        return [event.text] if event.text else []
