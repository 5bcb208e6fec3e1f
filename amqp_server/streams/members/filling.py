"""Messages that one member of a stream should have on its disk and lacks: it fetches them from other members,
by offset.

The segments of a new member end before the leader's snapshot, and those of any member may be damaged. One
question is in progress at a time. Messages that no member can read are given up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from amqp_server.streams.members.requests import Asks, Done
from persistence.streams.batch import Damaged, Head
from persistence.streams.cutting import within
from persistence.streams.log import Lost, Stored, heads_of
from quorum_queue.cluster import frames
from quorum_queue.cluster.frames import StreamWord

if TYPE_CHECKING:
    from amqp_server.streams.local_host import StreamServices
    from amqp_server.streams.members.host import StreamMemberHost

logger = logging.getLogger("mqd.streams")

#: Time until this member asks again for messages that no member could give, ms.
RETRY_MS = 500


class Fill(NamedTuple):
    """The messages that the segments must have before a snapshot of the leader can be installed."""

    peer: str
    first_offset: int
    stop: int
    wanted: Callable[[], bool]
    then: Callable[[], None]


class Filling:
    """See above. All calls are on the loop's thread."""

    def __init__(self, host: StreamMemberHost, services: StreamServices, asks: Asks) -> None:
        self._host = host
        self._services = services
        self._asks = asks
        #: Messages needed to install a snapshot.
        self._fill: Fill | None = None
        #: Damaged ranges to repair, by their first offsets; and ranges that no member has.
        self.missing: dict[int, int] = {}
        self.given_up: dict[int, int] = {}
        self._asking = False
        self._rests_until = 0
        #: Counter to ask members in turn; number of failures since the last success; and members whose copy
        #: of the wanted messages is damaged.
        self._turns = 0
        self._failures = 0
        self._damaged_at: dict[str, None] = {}
        #: The offset that was asked for last.
        self._asked = -1

    @property
    def has_snapshot(self) -> bool:
        """Return whether a snapshot of the leader is being installed."""
        return self._fill is not None and self._fill.wanted()

    @property
    def asking(self) -> bool:
        """Return whether another member was asked for messages and has not answered."""
        return self._asking

    def begin(self, fill: Fill) -> None:
        """Fill the segments up to the end of a snapshot of the leader."""
        self._rests_until = 0
        self._fill = fill
        self.go_on()

    def end(self) -> None:
        self._fill = None

    def miss(self, lost: Lost) -> None:
        low = max(lost.low, self._host.kept_offset)
        if lost.stop > low and low not in self.missing and not self.is_given_up(low):
            self.missing[low] = lost.stop
            logger.error(
                "%s: messages %d to %d cannot be read, fetching them from another node: %s",
                *(self._host.title, low, lost.stop - 1, lost.why),
            )

    def go_on(self) -> None:
        """Ask other members for the next messages that this disk should have and lacks."""
        host = self._host
        if host.ended or self._asking or host.writing or not host.opened:
            return
        if self._services.clock.monotonic_ms() < self._rests_until:
            self._services.timers.wake(host, self._rests_until)
            return
        fill = self._fill
        if fill is not None and not fill.wanted():
            fill = self._fill = None
        due, first, stored = host.tail_offset, host.kept_offset, host.stored_offset
        if host.tier is not None and stored < due:
            # What is before that is in the store.
            first = max(first, min(host.tier.stop, due))
        if fill is not None:
            due, first = max(due, fill.stop), max(first, fill.first_offset)
        if stored < first:
            self._reset(first)
        elif stored < due:
            self._ask(stored, due, fill.peer if fill is not None else "", self._came_forward)
        else:
            if fill is not None:
                self._fill = None
                fill.then()
            for low, stop in self.missing.items():
                self._ask(low, stop, "", partial(self._came_to_mend, low, stop))
                return

    def _reset(self, offset: int) -> None:
        """Drop all segments and begin at this offset: the other members have deleted earlier messages."""
        host = self._host
        self.missing.clear()
        host.write(partial(host.log.reset, offset), host.has_written)

    def _others(self) -> list[str]:
        """The other members; a member that has just begun is sure only of the leader that fills it."""
        names = dict.fromkeys(self._host.group.core.members.everyone())
        if self._fill is not None:
            names[self._fill.peer] = None
        return [name for name in names if name != self._host.replicas.node]

    def _ask(self, offset: int, stop: int, prefer: str, done: Done) -> None:
        if offset != self._asked:
            # Damage of members at other offsets does not matter here.
            self._asked = offset
            self._damaged_at.clear()
        members = self._others()
        others = [name for name in members if self._asks.linked(name)]
        if not members:
            done(StreamWord(frames.TOLD_DAMAGED, stop))
            return
        if prefer in others and prefer not in self._damaged_at and not self._failures:
            peer = prefer
        elif others:
            self._turns += 1
            peer = others[self._turns % len(others)]
        else:
            self._wait()
            return
        host = self._host
        self._asking = True
        self._asks.ask(peer, host.queue_id, frames.ASK_READ, offset, host, partial(self._told, peer, done))

    def _told(self, peer: str, done: Done, word: StreamWord) -> None:
        self._asking = False
        if self._host.ended:
            return
        if word.what == frames.TOLD_DAMAGED:
            self._damaged_at[peer] = None
        if word.what in (frames.TOLD_GONE, frames.TOLD_LOST) or (
            word.what == frames.TOLD_FOUND and word.data
        ):
            self._failures = 0
            self._damaged_at.clear()
            done(word)
            return
        everyone = self._others()
        # A node that is a member again after it was none may not know the others yet.
        if self._host.group.informed and all(name in self._damaged_at for name in everyone):
            self._damaged_at.clear()
            done(word)
            return
        self._failures += 1
        if self._failures % max(len(everyone), 1):
            self.go_on()
        else:
            self._wait()

    def _wait(self) -> None:
        """No member can help now: ask again later."""
        self._rests_until = self._services.clock.monotonic_ms() + RETRY_MS
        self._services.timers.wake(self._host, self._rests_until)

    def _came_forward(self, word: StreamWord) -> None:
        """Handle an answer with messages for the end of the segments."""
        host = self._host
        if host.writing:
            # Another write is in progress; this member asks again later.
            return
        if word.what == frames.TOLD_GONE:
            if word.value > host.stored_offset:
                self._reset(word.value)
            return
        if word.what in (frames.TOLD_DAMAGED, frames.TOLD_LOST):
            self._give_up(host.stored_offset, word.value)
            host.skip_to(word.value)
            return
        stored, data = host.stored_offset, word.data
        found = [each for each in self._heads_of(data) if each[1].stop > stored]
        if not found or found[0][1].base > stored:
            self._wait()
            return
        if found[0][1].base < stored:
            # The other member has compacted this range.
            data = within(data, found, stored, found[-1][1].stop)
            found = self._heads_of(data)
        parts = [
            Stored(head.base, head.stop, head.time_ms, [data[at : at + head.size]], head.size)
            for at, head in found
        ]
        host.write(partial(host.log.append, parts), host.has_written)

    def _heads_of(self, data: bytes) -> list[tuple[int, Head]]:
        try:
            return list(heads_of(data))
        except Damaged as error:
            logger.error("%s: another node has sent damaged messages: %s", self._host.title, error)
            return []

    def _came_to_mend(self, low: int, stop: int, word: StreamWord) -> None:
        host = self._host
        if self.missing.get(low) != stop or host.writing:
            return
        if word.what == frames.TOLD_GONE:
            del self.missing[low]
            if word.value < stop:
                self.missing[max(low, word.value)] = stop
            host.has_mended()
            return
        if word.what in (frames.TOLD_DAMAGED, frames.TOLD_LOST):
            del self.missing[low]
            if word.value < stop:
                self.missing[word.value] = stop
            self._give_up(low, min(stop, word.value))
            host.has_mended()
            return
        found = [each for each in self._heads_of(word.data) if each[1].base < stop]
        if not found or found[0][1].base > low:
            self._wait()
            return
        end = found[-1][0] + found[-1][1].size
        host.write(
            partial(host.log.mend, word.data[:end], low, stop),
            partial(self._has_mended, low, stop, found[-1][1].stop),
        )

    def _has_mended(self, low: int, stop: int, reached: int, result: object) -> None:
        host = self._host
        host.has_ended_writing()
        if host.ended:
            return
        if self.missing.pop(low, None) is not None:
            if reached < stop:
                self.missing[reached] = stop
            else:
                logger.warning("%s: messages up to %d are complete again", host.title, stop - 1)
        for gap, end in host.log.gaps(host.kept_offset):
            # Other damaged ranges of the same segment.
            self.miss(Lost(gap, end, "no segment has them"))
        host.has_mended()

    def is_given_up(self, offset: int) -> bool:
        return any(low <= offset < stop for low, stop in self.given_up.items())

    def _give_up(self, low: int, stop: int) -> None:
        """Give up these messages: no member can read them."""
        self.given_up[low] = stop
        self._host.note_lost(Lost(low, stop, "no member of the stream can read them"))


__all__ = ["Fill", "Filling"]
