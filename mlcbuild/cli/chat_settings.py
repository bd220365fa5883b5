"""What /set can change in a chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mlcbuild.core.suggest import suggestion_or_list
from mlcbuild.errors import UsageError

_DEFAULT_WORDS = ("default", "none", "off")


@dataclass(frozen=True)
class Setting:
    """A parameter of requests, by its OpenAI name."""

    name: str
    convert: Callable[[str], Any]
    kind: str
    help: str


_SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("temperature", float, "a number", "0 always takes the likeliest token"),
        Setting("top_p", float, "a number", "sample from the tokens that make up this probability"),
        Setting("top_k", int, "a whole number", "sample from so many of the likeliest tokens"),
        Setting("min_p", float, "a number", "leave out tokens below this share of the likeliest"),
        Setting("repetition_penalty", float, "a number", "above 1: fewer words twice"),
        Setting("presence_penalty", float, "a number", "above 0: less of what was said"),
        Setting("frequency_penalty", float, "a number", "above 0: less of what was said often"),
        Setting("max_tokens", int, "a whole number", "longest answer, in tokens"),
        Setting("seed", int, "a whole number", "same seed, same answer"),
        Setting("stop", str, "a text", "end an answer before this text"),
    )
}


class ChatSettings:
    """Parameters that differ from the model's own; ``system`` is part of the conversation."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        """Takes what is not None: "default" goes back to it. Raises ``UsageError`` as ``set``."""
        self._values: dict[str, Any] = {}
        for name, value in (given or {}).items():
            if value is not None:
                self._store(name, value)
        self._first = self.values()

    def values(self) -> dict[str, Any]:
        """Parameters for a request."""
        return dict(self._values)

    def set(self, name: str, text: str) -> None:
        """Changes one; "default" goes back to how the chat began.

        Raises ``UsageError`` for an unknown name, with a suggestion, or a value that is no good.
        """
        setting = _SETTINGS.get(name)
        if setting is None:
            raise UsageError(f'there is no setting "{name}"', hint=_suggestion(name))
        if text.lower() in _DEFAULT_WORDS:
            self._values.pop(name, None)
            if name in self._first:
                self._values[name] = self._first[name]
            return
        try:
            value = setting.convert(text)
        except ValueError:
            raise UsageError(
                f"{name} is {setting.kind}, not {text!r}",
                hint=f'"/set {name} default" goes back to how the chat began',
            ) from None
        self._store(name, value)

    def _store(self, name: str, value: Any) -> None:
        """Keeps a value that a request may have."""
        from mlcbuild.engine.protocol import ChatCompletionRequest, parse_request

        if name not in _SETTINGS:
            raise UsageError(f'there is no setting "{name}"')
        message = {"role": "user", "content": ""}
        parse_request(ChatCompletionRequest, {"messages": [message], name: value})
        self._values[name] = value

    def lines(self) -> list[str]:
        """All of them, for people."""
        return [
            f"  {name:<20}{self._values.get(name, 'default')!s:<10}  {setting.help}"
            for name, setting in _SETTINGS.items()
        ]


def _suggestion(name: str) -> str:
    """What was meant: a name that begins so, else one that is spelled alike."""
    known = [*_SETTINGS, "system"]
    longer = [item for item in known if name and item.startswith(name)]
    return f'did you mean "{longer[0]}"?' if len(longer) == 1 else suggestion_or_list(name, known)


def setting_names() -> tuple[str, ...]:
    """What /set knows, besides system."""
    return tuple(_SETTINGS)
