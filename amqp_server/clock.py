"""The node's clock: wall time in ms that never goes back. Deadlines on disk outlive the process, so it is wall time."""

from __future__ import annotations

import time


class Clock:
    """Call it for the time. Between two turns of the loop time may stand still; it never runs backwards."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        now = time.time_ns() // 1_000_000
        if now > self._last:
            self._last = now
        return self._last
