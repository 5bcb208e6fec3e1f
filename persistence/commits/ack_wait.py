"""Decides whether a commit waits a moment for acks that make it needless.

A message that came alone was delivered in the turn that took it. If its consumer is fast, the ack is here
before the disk has done anything, and the disk's copy is no longer needed. So a commit of only such messages
is put off for a fraction of a millisecond, as anticipatory disk schedulers wait for the next request of a
process (Iyer and Druschel, SOSP 2001). If acks do not come in time, this is tried less and less often, so
that slow consumers cost their publishers nothing.
"""

from collections.abc import Callable

#: After unsuccessful waits, at most so many commits begin at once before the next wait.
SKIPS_MAX = 1024


class Anticipation:
    def __init__(self, wait_s: float, now: Callable[[], float]) -> None:
        """`wait_s` is the time for which a commit is put off; 0 means not at all. `now` is a monotonic clock,
        in seconds.
        """
        self._wait_s = wait_s
        self._now = now
        self._until = 0.0
        #: Commits that begin at once: the number after the last unsuccessful wait, and the number left before
        #: the next wait.
        self._skips = self._left = 0

    def worth_it(self) -> bool:
        """Return whether to put off a commit now; this begins or continues the wait."""
        if not self._wait_s:
            return False
        if self._until:
            return self._now() < self._until
        if self._left:
            self._left -= 1
            return False
        self._until = self._now() + self._wait_s
        return True

    def left_s(self) -> float:
        """The rest of the wait in seconds; 0 or less if it is over."""
        return self._until - self._now() if self._until else 0.0

    def over(self, in_vain: bool) -> None:
        """The commit has begun, or became needless. `in_vain`: acks did not come."""
        if not self._until:
            return
        self._until = 0.0
        self._skips = min(2 * self._skips + 1, SKIPS_MAX) if in_vain else self._skips // 2
        self._left = self._skips if in_vain else 0
