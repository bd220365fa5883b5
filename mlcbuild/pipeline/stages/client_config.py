"""client_config: mlc-chat-config.json, its conversation template checked against the model's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from typing import Any

from mlcbuild.core import canonical_json
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.files import (
    GENERATION_CONFIG,
    MODEL,
    NOTES,
    TOKENIZER,
    TOKENIZER_CONFIG,
)
from mlcbuild.pipeline.stages.records import from_params, to_params
from mlcbuild.pipeline.stages.tools import tool_versions
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.spec.limits import Limits


def client_config_action(spec: BuildSpec, limits: Limits, model: Action) -> Action:
    """The client's configuration, tokenizer.json, and notes for the manifest."""
    return Action(
        stage="client_config",
        version=1,
        subject=spec.subject,
        run=_run,
        inputs={"model": model},
        params={"scheme": spec.scheme, "limits": to_params(limits)},
        tools=tool_versions("jinja2", "tokenizers"),
        describe="derive the conversation template",
    )


def _run(context: ActionContext) -> None:
    from mlcbuild.bundle.web_config import CONFIG_NAME, sampling_notes, web_config

    source = context.inputs["model"]
    description = json.loads((source / MODEL).read_bytes())
    tokenizer = json.loads((source / TOKENIZER).read_bytes())
    conversation, sampling, notes = _conversation(context, tokenizer, description["config"])
    limits = from_params(Limits, context.params["limits"])
    config = web_config(
        conversation,
        model_type=description["architecture"],
        scheme=str(context.params["scheme"]),
        vocab_size=description["vocab_size"],
        limits=limits,
        tokenizer=tokenizer,
        sampling=sampling,
    )
    (context.out / CONFIG_NAME).write_bytes(canonical_json.encode(config))
    shutil.copyfile(source / TOKENIZER, context.out / TOKENIZER)
    (context.out / NOTES).write_bytes(canonical_json.encode([*notes, *sampling_notes(sampling)]))


def _conversation(
    context: ActionContext, tokenizer: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[Any, Mapping[str, float] | None, list[str]]:
    """(the conversation template, the makers' sampling, notes)."""
    from tokenizers import Tokenizer

    from mlcbuild.bundle.chat_config import derive_chat_config
    from mlcbuild.bundle.web_chat import check_pieces, derive_web_conversation, plain_conversation

    source = context.inputs["model"]
    chat = derive_chat_config(
        tokenizer,
        json.loads((source / TOKENIZER_CONFIG).read_bytes()),
        generation_config=json.loads((source / GENERATION_CONFIG).read_bytes()),
        model_config=config,
    )
    stops: dict[str, Any] = {
        "stop_strings": chat.stop_strings,
        "stop_token_ids": chat.stop_token_ids,
    }
    if chat.reference is None:
        conversation = plain_conversation(**stops)
    else:
        added = tokenizer.get("added_tokens", [])
        conversation = derive_web_conversation(
            chat.reference.template,
            bos_token=chat.tokens.get("bos_token"),
            token_ids={str(token["content"]): int(token["id"]) for token in added},
            **stops,
        )
    notes = [*chat.notes, *conversation.notes]
    reference = Tokenizer.from_file(str(source / TOKENIZER))
    difference = check_pieces(
        conversation, lambda text: reference.encode(text, add_special_tokens=False).ids
    )
    return conversation, chat.sampling, notes if difference is None else [*notes, difference]
