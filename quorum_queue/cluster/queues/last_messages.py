"""Messages that still wait for their bodies when a quorum queue is deleted, or moves away from this node.

Dead letters died before, so they must be sent. And what clients of this node took before the queue was sealed
is theirs: a queue that is deleted because it is empty may have given its last messages a moment before. But
the bodies may be on disk only, and the node must not stand still for that. So they leave in later turns, as
their bodies are read, and the stored data of the group is deleted after the last one. If the node ends
meanwhile, they are lost, like other at-most-once dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from quorum_queue.cluster.queues.body_prefetch import spans
from quorum_queue.cluster.queues.contents import Places
from quorum_queue.machine import replicated
from quorum_queue.machine.run import Run
from quorum_queue.raft.errors import EntryLost
from quorum_queue.unsent_bytes import LARGE_BYTES

if TYPE_CHECKING:
    from quorum_queue.cluster.queues.dead_letters import Waiting
    from quorum_queue.cluster.queues.member_host import GroupHost

#: Returned by `next` when all targets of a dead letter have it.
_SENT: Final = object()


class Last(NamedTuple):
    run: Run
    places: Places
    #: Takes the run with its bodies, or without them if the disk has lost them. May return the steps that
    #: send it.
    send: Callable[[Run], Iterator[bool] | None]
    to_client: bool


class LastMessages:
    """The remaining messages of one queue. See quorum_queue.boundary.Unit."""

    __slots__ = (
        "_asked",
        "_given",
        "_host",
        "_over",
        "_parts",
        "_queue_id",
        "_replicas",
        "_then",
        "_turn",
        "_waiting",
    )

    def __init__(
        self, host: GroupHost, hand_over: Callable[[GroupHost, Waiting], Iterator[bool] | None]
    ) -> None:
        self._host = host
        self._queue_id = host.queue_id
        self._replicas = host.replicas
        self._turn = host.services.turn
        self._waiting = [
            Last(part, places, partial(host.deliver_last, consumer, first_id), to_client=True)
            for consumer, part, first_id, places in host.by_place()
        ]
        self._waiting += [
            Last(each.run, each.places, partial(_send_letter, host, each, hand_over), to_client=False)
            for each in host.dead_letters_waiting
        ]
        self._parts = host.dead_letter_parts
        #: Called when no client gets anything any more.
        self._then: list[Callable[[], None]] = []
        #: Entries that were read from disk, and requested ones.
        self._given: dict[int, None] = {}
        self._asked: dict[int, None] = {}
        self._over = False

    def begin(self) -> None:
        self._replicas.last_messages[self._queue_id] = self
        self._go_on()

    def when_over(self, then: Callable[[], None]) -> None:
        self._then.append(then)

    def finish(self) -> None:
        """Send all of them at once: this node becomes a member again, and begins empty."""
        while self._waiting or self._parts is not None:
            self._send_next()
        self._end()

    def _go_on(self) -> None:
        while (self._waiting or self._parts is not None) and not self._over:
            if self._turn.is_full():
                self._turn.later(self, self._go_on)
                return
            if self._parts is None and not self._may_send(self._waiting[0]):
                return
            self._send_next()
        self._end()

    def _may_send(self, message: Last) -> bool:
        unsent = self._host.services.memory.unsent
        if message.to_client and message.run.size > LARGE_BYTES and unsent.full:
            unsent.wait(self, partial(self._turn.contain, self, self._go_on))
            return False
        return self._is_at_hand(message.places)

    def _send_next(self) -> None:
        if self._parts is not None:
            if next(self._parts, _SENT) is _SENT:
                self._parts = None
            return
        message = self._waiting.pop(0)
        message.run.contents = self._find(message.places)
        self._parts = message.send(message.run)

    def _find(self, places: Places) -> list[bytes] | None:
        """Return the bodies; None if the disk has lost some of them."""
        replicas = self._replicas
        found: list[bytes] = []
        for index, ordinals in places:
            bodies = replicas.bodies.get(self._queue_id, index)
            if bodies is None:
                try:
                    (entry,) = replicas.store.read(self._queue_id, index, index, 1)
                except EntryLost:
                    return None
                bodies = replicated.bodies_of(entry.data)
                replicas.bodies.put(self._queue_id, index, bodies, len(entry.data))
            found += bodies.contents(ordinals)
        return found

    def _is_at_hand(self, places: Places) -> bool:
        """True if these entries can be read without a wait; otherwise the next ones are requested."""
        if self._asked:
            return False
        bodies = self._replicas.bodies
        if all(index in self._given or bodies.get(self._queue_id, index) is not None for index, _ in places):
            return True
        size = 0
        wanted: dict[int, None] = {}
        for message in self._waiting:
            wanted.update(dict.fromkeys([index for index, _ in message.places]))
            size += message.run.size
            if size > self._replicas.options.read_ahead_bytes:
                break
        if self._replicas.store.warm(self._queue_id, spans(wanted), self._came):
            self._given = wanted
            return True
        self._asked = wanted
        return False

    def _came(self) -> None:
        """The requested entries were read."""
        self._given, self._asked = self._asked, {}
        if not self._over:
            self._turn.contain(self, self._go_on)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._host.services.memory.unsent.forget(self)
            del self._replicas.last_messages[self._queue_id]
            self._replicas.bodies.drop_group(self._queue_id)
            self._replicas.drop(self._queue_id)
            self._host.all_delivered()
            for then in self._then:
                then()

    def failed(self, error: Exception) -> None:
        self._waiting.clear()
        self._parts = None
        self._end()
        self._host.queue.host_failed(error)


def _send_letter(
    host: GroupHost,
    letter: Waiting,
    hand_over: Callable[[GroupHost, Waiting], Iterator[bool] | None],
    run: Run,
) -> Iterator[bool] | None:
    return None if run.contents is None else hand_over(host, letter)


__all__ = ["LastMessages"]
