"""Clients of other nodes at queues that live here: their commands come over the links, and the answers go
back.

For the queue's host a guest is a publisher and a consumer like any other, except that its answers and
deliveries are gathered over a turn and leave in one frame. When the link breaks, the guest's consumers are
gone, and their messages go back to the queue. So do messages that a part of a transaction acks, if the rest
of the part has not come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from quorum_queue.boundary import Unit
from quorum_queue.cluster import frames
from quorum_queue.cluster.ports import Links
from quorum_queue.cluster.queues import events
from quorum_queue.cluster.queues.events import Events
from quorum_queue.cluster.queues.undeclared import UndeclaredQueues
from quorum_queue.machine.bodies import Bodies
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.consumers import Consumer, leaving
from quorum_queue.machine.entries import Batch, decode_entry, encode_entry
from quorum_queue.machine.machine import ENQUEUES
from quorum_queue.machine.parts import TransactionId
from quorum_queue.machine.record.states import (
    Found,
)
from quorum_queue.machine.run import Run
from quorum_queue.machine.seal import Sealed
from quorum_queue.message_status.answers import plain
from quorum_queue.ports import Got, Host, Refused

Key = tuple[Any, ...]

#: Unsent bytes to a node above which its consumers get nothing, and below which they resume.
HIGH_BYTES = 16 << 20
LOW_BYTES = 4 << 20


class GatheringTurn(Protocol):
    """The node's turn; see amqp_server.turn."""

    def gather(self, gatherer: Guests) -> None:
        """Call `flush` when the turn sends to other nodes."""

    def contain(self, unit: Unit, call: Callable[..., object], *arguments: object) -> None:
        """Make the call; if it raises, only the unit has failed."""


class Guest:
    """One node at one queue."""

    __slots__ = ("_guests", "gone", "keys", "number", "parts", "paused", "peer", "queue_id")

    def __init__(self, guests: Guests, peer: str, queue_id: int) -> None:
        self._guests = guests
        self.peer = peer
        self.queue_id = queue_id
        #: Keys of consumers that may hold something.
        self.keys: dict[Key, None] = {}
        #: Transactions whose part is not complete yet.
        self.parts: dict[TransactionId, None] = {}
        #: Number of its last batch.
        self.number = 0
        self.paused = False
        #: Its session is over, or it uses another node, which answers its requests. In a later session, or to
        #: a later start of its node, the same token means something else.
        self.gone = False

    def tell(self, *event: Any) -> None:
        if self.gone:
            return
        self._guests.events_for(self.peer, self.queue_id).add(*event)

    def deliver(self, consumer: Any, run: Run, first_id: int) -> None:
        if self.gone:
            return
        for part in run.uniform():
            # The positions in an event are a range.
            for piece in part.cut():
                self._guests.events_for(self.peer, self.queue_id).deliver(consumer.key[-4:], first_id, piece)
                first_id += len(piece.seqs)

    def failed(self, error: Exception) -> None:
        """A delivery could not be encoded: the state of this guest cannot be trusted."""
        raise error

    def moved(self) -> None:
        """Another node serves the queue from now on, or always did."""
        self.tell(events.MOVED, self.number)
        self._guests.forget(self)


class GuestOrigin:
    """A publisher behind a link."""

    __slots__ = ("_guest", "_token")

    def __init__(self, guest: Guest, token: int) -> None:
        self._guest = guest
        self._token = token

    def confirmed(self, first: int, last: int) -> None:
        self._guest.tell(events.CONFIRMED, self._token, first, last)

    def refused(self, first: int, last: int) -> None:
        self._guest.tell(events.REFUSED, self._token, first, last)

    def gone(self, first: int, last: int) -> None:
        """The publisher's node answers when it knows of the deletion, too."""


