"""Did-you-mean hints."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """``did you mean "x"?`` for the known word nearest to ``word``, or None."""
    names = sorted(known)
    lowered = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return f'did you mean "{lowered[close[0]]}"?' if close else None


def suggestion_or_list(word: str, known: Iterable[str]) -> str:
    """A did-you-mean hint, or else the list of what there is."""
    names = sorted(known)
    guess = did_you_mean(word, names)
    if guess is not None:
        return guess
    return f"known: {', '.join(names)}" if names else "none are known"
