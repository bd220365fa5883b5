"""Builds the C++ test driver of the runtime's chat parts and talks to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mlcbuild.bundle.chat_reference import ChatReference, Conversation
from mlcbuild.bundle.jinja_template import PINNED_NOW, TemplateRefusal
from tests.unit.cpp_driver import build_cpp
from tests.unit.text_driver import Driver, DriverError


def build_chat_driver(config: pytest.Config) -> Path:
    """The driver's program, compiled into pytest's cache unless it is there."""
    return build_cpp(config, "chat_driver")


class ChatDriver(Driver):
    """One process of the driver."""

    def __enter__(self) -> ChatDriver:
        return self

    def render_template(
        self, source: str | bytes, variables: Mapping[str, Any] | None = None, now: int = PINNED_NOW
    ) -> str:
        """A template with variables and nothing around it."""
        text = source if isinstance(source, bytes) else source.encode()
        rendered: str = self(
            "template", source=text, variables=json.dumps(variables or {}), now=now
        )
        return bytes.fromhex(rendered).decode()

    def render_chat(self, conversation: str | Mapping[str, Any] | list[Any]) -> str:
        """A conversation with the chat.json that is loaded."""
        if not isinstance(conversation, str):
            conversation = json.dumps(conversation)
        rendered: str = self("render", conversation=conversation)
        return bytes.fromhex(rendered).decode()

    def push(self, text: bytes, last: bool = False) -> list[dict[str, Any]]:
        """The deltas of a piece of output."""
        deltas: list[dict[str, Any]] = self("push", hex=text, last=last)
        return deltas


def compare_renderings(
    driver: ChatDriver, reference: ChatReference, conversations: tuple[Conversation, ...]
) -> tuple[int, int, list[str]]:
    """(renderings, those that both refuse, what differs) with and without generation prompt."""
    compared = refused = 0
    differences: list[str] = []
    for conversation in conversations:
        for opens in (True, False):
            request: dict[str, Any] = {
                "messages": list(conversation.messages),
                "add_generation_prompt": opens,
                "now": PINNED_NOW,
            }
            if conversation.tools is not None:
                request["tools"] = list(conversation.tools)
            if conversation.variables is not None:
                request["variables"] = dict(conversation.variables)
            expected: str | None
            found: str | None
            try:
                expected = reference.render(conversation, opens)
            except TemplateRefusal:
                expected = None
            try:
                found = driver.render_chat(request)
            except DriverError:
                found = None
            compared += 1
            refused += expected is None and found is None
            if found != expected:
                differences.append(f"{conversation.name}, {opens}: {expected!r}, found {found!r}")
    return compared, refused, differences
