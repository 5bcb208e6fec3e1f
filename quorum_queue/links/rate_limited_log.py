"""A rate-limited log, which strangers cannot fill."""

from __future__ import annotations

import logging
from collections.abc import Callable


class SeldomLog:
    """Writes one line of each sort in an interval; the next line says how many were omitted.

    There must be few sorts: they are kept for ever.
    """

    def __init__(self, logger: logging.Logger, interval_s: float, now_s: Callable[[], float]) -> None:
        self._logger = logger
        self._interval = interval_s
        self._now = now_s
        self._written: dict[tuple[str, str], float] = {}
        self._left_out: dict[tuple[str, str], int] = {}

    def write(self, level: int, sort: str, who: str, text: str) -> None:
        """`who` is a configured peer, or "" for strangers, who share one allowance."""
        key, now = (sort, who), self._now()
        written = self._written.get(key)
        if written is not None and now - written < self._interval:
            self._left_out[key] = self._left_out.get(key, 0) + 1
            return
        self._written[key] = now
        left_out = self._left_out.pop(key, 0)
        self._logger.log(level, "%s%s", text, f" (and {left_out} more like this)" if left_out else "")
