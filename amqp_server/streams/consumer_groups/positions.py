"""The stored state of a group on one node: the group's position in each partition.

Each partition has a number, which identifies its note in the journal and its mark: the offset up to which
messages were handed out. A new partition may reuse the number of one that is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from amqp_server.streams.consumer_groups.partition_position import (
    VERSION,
    PartitionPlace,
    PlaceError,
    decode,
    encode,
)
from quorum_queue.consumer_groups.partition import Partition, Span
from quorum_queue.local_host import NodeServices

logger = logging.getLogger("mqd.groups")


class GroupPlaces:
    def __init__(
        self,
        queue_id: int,
        services: NodeServices,
        slots: list[int],
        keep_slots: Callable[[], None],
        name: str,
    ) -> None:
        """`slots` has the marks, by the partitions' numbers; `keep_slots` stores them. `name` is for log
        lines.
        """
        self._queue_id = queue_id
        self._services = services
        self._slots = slots
        self._keep_slots = keep_slots
        #: True if partitions have slots that are not stored yet.
        self._new_slots = False
        #: The stored places with the partitions' numbers, by the ids of the streams.
        self._stored: dict[int, tuple[int, PartitionPlace]] = {}
        #: True if the group is not new: partitions that are added later are read from their first message on.
        self.known = False
        self._recover(name)

    def _recover(self, name: str) -> None:
        found = self._services.journal.recover_queue(self._queue_id)
        if found is None:
            return
        self.known = found.state is not None
        for number, data in found.annotations.items():
            try:
                place = decode(data)
            except PlaceError as error:
                logger.error(
                    "%s: the offset of partition %d is lost, so the group starts there as a new group does: %s",
                    name,
                    number,
                    error,
                )
            else:
                if number < len(self._slots):
                    self._stored[place.stream_id] = number, place

    def note_known(self) -> None:
        """Note that the group has partitions: it is not new any more."""
        self.known = True
        self._services.journal.state(self._queue_id, bytes((VERSION,)))
        self._services.commits.request()

    # -- numbers ---------------------------------------------------------------------------------------------

    def free_numbers(self, partitions: Iterable[Partition], most: int) -> Iterator[int]:
        """Return at least `most` numbers, the lowest first, that neither these partitions nor stored ones
        have.
        """
        used = {each.number for each in partitions}
        used.update([number for number, _ in self._stored.values()])
        return iter([number for number in range(len(used) + most) if number not in used])

    def new_number(self, numbers: Iterator[int]) -> int:
        """Return the next of the free numbers, and give it a mark."""
        marks, slots = self._services.marks, self._slots
        number, slot = next(numbers), marks.allocate()
        if number < len(slots):
            marks.free(slots[number])
            slots[number] = slot
        else:
            # Numbers have no gaps: a number beyond the slots is the first such number.
            slots.append(slot)
        self._new_slots = True
        return number

    def keep_numbers(self) -> None:
        """Store which mark belongs to each number, if there are new ones."""
        if self._new_slots:
            self._new_slots = False
            self._keep_slots()

    # -- places ----------------------------------------------------------------------------------------------

    def take(self, stream_id: int) -> tuple[int, PartitionPlace | None]:
        """Take and return a partition's number and its stored place; -1 and None if nothing was stored."""
        return self._stored.pop(stream_id, (-1, None))

    def resumed(self, number: int, place: PartitionPlace) -> tuple[int, list[Span]]:
        """Return the offset at which a partition continues, and the messages before it that were handed out
        and may come again.
        """
        pending = sorted([Span(*each) for each in place.pending])
        cursor, marked = place.cursor, self._services.marks.get(self._slots[number])
        if marked >= cursor:
            # Handed out, but it is unknown whether the messages were settled.
            pending.append(Span(cursor, marked + 1, 0))
            cursor = marked + 1
        return cursor, pending

    def mark(self, partition: Partition, offset: int) -> None:
        """Record that the partition was handed out up to this offset."""
        self._services.marks.mark(self._slots[partition.number], offset)

    def store(self, partition: Partition) -> None:
        """Store the position of a partition; the journal's next commit writes the latest one."""
        self._services.journal.annotate(self._queue_id, partition.number, encode(partition))

    def forget(self) -> None:
        """Forget stored places: these partitions are gone and will not come back."""
        self._stored.clear()

    def drop(self) -> None:
        """Drop the stored state of a deleted group."""
        self._services.journal.drop(self._queue_id)
        self._services.commits.request()


__all__ = ["GroupPlaces"]
