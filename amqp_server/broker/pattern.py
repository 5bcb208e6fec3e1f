"""Regular expressions from users: patterns of permissions and policies, and filters of the management API.

Clients choose the names to be matched, and operators do not think of hostile names when they write patterns:
with a backtracking engine, a pattern like `(a|aa)+$` can stop the whole broker for hours. RE2 takes time
linear in the length of the name, and a limit on the memory of a pattern limits the factor: the worst known
pattern takes a few milliseconds.

RE2 has no look-around and no back-references. RabbitMQ accepts both in permissions, and users have patterns
like `^(?!secret)`. Only such permission patterns go to the `regex` module, which backtracks, with a time
limit for each name; a pattern that exceeds it again and again is given up. See
docs/adr/0016-regular-expressions.md.
"""

from __future__ import annotations

import logging
import string
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("mqd.permissions")

#: Memory of a compiled pattern, including RE2's caches while it matches.
LINEAR_MEMORY_BYTES = 256 * 1024
#: Characters that stand for themselves in every pattern.
_LITERAL = frozenset(string.ascii_letters + string.digits + "_-/:,;@#%&=~ ")


class InvalidPattern(ValueError):
    """An invalid pattern; the text has the error and its position."""


Matches = Callable[[str], bool]


def compile_filter(pattern: str, bytes_max: int) -> Matches:
    """Return a function that finds the pattern anywhere in a name, in linear time, ignoring case.

    Raises InvalidPattern.
    """
    _check_size(pattern, bytes_max)
    return _linear(pattern, case_sensitive=False)


def compile_permission(pattern: str, bytes_max: int, time_ms: int, total_ms: int) -> Matches:
    """Return a function that finds the pattern anywhere in a name. Raises InvalidPattern.

    A pattern that RE2 does not support may take `time_ms` for a name; after that, the answer is no. When its
    timeouts have taken `total_ms` in all, the answer is no for every other name, too.
    """
    # As in RabbitMQ the empty pattern matches only the empty name.
    if pattern in ("", "^$"):
        return lambda name: not name
    return compile_policy(pattern, bytes_max, time_ms, total_ms)


def compile_policy(pattern: str, bytes_max: int, time_ms: int, total_ms: int) -> Matches:
    """Like `compile_permission`, but the empty pattern is found in every name. Raises InvalidPattern."""
    if pattern == ".*":
        return lambda name: True
    _check_size(pattern, bytes_max)
    try:
        return _linear(pattern)
    except InvalidPattern:
        return _Backtracking(pattern, time_ms / 1000, max(1, total_ms // time_ms)).matches


def _check_size(pattern: str, bytes_max: int) -> None:
    if len(pattern.encode(errors="surrogateescape")) > bytes_max:
        raise InvalidPattern(f"longer than {bytes_max} bytes")


def _linear(pattern: str, *, case_sensitive: bool = True) -> Matches:
    # Imported for the first pattern that needs RE2, to keep the start short.
    import re2

    options = re2.Options()
    options.max_mem = LINEAR_MEMORY_BYTES
    options.never_capture = True
    options.case_sensitive = case_sensitive
    options.log_errors = False
    try:
        search: Callable[[bytes], object] = re2.compile(
            pattern.encode(errors="surrogateescape"), options
        ).search
    except re2.error as failure:
        (reason,) = failure.args
        raise InvalidPattern(reason.decode(errors="replace")) from None
    # In PCRE `$` matches before a newline at the end, too.
    before_newline = "\\z" not in pattern
    beginning = _beginning(pattern) if case_sensitive else ""

    def matches(name: str) -> bool:
        # Most names fail here, in a tenth of the time. There may be hundreds of policies, and a queue that
        # none of them matches tries all.
        if not name.startswith(beginning):
            return False
        encoded = name.encode(errors="surrogateescape")
        if search(encoded) is not None:
            return True
        return before_newline and encoded.endswith(b"\n") and search(encoded[:-1]) is not None

    return matches


def _beginning(pattern: str) -> str:
    """Return a text with which each name begins that the pattern matches: the literal characters after `^`,
    but for the last one if what follows may repeat it, or not have it at all. Empty if it is not easy to see.
    """
    if not pattern.startswith("^") or "|" in pattern:
        return ""
    end = 1
    while end < len(pattern) and pattern[end] in _LITERAL:
        end += 1
    if pattern[end : end + 1] in ("*", "?", "{"):
        end -= 1
    return pattern[1:end]


class _Backtracking:
    def __init__(self, pattern: str, time_s: float, attempts: int) -> None:
        import regex

        try:
            # PCRE without its Unicode mode, which RabbitMQ uses, knows ASCII classes only.
            self._compiled: Any = regex.compile(pattern, regex.ASCII)
        except (regex.error, OverflowError, RecursionError) as failure:
            raise InvalidPattern(str(failure)) from None
        self._pattern = pattern
        self._time_s = time_s
        self._attempts = attempts

    def matches(self, name: str) -> bool:
        if not self._attempts:
            return False
        try:
            return self._compiled.search(name, timeout=self._time_s) is not None
        except TimeoutError:
            self._attempts -= 1
            if not self._attempts:
                logger.warning(
                    "pattern %r often takes too long: it matches no further names until it is set again",
                    self._pattern[:200],
                )
            return False
