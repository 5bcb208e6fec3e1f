"""Time in which this process was running. Pure: the loop's time comes in as data.

To a process that was stopped (SIGSTOP, a suspended machine, a long pause) its peers seem to have been silent
all the while, though their data waits in the sockets. So silence is measured in time during which the loop
was running: a gap between two ticks counts for no more than `step_max_s`.
"""

from __future__ import annotations


class SteadyClock:
    """Advances with the loop's clock, and stands still while the loop does."""

    __slots__ = ("_loop", "_seen", "_step_max")

    def __init__(self, loop_s: float, step_max_s: float) -> None:
        self._loop = loop_s
        self._seen = 0.0
        self._step_max = step_max_s

    def tick(self, loop_s: float) -> None:
        """Call this at short intervals."""
        self._seen = self.at(loop_s)
        self._loop = loop_s

    def at(self, loop_s: float) -> float:
        """Return the steady time in s at this time of the loop, which is not before the last tick."""
        return self._seen + min(loop_s - self._loop, self._step_max)
