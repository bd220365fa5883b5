"""Renders a model's Jinja chat template the way Hugging Face transformers does, in a sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from mlcbuild.bundle.messages import Message
from mlcbuild.errors import SourceError

# Templates may ask for today's date. A bundle is the same whenever it is built, so they get the
# date that Llama 3.1 falls back to.
PINNED_DATE = datetime.datetime(2024, 7, 26)


class TemplateRefusal(Exception):
    """The template does not render a conversation (it raised, or used what it may not)."""


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's text for training; rendering passes it through."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML; a prompt wants them as they are.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class JinjaTemplate:
    """A compiled chat template.

    ``special_tokens`` (``bos_token``, ``eos_token``, ...) are its globals, a token that the
    tokenizer lacks being undefined, as in transformers.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, jinja2.ext.loopcontrols],
        )
        self.uses_date = False
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = self._strftime_now
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise SourceError(
                "the chat template does not compile",
                where="chat template",
                why=str(error),
                hint="the model's tokenizer_config.json or chat_template.jinja is damaged",
            ) from None

    def _strftime_now(self, pattern: str) -> str:
        self.uses_date = True
        return PINNED_DATE.strftime(pattern)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """The conversation as text. Raises ``TemplateRefusal``."""
        render: Callable[..., str] = self._template.render
        variables: dict[str, Any] = {
            "messages": [dict(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._special_tokens,
        }
        try:
            return render(**variables)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError) as error:
            # UndefinedError is a TemplateError; the others come from the template's arithmetic.
            raise TemplateRefusal(str(error)) from None
