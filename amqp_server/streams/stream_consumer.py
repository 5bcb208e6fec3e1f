"""One consumer of a stream, its position, and the batches that were read ahead for it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from amqp_server.streams.layout.consumer_start import Start
from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.group_headers import Headers
from amqp_server.streams.layout.named_offsets import Progress
from persistence.streams.batch import Batch
from persistence.streams.log import SegmentPlace, Wanted
from quorum_queue.host import Key

if TYPE_CHECKING:
    from amqp_server.streams.services import StreamServices


class Sink(Protocol):
    """See amqp_server.channel.subscription."""

    start: Start
    wanted: Wanted | None
    #: True if it gets the time of each message in a header.
    timed: bool
    #: True if it gets batches as they are stored, each as one delivery.
    batches: bool
    #: True if it reads for a group: it does not count as a consumer, limits its deliveries itself, and
    #: `began` is called with its first offset.
    for_group: bool

    @property
    def user(self) -> str | None:
        """The user of the client; None if it serves several clients."""

    def deliver_batch(self, consumer: StreamConsumer, reader: BatchReader, count: int, first_id: int) -> None:
        """Send the next messages of the reader; pause the consumer if the client's outbox is full."""

    def began(self, offset: int) -> None: ...

    def passed(self, offset: int) -> None:
        """There are no messages from the next one up to this offset: they are lost, or deleted. For readers
        of groups.
        """

    def let_go(self) -> None:
        """Forget the messages that were read, because others need the memory; for readers of groups."""

    def failed(self, error: Exception) -> None: ...


class StreamConsumer:
    """One consumer and its position."""

    __slots__ = (
        "_services",
        "ahead",
        "batches",
        "credit",
        "detached",
        "for_group",
        "headers",
        "held_bytes",
        "key",
        "next_id",
        "next_offset",
        "paused",
        "place",
        "prefetch",
        "progress",
        "reader",
        "reading",
        "reads",
        "sink",
        "wanted",
    )

    def __init__(
        self, services: StreamServices, key: Key, sink: Sink, prefetch: int, *, paused: bool
    ) -> None:
        self._services = services
        self.key = key
        self.sink = sink
        self.prefetch = prefetch
        self.wanted = sink.wanted
        self.batches = sink.batches
        self.for_group = sink.for_group
        #: Adds headers to its messages; None for nearly all consumers.
        self.headers = Headers(timed=True) if sink.timed else None
        #: Number of messages that it may get now.
        self.credit = prefetch
        self.paused = paused
        self.detached = False
        self.next_id = 0
        #: The offset that it gets next; below zero until it is known.
        self.next_offset = -1
        #: The current batch, the batches that were read ahead, and where the next read continues.
        self.reader: BatchReader | None = None
        self.ahead: deque[Batch] = deque()
        self.place: SegmentPlace | None = None
        self.reading = False
        #: Increased when the result of the current read is no longer wanted.
        self.reads = 0
        #: Bytes of batches that were read for it.
        self.held_bytes = 0
        #: Acks of a consumer with a name.
        self.progress: Progress | None = None

    def let_go(self) -> None:
        """Forget the batches that were read; they are read again when needed."""
        self.reader = None
        if self.headers is not None:
            self.headers.forget()
        self.ahead.clear()
        self.place = None
        self.reads += 1
        if self.detached:
            self._services.memory.unsent.forget(self, self.sink.user)
        if self.for_group:
            self.sink.let_go()
        self._services.count_held(self, -self.held_bytes)
