"""The system's two clocks. Intervals are measured with the monotonic clock; users see wall time.

The wall clock may be set forward or back at any time, by hours; the monotonic clock never is. The monotonic
clock also counts the time in which the machine was suspended: the other nodes kept running meanwhile.
"""

from __future__ import annotations

import time

#: Missing on some systems.
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    __slots__ = ()

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
