"""A regular expression from outside, which may take only so long.

Names that are matched come from clients, and patterns from operators who had no clever names in mind: with
the standard library's `re`, a pattern like `(a|aa)+$` can stop the whole broker for hours. The `regex` module
checks a time limit while it backtracks. The commonest patterns need neither module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class InvalidPattern(ValueError):
    """Says what is wrong with a pattern, and where."""


Matches = Callable[[str], bool]


def compile_pattern(pattern: str, bytes_max: int, time_ms: int) -> Matches:
    """A function that finds the pattern anywhere in a name; past the time limit the answer is no."""
    # As RabbitMQ reads them: the empty pattern matches only the empty name.
    if pattern in ("", "^$"):
        return lambda name: not name
    if pattern == ".*":
        return lambda name: True
    if len(pattern.encode()) > bytes_max:
        raise InvalidPattern(f"longer than {bytes_max} bytes")
    return _searcher(pattern, time_ms / 1000)


def _searcher(pattern: str, time_s: float) -> Matches:
    # Imported for the first pattern that needs it: 12 ms of the start.
    import regex

    try:
        # PCRE without its Unicode mode, which RabbitMQ uses, knows ASCII classes only.
        compiled: Any = regex.compile(pattern, regex.ASCII)
    except (regex.error, OverflowError, RecursionError) as failure:
        raise InvalidPattern(str(failure)) from None

    def search(name: str) -> bool:
        try:
            return compiled.search(name, timeout=time_s) is not None
        except TimeoutError:
            return False

    return search
