"""What Engine and AsyncEngine share: opening a bundle, text, figures, jobs of requests."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from mlcbuild.bundle.abi import TextFlags
from mlcbuild.bundle.manifest import MANIFEST_NAME, BundleManifest
from mlcbuild.bundle.native import NativeBundle, NativeEngine
from mlcbuild.engine.answers import (
    ChatAssembler,
    ChatStream,
    CompletionAssembler,
    CompletionStream,
    Header,
    Job,
)
from mlcbuild.engine.hub import Dispatch, RequestHub
from mlcbuild.engine.options import checked_options
from mlcbuild.engine.prepare import Prepared, Prompt, RequestBuilder, token_id_list
from mlcbuild.engine.protocol import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    InvalidRequestError,
    Model,
    ModelList,
    parse_request,
    plain,
)
from mlcbuild.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

RequestKind = TypeVar("RequestKind", ChatCompletionRequest, CompletionRequest)

_TOKENS_KEPT = 1 << 15


class EngineOptions(TypedDict, total=False):
    """How to run a bundle; every key may be left out.

    ``threads``: 0 takes one for each CPU that the process may use. ``activations``: "int8", "float"
    or None for the bundle's best. ``variant``: a kernel library by name, None for the best that
    this CPU runs. ``mode``: "server" (the bundle's limits), "local" (at most 4 requests at once) or
    "interactive" (one). ``max_batch_size``: requests at once, 0 takes the mode's limit.
    ``kv_tokens``, or ``kv_bytes``: how much KV cache, 0 for what fills every window.
    ``max_waiting``: requests that may wait for a place, beyond which ``BusyError`` is raised; 0 is
    no limit. ``prefix_cache``: keep the pages of ended requests for prompts that begin alike.
    ``speculation``: "ngram" or "draft" (with ``draft``, the folder of a small bundle with the same
    tokenizer); ``speculation_tokens``: guesses in a step, 0 for the runtime's choice.
    ``profile``: time every kernel. ``verify_full``: hash the params first.
    """

    threads: int
    activations: str | None
    variant: str | None
    mode: str | None
    max_batch_size: int
    kv_tokens: int
    kv_bytes: int
    max_waiting: int
    prefix_cache: bool
    speculation: str | None
    speculation_tokens: int
    draft: str | Path | None
    profile: bool
    verify_full: bool


class EngineBase:
    """A bundle that is open and an engine over it."""

    def __init__(
        self, bundle: str | Path, dispatch: Dispatch, **options: Unpack[EngineOptions]
    ) -> None:
        given = checked_options(options, EngineOptions)
        draft_path = given.pop("draft", None)
        if draft_path is not None and given.get("speculation") is None:
            given["speculation"] = "draft"
        if (given.get("speculation") == "draft") != (draft_path is not None):
            raise UsageError(
                'draft, the folder of a small bundle, goes with speculation "draft"',
                hint="give both, or neither",
            )
        for path in (bundle, draft_path):
            if path is not None and not isinstance(path, (str, os.PathLike)):
                raise UsageError(f"a bundle is given as its folder, not {type(path).__name__}")
        verify_full = given.pop("verify_full", False)
        self._native = NativeBundle.open(
            Path(bundle), verify_full=verify_full, closed_name="engine"
        )
        self._draft: NativeBundle | None = None
        engine: NativeEngine | None = None
        try:
            if draft_path is not None:
                self._draft = NativeBundle.open(
                    Path(draft_path), library=self._native.library, verify_full=verify_full
                )
            engine = NativeEngine(self._native, draft=self._draft, **given)
            self._engine = engine
            self._builder = RequestBuilder(self._native, self.model_name)
            self._hub = RequestHub(engine, dispatch)
        except BaseException:
            if engine is not None:
                engine.close()
            self._close_bundles()
            raise
        self._token_bytes = lru_cache(_TOKENS_KEPT)(self._spell_token)

    def _close_bundles(self) -> None:
        if self._draft is not None:
            self._draft.close()
        self._native.close()

    # ---- what it is ----------------------------------------------------------------------------

    @property
    def manifest(self) -> BundleManifest:
        """The bundle's manifest."""
        return self._native.bundle.manifest

    @property
    def info(self) -> dict[str, Any]:
        """What the runtime chose: variant, activations, threads, limits, memory in bytes."""
        return self._engine.info()

    @property
    def model_name(self) -> str:
        """The name under which requests ask for the model."""
        return self.manifest.name

    @property
    def context_window_size(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.manifest.limits.context_window_size

    def metrics(self) -> dict[str, Any]:
        """What the engine has done and holds; docs/metrics.md lists the figures."""
        value: dict[str, Any] = json.loads(self._engine.metrics())
        return value

    def prometheus_metrics(self) -> str:
        """The same figures as the text that a Prometheus server scrapes."""
        return self._engine.metrics("prometheus")

    def clear_cache(self) -> None:
        """Forgets what the prefix cache keeps."""
        self._engine.clear_cache()

    def _models(self) -> ModelList:
        created = int((self._native.bundle.path / MANIFEST_NAME).stat().st_mtime)
        return ModelList(
            data=[
                Model(
                    id=self.model_name,
                    created=created,
                    owned_by="mlcbuild",
                    context_window_size=self.context_window_size,
                )
            ]
        )

    def _model(self, name: str) -> Model:
        self._builder.check_model(name)
        return self._models().data[0]

    # ---- text ----------------------------------------------------------------------------------

    def tokenize(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        """Token ids of ``text``.

        ``special`` recognizes special tokens in it; ``bos`` puts BOS in front where the model wants
        one before a raw prompt.
        """
        return self._builder.tokenize(text, special=special, bos=bos)

    def detokenize(self, token_ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ``token_ids``; bytes that are no UTF-8 become U+FFFD.

        ``special`` keeps special tokens.
        """
        flags = TextFlags.DETOKENIZE_SPECIAL if special else TextFlags.NONE
        return self._native.detokenize(token_ids, flags).decode("utf-8", "replace")

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        now: int | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """A conversation as the text that the model sees.

        ``tools``: OpenAI's function tools. ``continue_final_message``: leave the last message open
        (``generation_prompt`` must be off). ``now``: seconds since 1970, for templates that tell
        the date. ``variables``: what else the template asks for.
        """
        return self._builder.render_chat(
            messages,
            add_generation_prompt=generation_prompt,
            tools=tools,
            continue_final_message=continue_final_message,
            now=now,
            variables=variables,
        )

    def prompt_token_ids(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """The ids that ``generate`` starts from.

        A text is one user message, or with ``raw`` goes in as it is; messages are rendered with
        the chat template; ids are taken as they are.
        """
        return self._builder.prompt_token_ids(prompt, raw=raw)

    def _spell_token(self, token: int) -> bytes:
        # As it stands inside a text: a first token of some tokenizers would lose its space.
        flags = TextFlags.DETOKENIZE_SPECIAL | TextFlags.DETOKENIZE_INSIDE
        return self._native.detokenize([token], flags)

    # ---- jobs ----------------------------------------------------------------------------------

    def _logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        import numpy as np

        ids = token_id_list(token_ids)
        rows = np.empty((len(ids), self.manifest.model.vocab_size), np.float32)
        self._engine.logits_into(ids, rows.ctypes.data, rows.size)
        return rows

    def _chat_job(self, request: ChatCompletionRequest) -> Job[ChatCompletionChunk, ChatCompletion]:
        prepared = _whole(self._builder.chat(request))
        header = self._header("chatcmpl")
        maker = ChatStream(prepared, header, self._token_bytes)
        return Job(prepared, maker, ChatAssembler(prepared))

    def _completion_job(self, request: CompletionRequest) -> Job[Completion, Completion]:
        prepared = _whole(self._builder.completion(request))
        header = self._header("cmpl")
        maker = CompletionStream(prepared, header, self._token_bytes)
        return Job(prepared, maker, CompletionAssembler(prepared))

    def _header(self, prefix: str) -> Header:
        digest = self.manifest.tree_digest.removeprefix("sha256:")
        return Header.new(prefix, self.model_name, f"fp_{digest[:12]}")


def _whole(prepared: Prepared) -> Prepared:
    """An answer in one piece always tells its usage."""
    return prepared if prepared.stream else replace(prepared, include_usage=True)


def read_request(
    kind: type[RequestKind],
    request: RequestKind | Mapping[str, Any] | None,
    parameters: Mapping[str, Any],
) -> RequestKind:
    """A request from what ``create`` was given: one that is ready, a decoded body, or keywords."""
    given = {
        name: value for name, value in parameters.items() if name != "stream" or value is not None
    }
    if request is not None and given:
        raise InvalidRequestError(
            f"{next(iter(given))} was given beside a request that is ready",
            hint="put it into the request",
        )
    if isinstance(request, kind):
        return request
    if request is not None and not isinstance(request, Mapping):
        raise InvalidRequestError(
            f"a request is an object, not {type(request).__name__}",
            hint="parameters go in by their names, as messages=[...]",
        )
    if request is not None:
        return parse_request(kind, plain(request))
    body = plain(given)
    extra = body.pop("extra_body", None)
    return parse_request(kind, {**body, **(extra or {})})
