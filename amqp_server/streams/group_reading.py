"""What a node reads of the streams of a group in a cluster.

The log of the group says which offsets each consumer was given. The node of a consumer reads these messages
by itself, from its own copy of the stream or from a node that has one, and hands them on in the order of the
log. The node that coordinates the group reads nothing: it watches how far the streams are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from amqp_server.streams.deliver import BatchReader
from amqp_server.streams.headed import Headers, below, offsets_of
from amqp_server.streams.host import BOUNDLESS, StreamConsumer, StreamHost
from amqp_server.streams.start import NEXT, Start
from persistence.streams.log import Wanted
from quorum_queue.boundary import Unit
from quorum_queue.consumer_groups.partition import UNKNOWN
from quorum_queue.host import Key
from quorum_queue.machine.consumers import Consumer

#: Where a reader begins does not matter: it is told where to go on.
_ANYWHERE = Start(offset=0)


class Stream(Protocol):
    """A queue that is a stream; see amqp_server.broker.queue."""

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
        """A stream does not serve now."""

    def overdue(self) -> bool:
        """True if the turn has lasted long enough."""

    def stream(self, stream_id: int) -> Stream | None:
        """Return a stream of the group; None if this node does not know of it."""


class Watcher(Protocol):
    """Who wants to know how far streams are."""

    def began(self, watching: Watching, offset: int) -> None:
        """It is known where the group is to begin in a stream."""

    def grew(self, stream_id: int) -> None:
        """A stream has more messages."""


class Taker:
    """Who takes messages."""

    __slots__ = ("key", "paused", "sent")

    def __init__(self, key: Key = ()) -> None:
        #: Of a consumer or getter, on this node.
        self.key = key
        self.paused = False
        #: By streams: it was sent all of this stream below this id. Streams are read each by itself, not in
        #: the order of ids.
        self.sent: dict[int, int] = {}

    def take(self, due: Due, headers: Headers, reader: BatchReader, count: int) -> None:
        """Take the next messages, and move the reader on."""
        raise NotImplementedError

    def absent(self, due: Due, count: int) -> None:
        """The next messages are gone."""
        raise NotImplementedError

    def nothing_there(self, stream_id: int, low: int, stop: int) -> None:
        """Behind what it was given is nothing either, from `low` up to `stop`."""


class Due:
    """Messages that somebody was given and has not got yet: those from `low` up to `stop`, by ids from
    `first` on.
    """

    __slots__ = ("attempts", "first", "low", "stop", "stream_id", "taker")

    def __init__(self, taker: Taker, stream_id: int, low: int, stop: int, first: int, attempts: int) -> None:
        self.taker = taker
        self.stream_id = stream_id
        self.low = low
        self.stop = stop
        self.first = first
        #: How often they came back.
        self.attempts = attempts


class Attached:
    """What reads, or watches, one stream. See amqp_server.streams.host.Sink."""

    for_group = True
    user = None
    # As a subscription of the stream's queue.
    exclusive = False
    tag = ""

    def __init__(self, host: Host, stream: Stream, kind: str, start: Start) -> None:
        self.host = host
        self.stream = stream
        self.start = start
        self.wanted: Wanted | None = None
        self.key: tuple[Any, ...] = (kind, host.queue_id, stream.queue_id)
        #: The stream has taken it; and has been asked to.
        self.attached = self.attaching = False
        self.closed = False
        #: What the stream hands out next; below zero until it has begun.
        self.position = UNKNOWN

    def attach(self) -> None:
        """Have the stream take it, if it has not."""
        if self.attached or self.attaching or self.closed:
            return
        self.attaching = True
        self.stream.host.attach(Consumer(self.key, sink=self), self._taken)

    def _taken(self, refused: str | None) -> None:
        self.attaching = False
        if self.closed:
            # It is told to go already.
            return
        if refused is None:
            self.attached = True
            self.stream.subscribe(self.key, self)
        else:
            self.host.retry()

    def began(self, offset: int) -> None:
        self.position = offset

    def let_go(self) -> None:
        """See amqp_server.streams.host.Sink. It keeps nothing."""

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
    """Watches how far a stream is, and finds out where a group begins there."""

    def __init__(self, host: Host, watcher: Watcher, stream: Stream, start: Start | None) -> None:
        """`start` is None if it is known where the group is."""
        looked_up = start if start is not None and start.offset is None else NEXT
        super().__init__(host, stream, "group watch", looked_up)
        self._watcher = watcher
        #: Where the group begins, if that is still to be told.
        self._begins: Start | None = start

    def offsets(self) -> range | None:
        """Return which messages there are; None if that is not known yet."""
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
        # It follows the end, and reads nothing on the way there.
        self.stream.host.go_on(self.key, end_of(self.stream.host))
        self._watcher.grew(self.stream.queue_id)

    def deliver_batch(self, consumer: StreamConsumer, reader: BatchReader, count: int, first_id: int) -> None:
        consumer.credit = BOUNDLESS
        reader.skip(reader.left)
        self._watcher.grew(self.stream.queue_id)


def end_of(host: StreamHost) -> int:
    """Return where the next message comes. A node that has no copy of the stream has been told so."""
    return max(host.next_offset, host.end_offset)


class Reading(Attached):
    """Reads what is due, in order."""

    def __init__(self, host: Host, stream: Stream, kind: str) -> None:
        super().__init__(host, stream, kind, _ANYWHERE)
        self.dues: deque[Due] = deque()
        #: It has stopped until it is told to go on.
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
        """Have the stream hand out what is due, if there is somebody to take it."""
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
        """Hand on what is due; the rest stays with the stream's reader."""
        consumer.credit = BOUNDLESS
        while reader.left:
            dues = self.dues
            if not dues or dues[0].taker.paused:
                self._stall(consumer)
                return
            due, offset = dues[0], reader.offset
            if self.position == due.low < offset:
                # What is between is gone.
                self.position = min(offset, due.stop)
                self._pass(self.position)
                if self.position < offset and (not dues or dues[0].low != self.position):
                    # Else it would be given all of that, as much at a time as it may hold: compaction leaves
                    # gaps of any size.
                    due.taker.nothing_there(due.stream_id, self.position, offset)
                continue
            if due.low != offset:
                if offset < due.low < reader.batch.stop:
                    reader.skip_to(due.low)
                    self.position = due.low
                    continue
                # It comes from somewhere else.
                self._stall(consumer)
                self.host.schedule()
                return
            most = min(below(reader, due.stop), self._headers.most(reader))
            count = _unbroken(offsets_of(reader, most))
            self._advance(due, count)
            self.position = offset + count
            # The due is what it was before; whoever takes it may have more come, or less.
            part = Due(due.taker, due.stream_id, offset, offset + count, due.first - count, due.attempts)
            due.taker.take(part, self._headers, reader, count)
            if reader.left and self.host.overdue():
                # The stream goes on with the rest.
                return
        self._headers.forget()

    def _stall(self, consumer: StreamConsumer) -> None:
        consumer.credit = 0
        self.stalled = True

    def _pass(self, offset: int) -> None:
        """Messages of the first due, up to this offset, are gone."""
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
    """What is read of the streams for one purpose, by the ids of the streams."""

    #: For mypyc; see `let_go`.
    __deletable__ = ("_host",)

    def __init__(self, host: Host, kind: str) -> None:
        """`kind` tells the readers of one host apart."""
        self._host = host
        self._kind = kind
        self._by_stream: dict[int, Reading] = {}

    def of(self, stream_id: int) -> Reading | None:
        """Return what reads a stream; None if this node is to hear of it yet, or it is deleted."""
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
        """Return what a consumer was given and has not got yet."""
        return [due for reading in self._by_stream.values() for due in reading.dues if due.taker.key == key]

    def drop(self, unwanted: Callable[[Due], bool]) -> None:
        for reading in self._by_stream.values():
            reading.drop(unwanted)

    def forget(self, stream_id: int) -> None:
        """Nobody holds what was handed out of a stream before."""
        reading = self._by_stream.get(stream_id)
        if reading is not None:
            reading.drop(lambda due: True)

    def close(self) -> None:
        for reading in self._by_stream.values():
            reading.close()
        self._by_stream = {}

    def let_go(self) -> None:
        """The host is closed: they refer to each other."""
        del self._host


def _unbroken(offsets: range | list[int]) -> int:
    """Return how many of these, from the first one on, have none missing between them."""
    if isinstance(offsets, range):
        return len(offsets)
    count = 1
    while count < len(offsets) and offsets[count] == offsets[0] + count:
        count += 1
    return count


__all__ = ["Attached", "Due", "Reading", "Readings", "Stream", "Taker", "Watcher", "Watching", "end_of"]