class Guests:
    """All guests at the queues of this node."""

    def __init__(
        self,
        links: Links,
        turn: GatheringTurn,
        host_of: Callable[[int], Host | None],
        undeclared: UndeclaredQueues,
    ) -> None:
        self._links = links
        self._turn = turn
        self._host_of = host_of
        self._undeclared = undeclared
        self._guests: dict[tuple[str, int], Guest] = {}
        self._events: dict[tuple[str, int], Events] = {}

    def events_for(self, peer: str, queue_id: int) -> Events:
        found = self._events.get((peer, queue_id))
        if found is None:
            self._turn.gather(self)
            found = self._events[peer, queue_id] = Events()
        return found

    def received(self, peer: str, frame: memoryview) -> None:
        """Take commands for a queue. Raises frames.FrameError, CodecError."""
        queue_id, payload = frames.parse_queue(frame)
        host = self._host_of(queue_id)
        if host is not None and self._undeclared.has(queue_id):
            # Handle earlier frames first.
            self.topology_came()
        if host is None:
            if self._undeclared.keep(queue_id, peer, frame):
                return
            # The peer will treat earlier commands as lost, too.
            self._undeclared.forget(queue_id, peer)
        entry = decode_entry(encode_entry(0, [payload]))
        for batch in entry.batches:
            guest = self._guests.get((peer, queue_id))
            if guest is None:
                guest = self._guests[peer, queue_id] = Guest(self, peer, queue_id)
            guest.number = batch.number
            if host is None or host.ended:
                # The queue has moved, or was deleted: nothing was taken.
                guest.moved()
                continue
            self._turn.contain(host, self._take_batch, host, guest, batch, entry.bodies)

    def topology_came(self) -> None:
        """The topology has come further: take the commands for queues that
        are known now, or never will be.
        """
        for peer, frame in self._undeclared.take(lambda queue_id: self._host_of(queue_id) is not None):
            self.received(peer, memoryview(frame))

    def _take_batch(self, host: Host, guest: Guest, batch: Batch, bodies: Bodies) -> None:
        catches_up = False
        for command in batch.commands:
            if command[0] == "tick":
                # It wants to know everything that clients of any node have had answers to.
                catches_up = True
            else:
                self._take(host, guest, command, bodies)
        host.submit()
        (host.catch_up if catches_up else host.barrier)(_done(host, guest, batch.number))

    def _take(self, host: Host, guest: Guest, command: Any, bodies: Bodies) -> None:
        verb = command[0]
        if verb in ENQUEUES:
            run = _with_contents(command[1], bodies)
            origin = None if command[2] is None else GuestOrigin(guest, command[2])
            host.pending.append((verb, run, origin, *command[3:]))
        elif verb == "attach":
            consumer: Consumer = command[1]
            consumer.sink = guest
            guest.keys[consumer.key] = None
            key = consumer.key[2:]
            host.attach(consumer, lambda refused: guest.tell(events.ATTACHED, key, refused))
        elif verb == "get":
            getter: Consumer = command[1]
            getter.sink = guest
            guest.keys[getter.key] = None
            host.get(getter, _got(guest, getter))
        elif verb == "purge":
            token = command[1]
            host.purge(lambda count: _tell_purged(guest, token, count))
        elif verb == "seal":
            host.seal(command[2], partial(_tell_sealed, guest, command[1]))
        elif verb == "pend":
            if command[2][0] in ENQUEUES:
                _with_contents(command[2][1], bodies)
            guest.parts[command[1]] = None
            host.pending.append(command)
        elif verb == "prepare":
            _, token, transaction, count, queues, level = command
            guest.parts.pop(transaction, None)
            host.prepare(transaction, count, queues, partial(_tell_prepared, guest, token), level)
        elif verb == "status":
            host.message_status(command[2], partial(_tell_status, guest, command[1]))
        elif verb == "touch":
            host.touch()
        else:
            if verb == "detach" and command[2]:
                guest.keys.pop(command[1], None)
            elif verb == "resolve":
                guest.parts.pop(command[1], None)
            host.pending.append(command)

    def flush(self) -> None:
        """Send the events of this turn."""
        if not self._events:
            return
        gathered, self._events = self._events, {}
        for (peer, queue_id), found in gathered.items():
            for parts in found.encode(queue_id):
                self._links.send(peer, parts)
            guest = self._guests.get((peer, queue_id))
            if guest is not None and not guest.paused and self._links.pending_bytes(peer) > HIGH_BYTES:
                self._pause(guest, paused=True)

    def tick(self) -> None:
        """Resume guests whose link has drained."""
        for guest in self._guests.values():
            if guest.paused and self._links.pending_bytes(guest.peer) < LOW_BYTES:
                self._pause(guest, paused=False)

    def _pause(self, guest: Guest, *, paused: bool) -> None:
        guest.paused = paused
        host = self._host_of(guest.queue_id)
        if host is None:
            return
        for key in guest.keys:
            host.submit(("pause", key, paused))

    def forget(self, guest: Guest) -> None:
        """The guest uses another node."""
        guest.gone = True
        place = guest.peer, guest.queue_id
        if self._guests.get(place) is guest:
            del self._guests[place]

    def lose(self, peer: str) -> Iterator[None]:
        """The link is down: nothing more is sent over it. Return an iterator whose steps requeue the messages
        that the consumers of that node held, and drop the parts of which the rest was lost with the link.
        """
        self._undeclared.link_down(peer)
        lost = [guest for place, guest in self._guests.items() if place[0] == peer]
        for guest in lost:
            guest.gone = True
            place = peer, guest.queue_id
            del self._guests[place]
            self._events.pop(place, None)
        return self._requeue(lost)

    def _requeue(self, lost: list[Guest]) -> Iterator[None]:
        for guest in lost:
            host = self._host_of(guest.queue_id)
            if host is None:
                continue
            for key in guest.keys:
                # A link that is down is no failure of its deliveries.
                host.submit(*leaving(key))
            for transaction in guest.parts:
                # Otherwise nobody would get the messages that it acks for as long as a part may take.
                host.submit(("resolve", transaction, False))
            yield


