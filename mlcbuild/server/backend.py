"""What the server needs of an engine; ``mlcbuild.engine.AsyncEngine`` has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Answer(Protocol):
    """A whole answer or a chunk of one, in OpenAI's shape."""

    model: str
    usage: Any
    choices: Any

    def model_dump_json(self) -> str:
        """Its JSON text."""


class AnswerStream(Protocol):
    """Chunks of an answer, as an asynchronous iterator."""

    async def __anext__(self) -> Answer:
        """The next chunk."""

    async def aclose(self) -> None:
        """Ends the request: it holds nothing in the engine after the engine's next step."""


class Completions(Protocol):
    """One kind of request."""

    async def create(self, request: Mapping[str, Any], /) -> Any:
        """Checks and submits the request, a decoded JSON object.

        Returns an ``Answer``, or an ``AnswerStream`` if the request says ``stream``. Cancelling the
        call cancels the request. Raises ``MlcbuildError``; one about a field carries ``param``.
        """


class Chat(Protocol):
    """``engine.chat``."""

    @property
    def completions(self) -> Completions:
        """POST /v1/chat/completions."""


class Backend(Protocol):
    """An engine."""

    @property
    def chat(self) -> Chat:
        """Conversations."""

    @property
    def completions(self) -> Completions:
        """POST /v1/completions."""

    @property
    def model_name(self) -> str:
        """The name that the engine itself gives its model."""

    @property
    def context_window_size(self) -> int:
        """Tokens that a prompt and its answer may have together."""

    def prometheus_metrics(self) -> str:
        """The engine's figures in Prometheus' text format."""

    async def close(self) -> None:
        """Drops what runs and frees the engine."""
