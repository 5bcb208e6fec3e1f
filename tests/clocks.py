"""Clocks for tests, which go when the test says so."""

from __future__ import annotations


class ManualClock:
    """See quorum_queue.clock.Clock."""

    def __init__(self, now_ms: int = 0, wall_ms: int | None = None) -> None:
        #: Time of the monotonic clock.
        self.now_ms = now_ms
        #: How far the wall clock is ahead of the monotonic one.
        self.shift_ms = 0 if wall_ms is None else wall_ms - now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms + self.shift_ms
