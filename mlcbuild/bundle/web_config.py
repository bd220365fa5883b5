"""mlc-chat-config.json: what MLC's browser client must know of a model besides its library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mlcbuild.bundle.web_chat import WebConversation
from mlcbuild.spec.limits import Limits

CONFIG_NAME = "mlc-chat-config.json"
_VERSION = "0.1.0"  # of the file's form
# The client asks for these; without any word of the makers nothing is cut off or scaled.
_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0}


def web_config(
    conversation: WebConversation,
    *,
    model_type: str,
    scheme: str,
    vocab_size: int,
    limits: Limits,
    tokenizer: Mapping[str, Any],
    sampling: Mapping[str, float] | None,
) -> dict[str, Any]:
    """The record of the file; ``vocab_size`` is the width of the logits.

    ``tokenizer`` is tokenizer.json; ``sampling`` as in chat.json.
    """
    defaults = {key: (sampling or {}).get(key, value) for key, value in _SAMPLING.items()}
    return {
        "version": _VERSION,
        "model_type": model_type,
        "quantization": scheme,
        "model_config": {
            "vocab_size": vocab_size,
            "context_window_size": limits.context_window_size,
            "prefill_chunk_size": limits.prefill_chunk_size,
        },
        "vocab_size": vocab_size,
        "context_window_size": limits.context_window_size,
        "sliding_window_size": -1,
        "attention_sink_size": -1,
        "prefill_chunk_size": limits.prefill_chunk_size,
        "tensor_parallel_shards": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        **defaults,
        "tokenizer_files": ["tokenizer.json"],
        "tokenizer_info": tokenizer_info(tokenizer),
        "conv_template": conversation.to_json(model_type),
    }


def sampling_notes(sampling: Mapping[str, float] | None) -> list[str]:
    """What of the makers' sampling (as in chat.json) has no place in the file."""
    lost = [f"{key} {value:g}" for key, value in (sampling or {}).items() if key not in _SAMPLING]
    if not lost:
        return []
    return [f"the model's makers sample with {', '.join(lost)}: the browser's client has no such"]


def tokenizer_info(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """How tokens become text, for the client's grammars: from the parts of tokenizer.json."""
    decoders = list(_steps(tokenizer.get("decoder"), "decoders"))
    normalizers = list(_steps(tokenizer.get("normalizer"), "normalizers"))
    pre_tokenizers = list(_steps(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    kinds = {step.get("type") for step in decoders}
    method = "raw"
    if "ByteLevel" in kinds:
        method = "byte_level"
    elif "ByteFallback" in kinds:
        method = "byte_fallback"
    prepends = any(step.get("type") == "Prepend" for step in normalizers) or any(
        step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never"
        for step in pre_tokenizers
    )
    strips = any(
        step.get("type") == "Strip" and step.get("content") == " " and step.get("start", 0) > 0
        for step in decoders
    )
    return {
        "token_postproc_method": method,
        "prepend_space_in_encode": prepends,
        "strip_space_in_decode": strips or (prepends and "Metaspace" in kinds),
    }


def _steps(value: Any, list_key: str) -> Iterator[Mapping[str, Any]]:
    """The steps of a component, those of its sequences one by one."""
    if not isinstance(value, Mapping):
        return
    if value.get("type") != "Sequence":
        yield value
        return
    for step in value.get(list_key) or ():
        yield from _steps(step, list_key)
