"""Offsets that a stream keeps by name: where a consumer goes on that has the name (x-group).

An ack commits as in a group: the offset of a name is the end of what was acked without a gap. It is stored in
the journal as a note of the stream, at a position that no message has.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from quorum_queue.consumer_groups.group import Group, Member
from quorum_queue.consumer_groups.partition import Partition

logger = logging.getLogger("mqd.streams")

#: Position of the first note in the journal.
FIRST = 1 << 60


class Note(msgspec.Struct, array_like=True):
    name: str
    offset: int


_decoder = msgspec.msgpack.Decoder(Note)


class Names:
    """The names that a stream knows, those that were used longest ago first."""

    __slots__ = ("_most", "_positions", "offsets")

    def __init__(self, most: int) -> None:
        self._most = most
        self.offsets: dict[str, int] = {}
        self._positions: dict[str, int] = {}

    def restore(self, annotations: Mapping[int, bytes]) -> None:
        """Take what the journal has."""
        for position, data in sorted(annotations.items()):
            if position >= FIRST:
                try:
                    note = _decoder.decode(data)
                except msgspec.MsgspecError as error:
                    logger.error("an offset kept by name is forgotten: %s", error)
                else:
                    self.offsets[note.name] = note.offset
                    self._positions[note.name] = position

    def put(self, name: str, offset: int) -> tuple[int, bytes]:
        """Keep an offset; return position and bytes of its note. The name that was used longest ago may be
        forgotten.
        """
        position = self._positions.get(name)
        self.offsets.pop(name, None)
        if position is None:
            if len(self.offsets) >= self._most:
                oldest = next(iter(self.offsets))
                del self.offsets[oldest]
                position = self._positions.pop(oldest)
            else:
                used = set(self._positions.values())
                position = next(each for each in range(FIRST, FIRST + len(used) + 1) if each not in used)
            self._positions[name] = position
        self.offsets[name] = offset
        return position, msgspec.msgpack.encode(Note(name, offset))


class Progress:
    """What one consumer with a name has had, and has acked."""

    __slots__ = ("_group", "_member", "_partition", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._group = Group()
        self._member = Member(("", 0, name))
        self._partition = Partition(0, name, 0)
        self._group.join(self._member)
        self._group.add(self._partition)

    def begin(self, offset: int) -> None:
        """It is known where it goes on."""
        self._partition.cursor = offset

    @property
    def holds(self) -> bool:
        return self._member.count > 0

    @property
    def committed(self) -> int:
        return self._partition.committed

    def handed(self, offsets: range | list[int], first_id: int) -> None:
        """It gets these messages."""
        partition = self._partition
        partition.cursor = max(partition.cursor, offsets[0])
        self._member.next_id = first_id
        self._group.hand(partition, self._member, offsets, offsets[-1] + 1, 0, 0)

    def acked(self, low: int, high: int) -> None:
        self._group.settle(self._member.key, low, high)
        self._group.changed.clear()
        self._group.freed.clear()
        self._group.roomy.clear()

    def refused(self, low: int, high: int) -> None:
        """These were not worked off: the offset does not pass them, and the next consumer with the name gets
        them.
        """
        self._member.take(low, high)


__all__ = ["Names", "Progress"]
