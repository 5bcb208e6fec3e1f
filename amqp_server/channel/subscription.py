"""A consumer as its channel sees it: turns the machine's deliveries into frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp_server.broker.topology.queue import Queue
from amqp_server.channel.tracing import trace_frames, trace_run
from amqp_server.streams.consumer_groups.member_reading import Taker
from amqp_server.streams.layout.consumer_start import NEXT, Start
from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.local_host import StreamConsumer
from amqp_server.wire.added_fields import with_fields
from amqp_server.wire.deliver import LARGE_BYTES, DeliverTemplate
from persistence.streams.log import Wanted
from quorum_queue.consumer_groups.group import Member
from quorum_queue.machine.run import Run
from quorum_queue.ports import Got

if TYPE_CHECKING:
    from amqp_server.channel.channel import Channel


class Subscription:
    """One `basic.consume`."""

    #: See amqp_server.streams.local_host.Sink.
    for_group = False

    __slots__ = (
        "arguments",
        "attached",
        "batches",
        "channel",
        "exclusive",
        "key",
        "left",
        "no_ack",
        "prefetch",
        "queue",
        "revoked",
        "start",
        "tag",
        "template",
        "timed",
        "timed_out",
        "timeout_own_ms",
        "traffic",
        "unacked",
        "wanted",
    )

    def __init__(
        self, channel: Channel, tag: str, queue: Queue, *, no_ack: bool, exclusive: bool, prefetch: int
    ) -> None:
        self.channel = channel
        self.tag = tag
        self.queue = queue
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch
        self.traffic = queue.counted()
        #: Text of the refusal if the client may not consume any more; then it gets no further message.
        self.revoked = ""
        #: True if the queue has accepted the consumer and the client has consume-ok.
        self.attached = False
        #: Deliveries that the client holds; and whether they count in the channel's window although the queue
        #: does not know them any more.
        self.unacked = 0
        self.left = False
        self.arguments: dict[str, object] = {}
        #: Its own limit of time without an ack, and whether it has passed.
        self.timeout_own_ms: int | None = None
        self.timed_out = False
        #: Where a stream's consumer begins, its filter, and whether it gets the time of each message, or
        #: batches as they are stored.
        self.start: Start = NEXT
        self.wanted: Wanted | None = None
        self.timed = self.batches = False
        # A consumer tag may be used again while deliveries of its last use are unacked. The next delivery tag
        # makes the key unique: those deliveries have increased it.
        self.key = (channel.connection.number, channel.number, tag, channel.next_tag)
        self.template = DeliverTemplate(channel.number, tag, channel.connection.limits.frame_max)

    @property
    def user(self) -> str:
        return self.channel.connection.client.username

    @property
    def access(self) -> str:
        """The key of the client's permissions."""
        return self.channel.connection.client.access

    @property
    def timeout_ms(self) -> int | None:
        """How long it may hold a delivery without an ack before it is cancelled, 0 for ever; None: the
        timeout of channels counts.
        """
        kind = self.queue.type
        if kind.is_group or self.timed_out:
            # Groups have a timeout of their own.
            return 0
        if kind.is_stream:
            return None
        if self.timeout_own_ms is not None:
            return self.timeout_own_ms
        declared = self.queue.effective.consumer_timeout_ms
        if declared is not None or not kind.strict:
            return declared
        return self.channel.broker.config.consumer_timeout_ms

    @property
    def gave_back(self) -> bool:
        """True if what it holds has gone back to its queue, or is about to."""
        return self.timed_out or (self.revoked != "" and self.queue.type.is_group)

    def deliver(self, consumer: Any, run: Run, first_id: int) -> None:
        """Tag the run, note it as unacked, and send it. See quorum_queue.ports.Sink."""
        channel = self.channel
        if channel.closed:
            return
        count = len(run.seqs)
        tag = channel.next_tag
        channel.next_tag = tag + count
        if self.no_ack:
            channel.traffic.deliver_no_ack += count
            self.traffic.deliver_no_ack += count
        else:
            channel.unacked.add(tag, count, self, first_id)
            self.unacked += count
            channel.traffic.deliver += count
            self.traffic.deliver += count
        if run.redelivered:
            channel.traffic.redeliver += count
            self.traffic.redeliver += count
        if (run.attempts or run.acquired) and self.queue.type.counts_deliveries:
            count_deliveries(run)
        if channel.vhost.tracing:
            channel.broker.firehose.copy(channel.connection, trace_run(channel, self.queue.name, run))
        outbox = channel.connection.outbox
        if run.size >= LARGE_BYTES * count:
            for part in self.template.parts(tag, run):
                outbox.put(part)
        else:
            outbox.put(self.template.encode(tag, run))
        if outbox.size > outbox.high_bytes:
            channel.connection.pause()

    def deliver_batch(
        self,
        consumer: StreamConsumer | Member | Taker,
        reader: BatchReader,
        count: int,
        first_id: int,
        again: bool = False,
    ) -> None:
        """Like `deliver`, for messages of a stream. See amqp_server.streams.local_host.Sink."""
        channel = self.channel
        if channel.closed or self.revoked:
            # Messages of a revoked consumer return when its queue hears of it.
            return
        tag = channel.next_tag
        channel.next_tag = tag + count
        if self.no_ack:
            channel.traffic.deliver_no_ack += count
            self.traffic.deliver_no_ack += count
        else:
            channel.unacked.add(tag, count, self, first_id)
            self.unacked += count
            channel.traffic.deliver += count
            self.traffic.deliver += count
        if again:
            channel.traffic.redeliver += count
            self.traffic.redeliver += count
        outbox = channel.connection.outbox
        parts: list[bytes | memoryview] = []
        reader.take(count, self.template, tag, parts)
        if channel.vhost.tracing:
            copies = trace_frames(channel, self.queue.name, b"".join(parts))
            channel.broker.firehose.copy(channel.connection, copies)
        for part in parts:
            outbox.put(part)
        if outbox.size > outbox.high_bytes:
            channel.connection.pause()
        if channel.connection.paused:
            consumer.paused = True

    def began(self, offset: int) -> None:
        """Does nothing: the client does not need the first offset."""

    def passed(self, offset: int) -> None:
        """Does nothing: the next message tells its offset."""

    def let_go(self) -> None:
        """Does nothing: it holds no messages that were read ahead."""

    def queue_gone(self) -> None:
        """The queue was deleted: tell the client, if it supports that."""
        channel = self.channel
        known = channel.drop(self)
        # The consumer's share of the channel's window is free.
        channel.window.offer()
        # A client that still waits for consume-ok gets an error instead; a client that closes the channel
        # expects no more frames.
        if (
            known
            and self.attached
            and not channel.leaving
            and channel.connection.client.can("consumer_cancel_notify")
        ):
            channel.cancelled_by_broker(self)

    def left_behind(self) -> None:
        """See quorum_queue.ports.Sink. As in RabbitMQ, a delivery counts until it is acked, even if its queue
        is gone.
        """
        if not self.left:
            self.left = True
            self.channel.window.use(self.unacked)

    def failed(self, error: Exception) -> None:
        """A delivery could not be encoded as frames. See quorum_queue.ports.Sink."""
        self.channel.connection.failed(error)


