"""Offsets that a stream keeps by name: where a consumer with this name (x-group) continues.

Acks commit as in a group: the offset of a name is the end of the messages that were acked without a gap. It
is stored in the journal as a note of the stream, at a position that no message has.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping

import msgspec

from quorum_queue.consumer_groups.group import Group, Member
from quorum_queue.consumer_groups.partition import Partition
from quorum_queue.ports import Refused

logger = logging.getLogger("mqd.streams")

#: Position of the first note in the journal.
FIRST = 1 << 60
#: Notes from here on are others.
NAMES_STOP = 3 << 60

#: Reasons why a name is not deleted.
NAME_ABSENT = Refused("the stream has no offset with this name")
NAME_IN_USE = Refused("a consumer uses this name at the moment")


class Note(msgspec.Struct, array_like=True):
    name: str
    offset: int


_decoder = msgspec.msgpack.Decoder(Note)


class Names:
    """The names that a stream knows, the least recently used first."""

    __slots__ = ("_most", "_next", "_positions", "offsets")

    def __init__(self, most: int) -> None:
        self._most = most
        self.offsets: dict[str, int] = {}
        self._positions: dict[str, int] = {}
        #: Position of the next new name. The journal may still have to delete the notes at earlier ones.
        self._next = FIRST

    def restore(self, annotations: Mapping[int, bytes]) -> None:
        """Restore the names from the journal."""
        for position, data in sorted(annotations.items()):
            if FIRST <= position < NAMES_STOP:
                try:
                    note = _decoder.decode(data)
                except msgspec.MsgspecError as error:
                    logger.error("a named offset cannot be read and is lost: %s", error)
                else:
                    self.offsets[note.name] = note.offset
                    self._positions[note.name] = position
                self._next = position + 1

    def admits(self, name: str, taken: Container[str], new: int) -> bool:
        """Return whether a consumer may have this name. Consumers have the names `taken`, and `new` of those
        have no offset yet.
        """
        return name in self.offsets or name in taken or len(self.offsets) + new < self._most

    def put(self, name: str, offset: int) -> tuple[int, bytes]:
        """Keep an offset; return position and bytes of its note."""
        position = self._positions.get(name)
        if position is None:
            position = self._positions[name] = self._next
            self._next += 1
        self.offsets.pop(name, None)
        self.offsets[name] = offset
        return position, msgspec.msgpack.encode(Note(name, offset))

    def delete(self, name: str) -> int:
        """Forget a name; return the position of its note."""
        del self.offsets[name]
        return self._positions.pop(name)


class Progress:
    """The messages that one consumer with a name has got and acked."""

    __slots__ = ("_group", "_member", "_partition", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._group = Group()
        self._member = Member(("", 0, name))
        self._partition = Partition(0, name, 0)
        self._group.join(self._member)
        self._group.add(self._partition)

    def begin(self, offset: int) -> None:
        """Set the offset at which the consumer continues."""
        self._partition.cursor = offset

    @property
    def holds(self) -> bool:
        return self._member.count > 0

    @property
    def committed(self) -> int:
        return self._partition.committed

    def handed(self, offsets: range | list[int], first_id: int, stop: int) -> None:
        """The consumer gets these messages. The last one stands for all offsets from its own up to `stop`."""
        partition = self._partition
        partition.cursor = max(partition.cursor, offsets[0])
        self._member.next_id = first_id
        self._group.hand(partition, self._member, offsets, stop, 0, 0)

    def acked(self, low: int, high: int) -> None:
        self._group.settle(self._member.key, low, high)
        self._group.changed.clear()
        self._group.freed.clear()
        self._group.roomy.clear()

    def refused(self, low: int, high: int) -> None:
        """The consumer has refused these messages: the offset does not pass them, and the next consumer with
        the name gets them.
        """
        self._member.take(low, high)


__all__ = ["NAME_ABSENT", "NAME_IN_USE", "Names", "Progress"]
