"""The contents of messages of a quorum queue, from memory, from this node's disk, or from another node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from quorum_queue.machine import replicated
from quorum_queue.machine.bodies import Bodies
from quorum_queue.machine.positions import Seqs
from quorum_queue.raft.errors import EntryLost

if TYPE_CHECKING:
    from quorum_queue.cluster.queues.member_host import GroupHost

#: Entries, each with the ordinals of messages within it.
Places = list[tuple[int, Seqs]]


class BodyGone(Exception):
    """The disk has lost a body, and no member keeps it any more: it was settled while it waited to be
    fetched.
    """


def find(
    host: GroupHost, places: Places, again: Callable[[], None], waits: Callable[[int], bool] | None = None
) -> list[bytes] | None:
    """Return the contents, or None if they have to be fetched first; then `again` is called when they have
    arrived.

    `waits` returns whether the reader of an entry that is not in memory waits for the disk; it then arranges
    the call of `again` itself.

    Raises BodyGone.
    """
    found: list[bytes] = []
    for index, ordinals in places:
        bodies = host.replicas.bodies.get(host.queue_id, index)
        if bodies is None:
            if waits is not None and waits(index):
                return None
            bodies = _read(host, index, again)
        if bodies is None:
            return None
        found += bodies.contents(ordinals)
    return found


def _read(host: GroupHost, index: int, again: Callable[[], None]) -> Bodies | None:
    replicas, queue_id = host.replicas, host.queue_id
    try:
        (entry,) = replicas.store.read(queue_id, index, index, 1)
    except EntryLost:
        if not host.group.needs(index):
            raise BodyGone from None
        replicas.lost_entries.add(host.group, index, again)
        return None
    bodies = replicated.bodies_of(entry.data)
    replicas.bodies.put(queue_id, index, bodies, len(entry.data))
    return bodies
