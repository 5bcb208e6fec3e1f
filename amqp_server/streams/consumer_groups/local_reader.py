"""The readers of a group on one node: one for each stream, which stays while members come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.streams.consumer_groups.member_reading import Stream
from amqp_server.streams.layout.consumer_start import Start
from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.group_headers import Headers, below, offsets_of
from amqp_server.streams.local_host import BOUNDLESS, StreamConsumer, StreamHost
from persistence.streams.batch import Batch
from persistence.streams.log import Wanted
from quorum_queue.consumer_groups.group import Key, Member
from quorum_queue.consumer_groups.partition import ENDLESS, UNKNOWN, Partition, Span

if TYPE_CHECKING:
    from amqp_server.streams.consumer_groups.local_host import ConsumerGroupHost


class Reader:
    """Reads one partition for the group. See amqp_server.streams.local_host.Sink."""

    for_group = True
    timed = False
    batches = False
    user = None
    # Attributes of a subscription to the stream's queue.
    exclusive = False
    tag = ""

    def __init__(self, host: ConsumerGroupHost, partition: Partition, stream: Stream, start: Start) -> None:
        self._host = host
        self.partition = partition
        self.stream = stream
        self.start = start
        self.wanted: Wanted | None = None
        self.key: Key = ("group", host.queue_id, stream.queue_id)
        #: True if the stream has accepted this reader; and if it was asked to.
        self.attached = self.attaching = False
        self.closed = False
        #: The next offset that the stream hands out; below zero until it is known.
        self.position = UNKNOWN
        #: True if the reader has stopped and waits for `go_on`.
        self.stalled = True
        #: True while a client gets a single message of the partition.
        self.getting = False
        self._headers = Headers(stream.name)

    @property
    def unread(self) -> int:
        """Number of messages of the partition that are still to be handed out."""
        host = self.stream.host
        if not isinstance(host, StreamHost):
            return 0
        return self.partition.unread(host.first_offset, host.end_offset)

    def began(self, offset: int) -> None:
        self.position = offset
        self.stalled = True
        self._host.began(self, offset)

    def passed(self, offset: int) -> None:
        if 0 <= self.position < offset:
            if self.partition.passed(self.position, offset):
                self._host.group.changed[self.partition] = None
            self.position = offset
            self._host.schedule()

    def let_go(self) -> None:
        self._headers.forget()

    def queue_gone(self) -> None:
        """The stream was deleted, or has failed on this node."""
        self.attached = self.attaching = False
        self.position = UNKNOWN
        self._headers.forget()
        self._host.lost(self)

    def failed(self, error: Exception) -> None:
        self._host.failed(error)

    def close(self) -> None:
        stream = self.stream
        self.closed = True
        stream.subscriptions.pop(self.key, None)
        if self.attached or self.attaching:
            stream.host.submit(("detach", self.key, True))
        self.attached = self.attaching = False
        self._headers.forget()

    def go_on(self) -> None:
        """Let the stream hand out the next wanted messages."""
        wanted = self.partition.upcoming().low
        if self.stalled or self.position != wanted:
            self.stalled = False
            self.position = wanted
            self.stream.host.go_on(self.key, wanted)

    def deliver_batch(self, consumer: StreamConsumer, reader: BatchReader, count: int, first_id: int) -> None:
        """Hand the partition's member the messages that it may have; the stream's reader keeps the rest."""
        host, partition = self._host, self.partition
        group = host.group
        member = None if self.getting else partition.active()
        consumer.credit = BOUNDLESS
        while reader.left:
            if member is None or member.room() <= 0 or partition.is_full(host.options.spans_max):
                self._stall(consumer)
                return
            offset = reader.offset
            if self.position < offset:
                if partition.passed(self.position, offset):
                    group.changed[partition] = None
                self.position = offset
            span = partition.upcoming()
            if not span.low <= offset < span.stop:
                if offset < span.low < reader.batch.stop:
                    reader.skip_to(span.low)
                    self.position = reader.offset
                    continue
                # The reader is at another offset.
                self._stall(consumer)
                group.freed[partition] = None
                host.schedule()
                return
            self._hand(member, reader, span)
            if reader.left and host.overdue():
                # The stream continues with the rest later.
                return
        self._headers.forget()

    def _stall(self, consumer: StreamConsumer) -> None:
        consumer.credit = 0
        self.stalled = True

    def _hand(self, member: Member, reader: BatchReader, span: Span) -> None:
        host, partition = self._host, self.partition
        count = min(below(reader, span.stop), member.room(), self._headers.most(reader))
        offsets = offsets_of(reader, count)
        again = span.stop != ENDLESS
        part: Batch | None = None
        if again:
            part = reader.cut(count, redelivered=True)
        else:
            source = self._headers.reader(reader)
            reader.skip(count)
        stop = min(reader.offset, span.stop)
        first = host.hand(partition, member, offsets, stop, span.attempts)
        self.position = reader.offset
        if part is not None:
            source = BatchReader(self.dressed(part, span.attempts))
        # The member's least recently served partition comes next.
        member.owned.pop(partition, None)
        member.owned[partition] = None
        host.deliver(member, source, count, first, again=again)

    def dressed(self, batch: Batch, attempts: int) -> Batch:
        """Return the message with the group's headers."""
        return self._headers.batch(batch, attempts)


__all__ = ["Reader"]
