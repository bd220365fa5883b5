"""Conversations as every part of the package passes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from mlcbuild.core import canonical_json

# {"role": "system" | "user" | "assistant", "content": text}
Message: TypeAlias = Mapping[str, str]


def messages_json(messages: Sequence[Message]) -> bytes:
    """Messages as the runtime's mlcb_apply_chat_template takes them."""
    return canonical_json.encode([dict(message) for message in messages])
