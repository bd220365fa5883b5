"""OpenAI's REST shapes: the requests that the engine takes and the objects that it returns.

Requests are checked strictly: a field that is not known is refused by its name, a value out of its
range is refused with the name of its parameter (``InvalidRequestError.param``). ``null`` means the
same as leaving a field out.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from mlcbuild.errors import UsageError

# What OpenAI has and this engine has not: a hint is better than "unknown".
_UNSUPPORTED = {
    "audio": "the model writes text only",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "moderation": "there is no moderation model",
    "verbosity": "say it in the prompt",
    "web_search_options": "there is no web search",
}

MAX_CHOICES = 128
MAX_STOPS = 64
MAX_TOOLS = 128
MAX_DEPTH = 100
TOOL_NAME = r"^[a-zA-Z0-9_.-]{1,64}$"


class InvalidRequestError(UsageError):
    """A request that is not valid; ``param`` names the parameter, e.g. ``messages[0].role``."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        why: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, why=why, hint=hint)
        self.param = param
        self.code = code


class ModelNotFoundError(InvalidRequestError):
    """A request names a model that this engine does not hold (HTTP 404)."""


class _Given(BaseModel):
    """Part of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Returned(BaseModel):
    """Part of an answer. ``_omitted`` fields are left out of JSON while they are None."""

    # Clients read what they know, so that an answer may gain fields.
    model_config = ConfigDict(extra="allow")
    _omitted: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        record: dict[str, Any] = handler(self)
        for name in self._omitted:
            if name in record and record[name] is None:
                del record[name]
        return record


# ---- requests: messages --------------------------------------------------------------------------


class TextPart(_Given):
    """A part of a message's content; only text parts are known."""

    type: Literal["text"]
    text: str


class FunctionCall(_Given):
    """The function of a tool call; ``arguments`` is JSON text."""

    name: str
    arguments: str


class ToolCall(_Given):
    """A call that the model made earlier in the conversation."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(_Given):
    """A message of any role.

    ``developer`` is rendered as ``system``. ``name``, ``refusal``, ``annotations`` and ``audio``
    are taken, since clients send answers back as they got them; ``name`` goes to the template,
    the others do not.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> ChatMessage:
        if self.role != "assistant":
            if self.content is None:
                raise ValueError(f"a message of role {self.role} needs content")
            if self.tool_calls is not None or self.reasoning_content is not None:
                raise ValueError("tool_calls and reasoning_content belong to role assistant")
        elif self.content is None and not self.tool_calls and self.reasoning_content is None:
            raise ValueError("a message of role assistant needs content or tool_calls")
        if self.tool_call_id is not None and self.role != "tool":
            raise ValueError("tool_call_id belongs to role tool")
        return self


# ---- requests: tools and formats -----------------------------------------------------------------


class FunctionDefinition(_Given):
    """A function that the model may call; ``parameters`` is a JSON schema."""

    name: Annotated[str, Field(pattern=TOOL_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Given):
    """A tool; ``raw`` is what the caller gave, in the caller's order of keys."""

    type: Literal["function"]
    function: FunctionDefinition
    _raw: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, value: Any, handler: Any) -> Tool:
        tool: Tool = handler(value)
        if isinstance(value, Mapping):
            tool._raw.update(value)
        return tool

    def raw(self) -> dict[str, Any]:
        """The tool for a chat template: ``strict`` is for the engine and left out."""
        record = dict(self._raw) or self.model_dump(exclude_none=True)
        function = record["function"]
        record["function"] = {
            key: item for key, item in function.items() if key != "strict" and item is not None
        }
        return record


class NamedFunction(_Given):
    """The name of a function."""

    name: str


class NamedToolChoice(_Given):
    """A function that must be called."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(_Given):
    """A named JSON schema. It always binds, whatever ``strict`` says."""

    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any] | bool, Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(_Given):
    """``text``; ``json_object``: an object or array; ``json_schema``: JSON of that schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise _fault("response_format.json_schema", "is missing", code="missing_parameter")
        if self.type != "json_schema" and self.json_schema is not None:
            raise ValueError(f"json_schema belongs to type json_schema, not to {self.type}")
        return self


