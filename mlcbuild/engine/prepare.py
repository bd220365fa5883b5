"""From a request as OpenAI shapes it to what the runtime takes."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from typing import Any, TypeAlias

from mlcbuild.bundle.abi import GrammarError, GrammarKind, TextFlags
from mlcbuild.bundle.native import NativeBundle, OutputParser, Request, json_text
from mlcbuild.engine.protocol import (
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    GrammarSpec,
    InvalidRequestError,
    ModelNotFoundError,
    NamedToolChoice,
    ResponseFormat,
    StreamOptions,
)
from mlcbuild.errors import UsageError, VerificationError

# Text, a conversation, or token ids.
Prompt: TypeAlias = str | Sequence[Mapping[str, Any]] | Sequence[int]

COMPLETION_TOKENS = 16  # OpenAI's default for plain completions
FORBIDDEN_BIAS = -100  # OpenAI: at this value a token cannot come
_SMALLEST_TOP_P = 1e-9  # the runtime's 0 is "off"; OpenAI's is the likeliest token only
_MAX_TIMEOUT_MS = (1 << 31) - 1
_PROMPT_END = 200  # characters; what opens or closes reasoning is short
_SEED_BITS = 53  # JSON numbers of that size are exact everywhere

GRAMMAR_KINDS = {
    "json": GrammarKind.JSON,
    "json_schema": GrammarKind.JSON_SCHEMA,
    "regex": GrammarKind.REGEX,
    "ebnf": GrammarKind.EBNF,
    "structure": GrammarKind.STRUCTURE,
}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """How texts are sampled where a request does not say."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, chat: Mapping[str, Any], where: str) -> SamplingDefaults:
        """``sampling`` of a bundle's chat.json over OpenAI's defaults."""
        given = chat.get("sampling") or {}
        if not isinstance(given, Mapping):
            raise VerificationError("sampling of chat.json is not an object", where=where)
        values: dict[str, Any] = {}
        for name in cls.__dataclass_fields__:
            value = given.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise VerificationError(f"sampling.{name} of chat.json is no number", where=where)
            values[name] = int(value) if name == "top_k" else float(value)
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request, ready to be submitted.

    ``natives``: one for each prompt. ``seed``: None where nothing is drawn. ``parsers``: one for
    each choice of a chat. ``echo``: a text for each prompt, to put before what is made of it.
    """

    natives: tuple[Request, ...]
    seed: int | None
    stream: bool
    include_usage: bool
    logprobs: bool
    top_logprobs: int
    parsers: tuple[OutputParser, ...] = ()
    one_tool_call: bool = False
    echo: tuple[str, ...] = ()

    @property
    def choices(self) -> int:
        """Texts for each prompt."""
        return self.natives[0].n


class RequestBuilder:
    """Renders, tokenizes and checks requests for one bundle. Usable from any thread."""

    def __init__(self, native: NativeBundle, model_name: str) -> None:
        self._native = native
        self._where = str(native.bundle.path)
        self._model_name = model_name
        chat = native.bundle.read_json(native.bundle.manifest.chat)
        self._has_template = chat["template"] is not None
        self.defaults = SamplingDefaults.of(chat, self._where)

    def check_model(self, name: str) -> None:
        """Raises ``ModelNotFoundError`` unless the model has this name."""
        if name != self._model_name:
            raise ModelNotFoundError(
                f"there is no model {name}; there is {self._model_name}",
                param="model",
                code="model_not_found",
            )

    # ---- text ----------------------------------------------------------------------------------

    def tokenize(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        """Token ids of ``text``; ``bos`` puts BOS in front where the model wants one."""
        if not isinstance(text, str):
            raise UsageError(f"expected a text, not {type(text).__name__}")
        flags = TextFlags.TOKENIZE_SPECIAL if special else TextFlags.NONE
        return self._native.tokenize(text, flags | TextFlags.TOKENIZE_BOS if bos else flags)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """A conversation as text; options are those of ``NativeBundle.render_chat``."""
        if isinstance(messages, (str, bytes)) or not all(
            isinstance(message, Mapping) for message in messages
        ):
            raise UsageError('messages are a list of {"role": ..., "content": ...}')
        if not self._has_template:
            raise UsageError(
                "the model has no chat template",
                where=self._where,
                hint="give the text as it is: --raw on the command line, raw=True in Python, "
                "/v1/completions over HTTP",
            )
        return self._native.render_chat(messages, **options)

    def prompt_token_ids(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """The ids of a text (one user message, or ``raw`` text), of messages, or ids themselves."""
        if isinstance(prompt, str):
            if raw:
                return self.tokenize(prompt, bos=True)
            prompt = [{"role": "user", "content": prompt}]
        if isinstance(prompt, (bytes, bytearray, Mapping)) or not isinstance(prompt, Iterable):
            raise UsageError(
                f"a prompt is a text, messages or token ids, not {type(prompt).__name__}"
            )
        messages = [item for item in prompt if isinstance(item, Mapping)]
        if not messages:
            return token_id_list(prompt)  # type: ignore[arg-type]
        if len(messages) != len(prompt) or raw:
            raise UsageError("a prompt is a text, messages or token ids, not a mixture")
        # The rendered text holds BOS where the template puts one, so none is added here.
        return self.tokenize(self.render_chat(messages))

    # ---- requests ------------------------------------------------------------------------------

    def chat(self, request: ChatCompletionRequest) -> Prepared:
        """A chat request, rendered and tokenized; its grammar is compiled."""
        offered = () if request.tool_choice == "none" else request.tools or ()
        tools = [tool.raw() for tool in offered]
        limit = request.token_limit or 0
        text = self._chat_text(request, tools)
        native, seed = self._request(request, self.tokenize(text), limit)
        kind, grammar, param = self._format(request.response_format, request.grammar)
        if request.must_call_tool:
            kind, grammar = GrammarKind.STRUCTURE, self._tool_grammar(request, tools)
        else:
            self._check_grammar(kind, grammar, param)
        make_parser = partial(
            self._native.output_parser,
            tools=bool(tools),
            reasoning=True,
            prompt=text[-_PROMPT_END:],
        )
        return Prepared(
            natives=(
                replace(
                    native,
                    logprobs=bool(request.logprobs),
                    top_logprobs=request.top_logprobs or 0,
                    grammar_kind=kind,
                    grammar=grammar,
                ),
            ),
            seed=seed,
            stream=bool(request.stream),
            include_usage=_include_usage(request.stream_options),
            logprobs=bool(request.logprobs),
            top_logprobs=request.top_logprobs or 0,
            parsers=tuple(make_parser() for _ in range(native.n)),
            one_tool_call=request.parallel_tool_calls is False,
        )

    def completion(self, request: CompletionRequest) -> Prepared:
        """A request for plain texts; every prompt becomes a request of its own."""
        prompts = _prompts(request.prompt)
        limit = COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
        if request.echo and request.logprobs is not None:
            raise InvalidRequestError(
                "logprobs of an echoed prompt are not told", param="logprobs", hint="leave echo out"
            )
        kind, grammar, param = self._format(request.response_format, request.grammar)
        self._check_grammar(kind, grammar, param)
        natives: list[Request] = []
        seed = None
        size = self._native.bundle.manifest.model.vocab_size
        for place, prompt in enumerate(prompts):
            ids = self.tokenize(prompt, bos=True) if isinstance(prompt, str) else prompt
            name = "prompt" if len(prompts) == 1 else f"prompt[{place}]"
            if not ids:
                raise InvalidRequestError(f"{name} has no tokens", param=name)
            if isinstance(prompt, list) and max(prompt) >= size:
                raise InvalidRequestError(
                    f"{name} holds token {max(prompt)}, the model has {size}", param=name
                )
            native, seed = self._request(request, ids, limit, seed)
            natives.append(
                replace(
                    native,
                    logprobs=request.logprobs is not None,
                    top_logprobs=request.logprobs or 0,
                    grammar_kind=kind,
                    grammar=grammar,
                )
            )
        return Prepared(
            natives=tuple(natives),
            seed=seed,
            stream=bool(request.stream),
            include_usage=_include_usage(request.stream_options),
            logprobs=request.logprobs is not None,
            top_logprobs=request.logprobs or 0,
            echo=tuple(self._text(prompt) for prompt in prompts) if request.echo else (),
        )

    def _text(self, prompt: str | Sequence[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        return self._native.detokenize(prompt).decode("utf-8", "replace")

    def _chat_text(self, request: ChatCompletionRequest, tools: Sequence[Mapping[str, Any]]) -> str:
        variables = dict(request.chat_template_kwargs or {})
        if request.reasoning_effort is not None:
            variables["reasoning_effort"] = request.reasoning_effort
        going_on = bool(request.continue_final_message)
        add = request.add_generation_prompt
        try:
            return self.render_chat(
                [_template_message(message) for message in request.messages],
                add_generation_prompt=not going_on if add is None else add,
                tools=tools or None,
                continue_final_message=going_on,
                variables=variables,
            )
        except UsageError as error:
            param = "tools" if tools and "tools" in error.message else "messages"
            raise InvalidRequestError(
                error.message, param=param, why=error.why, hint=error.hint
            ) from None

    def _request(
        self,
        request: ChatCompletionRequest | CompletionRequest,
        token_ids: Sequence[int],
        max_tokens: int,
        seed: int | None = None,
    ) -> tuple[Request, int | None]:
        """What chats and plain texts share, and the seed that was chosen."""
        if request.model is not None:
            self.check_model(request.model)
        defaults = self.defaults
        temperature = _or(request.temperature, defaults.temperature)
        if request.seed is not None:
            seed = request.seed % (1 << 64)
        elif seed is None and temperature > 0:
            seed = secrets.randbits(_SEED_BITS)
        stop = request.stop or ()
        native = Request(
            token_ids=token_ids,
            n=request.n or 1,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=max(_or(request.top_p, defaults.top_p), _SMALLEST_TOP_P),
            top_k=max(_or(request.top_k, defaults.top_k), 0),
            min_p=_or(request.min_p, defaults.min_p),
            repetition_penalty=_or(request.repetition_penalty, defaults.repetition_penalty),
            presence_penalty=request.presence_penalty or 0.0,
            frequency_penalty=request.frequency_penalty or 0.0,
            logit_bias=self._biases(request.logit_bias),
            seed=seed or 0,
            ignore_eos=bool(request.ignore_eos),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=self._stop_ids(request.stop_token_ids),
            timeout_ms=timeout_ms(request.timeout),
        )
        return native, seed

    def _stop_ids(self, given: Sequence[int] | None) -> tuple[int, ...]:
        size = self._native.bundle.manifest.model.vocab_size
        for token in given or ():
            if token >= size:
                raise InvalidRequestError(
                    f"stop_token_ids names token {token}, the model has {size}",
                    param="stop_token_ids",
                )
        return tuple(given or ())

    def _biases(self, given: Mapping[str, float] | None) -> tuple[tuple[int, float], ...]:
        biases: list[tuple[int, float]] = []
        size = self._native.bundle.manifest.model.vocab_size
        for key, value in (given or {}).items():
            token = int(key)
            if token >= size:
                raise InvalidRequestError(
                    f"logit_bias names token {token}, the model has {size}", param="logit_bias"
                )
            biases.append((token, float("-inf") if value <= FORBIDDEN_BIAS else value))
        return tuple(biases)

    def _format(
        self, response_format: ResponseFormat | None, grammar: GrammarSpec | None
    ) -> tuple[GrammarKind, str | None, str]:
        """What binds the text, and the parameter that says so."""
        if grammar is not None:
            kind, text = grammar_of(grammar)
            return kind, text, "grammar"
        if response_format is None or response_format.type == "text":
            return GrammarKind.NONE, None, ""
        if response_format.json_schema is None:
            return GrammarKind.JSON, None, "response_format"
        schema = json_text(response_format.json_schema.schema_, "the JSON schema")
        return GrammarKind.JSON_SCHEMA, schema, "response_format"

    def _tool_grammar(
        self, request: ChatCompletionRequest, tools: Sequence[Mapping[str, Any]]
    ) -> str:
        """What forces a call: of a named function one, unless several are asked for."""
        wanted: Any = request.tool_choice
        parallel = request.parallel_tool_calls is not False
        if isinstance(request.tool_choice, NamedToolChoice):
            wanted = request.tool_choice.model_dump()
            parallel = request.parallel_tool_calls is True
        try:
            grammar = self._native.tool_grammar(tools, wanted, parallel=parallel)
        except UsageError as error:
            raise InvalidRequestError(error.message, param="tools", hint=error.hint) from None
        try:
            self._native.check_grammar(GrammarKind.STRUCTURE, grammar)
        except GrammarError as found:
            found.param = "tools"
            # It names a place in the structure; callers know their schemas.
            for place, tool in enumerate(tools):
                schema = json_text(tool["function"].get("parameters") or {}, "tools")
                name = f"tools[{place}].function.parameters"
                try:
                    self._native.check_grammar(GrammarKind.JSON_SCHEMA, schema)
                except GrammarError as error:
                    message = error.message.removeprefix("JSON schema: ")
                    raise InvalidRequestError(
                        f"{name}: {message}", param=name, code="invalid_grammar", hint=error.hint
                    ) from None
            raise
        return grammar

    def _check_grammar(self, kind: GrammarKind, grammar: str | None, param: str) -> None:
        if kind is not GrammarKind.NONE:
            try:
                self._native.check_grammar(kind, grammar)
            except GrammarError as error:
                error.param = param
                raise


def token_id_list(given: Iterable[int]) -> list[int]:
    """Token ids as ints; ``UsageError`` for what is none."""
    ids: list[int] = []
    for item in given:
        if isinstance(item, bool):
            raise UsageError(f"a token id is an integer, not {item}")
        try:
            ids.append(index(item))
        except TypeError:
            raise UsageError(f"a token id is an integer, not {type(item).__name__}") from None
    return ids


def grammar_of(spec: GrammarSpec) -> tuple[GrammarKind, str | None]:
    """The runtime's grammar for the extension ``grammar``."""
    value = spec.value
    text = json_text(value, "grammar.value") if isinstance(value, Mapping) else value
    return GRAMMAR_KINDS[spec.type], text


def timeout_ms(seconds: float | None) -> int:
    """Milliseconds as the runtime takes them, at least 1 if there is a limit; 0: none."""
    if seconds is None:
        return 0
    if not seconds > 0:
        raise UsageError(f"timeout is {seconds}, it must be a positive number of seconds")
    return max(1, round(min(_MAX_TIMEOUT_MS, seconds * 1000)))


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _include_usage(options: StreamOptions | None) -> bool:
    return options is not None and bool(options.include_usage)


def _prompts(
    prompt: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
) -> list[str | list[int]]:
    """One prompt or several as a list of texts and ids."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    if ids:
        return [ids]
    return [item if isinstance(item, str) else list(item) for item in prompt]  # type: ignore[arg-type]


def _template_message(message: ChatMessage) -> dict[str, Any]:
    """A message as chat templates expect it."""
    record: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": message.content
        if message.content is None or isinstance(message.content, str)
        else [{"type": "text", "text": part.text} for part in message.content],
    }
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            record[name] = value
    if message.tool_calls:
        record["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    return record
