"""What a node has stored of a group that it has by itself: how far the group is in each partition.

Each partition has a number, which tells its note in the journal and its mark: the offset up to which it was
handed out. A partition that is gone leaves its number to a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from amqp_server.streams.places import VERSION, Place, PlaceError, decode, encode
from quorum_queue.consumer_groups.partition import Partition, Span
from quorum_queue.local import NodeServices

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
        """`slots` has the marks, by the partitions' numbers; `keep_slots` has them stored. `name` is for the
        log.
        """
        self._queue_id = queue_id
        self._services = services
        self._slots = slots
        self._keep_slots = keep_slots
        #: Partitions have got slots that are not stored yet.
        self._new_slots = False
        #: What was stored, by the ids of the streams, with the numbers.
        self._stored: dict[int, tuple[int, Place]] = {}
        #: The group is not new: what comes from now on is read from its first message on.
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
                logger.error("%s: partition %d begins anew: %s", name, number, error)
            else:
                if number < len(self._slots):
                    self._stored[place.stream_id] = number, place

    def note_known(self) -> None:
        """The group has partitions: it is not new any more."""
        self.known = True
        self._services.journal.state(self._queue_id, bytes((VERSION,)))
        self._services.commits.request()

    # -- numbers ---------------------------------------------------------------------------------------------

    def free_numbers(self, partitions: Iterable[Partition], most: int) -> Iterator[int]:
        """At least so many numbers that none of these partitions has, nor one that is stored, the lowest
        first.
        """
        used = {each.number for each in partitions}
        used.update([number for number, _ in self._stored.values()])
        return iter([number for number in range(len(used) + most) if number not in used])

    def new_number(self, numbers: Iterator[int]) -> int:
        """Return the next of the free numbers, with a mark of its own."""
        marks, slots = self._services.marks, self._slots
        number, slot = next(numbers), marks.allocate()
        if number < len(slots):
            marks.free(slots[number])
            slots[number] = slot
        else:
            # Without gaps: a number beyond the slots is the first one that is.
            slots.append(slot)
        self._new_slots = True
        return number

    def keep_numbers(self) -> None:
        """Have stored which marks the numbers have, if there are new ones."""
        if self._new_slots:
            self._new_slots = False
            self._keep_slots()

    # -- places ----------------------------------------------------------------------------------------------

    def take(self, stream_id: int) -> tuple[int, Place | None]:
        """Return a partition's number and what was stored of it, once; -1 and None if nothing was."""
        return self._stored.pop(stream_id, (-1, None))

    def resumed(self, number: int, place: Place) -> tuple[int, list[Span]]:
        """Return where a partition goes on, and what was handed out before that and may come again."""
        pending = [Span(*each) for each in place.pending]
        cursor, marked = place.cursor, self._services.marks.get(self._slots[number])
        if marked >= cursor:
            # Handed out, and nobody knows what became of it.
            pending.append(Span(cursor, marked + 1, 0))
            cursor = marked + 1
        return cursor, pending

    def mark(self, partition: Partition, offset: int) -> None:
        """It was handed out up to here."""
        self._services.marks.mark(self._slots[partition.number], offset)

    def store(self, partition: Partition) -> None:
        """Have stored how far it is; that waits for the journal's next commit, which has the newest."""
        stored = encode(partition.stream_id, partition.cursor, partition.pending())
        self._services.journal.annotate(self._queue_id, partition.number, stored)

    def forget(self) -> None:
        """No partition is there any more, nor will one of them come back."""
        self._stored.clear()

    def drop(self) -> None:
        """The group is deleted: nobody knows any more how far it was."""
        self._services.journal.drop(self._queue_id)
        self._services.commits.request()


__all__ = ["GroupPlaces"]
