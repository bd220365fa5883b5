"""Conversations as every part of the package passes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

# {"role": "system" | "user" | "assistant" | "tool", "content": text or parts, ...}, as OpenAI's
# API has it.
Message: TypeAlias = Mapping[str, Any]
