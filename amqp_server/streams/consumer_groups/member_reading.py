"""Reading of streams by a node, for a group in a cluster.

The log of the group says which offsets each consumer was given. The consumer's node reads these messages
itself, from its own copy of the stream or from a node that has one, and delivers them in the order of the
log. The node that coordinates the group reads no messages: it only watches the ends of the streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from amqp_server.streams.layout.consumer_start import NEXT, Start
from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.group_headers import Headers, below, offsets_of
from amqp_server.streams.local_host import BOUNDLESS, StreamConsumer, StreamHost
from persistence.streams.log import Wanted
from quorum_queue.boundary import Unit
from quorum_queue.consumer_groups.partition import UNKNOWN
from quorum_queue.host import Key
from quorum_queue.machine.consumers import Consumer

#: The begin of a reader does not matter: `go_on` gives it the next offset.
_ANYWHERE = Start(offset=0)


class Stream(Protocol):
    """A queue that is a stream; see amqp_server.broker.topology.queue."""

    name: str
    queue_id: int
    deleted: bool
    host: Any
    subscriptions: dict[Any, Any]

    def subscribe(self, key: Any, subscription: Any) -> None: ...


class Host(Unit, Protocol):
    """The host of the group."""

    queue_id: int

    def schedule(self) -> None: ...

    def retry(self) -> None:
        """Called when a stream does not serve now: try again later."""

    def overdue(self) -> bool:
        """True if the turn has lasted long enough."""

    def stream(self, stream_id: int) -> Stream | None:
        """Return a stream of the group; None if this node does not know of it."""


class Watcher(Protocol):
    """Follows the ends of streams."""

    def began(self, watching: Watching, offset: int) -> None:
        """Called when the first offset for the group in a stream is known."""

    def grew(self, stream_id: int) -> None:
        """Called when a stream has more messages."""


class Taker:
    """Takes messages: a consumer or a client that gets single messages."""

    __slots__ = ("key", "paused", "sent")

    def __init__(self, key: Key = ()) -> None:
        #: Key of a consumer or getter on this node.
        self.key = key
        self.paused = False
        #: By stream: all messages of the stream below this id were sent to it. Each stream is read
        #: independently, not in the order of ids.
        self.sent: dict[int, int] = {}

    def take(self, due: Due, headers: Headers, reader: BatchReader, count: int) -> None:
        """Take the next messages, and move the reader on."""
        raise NotImplementedError

    def absent(self, due: Due, count: int) -> None:
        """The next messages are deleted."""
        raise NotImplementedError

    def nothing_there(self, stream_id: int, low: int, stop: int) -> None:
        """There are no messages behind the given ones either, from `low` up to `stop`."""


class Due:
    """Messages that a taker was given and has not got yet: offsets from `low` up to `stop`, with ids from
    `first` on.
    """

    __slots__ = ("attempts", "first", "low", "stop", "stream_id", "taker")

    def __init__(self, taker: Taker, stream_id: int, low: int, stop: int, first: int, attempts: int) -> None:
        self.taker = taker
        self.stream_id = stream_id
        self.low = low
        self.stop = stop
        self.first = first
        #: How often these messages came back.
        self.attempts = attempts


class Attached:
    """Reads or watches one stream. See amqp_server.streams.local_host.Sink."""

    for_group = True
    timed = False
    batches = False
    user = None
    # Attributes of a subscription to the stream's queue.
    exclusive = False
    tag = ""

    def __init__(self, host: Host, stream: Stream, kind: str, start: Start) -> None:
        self.host = host
        self.stream = stream
        self.start = start
        self.wanted: Wanted | None = None
        self.key: tuple[Any, ...] = (kind, host.queue_id, stream.queue_id)
        #: True if the stream has accepted it; and if it was asked to.
        self.attached = self.attaching = False
        self.closed = False
        #: The next offset that the stream hands out; below zero until it has begun.
        self.position = UNKNOWN

    def attach(self) -> None:
        """Attach to the stream, if not attached yet."""
        if self.attached or self.attaching or self.closed:
            return
        self.attaching = True
        self.stream.host.attach(Consumer(self.key, sink=self), self._taken)

    def _taken(self, refused: str | None) -> None:
        self.attaching = False
        if self.closed:
            # The stream has been told already that this reader goes.
            return
        if refused is None:
            self.attached = True
            self.stream.subscribe(self.key, self)
        else:
            self.host.retry()

    def passed(self, offset: int) -> None:
        """Does nothing: what one member of the stream lacks, another one may have."""

    def began(self, offset: int) -> None:
        self.position = offset

    def let_go(self) -> None:
        """See amqp_server.streams.local_host.Sink. There is nothing to forget."""

    def deliver_batch(self, consumer: StreamConsumer, reader: BatchReader, count: int, first_id: int) -> None:
        raise NotImplementedError

    def queue_gone(self) -> None:
        """The stream was deleted, or does not serve on this node."""
        self.attached = self.attaching = False
        self.position = UNKNOWN
        self.host.retry()

    def failed(self, error: Exception) -> None:
        self.host.failed(error)

    def close(self) -> None:
        self.closed = True
        self.stream.subscriptions.pop(self.key, None)
        if self.attached or self.attaching:
            self.stream.host.submit(("detach", self.key, True))
        self.attached = self.attaching = False


class Watching(Attached):
    """Watches the end of a stream, and finds the offset at which a group begins there."""

    def __init__(self, host: Host, watcher: Watcher, stream: Stream, start: Start | None) -> None:
        """`start` is None if the group's position is known."""
        looked_up = start if start is not None and start.offset is None else NEXT
        super().__init__(host, stream, "group watch", looked_up)
        self._watcher = watcher
        #: Where the group begins, until that was reported.
        self._begins: Start | None = start

    def offsets(self) -> range | None:
        """Return the offsets of the existing messages; None if they are not known yet."""
        host = self.stream.host
        if self.position < 0 or not isinstance(host, StreamHost):
            return None
        first = host.first_offset
        return range(first, max(first, end_of(host)))

    def began(self, offset: int) -> None:
        self.position = offset
        begins, self._begins = self._begins, None
        if begins is not None:
            self._watcher.began(self, offset if begins.offset is None else begins.offset)
        # It follows the end of the stream, and reads no messages before it.
        self.stream.host.go_on(self.key, end_of(self.stream.host))
        self._watcher.grew(self.stream.queue_id)

    def deliver_batch(self, consumer: StreamConsumer, reader: BatchReader, count: int, first_id: int) -> None:
        consumer.credit = BOUNDLESS
        reader.skip(reader.left)
        self._watcher.grew(self.stream.queue_id)


