"""Checks of keyword options that come as a TypedDict."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from mlcbuild.core.suggest import suggestion_or_list
from mlcbuild.errors import UsageError

# numpy's scalars are registered as these.
_EXPECTED: dict[Any, tuple[type, str]] = {
    bool: (numbers.Integral, "True or False"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    float | None: (numbers.Real, "a number"),
}


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def checked_options(options: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """The options, which those of the TypedDict ``kind`` may be.

    Raises ``UsageError`` for an unknown name, and for a value that is not the number it must be.
    """
    known = _types(kind)
    for name, value in options.items():
        if name not in known:
            raise UsageError(f"there is no option {name}", hint=suggestion_or_list(name, known))
        wanted = known[name]
        if wanted not in _EXPECTED or (value is None and wanted == float | None):
            continue
        base, words = _EXPECTED[wanted]
        if not isinstance(value, base) or (isinstance(value, bool) and wanted is not bool):
            raise UsageError(f"{name} is {value!r}, expected {words}")
    return dict(options)
