"""The reader of a group that one node has by itself: one in each stream, which stays while members come and
go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.streams.deliver import BatchReader
from amqp_server.streams.group_reading import Stream
from amqp_server.streams.headed import Headers, below, offsets_of
from amqp_server.streams.host import BOUNDLESS, StreamConsumer, StreamHost
from amqp_server.streams.start import Start
from persistence.streams.batch import Batch
from persistence.streams.log import Wanted
from quorum_queue.consumer_groups.group import Key, Member
from quorum_queue.consumer_groups.partition import ENDLESS, UNKNOWN, Partition, Span

if TYPE_CHECKING:
    from amqp_server.streams.consumer_group import ConsumerGroupHost


class Reader:
    """Reads one partition for the group. See amqp_server.streams.host.Sink."""

    for_group = True
    user = None
    # As a subscription of the stream's queue.
    exclusive = False
    tag = ""

    def __init__(self, host: ConsumerGroupHost, partition: Partition, stream: Stream, start: Start) -> None:
        self._host = host
        self.partition = partition
        self.stream = stream
        self.start = start
        self.wanted: Wanted | None = None
        self.key: Key = ("group", host.queue_id, stream.queue_id)
        #: The stream has taken it; and has been asked to.
        self.attached = self.attaching = False
        self.closed = False
        #: What the stream hands out next; below zero until that is known.
        self.position = UNKNOWN
        #: It has stopped until it is told to go on.
        self.stalled = True
        #: Somebody gets a single message of the partition.
        self.getting = False
        self._headers = Headers(stream.name)

    @property
    def unread(self) -> int:
        """How many messages of the partition are to be handed out."""
        host = self.stream.host
        if not isinstance(host, StreamHost):
            return 0
        return self.partition.unread(host.first_offset, host.end_offset)

    def began(self, offset: int) -> None:
        self.position = offset
        self.stalled = True
        self._host.began(self, offset)

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
        """Have the stream hand out what is wanted next."""
        wanted = self.partition.upcoming().low
        if self.stalled or self.position != wanted:
            self.stalled = False
            self.position = wanted
            self.stream.host.go_on(self.key, wanted)

    def deliver_batch(self, consumer: StreamConsumer, reader: BatchReader, count: int, first_id: int) -> None:
        """Hand on what the member with the partition may have. The rest stays with the stream's reader."""
        host, partition = self._host, self.partition
        group = host.group
        member = None if self.getting else partition.active()
        consumer.credit = BOUNDLESS
        while reader.left:
            if member is None or member.room() <= 0 or partition.span_count > host.options.spans_max:
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
                # It comes from somewhere else.
                self._stall(consumer)
                group.freed[partition] = None
                host.schedule()
                return
            self._hand(member, reader, span)
            if reader.left and host.overdue():
                # The stream goes on with the rest.
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
        # The next one is that which was served longest ago.
        member.owned.pop(partition, None)
        member.owned[partition] = None
        host.deliver(member, source, count, first, again=again)

    def dressed(self, batch: Batch, attempts: int) -> Batch:
        """Return a message as members get it."""
        return self._headers.batch(batch, attempts)


__all__ = ["Reader"]