def end_of(host: StreamHost) -> int:
    """Return the offset of the next message. A node without a copy knows it from a member."""
    return max(host.next_offset, host.end_offset)


class Reading(Attached):
    """Reads the due messages, in order."""

    def __init__(self, host: Host, stream: Stream, kind: str) -> None:
        super().__init__(host, stream, kind, _ANYWHERE)
        self.dues: deque[Due] = deque()
        #: True if the reader has stopped and waits for `go_on`.
        self.stalled = True
        self._headers = Headers(stream.name)

    def began(self, offset: int) -> None:
        self.position = offset
        self.stalled = True
        self.host.schedule()

    def let_go(self) -> None:
        self._headers.forget()

    def queue_gone(self) -> None:
        self._headers.forget()
        super().queue_gone()

    def close(self) -> None:
        self._headers.forget()
        self.dues.clear()
        super().close()

    def drop(self, unwanted: Callable[[Due], bool]) -> None:
        self.dues = deque([each for each in self.dues if not unwanted(each)])

    def go_on(self) -> None:
        """Let the stream hand out the due messages, if the taker is not paused."""
        if not self.dues or self.closed:
            return
        if not self.attached:
            self.attach()
            return
        host = self.stream.host
        if self.position < 0 or not isinstance(host, StreamHost):
            return
        while self.dues and self.dues[0].low < host.first_offset:
            self._pass(min(host.first_offset, self.dues[0].stop))
        if not self.dues or self.dues[0].taker.paused:
            return
        low = self.dues[0].low
        if self.stalled or self.position != low:
            self.stalled = False
            self.position = low
            host.go_on(self.key, low)

    def deliver_batch(self, consumer: StreamConsumer, reader: BatchReader, count: int, first_id: int) -> None:
        """Deliver the due messages; the rest stays with the stream's reader."""
        consumer.credit = BOUNDLESS
        while reader.left:
            dues = self.dues
            if not dues or dues[0].taker.paused:
                self._stall(consumer)
                return
            due, offset = dues[0], reader.offset
            if self.position == due.low < offset:
                # The messages between are deleted.
                self.position = min(offset, due.stop)
                self._pass(self.position)
                if self.position < offset and (not dues or dues[0].low != self.position):
                    # Otherwise the group would hand out the whole gap, piece by piece as the prefetch allows:
                    # compaction leaves gaps of any size.
                    due.taker.nothing_there(due.stream_id, self.position, offset)
                continue
            if due.low != offset:
                if offset < due.low < reader.batch.stop:
                    reader.skip_to(due.low)
                    self.position = due.low
                    continue
                # The reader is at another offset.
                self._stall(consumer)
                self.host.schedule()
                return
            most = min(below(reader, due.stop), self._headers.most(reader))
            count = _unbroken(offsets_of(reader, most))
            self._advance(due, count)
            self.position = offset + count
            # The part that is taken is a separate object: the taker may add dues or drop some.
            part = Due(due.taker, due.stream_id, offset, offset + count, due.first - count, due.attempts)
            due.taker.take(part, self._headers, reader, count)
            if reader.left and self.host.overdue():
                # The stream continues with the rest later.
                return
        self._headers.forget()

    def _stall(self, consumer: StreamConsumer) -> None:
        consumer.credit = 0
        self.stalled = True

    def _pass(self, offset: int) -> None:
        """Messages of the first due, up to this offset, are deleted."""
        due = self.dues[0]
        count = offset - due.low
        part = Due(due.taker, due.stream_id, due.low, offset, due.first, due.attempts)
        self._advance(due, count)
        part.taker.absent(part, count)

    def _advance(self, due: Due, count: int) -> None:
        due.low += count
        due.first += count
        if due.low >= due.stop:
            self.dues.popleft()


