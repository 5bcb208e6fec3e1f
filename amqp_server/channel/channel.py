"""A channel: its mode, its consumers, its unacked deliveries, and the message that is being put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pamqp import base, commands

from amqp_server.broker import declared_memory, group_members
from amqp_server.broker.reply import ReplyHost
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.traffic import Traffic
from amqp_server.channel.assembly import Assembly
from amqp_server.channel.confirms import Confirms
from amqp_server.channel.connection import Connection
from amqp_server.channel.delays import check_waits, read_waits
from amqp_server.channel.publish import publish_in_parts, read_groups
from amqp_server.channel.subscription import Getter, Subscription
from amqp_server.channel.transactions.tx import WHOLE_BYTES_MAX, LargeEnd, Transaction
from amqp_server.channel.unacked import Piece, Unacked, UnknownTag, by_holder
from amqp_server.channel.window import ChannelWindow
from amqp_server.errors import AccessRefused, PreconditionFailed
from amqp_server.wire.frames import method_frame
from amqp_server.wire.intake import Segment
from quorum_queue.machine import versions
from quorum_queue.machine.consumers import leaving
from quorum_queue.steps import in_later_steps

if TYPE_CHECKING:
    from amqp_server.broker.topology.vhost import VHost
    from amqp_server.turn import Turn
    from quorum_queue.host import Key
    from quorum_queue.ports import Host

_PUBLISH = (60, 40)
#: A channel that is being closed returns at most this many runs of deliveries, and detaches this many
#: consumers, within one turn.
RETURNED_MAX, DETACHED_MAX = 256, 1_000
#: If it has more, it does this many at a time; the turn may end in between. Deliveries are looked up in
#: larger parts.
PART_MAX, TAKEN_MAX = 22, 512
#: Consumers that are paused before the turn may end.
PAUSED_MAX = 128
#: With more pieces than this, join them to fewer.
FEW_PIECES = 8


class Channel:
    """One open channel."""

    def __init__(self, connection: Connection, vhost: VHost, number: int) -> None:
        self.connection = connection
        self.vhost = vhost
        self.number = number
        self.broker = connection.broker
        self.next_tag = 1
        self.traffic = Traffic()
        self.unacked = Unacked()
        self.subscriptions: dict[str, Subscription] = {}
        #: By queue, no_ack, and whether they pick (see channel.moving).
        self.getters: dict[tuple[Queue, bool, bool], Getter] = {}
        self.confirms: Confirms | None = None
        self.tx: Transaction | None = None
        #: The current work that takes several turns: the end of a large transaction, or the return of very
        #: many deliveries.
        self.ending: LargeEnd | None = None
        #: Closed within a transaction: the rest of the same read is dropped, too.
        self._rolled_back = False
        #: Prefetch of later consumers (basic.qos global=false).
        self.prefetch = 0
        #: How many consumers the channel has on each queue.
        self.consumed: dict[Queue, int] = {}
        self.window = ChannelWindow(connection, self.subscriptions, self.consumed)
        self.assembly: Assembly | None = None
        #: The queue that this channel is deleting, and the frames that tell its consumers here after
        #: delete-ok.
        self.deleting: Queue | None = None
        self._cancelled: list[bytes] = []
        #: Name of the queue declared last, for methods that leave the name out.
        self.last_queue = ""
        #: Name of the queue that is being declared without one.
        self.generated_name = ""
        #: The consumer of direct replies and its tag.
        self.reply_host: ReplyHost | None = None
        self.reply_tag = ""
        #: Payload of the current method frame. It has the types of table fields, which pamqp drops.
        self.raw = b""
        #: True if channel.close was sent and its answer has not arrived.
        self.closing = False
        #: True while the channel is being closed, which takes several turns: its consumers get no more
        #: messages.
        self.leaving = False
        #: The steps that drop its transaction during the closing.
        self.rollback: Iterator[None] = iter(())
        #: True if the channel is closed: late deliveries for its consumers go back to the queues.
        self.closed = False
        #: Called at the end of the closing.
        self.when_closed: Callable[[], None] = _nothing

    def send(self, method: base.Frame) -> None:
        """Send a method on this channel."""
        self.connection.outbox.put(method_frame(self.number, method))

    # -- publishing ------------------------------------------------------------------------------------------

    def publish(self, segment: Segment) -> Iterator[object] | None:
        """Publish now, or at the commit of the transaction. If the messages go to many queues, return an
        iterator whose steps do the rest.
        """
        if self.closing:
            # These messages came with one that has closed it.
            return None
        # Held back by a transaction or an alarm: a queue may be another one by the time that it gets them.
        reads = self.tx is not None or segment.waits_read > 0 or segment.route.waits
        if not reads:
            for target in segment.route.targets:
                if target.group_header or target.delays:
                    reads = True
                    break
        if reads and not self._is_readable(segment):
            return None
        if self.tx is not None:
            self._publish_in(self.tx, segment)
            return None
        if self._rolled_back:
            return None
        return publish_in_parts(segment)

    def _is_readable(self, segment: Segment) -> bool:
        """Return whether the queues can read the groups and the waits of all messages. Otherwise publish
        those before the bad one, and close the channel.
        """
        grouped, delays = False, segment.route.waits
        for target in segment.route.targets:
            grouped = grouped or bool(target.group_header)
            delays = delays or target.delays
            if target.deleted:
                present = self.vhost.queues.get(target.name)
                delays = delays or (present is not None and present.delays)
        error: PreconditionFailed | None = None
        if delays or self.tx is not None:
            read_waits(self.connection, segment)
        if delays:
            found = check_waits(self.connection, segment)
            if found is not None:
                bad, error = found
                segment.keep(bad)
        if grouped and segment.contents:
            error = read_groups(segment) or error
        if error is None:
            return True
        for _ in (self.publish(segment) if segment.contents else None) or ():
            pass
        self.connection.close_channel(self, error, _PUBLISH)
        return False

    def _publish_in(self, transaction: Transaction, segment: Segment) -> None:
        try:
            transaction.check_producer()
            transaction.add(segment)
            self._check_size(transaction)
        except PreconditionFailed as error:
            self.connection.close_channel(self, error, _PUBLISH)

    def _check_size(self, transaction: Transaction) -> None:
        config = self.connection.config
        if transaction.published_bytes > config.tx_bytes_max:
            raise PreconditionFailed(
                f"the transaction has more than {config.tx_bytes_max} bytes of messages (tx_bytes_max): commit "
                "more often"
            )
        if transaction.part_count > config.tx_parts_max:
            raise self._too_large()
        if self.connection.incoming.unfinished.bytes > config.unfinished_bytes_max:
            raise PreconditionFailed(
                f"the connection has more than {config.unfinished_bytes_max} bytes of unfinished messages: "
                "transactions without a commit, and messages without their last frame (unfinished_bytes_max)"
            )

    def _too_large(self) -> PreconditionFailed:
        return PreconditionFailed(
            f"the transaction has more than {self.connection.config.tx_parts_max} parts (tx_parts_max): "
            "commit more often"
        )

    # -- settling --------------------------------------------------------------------------------------------

    def acknowledge(self, verb: str, low: int, high: int) -> None:
        """Settle, return or discard deliveries by tag; low 0 is `multiple`. Raises PreconditionFailed."""
        if low == 0:
            if high == 0:
                pieces = self.unacked.take_all()
            elif self.unacked.holds(high):
                # RabbitMQ wants the tag itself to be unacked, not just some before it.
                pieces = self.unacked.take(1, high, strict=False)
            else:
                raise UnknownTag(high, [])
        else:
            try:
                pieces = self.unacked.take(low, high, strict=True)
            except UnknownTag as error:
                self.settle(verb, error.pieces)
                raise
        if self.tx is None:
            self.settle(verb, pieces)
        else:
            self.tx.settle(verb, pieces)
            self._check_parts()

    def _check_parts(self) -> None:
        """Check the number of parts of the transaction. Raises PreconditionFailed."""
        if self.tx is not None and self.tx.part_count > self.connection.config.tx_parts_max:
            raise self._too_large()

    def acknowledge_many(
        self, verb: str, high: int, then: Callable[[], None], *, outside: bool = False
    ) -> None:
        """Like `acknowledge` for very many deliveries, up to this tag (0: all), in several turns; then call
        `then`. A method's handler does nothing after this call. `outside`: not a part of the transaction.
        Raises PreconditionFailed.
        """
        if high and not self.unacked.holds(high):
            raise UnknownTag(high, [])
        if verb in ("return", "fail"):
            # Deliver nothing to this channel before all parts are returned; otherwise the first parts would
            # be delivered again at once.
            self.window.close()

        def settled() -> None:
            self.window.open()
            self._check_parts()
            then()

        parts = self._settle_in_parts(verb, high or self.unacked.last_tag, None if outside else self.tx)
        self.connection.after(LargeEnd(self, parts).begin, settled)

    def _settle_in_parts(self, verb: str, high: int, transaction: Transaction | None) -> Iterator[None]:
        most = self.connection.config.tx_parts_max
        while transaction is None or transaction.part_count <= most:
            pieces = self.unacked.take_part(high)
            if not pieces:
                return
            if transaction is None:
                self.settle(verb, pieces)
            else:
                transaction.settle(verb, pieces)
            yield

    def settle(self, verb: str, pieces: list[Piece]) -> None:
        """Submit the deliveries to their queues, which apply the commands at the end of the turn."""
        scheduled = self.broker.turn.scheduled
        if len(pieces) > FEW_PIECES and verb != "discard":
            # Dead letters are sent in the order of the tags.
            pieces = by_holder(pieces)
        for holder, low, high, _ in pieces:
            host = holder.queue.host
            host.pending.append((self.verb_for(verb, holder.queue), holder.key, low, high))
            scheduled[host] = None
        self.settled(verb, pieces)

    def verb_for(self, verb: str, queue: Queue) -> str:
        """Return how a queue is told: not all of them count failed deliveries apart from returns."""
        if verb != "fail":
            return verb
        counted = self.broker.replication.version >= versions.FAILURES
        return "fail" if counted and queue.type.knows_failures else "return"

    def settled(self, verb: str, pieces: list[Piece]) -> None:
        """Count deliveries that the client does not hold any more."""
        acked = verb == "settle"
        for holder, low, high, _ in pieces:
            count = high - low + 1
            holder.unacked -= count
            if holder.left:
                self.window.use(-count)
            if acked:
                self.traffic.ack += count
                holder.traffic.ack += count
        if self.window.limit and pieces:
            self.window.offer()

    def counted(self) -> Traffic:
        """Return the counts until now."""
        if self.confirms is not None:
            self.traffic.confirm = self.confirms.confirmed_count
        return self.traffic

    def _add_up(self) -> None:
        """The channel ends: add its counts to the vhost's and the node's."""
        ended, traffic = self.broker.counts.ended, self.counted()
        ended.channels_closed += 1
        if self.confirms is not None:
            ended.expecting += self.confirms.numbered_count
        ended.traffic.add(traffic)
        self.vhost.traffic.add(traffic)

    # -- end -------------------------------------------------------------------------------------------------

    def add(self, subscription: Subscription) -> None:
        """Note a consumer that is to be attached."""
        queue = subscription.queue
        self.subscriptions[subscription.tag] = subscription
        self.consumed[queue] = self.consumed.get(queue, 0) + 1
        self.broker.counts.declared_bytes += declared_memory.of_consumer(subscription.arguments)
        queue.subscribe(subscription.key, subscription)

    def drop(self, subscription: Subscription) -> bool:
        """Forget a consumer, as its queue already has; return whether the channel had it."""
        if self.subscriptions.get(subscription.tag) is not subscription:
            return False
        del self.subscriptions[subscription.tag]
        if subscription.attached:
            self.connection.consumer_event(self.number, subscription, created=False)
        queue = subscription.queue
        self.broker.counts.declared_bytes -= declared_memory.of_consumer(subscription.arguments)
        self.consumed[queue] -= 1
        if not self.consumed[queue]:
            del self.consumed[queue]
        return True

    def cancel(self, subscription: Subscription) -> None:
        """Detach a consumer; the deliveries that it holds stay unacked."""
        self.forget(subscription)
        subscription.queue.host.submit(("detach", subscription.key, False))

    def forget(self, subscription: Subscription) -> None:
        self.drop(subscription)
        subscription.queue.subscriptions.pop(subscription.key, None)

    def check_consumers(self) -> None:
        """The client has other permissions: cancel the consumers that it may no longer have, as RabbitMQ 4.3
        does. Deliveries that they hold stay unacked, but those of a group return to it.
        """
        permissions, access = self.broker.access.permissions, self.connection.client.access
        for subscription in list(self.subscriptions.values()):
            queue = subscription.queue
            try:
                permissions.check(access, self.vhost.name, "queue", queue.name, "read")
                if queue.type.is_group:
                    group_members.check(queue, access)
            except AccessRefused as refused:
                subscription.revoked = refused.text
                self.forget(subscription)
                queue.host.submit(("detach", subscription.key, queue.type.is_group))
                if subscription.attached and self.connection.client.can("consumer_cancel_notify"):
                    self._tell_behind(subscription)

    def time_out(self, subscription: Subscription) -> bool:
        """Cancel a consumer that has held a delivery for too long; what it holds goes back to its queue, and
        acks of it mean nothing any more. Return False if the client cannot hear of it.
        """
        if not self.connection.client.can("consumer_cancel_notify"):
            return False
        subscription.timed_out, subscription.revoked = True, "the consumer has timed out"
        known = self.subscriptions.get(subscription.tag) is subscription
        self.forget(subscription)
        key = subscription.key
        subscription.queue.host.submit(*leaving(key))
        if known and subscription.attached:
            self._tell_behind(subscription)
        return True

    def _tell_behind(self, subscription: Subscription) -> None:
        """Tell the client that a consumer is gone when its queue knows it, on whatever node: what the client
        does then comes behind.
        """

        def known(_: object = None) -> None:
            if not self.leaving and not self.closed and subscription.tag not in self.subscriptions:
                self.cancelled_by_broker(subscription)

        subscription.queue.barrier(known)

    def cancelled_by_broker(self, subscription: Subscription) -> None:
        """Tell the client that a consumer is gone; a client that waits for delete-ok hears it afterwards."""
        frame = method_frame(self.number, commands.Basic.Cancel(subscription.tag, True))
        if subscription.queue is self.deleting:
            self._cancelled.append(frame)
        else:
            self.connection.outbox.put(frame)

    def deleted(self) -> None:
        """Called when the client has its delete-ok."""
        self.deleting = None
        frames, self._cancelled = self._cancelled, []
        if frames:
            self.connection.outbox.put(b"".join(frames))

    def _roll_back(self) -> Iterator[None]:
        """Return an iterator whose steps drop the open transaction."""
        transaction, self.tx = self.tx, None
        if transaction is None:
            return iter(())
        self._rolled_back = True
        transaction.close_for_good()
        return transaction.rollback_in_parts()

    def leave(self) -> None:
        """Begin to close the channel in parts: it gets no more deliveries. Its consumers keep their places in
        the queues until all its deliveries are returned, so that the next consumer gets those before later
        messages.
        """
        self.leaving = True
        self.window.close()
        self.rollback = self._roll_back()

    def pause_in_parts(self) -> Iterator[None]:
        """Pause the consumers, in steps. A queue on several nodes cannot see that this channel has no room;
        other queues would check its window in vain for each message.
        """
        subscriptions = list(self.subscriptions.values())
        for start in range(0, len(subscriptions), PAUSED_MAX):
            for subscription in subscriptions[start : start + PAUSED_MAX]:
                subscription.queue.host.submit(("pause", subscription.key, True))
            yield

    def close_in_parts(self) -> Iterator[None]:
        """When all consumers are paused: do in steps the parts of `close` that may take long."""
        for _ in self.rollback:
            yield
        for _ in range(0, len(self.unacked), TAKEN_MAX):
            pieces = self.unacked.take_first(TAKEN_MAX)
            for start in range(0, len(pieces), PART_MAX):
                self._return(pieces[start : start + PART_MAX])
                yield
        subscriptions = list(self.subscriptions.values())
        for start in range(0, len(subscriptions), PART_MAX):
            for subscription in subscriptions[start : start + PART_MAX]:
                self.forget(subscription)
                subscription.queue.host.submit(("detach", subscription.key, True))
            yield

    def _return(self, pieces: list[Piece]) -> None:
        for holder, low, high, _ in by_holder(pieces):
            holder.queue.host.submit((self.verb_for("fail", holder.queue), holder.key, low, high))

    def close(self) -> None:
        """Return all unacked deliveries, drop the open transaction, and detach all consumers. Queues apply
        this at the end of the turn, so deliveries of one closing channel do not go to the next closing
        channel.
        """
        if self.ending is not None:
            self.leave()
            self.ending.close = self.close
            return
        if are_many([self]):
            ChannelsEnd(self.broker.turn, self.connection, [self]).begin()
            return
        self.finish()

    def finish(self) -> None:
        """Do the rest at once."""
        if self.tx is not None:
            for _ in self._roll_back():
                pass
        if not self.closed:
            self.closed = True
            self._add_up()
        if self.assembly is not None:
            self.assembly.release()
            self.assembly = None
        if self.confirms is not None:
            self.confirms.closed = True
        self._return(self.unacked.take_all())
        keys: dict[Host, list[Key]] = {}
        for subscription in self.subscriptions.values():
            if subscription.attached:
                self.connection.consumer_event(self.number, subscription, created=False)
            queue = subscription.queue
            self.broker.counts.declared_bytes -= declared_memory.of_consumer(subscription.arguments)
            queue.subscriptions.pop(subscription.key, None)
            keys.setdefault(queue.host, []).append(subscription.key)
        for host, gone in keys.items():
            # Detach first, so that no returned delivery comes to this consumer again; and detach last, for
            # deliveries that are still in progress from a queue on another node.
            host.pending[:0] = [("detach", key, False) for key in gone]
            host.submit(*[("detach", key, True) for key in gone])
        for getter in self.getters.values():
            getter.queue.host.submit(("detach", getter.key, True))
        self.subscriptions.clear()
        self.consumed.clear()
        self.getters.clear()
        if self.reply_host is not None:
            self.reply_host.close()
            self.broker.replies.remove(self.reply_host)
            self.broker.changed()
            self.reply_host = None
        when_closed, self.when_closed = self.when_closed, _nothing
        when_closed()


def are_many(channels: list[Channel]) -> bool:
    """True if these channels together hold so much that they must be closed in parts."""
    runs = consumers = size = 0
    for channel in channels:
        runs += len(channel.unacked)
        consumers += len(channel.subscriptions)
        transaction = channel.tx
        if transaction is not None:
            runs += transaction.part_count
            size += transaction.published_bytes
    return runs > RETURNED_MAX or consumers > DETACHED_MAX or size > WHOLE_BYTES_MAX


class ChannelsEnd:
    """Closes channels of one connection in several turns.

    It pauses all consumers before it returns any delivery: a delivery of one closing channel must not go to
    another one.
    """

    __slots__ = ("_channels", "_connection", "_turn")

    def __init__(self, turn: Turn, connection: Connection, channels: list[Channel]) -> None:
        self._turn = turn
        self._connection = connection
        #: Channels that are still to be closed, the next one last.
        self._channels = channels

    def begin(self) -> None:
        """Begin in a later turn: other channels of the connection may be closed before the first part is
        done.
        """
        for channel in self._channels:
            channel.leave()
        self._channels.reverse()
        in_later_steps(self._turn, self._close(), self._failed)

    def _close(self) -> Iterator[None]:
        for _ in self._parts():
            self._turn.apply(whole=True)
            yield
        self._turn.apply(whole=True)

    def _parts(self) -> Iterator[None]:
        for channel in reversed(self._channels):
            for _ in channel.pause_in_parts():
                yield
        while self._channels:
            for _ in self._channels[-1].close_in_parts():
                yield
            self._channels.pop().finish()
            yield

    def _failed(self, error: Exception) -> None:
        self._connection.failed(error)
        while self._channels:
            self._channels.pop().finish()


def _nothing() -> None: ...
