"""Dead letters that still wait when a quorum queue is deleted, or moves away from this node.

They were in the queue before, so they leave; but their bodies may be on the disk only, and the node is not to stand
still for it. So they leave in later turns, as the disk gives them, and what is stored of the group goes behind the last
one. If the node ends meanwhile, they are lost, as other dead letters of at most once are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from quorum_queue.cluster.contents import Places
from quorum_queue.cluster.warming import spans
from quorum_queue.machine import replicated
from quorum_queue.machine.run import Run
from quorum_queue.raft.errors import EntryLost

if TYPE_CHECKING:
    from quorum_queue.cluster.dead_letters import Waiting
    from quorum_queue.cluster.group_host import GroupHost

#: All targets of a dead letter have it.
_SENT: Final = object()


class LastLetters:
    """Of one queue. See quorum_queue.boundary.Unit."""

    __slots__ = (
        "_asked",
        "_given",
        "_hand_over",
        "_host",
        "_over",
        "_parts",
        "_queue_id",
        "_replicas",
        "_turn",
        "_waiting",
    )

    def __init__(
        self, host: GroupHost, hand_over: Callable[[GroupHost, Waiting], Iterator[None] | None]
    ) -> None:
        self._host = host
        self._hand_over = hand_over
        self._queue_id = host.queue_id
        self._replicas = host.replicas
        self._turn = host.services.turn
        self._waiting = host.dead_letters_waiting
        self._parts = host.dead_letter_parts
        #: Entries that the disk has given, and those that it was asked for.
        self._given: dict[int, None] = {}
        self._asked: dict[int, None] = {}
        self._over = False

    def begin(self) -> None:
        self._replicas.last_letters[self._queue_id] = self
        self._go_on()

    def finish(self) -> None:
        """Send them all at once: this node is to be a member again, and begins with nothing."""
        while self._waiting or self._parts is not None:
            self._send_next()
        self._end()

    def _go_on(self) -> None:
        while (self._waiting or self._parts is not None) and not self._over:
            if self._turn.is_full():
                self._turn.later(self, self._go_on)
                return
            if self._parts is None and not self._is_at_hand(self._waiting[0].places):
                return
            self._send_next()
        self._end()

    def _send_next(self) -> None:
        if self._parts is not None:
            if next(self._parts, _SENT) is _SENT:
                self._parts = None
            return
        letter = self._waiting.pop(0)
        found = self._find(letter.places)
        if found is not None:
            letter.run.contents = found
            self._parts = self._hand_over(self._host, letter)

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
        """True if these can be read without a wait; else all that are next are asked for."""
        if self._asked:
            return False
        bodies = self._replicas.bodies
        if all(index in self._given or bodies.get(self._queue_id, index) is not None for index, _ in places):
            return True
        size = 0
        wanted: dict[int, None] = {}
        for letter in self._waiting:
            run: Run = letter.run
            wanted.update(dict.fromkeys([index for index, _ in letter.places]))
            size += run.size
            if size > self._replicas.options.read_ahead_bytes:
                break
        if self._replicas.store.warm(self._queue_id, spans(wanted), self._came):
            self._given = wanted
            return True
        self._asked = wanted
        return False

    def _came(self) -> None:
        """The disk has given what was asked for."""
        self._given, self._asked = self._asked, {}
        if not self._over:
            self._turn.contain(self, self._go_on)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            del self._replicas.last_letters[self._queue_id]
            self._replicas.bodies.drop_group(self._queue_id)
            self._replicas.drop(self._queue_id)

    def failed(self, error: Exception) -> None:
        self._waiting.clear()
        self._parts = None
        self._end()
        self._host.queue.host_failed(error)


__all__ = ["LastLetters"]