class GrammarSpec(_Given):
    """What the text must be (an extension).

    ``value`` is text; for ``json_schema`` and ``structure`` it may be the JSON value itself; for
    ``json`` there is none.
    """

    type: Literal["json", "json_schema", "regex", "ebnf", "structure"]
    value: str | dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_its_value(self) -> GrammarSpec:
        if (self.type == "json") != (self.value is None):
            raise ValueError("every type but json needs a value, json has none")
        if self.type in ("regex", "ebnf") and not isinstance(self.value, str):
            raise ValueError(f"the value of a {self.type} is text")
        return self


class StreamOptions(_Given):
    """``include_usage``: one more chunk at the end, without choices, tells the usage."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against eavesdroppers; there is none


# ---- requests ------------------------------------------------------------------------------------

_NonEmpty: TypeAlias = Annotated[str, Field(min_length=1)]
_TokenId: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 31)]


class _Sampling(_Given):
    """What chat and plain completions share; None takes the default.

    Defaults of temperature, top_p, top_k, min_p and repetition_penalty: the bundle's
    (generation_config.json of the model), else temperature 1 and the others off. ``seed``: a random
    one. ``timeout``: seconds; the text then ends with what there is.
    """

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: _NonEmpty | Annotated[list[_NonEmpty], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    # Extensions.
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[_TokenId], Field(max_length=MAX_STOPS)] | None = None
    grammar: GrammarSpec | None = None
    timeout: Annotated[float, Field(gt=0, le=86400)] | None = None
    # Taken and ignored: bookkeeping of a hosted service, or hints that only save time.
    metadata: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None

    @model_validator(mode="after")
    def _streams_what_it_says(self) -> _Sampling:
        if self.stream_options is not None and not self.stream:
            raise _fault("stream_options", "needs stream")
        for key in self.logit_bias or ():
            if not re.fullmatch(r"[0-9]{1,10}", key) or int(key) >= 1 << 31:
                raise _fault("logit_bias", f"has the key {key!r}, which is no token id")
        if self.grammar is not None and self.json_format:
            raise _fault("grammar", "and response_format cannot both bind the text")
        return self

    @property
    def json_format(self) -> bool:
        """Whether response_format binds the text."""
        return self.response_format is not None and self.response_format.type != "text"


class ChatCompletionRequest(_Sampling):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    modalities: list[Literal["text"]] | None = None
    # Extensions.
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> ChatCompletionRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise _fault("top_logprobs", "needs logprobs")
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise _fault("max_tokens", "and max_completion_tokens say different things")
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) != len(names):
            raise _fault("tools", "has two functions of one name")
        choice = self.tool_choice
        if choice not in (None, "none", "auto") and not names:
            raise _fault("tool_choice", "needs tools")
        if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
            raise _fault("tool_choice", f"names {choice.function.name}, which is not in tools")
        if self.must_call_tool and (self.grammar is not None or self.json_format):
            raise _fault("tool_choice", "forces a call, and another format binds the text")
        if self.continue_final_message:
            if self.add_generation_prompt:
                raise _fault("add_generation_prompt", "and continue_final_message exclude another")
            if self.messages[-1].role != "assistant" or self.messages[-1].tool_calls:
                raise _fault("continue_final_message", "needs a last message of role assistant")
        return self

    @property
    def must_call_tool(self) -> bool:
        """Whether tool_choice forces a call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedToolChoice)

    @property
    def token_limit(self) -> int | None:
        """max_completion_tokens, or under its older name max_tokens."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens


class CompletionRequest(_Sampling):
    """The body of POST /v1/completions.

    ``prompt``: a text, token ids, or a list of either; texts get BOS where the model wants one.
    ``max_tokens``: 16 if left out, as OpenAI has it. ``logprobs``: how many likely tokens to tell
    beside each one; not with ``echo``. ``best_of`` other than ``n`` is refused.
    """

    prompt: str | list[str] | list[_TokenId] | list[list[_TokenId]]
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: None = None  # filling in the middle

    @model_validator(mode="after")
    def _fits_together(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise _fault("best_of", "must equal n: texts are not ranked")
        if not self.prompt and self.prompt != "":
            raise _fault("prompt", "is an empty list")
        return self


# ---- answers -------------------------------------------------------------------------------------


class PromptTokensDetails(_Returned):
    """``cached_tokens``: of the prompt, found in the prefix cache."""

    cached_tokens: int = 0


class CompletionUsage(_Returned):
    """Tokens that a request took, all its choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()


class Timings(_Returned):
    """Seconds from submitting (an extension); of the choice that took longest."""

    queue_seconds: float
    first_token_seconds: float
    total_seconds: float


