"""Commits a transaction over queues that are not all in this node's journal: each queue gets its part, and
when all of them have it one decision lets all of them take effect.

quorum_queue.machine.parts says what a queue does, amqp_server.cluster.coordinator.transactions who decides.
A transaction over one queue needs no decision: its part takes effect as soon as it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from amqp_server.channel.publish import begin_publish, hand_over
from amqp_server.channel.tracing import Copy, give_copies, trace_publish
from amqp_server.channel.transactions.tx import PART_MESSAGES_MAX, PARTS_AT_ONCE, LargeEnd, Transaction
from amqp_server.channel.unacked import Piece
from amqp_server.wire.intake import Segment
from quorum_queue.machine.attributes import ALL, MAJORITY
from quorum_queue.machine.parts import FULL, INCOMPLETE, LATE, PAUSED, READY, TransactionId
from quorum_queue.ports import Preparing, Recipient, Refused
from quorum_queue.steps import in_steps

if TYPE_CHECKING:
    from amqp_server.channel.channel import Channel

#: Answers to the client; nothing of the transaction was done.
_REFUSED = {
    FULL: "queue '{}' is full, and refuses messages (x-overflow)",
    LATE: "messages of queue '{}' that it acks have gone back to the queue",
    INCOMPLETE: "queue '{}' did not get all of it",
    PAUSED: "publishes to queue '{}' are paused",
}


class PartTaker:
    """Stands for a queue's host while messages are handed out: puts them into the queue's part."""

    in_journal = takes_parts = False
    is_queue = True

    def __init__(self, host: Any, transaction: TransactionId, *, delays: bool) -> None:
        self.taker_of: Any = host
        self.delays = delays
        self._transaction = transaction
        self.pending: list[Any] = []
        self.counts_bytes = host.counts_bytes
        self.may_refuse = host.may_refuse
        self.wants_ids = host.wants_ids
        self.takes_kinds = host.takes_kinds
        self.settings = host.settings
        self.records = host.records
        #: Commands that the part has so far.
        self.count = 0

    @property
    def host(self) -> PartTaker:
        return self

    def begin_large(self, content: bytes, head: bytes, channel: int) -> Preparing | None:
        preparing: Preparing | None = self.taker_of.begin_large(content, head, channel)
        return preparing

    def submit(self, *commands: Any) -> None:
        self.pending += commands

    def hold(self) -> None: ...

    def unhold(self) -> None: ...

    def barrier(self, done: Callable[..., None]) -> None:
        self.taker_of.barrier(done)

    def apply_pending(self) -> None:
        """Give the commands to the queue. Publishers of a transaction get no answers for each message."""
        commands, self.pending = self.pending, []
        if not commands:
            return
        pended: list[Any] = []
        for command in commands:
            if command[0].startswith("enqueue"):
                command = (command[0], command[1], None, *command[3:])
            pended.append(("pend", self._transaction, command))
        self.count += len(pended)
        self.taker_of.submit(*pended)

    def failed(self, error: Exception) -> None:
        self.taker_of.failed(error)


class PreparedCommit:
    """One commit of a channel's transaction."""

    def __init__(self, channel: Channel, transaction: Transaction) -> None:
        self._channel = channel
        self._transaction = transaction
        self._coordinator = channel.broker.transactions
        self._id = self._coordinator.begin()
        self._under_way = channel.broker.open_transactions
        self._producer = transaction.producer
        self._takers: dict[Recipient, PartTaker] = {}
        #: Steps that hand messages to clients that wait for direct replies.
        self._replies: list[Callable[[], object]] = []
        #: For the firehose, if the transaction is committed.
        self._copies: list[Copy] = []
        self._settlements: list[tuple[str, list[Piece]]] = []
        #: These make room for further deliveries, and nothing more.
        self._acks_of_streams: list[tuple[Any, Any]] = []
        self._left = 0
        #: A majority of each queue's members has its part when the transaction is committed, or all have it.
        self._level = MAJORITY
        #: Why it cannot be committed.
        self.refused = ""
        self._unavailable: Refused | None = None
        self._done: Callable[..., None] = _nothing

    def begin(self, done: Callable[..., None]) -> None:
        """Call `done()` when the transaction is committed; `done(Refused)` if it is not known whether it was,
        or if a queue is out of reach. If `refused` is not empty then, nothing of it was done.
        """
        self._done = done
        self._under_way.committing(self._id, self._channel)
        steps = self._hand_out()
        if self._transaction.is_large:
            LargeEnd(self._channel, steps).begin(self._prepare)
            return
        for _ in steps:
            pass
        self._prepare()

    def _hand_out(self) -> Iterator[None]:
        """Give each queue its part, some commands at a time."""
        channel, transaction = self._channel, self._transaction
        segments, self._settlements = transaction.take()
        given = 0
        for segment in segments:
            self._level = ALL if segment.attributes.confirm_level == ALL else self._level
            targets, _, _, size = begin_publish(segment, transaction.origin)
            transaction.origin.take_answers()
            if channel.vhost.tracing:
                yield from trace_publish(channel, segment, self._copies) or ()
            takers = [self._taker_of(each.host, each.delays) for each in targets if each.host.is_queue]
            replies = [target for target in targets if not target.host.is_queue]
            if replies:
                self._reply_later(segment, replies, size)
            for _ in hand_over(segment, takers, None, 1, size):
                given += max(len(takers), len(segment.contents) * PARTS_AT_ONCE // PART_MESSAGES_MAX)
                if given >= PARTS_AT_ONCE:
                    given = 0
                    self._flush()
                    yield
        for kind, pieces in self._settlements:
            for holder, low, high, _ in pieces:
                host, verb = holder.queue.host, channel.verb_for(kind, holder.queue)
                if host.ended == "deleted":
                    continue
                if not host.parts_have_acks:
                    self._acks_of_streams.append((host, (verb, holder.key, low, high)))
                    continue
                if not host.can_settle(holder.key, low, high):
                    self.refused = _REFUSED[LATE].format(holder.queue.name)
                    continue
                self._taker_of(host, holder.queue.delays).submit((verb, holder.key, low, high))
                given += 1
                if given >= PARTS_AT_ONCE:
                    given = 0
                    self._flush()
                    yield
        self._flush()

    def _reply_later(self, segment: Segment, replies: list[Any], size: int) -> None:
        copy = Segment(segment.route, segment.attributes)
        copy.contents = segment.contents.copy()
        copy.heads = None if segment.heads is None else segment.heads.copy()
        self._replies.append(lambda: list(hand_over(copy, replies, None, 1, size)))

    def _taker_of(self, host: Any, delays: bool) -> PartTaker:
        taker = self._takers.get(host)
        if taker is None:
            taker = self._takers[host] = PartTaker(host, self._id, delays=delays)
        return taker

    def _flush(self) -> None:
        for taker in self._takers.values():
            taker.apply_pending()

    def _prepare(self) -> None:
        """All parts are on their way: ask the queues whether they take them."""
        if self.refused:
            self._roll_back()
            return
        self._left = len(self._takers)
        if not self._left:
            self._committed()
            return
        hosts = list(self._takers.values())
        # A transaction over one queue takes effect there at once, if nobody has to ask about its producer.
        queues = (
            []
            if len(hosts) == 1 and self._producer is None
            else [taker.taker_of.queue.queue_id for taker in hosts]
        )
        for taker in hosts:
            taker.taker_of.prepare(self._id, taker.count, queues, self._answer_of(taker, queues), self._level)

    def _answer_of(self, taker: PartTaker, queues: list[int]) -> Callable[[int | Refused], None]:
        def answered(outcome: int | Refused) -> None:
            if isinstance(outcome, Refused):
                self._unavailable = self._unavailable or outcome
            elif outcome != READY and not self.refused:
                self.refused = _REFUSED[outcome].format(taker.taker_of.queue.name)
            self._left -= 1
            if self._left:
                return
            if self.refused or self._unavailable is not None:
                self._roll_back()
            elif not queues:
                self._committed()
            else:
                self._coordinator.decide(self._id, queues, self._producer, self._decided)

        return answered

    def _decided(self, committed: bool | Refused) -> None:
        if isinstance(committed, Refused):
            # The queues will hear what is decided.
            self._unavailable = committed
            self._under_way.committed(self._id)
            self._done(committed)
        elif committed:
            self._resolve(committed=True)
            self._committed()
        else:
            if self._producer is not None and self._producer.epoch < self._coordinator.epoch_of(
                self._producer.key
            ):
                self.refused = "another start of its producer has a higher x-producer-epoch"
            self._unavailable = Refused(
                "the transaction was rolled back: its decision took too long, or an operator has aborted it"
            )
            self._roll_back()

    def _resolve(self, *, committed: bool) -> None:
        for taker in self._takers.values():
            host = taker.taker_of
            if host.ended == "moved":
                # Another host serves the queue by now.
                host = host.queue.host
            if taker.count:
                host.submit(("resolve", self._id, committed))

    def _committed(self) -> None:
        self._coordinator.end(self._id)
        self._under_way.committed(self._id)
        for verb, pieces in self._settlements:
            self._channel.settled(verb, pieces)
        for host, command in self._acks_of_streams:
            host.submit(command)
        for reply in self._replies:
            reply()
        if self._copies:
            copies = give_copies(self._channel.vhost, self._copies)
            in_steps(self._channel.broker.turn, copies, "copies for the firehose could not be made")
        self._done()

    def _roll_back(self) -> None:
        """Nothing of it is done. The client holds its deliveries again; they go back with its channel."""
        self._coordinator.end(self._id)
        self._under_way.committed(self._id)
        self._resolve(committed=False)
        acked = [piece for _, pieces in self._settlements for piece in pieces]
        for _ in self._channel.unacked.restore_in_parts(acked):
            pass
        if self._unavailable is not None and not self.refused:
            self._done(self._unavailable)
        else:
            self._done()


def _nothing(*_: object) -> None: ...


__all__ = ["PreparedCommit"]
