"""Common base of hosts whose commands are applied later: in a replicated log, or on another node.

Commands leave this node without the objects that they name: publishers become numbers, consumers keys, and
this host finds both again when the answers come.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from quorum_queue.cluster.queues.guests import Guest, GuestOrigin
from quorum_queue.empty import NO_LIST
from quorum_queue.host import DELETED, MOVED, Key, QueueHost, answer_publishes
from quorum_queue.machine import codec
from quorum_queue.machine.attributes import ALL
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.machine import ENQUEUES, Command
from quorum_queue.machine.run import Run
from quorum_queue.ports import Got, Hosted, Refused, Turn


class _Publish:
    """A publisher's messages of one command: those from `first` to `last`, by its numbers, wait for an
    answer.
    """

    __slots__ = ("ahead", "batch", "first", "last", "level", "origin")

    def __init__(self, origin: Any, first: int, last: int, level: int) -> None:
        #: Messages behind `first` that were answered before it, as first and last ones.
        self.ahead: list[tuple[int, int]] = NO_LIST
        self.origin = origin
        #: Level of confirmation; see quorum_queue.machine.attributes.
        self.level = level
        #: The last batch that carries any of the messages.
        self.batch = 0
        self.first = first
        self.last = last

    def answered(self, first: int, last: int) -> bool:
        """These have their answer. Return whether all have."""
        if first > self.first:
            self._answered_ahead(first, last)
            return False
        self.first = last + 1
        while self.ahead and self.ahead[0][0] == self.first:
            self.first = self.ahead.pop(0)[1] + 1
        return self.first > self.last

    def _answered_ahead(self, first: int, last: int) -> None:
        if not self.ahead:
            self.ahead = [(first, last)]
        elif self.ahead[-1][1] + 1 == first:
            self.ahead[-1] = (self.ahead[-1][0], last)
        else:
            insort(self.ahead, (first, last))

    def unanswered(self) -> Iterator[tuple[int, int]]:
        first = self.first
        for low, high in self.ahead:
            yield first, low - 1
            first = high + 1
        if first <= self.last:
            yield first, self.last


class Unsent(NamedTuple):
    """Pending commands of a host, and the publishers that wait for them."""

    commands: list[Command]
    attaching: dict[Key, Callable[[str | None], None]]
    getting: dict[Key, deque[Callable[[Got | Refused | None], None]]]
    purging: dict[int, Callable[[int | Refused], None]]
    barriers: list[Callable[..., None]]


class DeferredHost(QueueHost):
    """Keeps the publishers and consumers of one queue on this node."""

    __slots__ = ("_consumers", "_next_ids", "_pending_barriers", "_publishes", "_returned", "_sinks")

    #: See quorum_queue.ports.Recipient.
    in_journal = False

    def __init__(self, queue: Hosted, turn: Turn) -> None:
        super().__init__(queue, turn)
        #: Attached consumers by their keys on this node, ready to be attached again.
        self._consumers: dict[Key, Consumer] = {}
        #: Sinks of deliveries, also of cancelled consumers that still hold messages.
        self._sinks: dict[Key, Any] = {}
        #: The next delivery id of each consumer and getter.
        self._next_ids: dict[Key, int] = {}
        #: Deliveries below these ids went back to the queue.
        self._returned: dict[Key, int] = {}
        self._publishes: dict[int, _Publish] = {}
        #: Barriers after the pending commands.
        self._pending_barriers: list[Callable[..., None]] = []

    @property
    def resident_bytes(self) -> int:
        """Bodies are kept for the node, not for the queue."""
        return 0

    # -- commands --------------------------------------------------------------------------------------------

    def apply_pending(self) -> None:
        """Send the pending commands."""
        if self.ended:
            self._refuse_pending()
        elif self.pending or self._pending_barriers:
            self._send_pending()

    def _send_pending(self) -> None:
        raise NotImplementedError

    def attach(self, consumer: Consumer, done: Callable[[str | None], None]) -> None:
        if consumer.next_id and not self.ended:
            # Another host has delivered to it before: it goes on from there, also if it is attached again
            # here before it has got anything.
            self._next_ids[consumer.key] = consumer.next_id
        super().attach(consumer, done)

    def barrier(self, done: Callable[..., None]) -> None:
        if self.ended:
            done()
            return
        self._pending_barriers.append(done)
        self._turn.schedule(self)

    def can_settle(self, key: Key, low: int, high: int) -> bool:
        return key in self._sinks and low >= self._returned.get(key, 0)

    def _sent(self, number: int, *, applied: bool) -> None:
        """All pending commands were sent, the last of them in this batch, or are applied already."""
        barriers, self._pending_barriers = self._pending_barriers, []
        if applied:
            for done in barriers:
                done()
        elif barriers:
            self.begin_asking().barriers += [(number, done) for done in barriers]

    def _outgoing(self) -> list[Command]:
        """Take the pending commands, with numbers instead of publishers."""
        pending, self.pending = self.pending, []
        commands: list[Command] = []
        for command in pending:
            verb = command[0]
            if verb in ENQUEUES:
                token = None
                if command[2] is not None:
                    token = self._token()
                    last = command[3] + len(command[1].seqs) - 1
                    level = command[1].attributes.confirm_level
                    self._publishes[token] = _Publish(command[2], command[3], last, level)
                commands.append((verb, command[1], token, *command[3:]))
                continue
            if verb == "attach":
                self._consumers[command[1].key] = command[1]
                self._sinks[command[1].key] = command[1].sink
            elif verb == "get":
                getter = command[1]
                self._sinks[getter.key] = getter.sink
                getter.next_id = max(getter.next_id, self._next_ids.get(getter.key, 0))
            elif verb == "pause" and command[1] in self._consumers:
                self._consumers[command[1]].paused = command[2]
            elif verb == "detach":
                self._consumers.pop(command[1], None)
                if command[2]:
                    # Deliveries on their way to it go back to the queue.
                    self._sinks.pop(command[1], None)
                    self._next_ids.pop(command[1], None)
            commands.append(command)
        return commands

    # -- answers ---------------------------------------------------------------------------------------------

    def _attached(self, key: Key, refused: str | None) -> bool:
        if refused is not None:
            self._consumers.pop(key, None)
            self._sinks.pop(key, None)
        awaited = super()._attached(key, refused)
        if refused is not None and not awaited:
            # It was attached once, and could not be attached again.
            self.queue.consumer_lost(key)
        return awaited

    def _confirmed(self, token: int, first: int, last: int, *, refused: bool = False) -> None:
        publish = self._publishes.get(token)
        if publish is None:
            return
        if publish.first < first and self._answers_in_order:
            # The earlier ones got no answer: a snapshot replaced the entries that would have answered them.
            self._confirmed(token, publish.first, first - 1, refused=self._may_refuse)
        if publish.answered(first, last):
            del self._publishes[token]
        if publish.level == ALL and self._waits_for_all:
            self._answer_when_all(publish.origin, first, last, refused=refused)
        elif refused:
            publish.origin.refused(first, last)
        else:
            publish.origin.confirmed(first, last)

    @property
    def _answers_in_order(self) -> bool:
        """True if the messages of one command get their answers in their order: then an answer to a later one
        says that there will be none to an earlier one. That is so where a log is applied.
        """
        return True

    @property
    def _waits_for_all(self) -> bool:
        """True if this host has to find out when all members have a message. Otherwise its home does that."""
        return False

    def _answer_when_all(self, origin: Any, first: int, last: int, *, refused: bool) -> None:
        """Answer when all members in reach have these messages. Refusals wait as well, to keep answers in
        order.
        """
        raise NotImplementedError

    @property
    def _may_refuse(self) -> bool:
        """Return whether the queue may have refused messages for which no answer came."""
        return True

    def _deliver(self, key: Key, consumer: Consumer | None, run: Run, first_id: int) -> None:
        """Hand a run with its bodies to the consumer or getter of this key."""
        sink = self._sinks.get(key)
        if sink is None:
            # Its channel closed meanwhile, and the command that requeues its messages is on its way.
            self._got(key, None)
            return
        count = len(run.seqs)
        if first_id + count > self._next_ids.get(key, 0):
            # Deliveries of a consumer group from several streams do not come in the order of ids.
            self._next_ids[key] = first_id + count
        if key in self.asking.getting:
            self._got(key, Got(run, first_id))
        else:
            self._turn.deliver(sink, consumer, run, first_id)

    # -- the end ---------------------------------------------------------------------------------------------

    def hand_over(self, to: DeferredHost, *, failed: bool = False) -> None:
        """Another host serves the queue here from now on: consumers and pending commands move there.

        Messages that the consumers hold go back to the queue. Publishes on their way are refused, because it
        is unknown whether they will arrive. Guests from other nodes are told to go elsewhere. `failed`: this
        host has failed; its stored data is kept.
        """
        self.ended = "failed" if failed else "moved"
        guests = dict.fromkeys(sink for sink in self._sinks.values() if isinstance(sink, Guest))
        sinks = {key: sink for key, sink in self._sinks.items() if sink not in guests}
        for key, consumer in self._consumers.items():
            if key in sinks:
                consumer.next_id = self._next_ids.get(key, 0)
                to.pending.append(("attach", consumer))
                if key in self.asking.attaching:
                    to.begin_asking().attaching[key] = self.asking.attaching.pop(key)
        to._next_ids, to._returned = self._next_ids, dict(self._next_ids)
        # An answer to an earlier one may still come.
        to._last_token = max(to._last_token, self._last_token)
        to._put_unsent(self._take_unsent())
        self._end(MOVED)
        for guest in guests:
            guest.moved()
        self._consumers, self._sinks, self._next_ids = {}, {}, {}
        self._release()

    def _take_unsent(self) -> Unsent:
        """Take the pending commands, except those of guests: guests start again at another host by
        themselves.
        """
        unsent, asking = Unsent([], {}, {}, {}, self._pending_barriers), self.asking
        for command in reversed(self.pending):
            verb = command[0]
            if verb in ("seal", "status", "pend", "prepare"):
                # Its client is told to try again; a transaction of which a part is missing is rolled back.
                continue
            if verb in ENQUEUES and isinstance(command[2], GuestOrigin):
                continue
            if verb in ("attach", "get") and isinstance(command[1].sink, Guest):
                continue
            unsent.commands.append(command)
            if verb == "attach" and command[1].key in asking.attaching:
                unsent.attaching[command[1].key] = asking.attaching.pop(command[1].key)
            elif verb == "get":
                # Batches that were sent earlier come first.
                done = asking.getting[command[1].key].pop()
                unsent.getting.setdefault(command[1].key, deque()).appendleft(done)
            elif verb == "purge":
                unsent.purging[command[1]] = asking.purging.pop(command[1])
        unsent.commands.reverse()
        for key in [key for key, waiting in asking.getting.items() if not waiting]:
            del asking.getting[key]
        self.pending, self._pending_barriers = [], []
        return unsent

    def _put_unsent(self, unsent: Unsent) -> None:
        if unsent.attaching or unsent.getting or unsent.purging:
            asking = self.begin_asking()
            asking.attaching.update(unsent.attaching)
            asking.getting.update(unsent.getting)
            asking.purging.update(unsent.purging)
        self._pending_barriers += unsent.barriers
        self.submit(*unsent.commands)

    def _release(self) -> None:
        """The host has ended: release its resources on the node."""
        raise NotImplementedError

    def close(self) -> None:
        if not self.ended:
            self.ended = "deleted"
            self._release()
            self._end(DELETED)

    def _end(self, why: Refused) -> None:
        """Answer all waiting clients."""
        self._refuse_publishes()
        self._refuse_pending()
        for key in self.asking.attaching:
            self._consumers.pop(key, None)
        self._refuse_askers(why)

    def _refuse_publishes(self) -> None:
        """Tell publishers whose messages are on their way that the queue is gone; else refuse them."""
        publishes, self._publishes = self._publishes, {}
        for publish in publishes.values():
            origin = publish.origin
            answer = origin.gone if self.ended == "deleted" else origin.refused
            for first, last in publish.unanswered():
                answer(first, last)

    def _refuse_pending(self) -> None:
        pending, self.pending = self.pending, []
        answer_publishes(pending, gone=self.ended == "deleted")

    def _refuse_askers(self, why: Refused) -> None:
        # Cleared first, because a refused caller may ask again.
        barriers, self._pending_barriers = self._pending_barriers, []
        super()._refuse_askers(why)
        for done in barriers:
            done(why)


def without_larger(commands: list[Command], size_max: int) -> list[Command]:
    """Return the commands without messages of more than this size, which are refused: one entry of the log
    could not hold them, and what a client sends must not become a failure of the queue.
    """
    kept: list[Command] = []
    for command in commands:
        if command[0] == "pend" and _size_in(command) > size_max:
            # The transaction is rolled back, because its part here is not complete.
            continue
        if command[0] not in ENQUEUES or command[1].size <= size_max:
            kept.append(command)
            continue
        for part in _pieces(command, 0):
            if part[1].size <= size_max:
                kept.append(part)
            elif part[2] is not None:
                part[2].refused(part[3], part[3])
    return kept


def cut(commands: Iterable[Command], size_max: int) -> Iterable[list[Command]]:
    """Cut commands into batches of about this size. A single message may be larger."""
    batch: list[Command] = []
    size = 0
    for command in commands:
        if command[0] in ENQUEUES:
            for part in _pieces(command, size_max):
                more = codec.size(part[1])
                if batch and size + more > size_max:
                    yield batch
                    batch, size = [], 0
                batch.append(part)
                size += more
            continue
        batch.append(command)
        size += 32 + (_size_in(command) if command[0] == "pend" else 0)
        if size > size_max:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _size_in(command: Command) -> int:
    """Return the bytes of the messages in a command of a transaction's part."""
    inner: Command = command[2]
    if inner[0] not in ENQUEUES:
        return 0
    size: int = inner[1].size
    return size


def _pieces(command: Command, size_max: int) -> Iterable[Command]:
    verb, run, token, first, *ids = command
    while codec.size(run) > size_max and len(run.seqs) > 1:
        count = max(1, len(run.seqs) * size_max // (2 * codec.size(run)))
        front = run.take(count)
        yield (verb, front, token, first, *(names[:count] for names in ids))
        ids = [names[count:] for names in ids]
        first += count
    yield (verb, run, token, first, *ids)
