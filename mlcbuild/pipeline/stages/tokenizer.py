"""tokenizer: tokenizer.json and chat.json of a bundle."""

from __future__ import annotations

import json
import shutil

from mlcbuild.core import canonical_json
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.stages.files import (
    GENERATION_CONFIG,
    MODEL,
    NOTES,
    TOKENIZER,
    TOKENIZER_CONFIG,
)
from mlcbuild.pipeline.stages.tools import tool_versions
from mlcbuild.recipe.build_spec import BuildSpec


def tokenizer_action(spec: BuildSpec, model: Action) -> Action:
    """tokenizer/ (tokenizer.json, and packed), chat.json, and notes for the manifest."""
    return Action(
        stage="tokenizer",
        version=3,
        subject=spec.recipe,
        run=_run,
        inputs={"model": model},
        tools=tool_versions("jinja2"),
        describe="read the chat template",
    )


def _run(context: ActionContext) -> None:
    from mlcbuild.bundle.chat_config import derive_chat_config
    from mlcbuild.bundle.tokenizer_pack import PACKED_NAME, pack_tokenizer

    source = context.inputs["model"]
    description = json.loads((source / MODEL).read_bytes())
    chat = derive_chat_config(
        json.loads((source / TOKENIZER).read_bytes()),
        json.loads((source / TOKENIZER_CONFIG).read_bytes()),
        generation_config=json.loads((source / GENERATION_CONFIG).read_bytes()),
        model_config=description["config"],
    )
    (context.out / "tokenizer").mkdir()
    shutil.copyfile(source / TOKENIZER, context.out / "tokenizer" / TOKENIZER)
    packed = pack_tokenizer((source / TOKENIZER).read_bytes())
    (context.out / "tokenizer" / PACKED_NAME).write_bytes(packed)
    (context.out / "chat.json").write_bytes(chat.to_bytes())
    (context.out / NOTES).write_bytes(canonical_json.encode(list(chat.notes)))
