"""One consumer of a stream, its place, and what was read ahead for it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from amqp_server.streams.deliver import BatchReader
from amqp_server.streams.named import Progress
from amqp_server.streams.start import Start
from persistence.streams.batch import Batch
from persistence.streams.log import Place, Wanted
from quorum_queue.host import Key

if TYPE_CHECKING:
    from amqp_server.streams.services import StreamServices


class Sink(Protocol):
    """See amqp_server.channel.subscription."""

    start: Start
    wanted: Wanted | None
    #: It reads for a group: nobody counts it as a consumer, it says itself how much it may have, and `began`
    #: is told where it begins.
    for_group: bool

    @property
    def user(self) -> str | None:
        """Whose client it is; None: that of many."""

    def deliver_batch(self, consumer: StreamConsumer, reader: BatchReader, count: int, first_id: int) -> None:
        """Send the next messages of the reader; pause the consumer if the way to the client is full."""

    def began(self, offset: int) -> None: ...

    def let_go(self) -> None:
        """What was read is forgotten, because others need the memory: for one that reads for a group."""

    def failed(self, error: Exception) -> None: ...


class StreamConsumer:
    """One consumer and its place."""

    __slots__ = (
        "_services",
        "ahead",
        "credit",
        "detached",
        "for_group",
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
        self.for_group = sink.for_group
        #: Messages that it may have now.
        self.credit = prefetch
        self.paused = paused
        self.detached = False
        self.next_id = 0
        #: What it gets next, as soon as that is known.
        self.next_offset = -1
        #: The batch that it is in, those that were read ahead, and where the next read goes on.
        self.reader: BatchReader | None = None
        self.ahead: deque[Batch] = deque()
        self.place: Place | None = None
        self.reading = False
        #: Counts up where what is being read is not wanted any more.
        self.reads = 0
        #: Bytes of batches that it has read.
        self.held_bytes = 0
        #: Of one with a name: what it has acked.
        self.progress: Progress | None = None

    def let_go(self) -> None:
        """Forget what was read; it is read again when it is wanted."""
        self.reader = None
        self.ahead.clear()
        self.place = None
        self.reads += 1
        if self.detached:
            self._services.memory.unsent.forget(self, self.sink.user)
        if self.for_group:
            self.sink.let_go()
        self._services.count_held(self, -self.held_bytes)
