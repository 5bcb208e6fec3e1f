"""The queue time on disk: a note of the queue time and the wall time, made from time to time. See
quorum_queue.clock.
"""

from __future__ import annotations

import msgspec

from amqp_server.broker.metadata import Metadata, decode, encode
from quorum_queue.boundary import Fatal
from quorum_queue.clock import Clock, QueueTime, TimeNote
from quorum_queue.ports import Commits, Timers

TABLE, KEY = "time", "queue"
#: Interval between two looks at the clocks, ms. A change of the wall clock just before the process dies is
#: not noticed.
LOOK_MS = 1_000
#: Longest interval between two notes, ms.
NOTE_MS = 60_000
#: A note is made at once if the wall clock and the queue time differ by this much more than before, ms.
SHIFT_MS = 500


class TimeRecord(msgspec.Struct, frozen=True):
    queue_ms: int
    wall_ms: int


def restore(metadata: Metadata, clock: Clock) -> QueueTime:
    """Return the queue time, continued from the note on disk."""
    for key, value in metadata.items(TABLE):
        if key == KEY:
            record = decode(TABLE, key, value, TimeRecord)
            return QueueTime(clock, TimeNote(record.queue_ms, record.wall_ms))
    return QueueTime(clock)


class TimeNotes:
    """Makes the notes. See quorum_queue.ports.Timers."""

    def __init__(
        self, metadata: Metadata, queue_time: QueueTime, clock: Clock, timers: Timers, commits: Commits
    ) -> None:
        self._metadata = metadata
        self._queue_time = queue_time
        self._clock = clock
        self._timers = timers
        self._commits = commits
        self._last = TimeNote(0, 0)

    def wake(self) -> None:
        """Look at the clocks, and set the timer for the next look."""
        now, last = self._queue_time.note(), self._last
        shift_ms = (now.wall_ms - last.wall_ms) - (now.queue_ms - last.queue_ms)
        if abs(shift_ms) >= SHIFT_MS or now.queue_ms - last.queue_ms >= NOTE_MS:
            self.note()
        self._timers.wake(self, self._clock.monotonic_ms() + LOOK_MS)

    def failed(self, error: Exception) -> None:
        """Without the time no queue can continue. See quorum_queue.boundary."""
        raise Fatal(f"the time could not be noted: {error!r}") from error

    def note(self) -> None:
        """Note the current time."""
        self._last = now = self._queue_time.note()
        self._metadata.put(TABLE, KEY, encode(TimeRecord(now.queue_ms, now.wall_ms)))
        self._commits.request()
