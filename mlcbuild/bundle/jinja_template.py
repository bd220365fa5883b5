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
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

from mlcbuild.bundle.messages import Message
from mlcbuild.errors import SourceError

# Templates may ask for today's date. Checks are the same whenever they run, so they get the date
# that Llama 3.1 falls back to, as seconds since 1970 (UTC).
PINNED_NOW = 1721952000

# What a template's expressions raise besides Jinja's own errors, as Python does.
_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class TemplateRefusal(Exception):
    """The template does not render a conversation (it raised, or used what it may not)."""


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's text for training; rendering passes it through."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_pass_through")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _pass_through(self, caller: jinja2.runtime.Macro) -> str:
        return caller()


class _Namespace(jinja2.utils.Namespace):
    """A namespace without names that start with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as Jinja's: a name may be "self"
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"the name {name!r} starts with an underscore")


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
        self.source = source
        self.uses_date = False
        self._now = PINNED_NOW
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = self._strftime_now
        environment.globals["namespace"] = _Namespace
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, SyntaxError, *_FAILURES) as error:
            raise SourceError(
                "the chat template does not compile",
                where="chat template",
                why=str(error),
                hint="the model's tokenizer_config.json or chat_template.jinja is damaged",
            ) from None

    def _strftime_now(self, pattern: str) -> str:
        self.uses_date = True
        now = datetime.datetime.fromtimestamp(self._now, datetime.timezone.utc)
        return now.replace(tzinfo=None).strftime(pattern)

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        now: int = PINNED_NOW,
    ) -> str:
        """The conversation as text. ``now``: seconds since 1970 (UTC). Raises ``TemplateRefusal``.

        The messages go to the template as they are: ``mlcbuild.bundle.chat_reference`` prepares
        them as the runtime does.
        """
        render: Callable[..., str] = self._template.render
        self._now = now
        values: dict[str, Any] = {
            "messages": [dict(message) for message in messages],
            "tools": None if tools is None else [dict(tool) for tool in tools],
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._special_tokens,
            **(variables or {}),
        }
        try:
            return render(**values)
        except (jinja2.TemplateError, *_FAILURES) as error:
            raise TemplateRefusal(str(error)) from None
