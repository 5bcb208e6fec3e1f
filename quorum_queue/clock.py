"""Time, as data: an interval is measured by the monotonic clock, and a date is wall time.

Messages expire by neither of them but by the queue time (QueueTime), which has to outlive a process, and to
be about the same on all nodes. It begins as wall time, and then advances with the monotonic clock, whatever
happens to the wall clock. The wall clock only measures how long the process was down: at a start the queue
time continues from the note on disk, plus the wall time since then, if that is above zero.

The nodes of a cluster tell each other their queue time. A starting node takes it over from a serving one. If
all start at once, the nodes with a note take the earliest of their times: messages should rather expire late
than early. Among serving nodes the latest time counts, as with any logical clock; a node that is behind
catches up slowly (SLEW), so that messages do not expire all at once.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

#: Basis of a queue time: only the wall clock; a note on disk; a cluster that serves by it.
GUESSED, RESTORED, KNOWN = range(3)
#: The queue time of a node that is behind the others runs faster by one part in this many.
SLEW: Final = 10


class Clock(Protocol):
    def monotonic_ms(self) -> int:
        """For intervals: it cannot be set, and its zero is arbitrary."""

    def wall_ms(self) -> int:
        """For times that users see: ms since 1970. It may be set forward or back."""


class TimeNote(NamedTuple):
    """A note on disk: a queue time, and the wall time of that moment."""

    queue_ms: int
    wall_ms: int


class QueueTime:
    """The time by which messages expire, ms."""

    __slots__ = ("_clock", "_slewed_ms", "ahead_ms", "trust")

    def __init__(self, clock: Clock, note: TimeNote | None = None) -> None:
        self._clock = clock
        now, wall = clock.monotonic_ms(), clock.wall_ms()
        #: How far the queue time is ahead of the monotonic clock.
        self.ahead_ms = wall - now
        self.trust = GUESSED
        if note is not None:
            self.ahead_ms = note.queue_ms + max(0, wall - note.wall_ms) - now
            self.trust = RESTORED
        self._slewed_ms = now

    def now_ms(self) -> int:
        return self._clock.monotonic_ms() + self.ahead_ms

    def note(self) -> TimeNote:
        return TimeNote(self.now_ms(), self._clock.wall_ms())

    def serves(self) -> None:
        """The node serves from now on: others may rely on its time."""
        self.trust = KNOWN
        self._slewed_ms = self._clock.monotonic_ms()

    def heard(self, trust: int, queue_ms: int) -> int:
        """Another node has sent its queue time and the basis of it. Return by how much the time here has
        changed.
        """
        now, before = self._clock.monotonic_ms(), self.ahead_ms
        ahead = queue_ms - now
        if trust > self.trust:
            self.trust = trust
            self.ahead_ms, self._slewed_ms = ahead, now
        elif trust == self.trust == KNOWN:
            self.ahead_ms += max(0, min(ahead - before, (now - self._slewed_ms) // SLEW))
            self._slewed_ms = now
        elif trust == self.trust:
            self.ahead_ms = min(ahead, before)
        return self.ahead_ms - before