class Readings:
    """The readers of the streams for one purpose, by the ids of the streams."""

    #: For mypyc; see `let_go`.
    __deletable__ = ("_host",)

    def __init__(self, host: Host, kind: str) -> None:
        """`kind` distinguishes the readers of one host."""
        self._host = host
        self._kind = kind
        self._by_stream: dict[int, Reading] = {}

    def of(self, stream_id: int) -> Reading | None:
        """Return the reader of a stream; None if the stream is not known here yet, or if it is deleted."""
        found = self._by_stream.get(stream_id)
        if found is None:
            stream = self._host.stream(stream_id)
            if stream is None:
                return None
            found = self._by_stream[stream_id] = Reading(self._host, stream, self._kind)
        return found

    def go_on(self) -> None:
        for stream_id, reading in list(self._by_stream.items()):
            if reading.stream.deleted:
                reading.close()
                del self._by_stream[stream_id]
                continue
            reading.go_on()

    def dues(self, key: Key) -> list[Due]:
        """Return the messages that a consumer was given and has not got yet."""
        return [due for reading in self._by_stream.values() for due in reading.dues if due.taker.key == key]

    def drop(self, unwanted: Callable[[Due], bool]) -> None:
        for reading in self._by_stream.values():
            reading.drop(unwanted)

    def forget(self, stream_id: int) -> None:
        """Messages of a stream that were handed out before count as held by no consumer."""
        reading = self._by_stream.get(stream_id)
        if reading is not None:
            reading.drop(lambda due: True)

    def close(self) -> None:
        for reading in self._by_stream.values():
            reading.close()
        self._by_stream = {}

    def let_go(self) -> None:
        """Drop the reference to the closed host, to break the reference cycle."""
        del self._host


def _unbroken(offsets: range | list[int]) -> int:
    """Return how many of these offsets, from the first one on, follow each other without a gap."""
    if isinstance(offsets, range):
        return len(offsets)
    count = 1
    while count < len(offsets) and offsets[count] == offsets[0] + count:
        count += 1
    return count


__all__ = ["Attached", "Due", "Reading", "Readings", "Stream", "Taker", "Watcher", "Watching", "end_of"]
