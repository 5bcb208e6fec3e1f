"""The consumers of a stream on this node: the available offsets, where consumers begin, and their deliveries.

They get messages that are not in segments yet from memory. For consumers that are behind, threads read
segments, each at the consumer's own position.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

from outcome import Error, Outcome

from amqp_server.streams.layout.consumer_start import Start
from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.encode import Encoded
from amqp_server.streams.layout.group_headers import PIECE, SHAPES_MAX, below, offsets_of
from amqp_server.streams.layout.named_offsets import Progress
from amqp_server.streams.layout.stored_delivery import StoredReader
from amqp_server.streams.services import StreamServices
from amqp_server.streams.stream_consumer import StreamConsumer
from amqp_server.streams.tiers.tier import Tier
from persistence.streams.batch import Batch, StoredBatch, stored_of
from persistence.streams.log import Lost, Read, StreamLog, Wanted
from persistence.streams.remote.objects import Unavailable
from persistence.streams.remote.reading import TieredReader
from persistence.streams.remote.table import table_directory
from persistence.streams.segment import SegmentPlace
from quorum_queue.host import Key, QueueHost
from quorum_queue.ports import ConsumerState, Hosted, Refused
from quorum_queue.unsent_bytes import LARGE_BYTES

logger = logging.getLogger("mqd.streams")

#: Credit of consumers that limit their deliveries themselves.
BOUNDLESS = 1 << 40
#: Stands for an offset in the remote, which does not answer.
AWAY = -2


class _Serving:
    """Serves the consumers of a stream for which a turn had no time. See amqp_server.turn.Unit.

    A separate unit, because the host itself may be queued for its commands, with another call.
    """

    __slots__ = ("_host",)

    def __init__(self, host: StreamReaders) -> None:
        self._host = host

    def go_on(self) -> None:
        self._host.left_out = None
        self._host.serve_some()

    def failed(self, error: Exception) -> None:
        self._host.failed(error)


class StreamReaders(QueueHost):
    """The part of a stream's host that serves consumers. See StreamHost."""

    def __init__(self, queue: Hosted, services: StreamServices, log: StreamLog) -> None:
        super().__init__(queue, services.turn)
        self._services = services
        self._log = log
        #: What is in an object store; None if nothing ever was.
        self.tier: Tier | None = None
        #: Batches that are not in a segment yet, in order.
        self._tail: list[Encoded] = []
        self._tail_bytes = 0
        #: The offset of the next published message, and the offset up to which all messages are synced.
        self.next_offset = self._synced = 0
        self._consumers: dict[Key, StreamConsumer] = {}
        #: Number of consumers that read for groups.
        self._group_count = 0
        #: Consumers that may get more messages.
        self._to_serve: dict[StreamConsumer, None] = {}
        #: Continues with the consumers for which a turn had no time, while there are any.
        self.left_out: _Serving | None = None
        #: Acks of consumers with a name, including cancelled ones that may still ack.
        self._progress: dict[Key, Progress] = {}
        #: Number of messages that the disk has damaged, by the first offset of each range.
        self._lost: dict[int, int] = {}

    def _keep(self, key: Key, progress: Progress) -> None:
        """Store the offset at which a name continues."""
        raise NotImplementedError

    @property
    def stream_title(self) -> str:
        return f"stream '{self.queue.name}' in vhost '{self.queue.vhost.name}'"

    @property
    def stream_name(self) -> tuple[str, str]:
        return self.queue.vhost.name, self.queue.name

    def _note_lost(self, lost: Lost) -> None:
        if lost.low not in self._lost and lost.stop > lost.low:
            self._lost[lost.low] = lost.stop - lost.low
            logger.error(
                "stream '%s' in vhost '%s' lost messages %d to %d: %s",
                *(self.queue.name, self.queue.vhost.name, lost.low, lost.stop - 1, lost.why),
            )

    # -- what it holds ---------------------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """The offset of the oldest message, or of the next one if the stream is empty."""
        if self.tier is not None and self.tier.ranges:
            return min(self.tier.ranges[0].first, self.local_first_offset)
        return self.local_first_offset

    @property
    def segment_reader(self) -> StreamLog | TieredReader:
        """What reads the segments on this disk, and those in the remote."""
        return self._log if self.tier is None or self.tier.reader is None else self.tier.reader

    def _read_segments(
        self,
        offset: int,
        place: SegmentPlace | None,
        wanted: Wanted | None,
        done: Callable[[Outcome[Read]], None],
        *,
        undecoded: bool = False,
    ) -> None:
        """Let a thread read batches, on this disk or in the remote; see SegmentReader.read."""
        if self.tier is not None and self.tier.reader is not None:
            self.tier.read(offset, place, wanted, undecoded, done)
        else:
            self._services.store.read(
                partial(self._log.read, offset, place, wanted, undecoded=undecoded), done
            )

    def is_remote(self, offset: int) -> bool:
        """Return whether the remote has the message of this offset, and the disk has not."""
        return self.tier is not None and self.tier.is_remote(offset)

    @property
    def local_first_offset(self) -> int:
        """The offset of the oldest message on this node, or of the next one if there is none."""
        segments = self._log.segments
        if segments and segments[0].size:
            return segments[0].base
        return self._tail[0].batch.base if self._tail else self.next_offset

    def offsets(self, done: Callable[[range | None], None]) -> None:
        """Call `done` with the offsets that a consumer can have now; None if they are not known here."""
        first = self.first_offset
        done(range(first, max(first, self._synced)))

    @property
    def first_ms(self) -> int | None:
        """The time of the oldest message."""
        segments = self._log.segments
        if self.tier is not None and self.tier.away:
            return self.tier.ranges[0].first_ms
        if segments and segments[0].size:
            return segments[0].first_ms
        return self._tail[0].batch.time_ms if self._tail else None

    @property
    def segment_count(self) -> int:
        return len(self._log.segments) + self.away_count

    @property
    def away_count(self) -> int:
        """Number of segments of which only the remote has all messages."""
        return 0 if self.tier is None else len(self.tier.away)

    def tier_figures(self) -> tuple[int, int, int]:
        """Return the first offset on this disk, and the number and bytes of the objects in the remote."""
        manifest = None if self.tier is None else self.tier.manifest
        if manifest is None:
            return self.local_first_offset, 0, 0
        return self.local_first_offset, len(manifest.ranges), manifest.size

    def table_figures(self) -> tuple[str | None, int | None]:
        """Return what the keys of the table's files begin with, and the offset before which the table has all
        messages, if this node writes it; None without a table.
        """
        tier = self.tier
        if tier is None or tier.table_format is None:
            return None, None
        next_offset = None if tier.table_manifest is None else tier.table.next_offset
        return table_directory(*self.stream_name), None if next_offset is None else max(next_offset, 0)

    @property
    def lost_count(self) -> int:
        """Number of damaged messages that reads have found so far."""
        return sum(self._lost.values())

    @property
    def ready_count(self) -> int:
        return self.next_offset - self.first_offset

    @property
    def ready_bytes(self) -> int:
        away = 0 if self.tier is None else sum([each.size for each in self.tier.away])
        return self._log.size + self._tail_bytes + away

    @property
    def unacked_count(self) -> int:
        """Always 0: unacked messages stay in the stream and are counted there."""
        return 0

    @property
    def unacked_bytes(self) -> int:
        return 0

    @property
    def consumer_count(self) -> int:
        return len(self._consumers) - self._group_count

    @property
    def end_offset(self) -> int:
        """The offset of the next message that consumers cannot have yet."""
        return self._synced

    @property
    def resident_bytes(self) -> int:
        return self._tail_bytes + sum([each.held_bytes for each in self._consumers.values()])

    def consumers(self) -> list[ConsumerState]:
        return [
            ConsumerState(each.key, False, False, each.prefetch, 0, True)
            for each in self._consumers.values()
            if not each.for_group
        ]

    def offset_of(self, key: Key) -> int | None:
        """Return the offset that a consumer gets next; None if that is not known yet."""
        consumer = self._consumers.get(key)
        return None if consumer is None or consumer.next_offset < 0 else consumer.next_offset

    # -- readers ---------------------------------------------------------------------------------------------

    def _detach(self, key: Key) -> None:
        consumer = self._consumers.pop(key, None)
        if consumer is not None:
            consumer.detached = True
            consumer.let_go()
            self._group_count -= consumer.for_group
            self.queue.consumer_gone(self.consumer_count)

    def place_of(self, start: Start, found: Callable[[int | Refused], None]) -> None:
        """Find the offset of the stream that `start` means; the end of the stream stands for all offsets
        behind it.
        """

        def looked_up(offset: int) -> None:
            if offset < 0:
                found(Refused("it could not be read"))
            else:
                found(min(max(offset, self.first_offset), self.end_offset))

        self.look_up(start, looked_up)

    def _begin(self, consumer: StreamConsumer, start: Start) -> None:
        """Find the offset at which the consumer begins."""
        consumer.reading = True

        def found(offset: int) -> None:
            consumer.reading = False
            if self.ended or consumer.detached:
                return
            if offset >= 0:
                self._begins(consumer, offset)
            elif offset == AWAY:
                self._cannot_read(consumer, "the remote does not answer")

        self.look_up(start, found)

    def look_up(self, start: Start, found: Callable[[int], None]) -> None:
        """Find the offset that `start` means; a thread searches the segments. Below zero: the stream has
        failed, or AWAY.
        """
        if start.offset is not None:
            found(start.offset)
        elif start.name == "first":
            found(0)
        elif start.name == "last":
            synced = [each.batch.base for each in self._tail if each.batch.stop <= self._synced]
            if synced:
                found(synced[-1])
            else:
                self._look_up(self.segment_reader.last, found)
        elif start.name == "next":
            found(self._synced)
        else:
            self._look_up_time(self._time_of(start), found)

    def _time_of(self, start: Start) -> int:
        """Return the time by the clock of the messages, close to wall time; see quorum_queue.clock."""
        if start.time_ms is not None:
            return start.time_ms
        assert start.ago_ms is not None
        return self._services.queue_time.now_ms() - start.ago_ms

    def _look_up_time(self, time_ms: int, found: Callable[[int], None]) -> None:
        segments = self._log.segments
        if self.tier is not None and self.tier.find(time_ms, partial(self._looked_up, found)):
            return
        if segments and segments[-1].size and segments[-1].last_ms >= time_ms:
            self._look_up(partial(self._log.find, time_ms), found)
            return
        later = [each.batch.base for each in self._tail if each.batch.time_ms >= time_ms]
        found(later[0] if later else self._synced)

    def _look_up(self, find: Callable[[], int], found: Callable[[int], None]) -> None:
        self._services.store.read(find, partial(self._looked_up, found))

    def _looked_up(self, found: Callable[[int], None], outcome: Outcome[int]) -> None:
        if not isinstance(outcome, Error):
            found(outcome.unwrap())
        elif isinstance(outcome.error, Unavailable):
            logger.warning("%s cannot be searched: %s", self.stream_title, outcome.error)
            found(AWAY)
        else:
            found(-1)
            self._turn.contain(self, outcome.unwrap)

    def has_begun(self, consumer: StreamConsumer) -> None:
        """Answer the client that waits for its consumer: what is published from now on, the consumer gets."""
        self._attached(consumer.key, None)

    def _begins(self, consumer: StreamConsumer, offset: int) -> None:
        self.has_begun(consumer)
        consumer.next_offset = offset
        progress = consumer.progress = self._progress.get(consumer.key) if self._progress else None
        if progress is not None:
            progress.begin(offset)
            self._keep(consumer.key, progress)
        if consumer.for_group:
            self._turn.contain(consumer.sink, consumer.sink.began, offset)
        self._serve(consumer)

    def _serve_all(self) -> None:
        """Serve consumers if the turn has time: one commit, or one dead letter, may concern many streams."""
        if self._turn.overdue():
            self._leave()
        else:
            self.serve_some()

    def _leave(self) -> None:
        if self.left_out is None:
            serving = self.left_out = _Serving(self)
            self._turn.later(serving, serving.go_on)

    def serve_some(self) -> None:
        """Serve as many consumers as the turn has time for, at least one."""
        to_serve, self._to_serve = self._to_serve, {}
        waiting = iter(to_serve)
        for consumer in waiting:
            self._serve(consumer)
            if self.ended or self._turn.overdue():
                break
        self._to_serve = dict.fromkeys(waiting) | self._to_serve
        if self.ended:
            self._to_serve.clear()
        elif self._to_serve:
            self._leave()

    # -- groups ----------------------------------------------------------------------------------------------

    def go_on(self, key: Key, offset: int) -> None:
        """Let a group's reader continue at this offset; it limits its deliveries itself."""
        consumer = self._consumers.get(key)
        if consumer is None:
            return
        if consumer.next_offset != offset:
            reader = consumer.reader
            if reader is not None and reader.batch.base <= offset < reader.batch.stop:
                consumer.reader = BatchReader(reader.batch)
                consumer.reader.skip_to(offset)
            else:
                consumer.let_go()
            consumer.next_offset = offset
        consumer.credit = BOUNDLESS
        self.submit(("pause", key, False))

    def fetch(self, low: int, stop: int, most: int, done: Callable[[list[Batch] | None], None]) -> None:
        """Look for messages from one offset up to another; `done` gets each as a separate batch, or None if
        the stream cannot be read.
        """
        self._fetch(low, stop, most, done, [])

    def _fetch(
        self, low: int, stop: int, most: int, done: Callable[[list[Batch] | None], None], found: list[Batch]
    ) -> None:
        stop = min(stop, self._synced)
        tail = self._tail
        if self.ended:
            done(None)
        elif tail and low >= tail[0].batch.base:
            for encoded in tail[max(bisect_right(tail, low, key=_base_of) - 1, 0) :]:
                _cut_out(encoded.batch, low, stop, most, found)
            done(found)
        elif low >= stop or len(found) >= most:
            done(found)
        else:

            def has_read(outcome: Outcome[Read]) -> None:
                if isinstance(outcome, Error):
                    done(None)
                    if not isinstance(outcome.error, Unavailable):
                        self._turn.contain(self, outcome.unwrap)
                    return
                read = outcome.unwrap()
                for lost in read.lost:
                    self._note_lost(lost)
                for batch in read.batches:
                    _cut_out(batch, low, stop, most, found)
                following = read.place.offset
                if read.place.base < 0:
                    # The segments end here.
                    following = self._tail[0].batch.base if self._tail else self._synced
                self._fetch(max(following, low), stop, most, done, found)

            self._read_segments(low, None, None, has_read)

    def time_of(self, offset: int, done: Callable[[int | None], None]) -> None:
        """Call `done` with the time of the first message at or behind an offset, in ms of the queue time;
        None if there is none.

        A thread searches the segments: it may have to read an index, or a whole segment if the index is
        damaged.
        """
        tail = self._tail
        if tail and offset >= tail[0].batch.base:
            done(self._time_in_tail(offset))
            return
        behind = tail[0].batch.time_ms if tail else None

        def looked(outcome: Outcome[int | None]) -> None:
            if isinstance(outcome, Error):
                done(None)
                if not isinstance(outcome.error, Unavailable):
                    self._turn.contain(self, outcome.unwrap)
            else:
                found = outcome.unwrap()
                done(behind if found is None else found)

        if self.tier is not None and self.tier.reader is not None and self.tier.is_remote(offset):
            self.tier.fetch(partial(self.tier.reader.time_of, offset), looked)
        else:
            self._services.store.read(partial(self._log.time_of, offset), looked)

    def _time_in_tail(self, offset: int) -> int | None:
        tail = self._tail
        for encoded in tail[max(bisect_right(tail, offset, key=_base_of) - 1, 0) :]:
            if encoded.batch.stop > offset:
                return encoded.batch.time_ms if encoded.batch.stop <= self._synced else None
        return None

    # -- reading ---------------------------------------------------------------------------------------------

    def _serve(self, consumer: StreamConsumer) -> None:
        """Deliver the messages that are in memory, as far as the consumer may have them; start a read if it
        needs more.
        """
        while consumer.credit > 0 and not (consumer.paused or consumer.detached):
            reader = consumer.reader
            if reader is None or not reader.left:
                batch = self._next_batch(consumer)
                if batch is None:
                    return
                if isinstance(batch, StoredBatch):
                    reader = StoredReader(batch, self.queue.name)
                else:
                    reader = BatchReader(batch)
                consumer.reader = reader
                if batch.base < consumer.next_offset:
                    reader.skip_to(consumer.next_offset)
            if reader.batch.size > LARGE_BYTES and self._services.memory.unsent.full:
                self._services.memory.unsent.wait(
                    consumer, partial(self._has_room, consumer), consumer.sink.user
                )
                return
            wanted = consumer.wanted
            count = min(consumer.credit, reader.left)
            if reader.batch.shape_count > SHAPES_MAX:
                count = min(count, PIECE)
            if consumer.headers is not None:
                count = min(count, consumer.headers.most(reader))
            if wanted is not None:
                count = _next_wanted(reader, wanted, count)
            if count:
                self._hand(consumer, reader, count)
            consumer.next_offset = reader.offset
            if not reader.left:
                self._used_up(consumer, reader.batch)
            if self._turn.overdue():
                self._to_serve[consumer] = None
                self._leave()
                return

    def _has_room(self, consumer: StreamConsumer) -> None:
        """Called when clients have taken the data that was sent to them."""
        if not (self.ended or consumer.detached):
            self._to_serve[consumer] = None
            self._leave()

    def _hand(self, consumer: StreamConsumer, reader: BatchReader, count: int) -> None:
        first_id = consumer.next_id
        consumer.next_id = first_id + count
        consumer.credit -= count
        if consumer.progress is not None:
            offsets = offsets_of(reader, count)
            stop = reader.batch.stop if consumer.batches else offsets[-1] + 1
            consumer.progress.handed(offsets, first_id, stop)
        source = reader
        if consumer.headers is not None:
            source = consumer.headers.reader(reader)
            reader.skip(count)
        sink = consumer.sink
        # An error here fails the sink, not the stream.
        self._turn.contain(sink, sink.deliver_batch, consumer, source, count, first_id)

    def _used_up(self, consumer: StreamConsumer, batch: Batch) -> None:
        consumer.reader = None
        if consumer.headers is not None:
            consumer.headers.forget()
        if consumer.held_bytes:
            self._services.count_held(consumer, -min(batch.size, consumer.held_bytes))

    def _next_batch(self, consumer: StreamConsumer) -> Batch | None:
        """Return the batch with the consumer's next message, or the first batch behind it; None if the
        consumer has to wait.
        """
        ahead, place = consumer.ahead, consumer.place
        if ahead:
            batch = ahead.popleft()
            if not ahead and place is not None and place.offset < self._log.stop:
                self._read(consumer, place.offset)
            return batch
        if consumer.reading or consumer.next_offset < 0:
            return None
        if place is not None and place.offset > consumer.next_offset:
            # The filter skipped the rest.
            consumer.next_offset = place.offset
        offset = consumer.next_offset
        if offset >= self._synced:
            return None
        tail = self._tail
        if not tail or offset < tail[0].batch.base:
            self._read(consumer, offset)
            return None
        if consumer.held_bytes or place is not None:
            consumer.let_go()
        index = max(bisect_right(tail, offset, key=_base_of) - 1, 0)
        if tail[index].batch.stop <= offset:
            # The next offset is in a gap behind this batch.
            index += 1
        encoded = tail[index]
        if encoded.batch.stop > self._synced:
            return None
        return self._stored_in_tail(encoded) if consumer.batches else encoded.batch

    def _stored_in_tail(self, encoded: Encoded) -> StoredBatch:
        """Return a batch of the tail as it is stored."""
        return stored_of(encoded.parts)

    def _read(self, consumer: StreamConsumer, offset: int) -> None:
        """Let a thread read batches from this offset on."""
        if consumer.reading:
            return
        consumer.reading = True
        # A flush may change where the tail begins before the answer comes.
        until = min(self._tail[0].batch.base if self._tail else self._synced, self._synced)
        done = partial(self._has_read, consumer, consumer.reads, until)
        self._read_segments(offset, consumer.place, consumer.wanted, done, undecoded=consumer.batches)

    def _has_read(self, consumer: StreamConsumer, reads: int, until: int, outcome: Outcome[Read]) -> None:
        """`until`: the segments had what there is before this offset when the read began."""
        consumer.reading = False
        if self.ended or consumer.detached:
            return
        if isinstance(outcome, Error):
            if isinstance(outcome.error, Unavailable):
                self._cannot_read(consumer, outcome.error)
            else:
                # A defect, or a disk that cannot be read: the stream stops on this node.
                self._turn.contain(self, outcome.unwrap)
            return
        read = outcome.unwrap()
        for lost in read.lost:
            self._note_lost(lost)
        if reads == consumer.reads:
            consumer.place = read.place
            consumer.ahead.extend(read.batches)
            self._services.count_held(consumer, sum([batch.size for batch in read.batches]))
            if read.place.base < 0:
                # The segments end here. The next message is in memory, or not published yet.
                consumer.place = None
                if consumer.reader is None and not consumer.ahead and until > consumer.next_offset:
                    consumer.next_offset = until
                    if consumer.for_group:
                        consumer.sink.passed(until)
        self._serve(consumer)

    def _cannot_read(self, consumer: StreamConsumer, why: object) -> None:
        """The remote has not given the consumer's messages for too long."""
        if consumer.for_group:
            # A group has no other way to them.
            self._serve(consumer)
            return
        logger.warning("%s: a consumer is cancelled: %s", self.stream_title, why)
        self._progress.pop(consumer.key, None)
        self._detach(consumer.key)
        if not self._attached(consumer.key, "its messages are in a remote that does not answer"):
            self.queue.consumer_lost(consumer.key)


def _cut_out(batch: Batch, low: int, stop: int, most: int, found: list[Batch]) -> None:
    """Add the messages from one offset up to another, each as a separate batch."""
    if not batch.count:
        return
    reader = BatchReader(batch)
    reader.skip(below(reader, low))
    for _ in range(min(below(reader, stop), most - len(found))):
        found.append(reader.cut(1))


def _next_wanted(reader: BatchReader, wanted: Wanted, most: int) -> int:
    """Skip messages that are not wanted; return how many wanted ones follow, at most `most`."""
    batch = reader.batch
    takes = [wanted.unfiltered if value is None else value in wanted.values for value in batch.values]
    filters: Sequence[int] = batch.filters
    if not filters:
        if takes[0]:
            return min(most, reader.left)
        reader.skip(reader.left)
        return 0
    start, stop = reader.index, batch.count
    while start < stop and not takes[filters[start]]:
        start += 1
    reader.skip(start - reader.index)
    end, limit = start, min(stop, start + most)
    while end < limit and takes[filters[end]]:
        end += 1
    return end - start


_base_of: Callable[[Encoded], int] = attrgetter("batch.base")

__all__ = ["BOUNDLESS", "StreamReaders"]