class Getter:
    """Holds the deliveries of `basic.get` on one queue of a channel, or what was picked out of it."""

    #: As of a subscription.
    gave_back = False

    __slots__ = ("channel", "checked", "key", "left", "no_ack", "queue", "traffic", "unacked")

    def __init__(self, channel: Channel, queue: Queue, *, no_ack: bool, picks: bool = False) -> None:
        self.channel = channel
        #: Generation of the topology and the permissions at the last check of a group's streams.
        self.checked = -1
        #: Messages that were got do not count in the channel's window.
        self.unacked = 0
        self.left = False
        self.queue = queue
        self.no_ack = no_ack
        self.traffic = queue.counted()
        #: No consumer has an empty tag.
        tag = "" if picks else None
        self.key = (channel.connection.number, channel.number, tag, no_ack)

    @property
    def timeout_ms(self) -> int | None:
        """As of a subscription."""
        return 0 if self.queue.type.is_group else None

    def deliver(self, consumer: Any, run: Run, first_id: int) -> None:
        """The client of this get is gone. The message is requeued when the channel closes."""

    def left_behind(self) -> None: ...

    def failed(self, error: Exception) -> None:
        self.channel.connection.failed(error)

    def take(self, got: Got) -> int:
        """Tag a message that was got, and note it as unacked; return the tag."""
        channel, run = self.channel, got.run
        tag = channel.next_tag
        channel.next_tag = tag + 1
        if self.no_ack:
            channel.traffic.get_no_ack += 1
            self.traffic.get_no_ack += 1
        else:
            channel.unacked.add(tag, 1, self, got.first_id)
            channel.traffic.get += 1
            self.traffic.get += 1
        if run.redelivered:
            channel.traffic.redeliver += 1
            self.traffic.redeliver += 1
        if (run.attempts or run.acquired) and self.queue.type.counts_deliveries:
            count_deliveries(run)
        if channel.vhost.tracing:
            channel.broker.firehose.copy(channel.connection, trace_run(channel, self.queue.name, run))
        return tag


def count_deliveries(run: Run) -> None:
    """Add the headers that quorum queues give to messages that were delivered before: how many deliveries
    failed, and how often the message came back.
    """
    assert run.contents is not None
    run.contents = with_fields(
        run.contents,
        {
            name: b"l" + count.to_bytes(8, "big")
            for name, count in ((b"x-acquired-count", run.acquired), (b"x-delivery-count", run.attempts))
            if count
        },
    )