def _done(host: Host, guest: Guest, number: int) -> Callable[..., None]:
    def done(refused: Refused | None = None) -> None:
        if refused is not None and host.ended != "deleted":
            # Its outcome is unknown, so it must not be reported as done.
            guest.moved()
            return
        guest.tell(
            events.DONE, number, host.ready_count, host.ready_bytes, host.unacked_count, host.consumer_count
        )

    return done


def _got(guest: Guest, getter: Consumer) -> Callable[[Got | Refused | None], None]:
    def got(got: Got | Refused | None) -> None:
        if isinstance(got, Got):
            guest.deliver(getter, got.run, got.first_id)
        else:
            guest.tell(events.GOT_NOTHING, getter.key[2:])

    return got


def _tell_purged(guest: Guest, token: int | None, count: int | Refused) -> None:
    if token is not None:
        guest.tell(events.PURGED, token, count if isinstance(count, int) else 0)


def _with_contents(run: Run, bodies: Bodies) -> Run:
    """Give a run the bodies that came with it."""
    assert isinstance(run.seqs, range)
    run.contents = bodies.contents(run.seqs)
    run.sizes = None
    run.seqs = range(len(run.seqs))
    return run


def _tell_prepared(guest: Guest, token: int | None, outcome: int | Refused) -> None:
    if token is not None:
        guest.tell(events.PREPARED, token, outcome if isinstance(outcome, int) else events.UNKNOWN)


def _tell_status(guest: Guest, token: int, found: Found | Refused) -> None:
    guest.tell(events.STATUS, token, plain(found))


def _tell_sealed(guest: Guest, token: int | None, found: Sealed | Refused) -> None:
    """A refusal is told too: whoever waits for the answer asks again."""
    if token is not None:
        guest.tell(events.SEALED, token, *(found if isinstance(found, Sealed) else (events.UNKNOWN, 0)))


__all__ = ["CodecError", "Guests"]
