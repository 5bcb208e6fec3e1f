"""Transactions: publishes and acks of a channel that take effect together.

They reach the disk in one LMDB transaction: after a crash either all of them are there or none. A small
commit is applied within one turn. A large one is applied in parts, in several turns, and nothing is written
to the disk before the last part. Commit-ok follows the sync. If queues are replicated or on another node,
commit-ok follows their answers, and each queue takes its part separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from amqp_server.channel.delays import check_waits
from amqp_server.channel.publish import begin_publish, hand_over, publish
from amqp_server.channel.tracing import trace_publish
from amqp_server.channel.transactions.commit_answers import CommitOrigin
from amqp_server.channel.transactions.producers import EPOCH, producer_of
from amqp_server.channel.unacked import Piece, follows, joined
from amqp_server.errors import PreconditionFailed, SoftError
from amqp_server.wire.intake import Segment
from quorum_queue.machine.attributes import LEADER
from quorum_queue.ports import Recipient
from quorum_queue.steps import Steps

if TYPE_CHECKING:
    from amqp_server.broker.transactions import Producer
    from amqp_server.channel.channel import Channel


#: With more pieces of acked deliveries than this, join them to fewer.
JOIN_FROM = 256
#: A transaction with more parts, or more bytes of messages, is committed or rolled back over several turns.
WHOLE_PARTS_MAX = 256
WHOLE_BYTES_MAX = 1 << 20
#: Parts that are applied before the turn may end.
PARTS_AT_ONCE = 14
#: Queues and acks of a large transaction that are looked at before the turn may end.
CHECKED_AT_ONCE = 128
#: Maximum number of messages of one part, and of their bytes: a queue takes a part in one step, and frees it
#: in one step.
PART_MESSAGES_MAX = 2_048
PART_BYTES_MAX = 256 * 1024

#: Queues that are listed for one open transaction, and runs of its messages and acks that are looked at for
#: that.
PARTICIPANTS_MAX, LOOKED_AT_MAX = 100, 1_000
#: The beginning of the answer to a commit that was refused as a whole.
NOTHING_DONE = "partial tx completion: nothing was done"


class Transaction:
    """Publishes and acks of a channel in tx mode since its last commit."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._unfinished = channel.connection.incoming.unfinished
        self.segments: list[Segment] = []
        #: Bytes of the messages with their frames, in all segments and in the last one.
        self.published_bytes = self._last_bytes = 0
        #: (settle, return or discard; the deliveries)
        self.settlements: list[tuple[str, list[Piece]]] = []
        #: Takes the answers of the queues to the publishes, and says whether they refused any.
        self.origin = CommitOrigin()
        #: What the client has called itself, for all transactions of the channel.
        self.producer: Producer | None = None
        self._part_count = 0
        #: True if a message has a header that may let it wait.
        self._some_wait = False
        #: The last acks are joined when they have more pieces than this.
        self._join_from = JOIN_FROM
        self._all_open = channel.broker.open_transactions
        #: See broker.open_transactions; the number is 0 while nothing was published or acked.
        self.number = self.since_ms = 0
        #: True if the channel is closed, which may happen while it still acks very many deliveries.
        self._is_over = False

    @property
    def channel(self) -> Channel:
        return self._channel

    def close(self) -> None:
        """Its commit or rollback begins: from now on it is not open, and does not end by its age."""
        if self.number:
            self._all_open.remove(self)
            self.number = 0

    def close_for_good(self) -> None:
        """Its channel closes."""
        self.close()
        self._is_over = True

    def end(self, error: SoftError) -> bool:
        """Roll it back and close its channel; see broker.open_transactions."""
        channel = self._channel
        if channel.connection.suspended is not None:
            return False
        channel.connection.close_channel(channel, error, (0, 0))
        return True

    def participants(self) -> list[str]:
        """The names of its queues so far, some of them if there are many: see PARTICIPANTS_MAX."""
        names: dict[str, None] = {}
        for segment in self.segments[:LOOKED_AT_MAX]:
            for target in segment.route.targets[:PARTICIPANTS_MAX]:
                names[target.name] = None
        left = LOOKED_AT_MAX
        for _, pieces in self.settlements[:LOOKED_AT_MAX]:
            for piece in pieces[:left]:
                names[piece.holder.queue.name] = None
            left = max(0, left - len(pieces))
        return list(names)[:PARTICIPANTS_MAX]

    @property
    def published_count(self) -> int:
        """Messages that wait for the commit."""
        return sum(len(segment.contents) for segment in self.segments)

    @property
    def settled_count(self) -> int:
        """Acks that wait for the commit."""
        return sum(piece.high - piece.low + 1 for _, pieces in self.settlements for piece in pieces)

    @property
    def part_count(self) -> int:
        """Number of parts. Messages to the same queues make one part, and so do consecutive deliveries that
        are acked in the same way.
        """
        return self._part_count

    @property
    def is_large(self) -> bool:
        """True if commit or rollback takes several turns."""
        under_way = self._all_open.producer_under_way
        if under_way is not None and self.producer is not None and under_way.key == self.producer.key:
            # It comes behind all of what an earlier start of its producer is committing, not among it.
            return True
        # Copies for the firehose take many times longer than the messages.
        whole_max = 0 if self._channel.vhost.tracing else WHOLE_BYTES_MAX
        return self._part_count > WHOLE_PARTS_MAX or self.published_bytes > whole_max

    def add(self, segment: Segment) -> None:
        """Keep published messages until the commit."""
        if not (self.number or self._is_over):
            self._all_open.add(self)
        # In a transaction a mix has no answers of its own.
        segment.mix = None
        self._some_wait = self._some_wait or segment.waits is not None
        if not self.segments and EPOCH in segment.contents[0]:
            self._name_producer(segment.contents[0])
        size = sum(map(len, segment.contents))
        self.published_bytes += size
        self._unfinished.bytes += size
        last = self.segments[-1] if self.segments else None
        if (
            last is not None
            and last.route is segment.route
            and last.attributes is segment.attributes
            and last.heads is None is segment.heads
            and last.kinds is None is segment.kinds
        ):
            self._part_count += (segment.stretches - 1) * len(segment.route.targets)
            if len(last.contents) < PART_MESSAGES_MAX and self._last_bytes < PART_BYTES_MAX:
                last.join(segment)
                self._last_bytes += size
                return
        else:
            self._part_count += max(1, segment.stretches * len(segment.route.targets))
        self.segments.append(segment)
        self._last_bytes = size

    def _name_producer(self, content: bytes) -> None:
        """Take name and epoch from the first message of the transaction. Raises PreconditionFailed."""
        found = producer_of(content, self._channel.vhost.name)
        if found is None:
            return
        before, transactions = self.producer, self._channel.broker.transactions
        if before is not None and (found.key != before.key or found.epoch < before.epoch):
            raise PreconditionFailed(
                f"x-producer and x-producer-epoch were {before.key!r} and {before.epoch} on this channel, and "
                f"cannot become {found.key!r} and {found.epoch}"
            )
        self.producer = found
        self.check_producer()
        self._all_open.named(self)
        transactions.shut_out(found)

    def check_producer(self) -> None:
        """Raises PreconditionFailed if a later start of the producer has shut this one out."""
        error = self.why_shut_out()
        if error is not None:
            raise error

    def why_shut_out(self) -> PreconditionFailed | None:
        """The error for the client if a later start of the producer has shut this one out."""
        if self.producer is None:
            return None
        key, epoch = self.producer
        highest = self._channel.broker.transactions.epoch_of(key)
        if epoch >= highest:
            return None
        return PreconditionFailed(
            f"x-producer-epoch {epoch} of producer {key!r} is over: another start of it has epoch {highest}"
        )

    def check_paused(self) -> None:
        """Raises PreconditionFailed if publishes to one of its queues are paused: nothing of it is done.

        A queue in a log of its own decides again, at its place there.
        """
        queues = self._channel.vhost.queues
        for segment in self.segments:
            for target in segment.route.targets:
                queue = queues.get(target.name)
                if queue is not None and queue.record.publishes_paused:
                    raise _paused(queue.name)

    def check_held(self, held: Iterable[Recipient]) -> None:
        """The same for hosts that stay as they are from now on."""
        host: Any
        for host in held:
            if host.is_queue and host.settings.publishes_paused:
                raise _paused(host.queue.name)

    def check_waits(self) -> None:
        """Raises PreconditionFailed if a queue refuses the header that says how long a message waits: nothing
        of it is done. Queues that were there at the publish have refused it then.
        """
        if not self._some_wait:
            return
        connection, queues = self._channel.connection, self._channel.vhost.queues
        for segment in self.segments:
            if segment.waits is None:
                continue
            for target in segment.route.targets:
                present = queues.get(target.name) if target.deleted else None
                if present is None or not present.delays:
                    continue
                found = check_waits(connection, segment)
                if found is not None:
                    raise PreconditionFailed(
                        f"{NOTHING_DONE}, because of a message for queue '{target.name}': {found[1].text}"
                    )

    def check_acks(self) -> None:
        """Raises PreconditionFailed if deliveries that it acks have gone back to their queues: others get
        them, too. Nothing of it is done.

        The queues' parts of a prepared commit say the same.
        """
        for _ in self.checks_of_acks():
            pass

    def checks_of_acks(self) -> Iterator[None]:
        """The same, some at a time."""
        for _, pieces in self.settlements:
            for count, (holder, low, high, _) in enumerate(pieces, 1):
                if count % CHECKED_AT_ONCE == 0:
                    yield
                host = holder.queue.host
                if host.ended == "deleted":
                    continue
                if holder.gave_back or not host.can_settle(holder.key, low, high):
                    raise PreconditionFailed(
                        f"{NOTHING_DONE}, because messages of queue '{holder.queue.name}' that it acks have "
                        "gone back to the queue"
                    )

    def settle(self, verb: str, pieces: list[Piece]) -> None:
        """Keep acks until the commit."""
        if not (self.number or self._is_over):
            self._all_open.add(self)
        self._part_count += len(pieces)
        if self.settlements and self.settlements[-1][0] == verb:
            last = self.settlements[-1][1]
            if pieces and last and follows(last[-1], pieces[0]):
                before = last[-1]
                last[-1] = Piece(before.holder, before.low, pieces[0].high, before.tag)
                last += pieces[1:]
                self._part_count -= 1
            else:
                last += pieces
            if verb == "settle" and len(last) > self._join_from:
                self._join(last)
        else:
            self.settlements.append((verb, pieces))

    def _join(self, pieces: list[Piece]) -> None:
        """Join acked pieces: acks may come in any order, but usually make few pieces in the end."""
        count = len(pieces)
        pieces[:] = joined(pieces)
        self._part_count -= count - len(pieces)
        self._join_from = 2 * len(pieces) + JOIN_FROM

    @property
    def in_two(self) -> bool:
        """True if the acks must wait until all queues have the messages on disk.

        If not all queues are in this node's journal, the queues take their parts of a commit one by one. If a
        node fails in between, a message that was acked and not published would be lost; a message that was
        published and not acked is redelivered.
        """
        if not (self.segments and self.settlements) or not self._channel.broker.replication.clustered:
            return False
        return not all(host.in_journal for host in self._hosts())

    @property
    def is_prepared(self) -> bool:
        """True if each queue gets its part first, and one decision lets all parts take effect: not all queues
        are in this node's journal, or one of them may refuse its part. See prepared_commit.
        """
        if not self._channel.broker.transactions.available:
            return False
        hosts = list(self._hosts())
        in_one_log = all(host.in_journal for host in hosts) and self.producer is None
        if in_one_log and not any(host.may_refuse for host in self.recipients()):
            return False
        return all(host.takes_parts or not host.is_queue for host in hosts)

    def _hosts(self) -> Iterator[Recipient]:
        """The hosts of all its queues."""
        yield from self.sources()
        yield from self.recipients()

    def sources(self) -> Iterator[Recipient]:
        """The hosts of the queues whose deliveries it acks."""
        for _, pieces in self.settlements:
            for piece in pieces:
                yield piece.holder.queue.host

    def recipients(self) -> Iterator[Recipient]:
        """The hosts of the queues that get its messages."""
        queues = self._channel.vhost.queues
        for segment in self.segments:
            for target in segment.route.targets:
                present = queues.get(target.name) if target.deleted else target
                if present is not None:
                    yield present.host

    def take(self) -> tuple[list[Segment], list[tuple[str, list[Piece]]]]:
        """Take everything, to commit it."""
        self._unfinished.finished += 1
        return self._published(), self._settlements()

    def commit(self, *, acks: bool = True) -> list[Recipient]:
        """Hand everything to the queues. Return the hosts with a part in it, except hosts that only have
        messages of the level `leader`: the commit waits for the answers to these, and not until a majority
        has them.
        """
        segments = self._published()
        settlements: list[tuple[str, list[Piece]]] = []
        if acks:
            settlements = self._settlements()
            self._unfinished.finished += 1
        hosts: dict[Recipient, None] = {}
        for segment in segments:
            found = publish(segment, self.origin)
            if segment.attributes.confirm_level != LEADER:
                hosts.update(dict.fromkeys(found))
        for verb, pieces in settlements:
            self._settle(verb, pieces, hosts)
        return list(hosts)

    def _settle(self, verb: str, pieces: list[Piece], hosts: dict[Recipient, None]) -> None:
        for piece in pieces:
            host = piece.holder.queue.host
            hosts[host] = None
            if not host.can_settle(piece.holder.key, piece.low, piece.high):
                # A delivery that is acked too late is in the queue again: the client must not believe that it
                # is acked.
                self.origin.partial = True
        self._channel.settle(verb, pieces)

    def commit_in_parts(
        self, hosts: dict[Recipient, None], held: dict[Recipient, None], *, acks: bool = True
    ) -> Iterator[None]:
        """Like `commit`, some parts at a time; `hosts` gets the hosts, and `held` those that hold back."""
        segments, settlements = self._published(), self.settlements if acks else []
        if acks:
            self.settlements = []
            self._part_count, self._join_from = 0, JOIN_FROM
            self._unfinished.finished += 1
        given = 0
        for segment in segments:
            targets, origin, first, size = begin_publish(segment, self.origin)
            if self._channel.vhost.tracing:
                yield from trace_publish(self._channel, segment) or ()
            weight = max(len(targets), len(segment.contents) * PARTS_AT_ONCE // PART_MESSAGES_MAX)
            for found in hand_over(segment, targets, origin, first, size):
                _hold(found, held)
                if segment.attributes.confirm_level != LEADER:
                    hosts.update(dict.fromkeys(found))
                given += weight
                # A step without hosts was a piece of a large message.
                if given >= PARTS_AT_ONCE or not found:
                    given = 0
                    yield
        for verb, pieces in settlements:
            for start in range(0, len(pieces), PARTS_AT_ONCE):
                # Dead letters of rejected messages are parts, too.
                _hold([piece.holder.queue.host for piece in pieces[start : start + PARTS_AT_ONCE]], held)
                self._settle(verb, pieces[start : start + PARTS_AT_ONCE], hosts)
                yield

    def rollback(self) -> None:
        """Drop the publishes; the acked deliveries are unacked again, under their old tags."""
        for _ in self.rollback_in_parts():
            pass

    def rollback_in_parts(self) -> Iterator[None]:
        """Like `rollback`, some parts at a time."""
        segments, settlements = self._published(), self.settlements
        self.settlements = []
        self._part_count, self._join_from = 0, JOIN_FROM
        acked = [piece for _, pieces in settlements for piece in pieces]
        for _ in self._channel.unacked.restore_in_parts(acked):
            yield
        # Freeing a million messages takes long, too.
        while segments:
            segments.pop()
            yield

    def _published(self) -> list[Segment]:
        """Take and return the publishes."""
        segments, self.segments = self.segments, []
        self._unfinished.bytes -= self.published_bytes
        self.published_bytes = self._last_bytes = 0
        self._some_wait = False
        return segments

    def _settlements(self) -> list[tuple[str, list[Piece]]]:
        """Take and return the settlements."""
        settlements, self.settlements = self.settlements, []
        self._part_count, self._join_from = 0, JOIN_FROM
        return [(verb, joined(pieces) if verb == "settle" else pieces) for verb, pieces in settlements]


def _paused(queue: str) -> PreconditionFailed:
    return PreconditionFailed(f"{NOTHING_DONE}, because publishes to queue '{queue}' are paused")


def _hold(hosts: Iterable[Recipient], held: dict[Recipient, None]) -> None:
    """Let hosts hold back what they have not applied yet, and what comes."""
    for host in hosts:
        if host not in held:
            held[host] = None
            host.hold()


class LargeEnd:
    """Ends large work in several turns: a transaction, or an ack of many deliveries."""

    __slots__ = ("_channel", "_done", "_parts", "_steps", "_turn", "close")

    def __init__(self, channel: Channel, parts: Iterator[None]) -> None:
        self._channel = channel
        self._turn = channel.broker.turn
        self._parts = parts
        self._steps = Steps(self._turn, self._end_parts, self._failed, self._ended)
        self._done: Callable[[], None] = _nothing
        #: Called at the end, if the channel was closed meanwhile.
        self.close: Callable[[], None] = _nothing

    def begin(self, done: Callable[[], None]) -> None:
        """Call `done` when all parts are done."""
        self._done = done
        self._channel.ending = self
        self._begin()

    def _begin(self) -> None:
        # Do not start in this turn, which may serve other clients, too: they would wait for these parts.
        self._steps.begin_later()

    def _end_parts(self) -> Iterator[None]:
        for _ in self._parts:
            self._turn.apply(whole=True)
            yield
        self._turn.apply(whole=True)

    def _ended(self) -> None:
        self._end()
        self._done()

    def _end(self) -> None:
        self._channel.ending = None
        self.close()

    def _failed(self, error: Exception) -> None:
        self._end()
        self._channel.connection.failed(error)


class LargeCommit(LargeEnd):
    """Consumers get nothing of a large transaction before all of it is on disk, and what its queues are set
    to does not change meanwhile.
    """

    __slots__ = ("_held", "_open", "hosts", "is_prepared", "refused")

    def __init__(
        self, channel: Channel, transaction: Transaction, *, acks: bool = True, checked: bool = False
    ) -> None:
        """`checked`: a part of the transaction is committed already."""
        #: Hosts with a part in the transaction.
        self.hosts: dict[Recipient, None] = {}
        self._held: dict[Recipient, None] = {}
        #: Why nothing of it was done; or True, if its queues have to get their parts first (see
        #: prepared_commit). Either has changed while it waited for its turn.
        self.refused: SoftError | None = None
        self.is_prepared = False
        self._open = channel.broker.open_transactions
        super().__init__(channel, self._commit(transaction, acks, checked))

    def _commit(self, transaction: Transaction, acks: bool, checked: bool) -> Iterator[None]:
        for count, host in enumerate(transaction.recipients(), 1):
            _hold((host,), self._held)
            if count % CHECKED_AT_ONCE == 0:
                yield
        if not checked:
            recipients = list(self._held)
            try:
                transaction.check_producer()
                self._open.producer_under_way = transaction.producer
                transaction.check_held(recipients)
                # From the check on nobody takes back what it acks.
                for count, host in enumerate(transaction.sources(), 1):
                    _hold((host,), self._held)
                    if count % CHECKED_AT_ONCE == 0:
                        yield
                yield from transaction.checks_of_acks()
            except SoftError as error:
                self.refused = error
                return
            if any(host.may_refuse for host in recipients) and transaction.is_prepared:
                self.is_prepared = True
                return
            yield
        yield from transaction.commit_in_parts(self.hosts, self._held, acks=acks)

    def _begin(self) -> None:
        self._channel.broker.services.commits.hold(self._steps.begin_later)

    def _end(self) -> None:
        self._open.producer_under_way = None
        commits = self._channel.broker.services.commits
        commits.release()
        if self._held and commits.unsynced:
            commits.request(self._unhold)
        else:
            self._unhold()
        super()._end()

    def _unhold(self) -> None:
        held, self._held = self._held, {}
        for host in held:
            host.unhold()


def _nothing() -> None: ...