class _Answer(_Returned):
    """What every answer has, whole or in pieces; ``seed`` and ``timings`` are extensions."""

    _omitted = frozenset({"usage", "seed", "timings"})

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: CompletionUsage | None = None
    system_fingerprint: str | None = None
    seed: int | None = None
    timings: Timings | None = None


class TopLogprob(_Returned):
    """A likely token: its text, UTF-8 bytes and the logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob):
    """A token of the text, and what else was likely."""

    top_logprobs: list[TopLogprob] = []


class ChoiceLogprobs(_Returned):
    """Logprobs of a choice, or of a chunk of it."""

    content: list[TokenLogprob] | None = None
    refusal: list[TokenLogprob] | None = None


class ReturnedFunction(_Returned):
    """A called function; ``arguments`` is JSON text."""

    name: str
    arguments: str


class ReturnedToolCall(_Returned):
    """A call that the model made."""

    id: str
    type: Literal["function"] = "function"
    function: ReturnedFunction


class ChatCompletionMessage(_Returned):
    """The model's answer. ``reasoning_content`` (an extension): what it thought before."""

    _omitted = frozenset({"tool_calls", "reasoning_content"})

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[ReturnedToolCall] | None = None
    reasoning_content: str | None = None


FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


class ChatChoice(_Returned):
    """One of n answers.

    ``stop_reason`` (an extension): the stop string that ended the text, or "deadline" where the
    request's timeout did (``finish_reason`` is "length" then).
    """

    _omitted = frozenset({"stop_reason"})

    index: int
    message: ChatCompletionMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason
    stop_reason: str | None = None


class ChatCompletion(_Answer):
    """The answer to a chat."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class DeltaFunction(_Returned):
    """A piece of a called function: the name comes whole, with the first piece."""

    _omitted = frozenset({"name", "arguments"})

    name: str | None = None
    arguments: str | None = None


class DeltaToolCall(_Returned):
    """A piece of a tool call."""

    _omitted = frozenset({"id", "type"})

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: DeltaFunction | None = None


class ChoiceDelta(_Returned):
    """What a chunk adds to a message."""

    _omitted = frozenset({"role", "content", "refusal", "tool_calls", "reasoning_content"})

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[DeltaToolCall] | None = None
    reasoning_content: str | None = None


class ChunkChoice(_Returned):
    """What a chunk adds to one choice."""

    _omitted = frozenset({"stop_reason"})

    index: int
    delta: ChoiceDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | None = None


class ChatCompletionChunk(_Answer):
    """A piece of a streamed chat; the last one has no choices if usage was asked for."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChunkChoice]


class CompletionLogprobs(_Returned):
    """Logprobs of a plain completion, in parallel lists; offsets are in characters."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int] = []


class CompletionChoice(_Returned):
    """One of the texts; ``stop_reason`` as in ``ChatChoice``. finish_reason is null in chunks."""

    _omitted = frozenset({"stop_reason"})

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | None = None


class Completion(_Answer):
    """Plain texts, whole or as a chunk of a stream."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class Model(_Returned):
    """A model that can be asked. ``context_window_size`` (an extension) is in tokens."""

    _omitted = frozenset({"context_window_size"})

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    context_window_size: int | None = None


class ModelList(_Returned):
    """All models."""

    object: Literal["list"] = "list"
    data: list[Model]

    def __iter__(self) -> Any:  # as openai's page of models
        return iter(self.data)


