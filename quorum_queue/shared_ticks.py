"""Lets periodic tasks run at the same moments, so that an idle process wakes less often.

The moments are the multiples of each task's interval, by the clock that all of them read.
"""

from __future__ import annotations

import time

#: See amqp_server.clock. Not on every system.
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ms() -> int:
    return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000


def until_beat_s(interval_ms: int, at_ms: int) -> float:
    """Return the time to the next multiple of the interval, or to the one after it if that is less than half
    an interval away: some callers count their wakes.
    """
    since = at_ms % interval_ms
    left = interval_ms - since
    if 2 * left < interval_ms:
        left += interval_ms
    return left / 1000
