"""When the messages of a queue came: the time of a few, from which that of each other one is known closely.

A message that comes a second or more after the last noted one is noted, so each message came less than a
second after the last noted one before it. There are NOTED_MAX at most: then those go without which the times
of others become at most an eighth of their age too early. So a busy queue of any length takes a few KiB.
Queues in which nothing comes take nothing.

The times are no part of the state that replicas compare, but snapshots have them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

INTERVAL_MS: Final = 1_000
NOTED_MAX: Final = 1_024
TIME_MAX: Final = (1 << 62) - 1
#: Part of the age of a message by which its time may be wrong.
SHARE: Final = 8


class Arrivals:
    """Positions and times, both ascending."""

    __slots__ = ("next_ms", "positions", "times")

    def __init__(self) -> None:
        #: Messages that come from this time on are to be noted.
        self.next_ms = 0
        self.positions = array("q")
        self.times = array("q")

    @classmethod
    def restored(cls, positions: list[int], times: list[int], now_ms: int) -> Arrivals:
        """Return what was noted before; if nothing was, all messages that are there now came at this time, or
        before. Raises ValueError, OverflowError.
        """
        if len(positions) != len(times):
            raise ValueError("not as many times as positions")
        arrivals = cls()
        arrivals.positions.extend(positions or (0,))
        # A damaged time in an entry must not be one that no column can hold.
        arrivals.times.extend(times or (min(now_ms, TIME_MAX),))
        arrivals.next_ms = arrivals.times[-1] + INTERVAL_MS
        return arrivals

    def note(self, position: int, now_ms: int) -> None:
        if len(self.positions) >= NOTED_MAX:
            self._thin_out(now_ms)
        self.positions.append(position)
        self.times.append(now_ms)
        self.next_ms = now_ms + INTERVAL_MS

    def time_of(self, position: int) -> int | None:
        """Return when the message at this position came, in ms of the queue time; None if it came before the
        first one that was noted.
        """
        at = bisect_right(self.positions, position)
        return self.times[at - 1] if at else None

    def surely_came(self, position: int) -> int | None:
        """As `time_of`; None also if the message only was there at that time, and may have come before."""
        at = bisect_right(self.positions, position)
        return self.times[at - 1] if at and self.positions[at - 1] else None

    def _thin_out(self, now_ms: int) -> None:
        positions, times = self.positions, self.times
        kept = [0]
        for at in range(1, len(times) - 1):
            # The messages between would have the time of the one before.
            if times[at + 1] - times[kept[-1]] > (now_ms - times[at]) // SHARE:
                kept.append(at)
        kept.append(len(times) - 1)
        # More are left after centuries, or if a clock has jumped.
        kept = kept[-NOTED_MAX // 2 :]
        self.positions = array("q", [positions[at] for at in kept])
        self.times = array("q", [times[at] for at in kept])


#: Of queues in which nothing has come.
NO_ARRIVALS: Final = Arrivals()
