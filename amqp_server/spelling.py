"""Suggestions for misspelt names: of options, commands and values."""

from __future__ import annotations

from collections.abc import Iterable

#: Similarity from which on a name is suggested, 0 to 1.
SIMILARITY_MIN = 0.6


def closest(name: str, known: Iterable[str], least: float = SIMILARITY_MIN) -> str:
    """Return the most similar known name; nothing if none is similar enough."""
    # Imported only for a misspelt name, not at each start.
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), 1, least)), "")


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the text of an error: `no option 'memroy_limit': did you mean 'memory_limit'?`."""
    close = closest(name, known)
    return f"no {kind} '{name}'" + (f": did you mean '{close}'?" if close else "")


def hint(value: object, allowed: Iterable[str]) -> str:
    """Return what to add to the text about a wrong value: `; did you mean 'info'?`, or nothing."""
    close = closest(value, allowed) if isinstance(value, str) else ""
    return f"; did you mean '{close}'?" if close else ""