class ErrorDetail(_Returned):
    """What went wrong, as OpenAI's errors say it."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(_Returned):
    """The body of every answer that is an error."""

    error: ErrorDetail


# ---- checking ------------------------------------------------------------------------------------

RequestModel = TypeVar("RequestModel", bound=_Given)


class _Fault(ValueError):
    """A broken rule about a parameter of the top level."""

    def __init__(self, param: str, message: str, code: str | None) -> None:
        super().__init__(f"{param} {message}")
        self.param = param
        self.code = code


def _fault(param: str, message: str, *, code: str | None = None) -> _Fault:
    return _Fault(param, message, code)


def parse_request(kind: type[RequestModel], body: Mapping[str, Any]) -> RequestModel:
    """The request of type ``kind`` in a decoded JSON object.

    Raises ``InvalidRequestError`` for the first thing that is wrong.
    """
    if not isinstance(body, Mapping):
        raise InvalidRequestError(
            f"expected an object, not {type(body).__name__}", hint="name the parameters"
        )
    _check_values(body, (), 0)
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _explain(error, kind, body) from None


def parse_part(kind: type[RequestModel], value: Mapping[str, Any], name: str) -> RequestModel:
    """As ``parse_request``, for the value of the parameter ``name``."""
    try:
        return parse_request(kind, plain(value))
    except InvalidRequestError as error:
        param = name if error.param is None else f"{name}.{error.param}"
        message = f"{name}: {error.message}"
        raise InvalidRequestError(message, param=param, code=error.code, hint=error.hint) from None


def plain(value: Any, depth: int = 0) -> Any:
    """Python values as decoded JSON has them: models become dicts, tuples and iterables lists."""
    if depth > MAX_DEPTH:  # parse_request refuses it
        return value
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True, by_alias=True)
    if isinstance(value, Mapping):
        return {key: plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return [plain(item, depth + 1) for item in value]
    return value


def _check_values(value: Any, path: tuple[str | int, ...], depth: int) -> None:
    """Refuses what the runtime could not be handed, wherever in the body it stands."""
    param = _spell(path)
    if depth > MAX_DEPTH:
        raise InvalidRequestError(f"{path[0]} is nested too deeply", param=str(path[0]))
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_values(key, path, depth)
            _check_values(item, (*path, key), depth + 1)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _check_values(item, (*path, place), depth + 1)
    elif isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidRequestError(
                f"{param}: half a surrogate pair is no Unicode text", param=param
            ) from None
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequestError(f"{param} is {value}", param=param)


def _explain(
    error: ValidationError, kind: type[BaseModel], body: Mapping[str, Any]
) -> InvalidRequestError:
    # An alternative that matches further is what the caller meant.
    found = [(_path(item, body), item) for item in error.errors(include_url=False)]
    path, first = max(found, key=lambda entry: len(entry[0]))
    param = _spell(path)
    if first["type"] == "extra_forbidden":
        return _unknown(param, path, kind)
    if first["type"] == "missing":
        return InvalidRequestError(f"{param} is missing", param=param, code="missing_parameter")
    cause = (first.get("ctx") or {}).get("error")
    if isinstance(cause, _Fault):
        return InvalidRequestError(str(cause), param=cause.param, code=cause.code)
    if isinstance(cause, ValueError):
        return InvalidRequestError(f"{param}: {cause}", param=param)
    if first["type"] == "none_required":
        return InvalidRequestError(
            f"{param} is not supported", param=param, code="unsupported_parameter"
        )
    if first["type"] in ("too_short", "string_too_short"):
        return InvalidRequestError(f"{param} is empty", param=param)
    if first["type"] == "literal_error" and param.endswith(".type") and ".content[" in param:
        return InvalidRequestError(
            f"{param}: only text parts are supported, not {first['input']!r}", param=param
        )
    reasons = list(dict.fromkeys(_plainly(item["msg"]) for other, item in found if other == path))
    return InvalidRequestError(f"{param}: {' or '.join(reasons)}", param=param or None)


def _plainly(reason: str) -> str:
    """Pydantic's reason in the words of JSON."""
    reason = re.sub(r" or instance of \w+$", "", reason)
    reason = reason.replace("a valid dictionary", "an object").replace("a valid list", "a list")
    return reason[:1].lower() + reason[1:]


def _path(item: Any, body: Any) -> tuple[str | int, ...]:
    """Where an error is in the body; names of alternatives in pydantic's path are left out."""
    path: list[str | int] = []
    place = body
    for step in item["loc"]:
        known = step in place if isinstance(place, Mapping) else False
        if isinstance(place, list):
            known = isinstance(step, int) and step < len(place)
        if known:
            place = place[step]
        elif not (step == item["loc"][-1] and item["type"] == "missing"):
            continue
        path.append(step)
    return tuple(path)


def _spell(path: tuple[str | int, ...]) -> str:
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def _unknown(param: str, path: tuple[str | int, ...], kind: type[BaseModel]) -> InvalidRequestError:
    name = str(path[-1])
    hint = None
    if len(path) == 1:
        if name in _UNSUPPORTED:
            return InvalidRequestError(
                f"{name} is not supported",
                param=name,
                code="unsupported_parameter",
                hint=_UNSUPPORTED[name],
            )
        close = difflib.get_close_matches(name, kind.model_fields, n=1)
        hint = f"did you mean {close[0]}?" if close else None
    return InvalidRequestError(
        f"unknown parameter {param}", param=param, code="unknown_parameter", hint=hint
    )
