"""The host of a stream that lives on this node alone.

What is published goes to the journal, whose sync is the node's one sync. From then on it is confirmed, and consumers get it,
out of memory. Now and then a thread moves it to the stream's segments, and the journal forgets it. Consumers that are
behind read segments, in threads, each at its own place. See docs/adr/0019-streams.md.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Protocol

from outcome import Error, Outcome

from amqp_server.streams.compacting import Compacting, Compaction
from amqp_server.streams.deliver import BatchReader
from amqp_server.streams.encode import Encoded, Encoder, Layouts
from amqp_server.streams.headed import below, cut, offsets_of
from amqp_server.streams.named import Names, Progress
from amqp_server.streams.node_names import NodeNames
from amqp_server.streams.start import NEXT, Start
from amqp_server.streams.taken import Taken
from persistence.errors import CorruptRecord
from persistence.streams import batch as batches
from persistence.streams.batch import HEAD_BYTES, Batch, Damaged
from persistence.streams.compaction import Throttle
from persistence.streams.compression import NONE
from persistence.streams.log import Lost, Place, Read, Stored, StreamLog, Wanted
from persistence.streams.names import Keeper
from persistence.streams.retention import Limits, due_ms, outdated
from quorum_queue.clock import Clock, QueueTime
from quorum_queue.host import DELETED, Key, QueueHost, answer_publishes
from quorum_queue.machine.machine import ENQUEUES, Command
from quorum_queue.machine.settings import Settings
from quorum_queue.memory import MemoryBudget
from quorum_queue.ports import Commits, ConsumerState, Hosted, Refused, Timers, Turn

logger = logging.getLogger("mqd.streams")

#: What a client is told that asks a stream for what it does not have; the channel knows better texts.
NOT_FOR_STREAMS = Refused("not supported by stream queues")
#: Batches that one job moves to the segments.
FLUSH_BATCHES_MAX = 4096
#: Credit of those who say themselves how much they take.
BOUNDLESS = 1 << 40


class Journal(Protocol):
    """See persistence.journal."""

    def append(
        self, queue_id: int, first_seq: int, count: int, payload: bytes | list[bytes], head_parts: int = 0
    ) -> None: ...

    def settle(self, queue_id: int, seqs: range) -> None: ...

    def annotate(self, queue_id: int, seq: int, value: bytes) -> None: ...

    def state(self, queue_id: int, value: bytes) -> None: ...

    def drop(self, queue_id: int) -> None: ...

    def recover_queue(self, queue_id: int) -> Any | None: ...


class Store(Protocol):
    """See persistence.streams.store."""

    def log(
        self, queue_id: int, segment_bytes: int, *, keeper: Keeper | None = None, codec: str = NONE
    ) -> StreamLog: ...

    def write(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None: ...

    def compact(self, call: Callable[[Throttle], Any], done: Callable[[Outcome[Any]], None]) -> None: ...

    def read(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None: ...

    def keep(self, queue_ids: Iterable[int], may_go: Callable[[int], bool] = ...) -> None: ...


class StreamOptions:
    """What the streams of a node are set to; see the fields of amqp_server.config of the same names."""

    __slots__ = (
        "codec",
        "compaction_dirty_percent",
        "compaction_memory_bytes",
        "flush_bytes",
        "flush_ms",
        "limits",
        "names_max",
        "read_bytes_max",
        "segment_bytes",
        "tombstone_age_ms",
    )

    def __init__(
        self,
        *,
        segment_bytes: int = 500_000_000,
        limits: Limits | None = None,
        flush_bytes: int = 1 << 20,
        flush_ms: int = 5_000,
        read_bytes_max: int = 256 << 20,
        codec: str = NONE,
        compaction_dirty_percent: int = 50,
        compaction_memory_bytes: int = 64 << 20,
        tombstone_age_ms: int = 86_400_000,
        names_max: int = 1_000,
    ) -> None:
        self.names_max = names_max
        self.compaction_dirty_percent = compaction_dirty_percent
        self.compaction_memory_bytes = compaction_memory_bytes
        #: Of streams declared without x-stream-tombstone-age.
        self.tombstone_age_ms = tombstone_age_ms
        #: Of streams declared without x-stream-compression.
        self.codec = codec
        self.segment_bytes = segment_bytes
        #: Of streams declared without limits.
        self.limits = limits or Limits()
        self.flush_bytes = flush_bytes
        self.flush_ms = flush_ms
        self.read_bytes_max = read_bytes_max

    def compaction(self, by: str | None, tombstone_age_ms: int | None) -> Compaction | None:
        """Return what is set for a stream that was declared so."""
        if by is None:
            return None
        return Compaction(
            by,
            self.tombstone_age_ms if tombstone_age_ms is None else tombstone_age_ms,
            self.compaction_memory_bytes,
            self.compaction_dirty_percent,
        )


class StreamServices:
    """What all streams of the node share."""

    __slots__ = (
        "clock",
        "commits",
        "held",
        "held_bytes",
        "journal",
        "layouts",
        "memory",
        "options",
        "queue_time",
        "store",
        "tail_bytes",
        "timers",
        "turn",
    )

    def __init__(
        self,
        *,
        clock: Clock,
        queue_time: QueueTime,
        turn: Turn,
        memory: MemoryBudget,
        timers: Timers,
        journal: Journal,
        commits: Commits,
        store: Store,
        options: StreamOptions,
    ) -> None:
        self.clock = clock
        self.queue_time = queue_time
        self.turn = turn
        self.memory = memory
        self.timers = timers
        self.journal = journal
        self.commits = commits
        self.store = store
        self.options = options
        self.layouts = Layouts()
        #: Published and not in a segment yet.
        self.tail_bytes = 0
        #: Consumers that have read ahead, those that used it longest ago first; and how much they all have.
        self.held: dict[StreamConsumer, None] = {}
        self.held_bytes = 0

    def hold(self, consumer: StreamConsumer, size: int) -> None:
        """A consumer has so much more, or less, in memory that it has read. It used that just now."""
        self.held_bytes += size
        consumer.held_bytes += size
        self.held.pop(consumer, None)
        if consumer.held_bytes:
            self.held[consumer] = None
        while self.held_bytes > self.options.read_bytes_max and len(self.held) > 1:
            next(iter(self.held)).let_go()


class Sink(Protocol):
    """See amqp_server.channel.subscription."""

    start: Start
    wanted: Wanted | None
    #: It reads for a group: nobody counts it as a consumer, it says itself how much it may have, and `began` is told where
    #: it begins.
    for_group: bool

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
        if self.for_group:
            self.sink.let_go()
        self._services.hold(self, -self.held_bytes)


class StreamHost(QueueHost):
    """See quorum_queue.ports.Host."""

    shares_windows = False
    #: Retention looks at segments.
    counts_bytes = False
    #: What it has taken follows from its own log.
    knows_taken = True
    #: Other nodes must agree who has a name: then the host has these.
    shares_names = False
    _node_names: NodeNames

    def __init__(
        self,
        queue: Hosted,
        queue_id: int,
        services: StreamServices,
        limits: Limits,
        segment_bytes: int | None,
        settings: Settings,
        codec: str | None = None,
        compaction: Compaction | None = None,
    ) -> None:
        super().__init__(queue, services.turn)
        self.queue_id = queue_id
        self._services = services
        self._settings = settings
        self.codec = codec or services.options.codec
        self._limits = self._limits_of(limits)
        #: What it has taken, where duplicates are dropped: of all that was published, and of what segments have.
        knows = settings.deduplicates and self.knows_taken
        self._taken = Taken(settings) if knows else None
        self._stored_taken = Taken(settings) if knows else None
        self._log = services.store.log(
            queue_id,
            segment_bytes or services.options.segment_bytes,
            keeper=self._stored_taken,
            codec=self.codec,
        )
        #: None if the stream keeps all messages of a key.
        self.compacting: Compacting | None = None
        if compaction is not None:
            self.compacting = Compacting(
                self._log,
                services.store,
                compaction,
                segment_bytes or services.options.segment_bytes,
                self.codec,
                services.queue_time.now_ms,
                f"stream '{queue.name}' in vhost '{queue.vhost.name}'",
            )
        #: Batches that are not in a segment yet, in order.
        self._tail: list[Encoded] = []
        self._tail_bytes = 0
        #: The offset of the next message that is published, and that up to which all are synced.
        self.next_offset = self._synced = 0
        self._last_ms = 0
        self._consumers: dict[Key, StreamConsumer] = {}
        #: How many of them read for groups.
        self._group_count = 0
        #: Consumers that may be able to get more.
        self._to_serve: dict[StreamConsumer, None] = {}
        self._writing = False
        #: Offsets kept by name; and what consumers with a name have acked, also those that are cancelled and may still ack.
        self._names = Names(services.options.names_max)
        self._progress: dict[Key, Progress] = {}
        #: Messages that the disk has damaged, by their first offset.
        self._lost: dict[int, int] = {}
        self._recover()

    def _limits_of(self, limits: Limits) -> Limits:
        default = self._services.options.limits
        return Limits(
            default.max_age_ms if limits.max_age_ms is None else limits.max_age_ms,
            default.max_bytes if limits.max_bytes is None else limits.max_bytes,
        )

    def configure(self, settings: Settings) -> None:
        self._settings = settings

    def limit(self, limits: Limits, segment_bytes: int | None) -> None:
        """Keep so much from now on, and begin no segment that gets larger."""
        self._limits = self._limits_of(limits)
        self._log.segment_bytes = segment_bytes or self._services.options.segment_bytes
        if self.compacting is not None:
            self.compacting.segment_bytes = self._log.segment_bytes
        if not self.ended:
            self._retain()
            self._schedule_upkeep()

    # -- at start --------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Read the indexes of the segments, and from the journal what they do not have yet."""
        found = self._services.journal.recover_queue(self.queue_id)
        state = found.state if found is not None else None
        stored_stop = int.from_bytes(state, "big") if state is not None else 0
        if found is not None:
            self._names.restore(found.annotations)
        for lost in self._log.open(stored_stop):
            self._note_lost(lost)
        log, taken = self._log, self._taken
        if taken is not None and self._stored_taken is not None:
            taken.copy_from(self._stored_taken)
        self.next_offset = log.stop
        if log.segments:
            self._last_ms = log.segments[-1].last_ms
        written = -1
        for record in found.records if found is not None else ():
            first, stop = record.first_seq, record.first_seq + record.count
            if stop <= log.stop:
                written = first if written < 0 else written
                continue
            try:
                payload = record.payload
                head = batches.decode_head(payload)
                batch = batches.decode(head, payload)
                names = batches.decode_names(head, payload[HEAD_BYTES : HEAD_BYTES + head.meta_bytes])
            except (CorruptRecord, Damaged) as error:
                self._note_lost(Lost(first, stop, f"the journal: {error}"))
            else:
                if first > self.next_offset:
                    self._note_lost(Lost(self.next_offset, first, "the journal has a hole"))
                self._add(Encoded(batch, [payload], names))
                if taken is not None:
                    taken.apply(batch.time_ms, names)
            self.next_offset = max(self.next_offset, stop)
        if written >= 0 or log.stop > stored_stop:
            # The node ended before it could note that.
            self._forget_in_journal(max(written, 0), log.stop)
        self._synced = self.next_offset
        self._schedule_upkeep()

    def _note_lost(self, lost: Lost) -> None:
        if lost.low not in self._lost and lost.stop > lost.low:
            self._lost[lost.low] = lost.stop - lost.low
            logger.error(
                "stream '%s' in vhost '%s' lost messages %d to %d: %s",
                *(self.queue.name, self.queue.vhost.name, lost.low, lost.stop - 1, lost.why),
            )

    def look(self) -> None:
        """An operator looks at what is told of it."""

    # -- what it holds ---------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def first_offset(self) -> int:
        """The offset of the oldest message; that of the next one if there is none."""
        segments = self._log.segments
        if segments and segments[0].size:
            return segments[0].base
        return self._tail[0].batch.base if self._tail else self.next_offset

    def offsets(self, done: Callable[[range | None], None]) -> None:
        """Tell which offsets a consumer can have now; None if that is not known here."""
        first = self.first_offset
        done(range(first, max(first, self._synced)))

    @property
    def first_ms(self) -> int | None:
        """The time of the oldest message."""
        segments = self._log.segments
        if segments and segments[0].size:
            return segments[0].first_ms
        return self._tail[0].batch.time_ms if self._tail else None

    @property
    def segment_count(self) -> int:
        return len(self._log.segments)

    @property
    def lost_count(self) -> int:
        """Messages that the disk has damaged, as far as somebody came by."""
        return sum(self._lost.values())

    @property
    def ready_count(self) -> int:
        return self.next_offset - self.first_offset

    @property
    def ready_bytes(self) -> int:
        return self._log.size + self._tail_bytes

    @property
    def unacked_count(self) -> int:
        return sum([each.prefetch - each.credit for each in self._consumers.values() if not each.for_group])

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

    # -- commands --------------------------------------------------------------------------------------------------

    def apply_pending(self) -> None:
        self._apply_commands()
        self._pass_all()

    def _apply_commands(self) -> None:
        while self.pending:
            if self.ended:
                self._refuse_pending()
                break
            commands, self.pending = self.pending, []
            self._apply(commands)

    def _apply(self, commands: list[Command]) -> None:
        enqueues: list[Command] = []
        served = self._to_serve
        for command in commands:
            verb = command[0]
            if verb in ENQUEUES:
                enqueues.append(command)
            elif verb in ("settle", "return", "discard"):
                if self._progress:
                    self._note_progress(verb, command[1], command[2], command[3])
                consumer = self._consumers.get(command[1])
                if consumer is not None:
                    # Whatever becomes of a delivery, it is room for another one.
                    consumer.credit += command[3] - command[2] + 1
                    served[consumer] = None
            elif verb == "attach":
                self._attach(command[1])
            elif verb == "detach":
                self._detach(command[1])
                if command[2]:
                    self._progress.pop(command[1], None)
            elif verb == "pause":
                consumer = self._consumers.get(command[1])
                if consumer is not None:
                    consumer.paused = command[2]
                    served[consumer] = None
            elif verb == "get":
                self._refuse_get(command[1].key)
            elif verb == "purge":
                done = self.asking.purging.pop(command[1], None)
                if done is not None:
                    done(NOT_FOR_STREAMS)
        if enqueues:
            self._enqueue(enqueues)
        self._serve_all()

    def _serve_all(self) -> None:
        """Serve consumers, as many as the turn has time for."""
        to_serve = self._to_serve
        while to_serve:
            consumer = next(iter(to_serve))
            del to_serve[consumer]
            self._serve(consumer)
            if to_serve and self._turn.overdue():
                self._turn.later(self, self._serve_all)
                return

    def _refuse_get(self, key: Key) -> None:
        waiting = self.asking.getting.pop(key, None)
        for done in waiting or ():
            done(NOT_FOR_STREAMS)

    def touch(self) -> None: ...

    def barrier(self, done: Callable[..., None]) -> None:
        if self.pending:
            self.begin_asking().barriers.append((0, done))
            self._turn.schedule(self)
        else:
            done()

    def close(self) -> None:
        """The queue is deleted, with all that it holds."""
        self.ended = "deleted"
        self._release()
        services = self._services
        services.journal.drop(self.queue_id)
        # The files go when it is certain that the queue has gone.
        self._log.abandon()
        services.commits.request(partial(services.store.write, self._log.delete, _nothing))
        self._refuse_pending()
        self._refuse_askers(DELETED)

    def stop(self, why: Refused) -> None:
        """Serve nobody from now on, and keep what is stored."""
        self.ended = "failed"
        self._log.abandon()
        self._release()
        self._refuse_pending()
        self._refuse_askers(why)

    def _release(self) -> None:
        services = self._services
        services.memory.used -= self._tail_bytes
        services.tail_bytes -= self._tail_bytes
        self._tail, self._tail_bytes = [], 0
        for consumer in list(self._consumers.values()):
            consumer.detached = True
            consumer.let_go()
        self._consumers, self._group_count = {}, 0
        self._progress.clear()
        self._to_serve.clear()

    def _refuse_pending(self) -> None:
        """What came too late for a queue that was deleted went nowhere: that is a confirm, not a refusal."""
        commands, self.pending = self.pending, []
        answer_publishes(commands, confirm=self.ended == "deleted")

    # -- publishing ------------------------------------------------------------------------------------------------

    def _enqueue(self, commands: list[Command]) -> None:
        """Store messages; they are confirmed and handed out when they are synced."""
        services = self._services
        # Times only rise, so that they can be searched.
        self._last_ms = max(self._last_ms, services.queue_time.now_ms())
        encoder = Encoder(services.layouts, self.next_offset, self._last_ms)
        waiting: list[tuple[Any, int, int]] = []
        for command in commands:
            run, origin, first = command[1], command[2], command[3]
            if origin is not None:
                # Duplicates as well: the sync that is waited for covers the first one, too.
                waiting.append((origin, first, first + len(run.seqs) - 1))
            if command[0] == "enqueue_once" and self._taken is not None:
                for fresh in self._taken.fresh(run, command[4], self._last_ms):
                    encoder.add(fresh.run, fresh.names)
            else:
                encoder.add(run)
        for encoded in encoder.finish():
            batch = encoded.batch
            services.journal.append(self.queue_id, batch.base, batch.count, encoded.parts, 1)
            self._add(encoded)
        self.next_offset = encoder.next_offset
        services.commits.request(partial(self._is_synced, self.next_offset, waiting))

    def _add(self, encoded: Encoded) -> None:
        size = encoded.batch.size
        self._tail.append(encoded)
        self._tail_bytes += size
        self._services.tail_bytes += size
        self._services.memory.used += size

    def _is_synced(self, stop: int, waiting: list[tuple[Any, int, int]]) -> None:
        for origin, first, last in waiting:
            origin.confirmed(first, last)
        if self.ended:
            return
        self._synced = max(self._synced, stop)
        self._to_serve.update(dict.fromkeys(self._consumers.values()))
        self._serve_all()
        self._schedule_upkeep()

    # -- segments --------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """It is time to move something to the segments, or to delete some."""
        if not self.ended:
            self._flush()
            self._retain()
            self._schedule_upkeep()

    def _schedule_upkeep(self) -> None:
        if self._writing:
            # It is done again when that is on the disk.
            return
        services = self._services
        if self._tail:
            if self._tail_bytes >= services.options.flush_bytes:
                self._flush()
            else:
                services.timers.wake(self, services.clock.monotonic_ms() + services.options.flush_ms)
        if self.compacting is not None:
            self.compacting.look()
        due = due_ms(self._log.segments, self._limits)
        if due is not None and not self._writing:
            services.timers.wake(self, max(due - services.queue_time.ahead_ms, 0))

    def _flush(self) -> None:
        """Have what is synced written to the segments."""
        if self._writing:
            return
        stored = [
            Stored(
                each.batch.base, each.batch.stop, each.batch.time_ms, each.parts, each.batch.size, each.names
            )
            for each in self._tail[:FLUSH_BATCHES_MAX]
            if each.batch.stop <= self._synced
        ]
        if stored:
            self._writing = True
            self._services.store.write(partial(self._log.append, stored), self._flushed)

    def _flushed(self, result: object) -> None:
        """The segments have it: the journal need not."""
        self._writing = False
        if self.ended:
            return
        services = self._services
        stop, tail = self._log.stop, self._tail
        count = bisect_right(tail, stop, key=_stop_of)
        if not count:
            return
        first = tail[0].batch.base
        size = sum([each.batch.size for each in tail[:count]])
        del tail[:count]
        self._tail_bytes -= size
        services.tail_bytes -= size
        services.memory.used -= size
        self._forget_in_journal(first, stop)
        self._retain()
        self._schedule_upkeep()

    def _forget_in_journal(self, first: int, stop: int) -> None:
        """The segments have these messages, and that is on the disk."""
        services = self._services
        services.journal.settle(self.queue_id, range(first, stop))
        services.journal.state(self.queue_id, stop.to_bytes(8, "big"))
        services.commits.request()

    def _retain(self) -> None:
        """Delete segments that are too old or too many."""
        if self._writing:
            return
        segments = self._log.segments
        count = outdated(segments, self._limits, self._services.queue_time.now_ms())
        if count:
            self._writing = True
            self._services.store.write(partial(self._log.trim_to, segments[count - 1].stop), self._trimmed)

    def _trimmed(self, result: object) -> None:
        self._writing = False
        if not self.ended:
            self._schedule_upkeep()

    # -- consuming -------------------------------------------------------------------------------------------------

    def _attach(self, given: Any) -> None:
        """`given` is a quorum_queue.machine.consumers.Consumer."""
        consumer = StreamConsumer(
            self._services, given.key, given.sink, given.own_prefetch, paused=given.paused
        )
        self._consumers[given.key] = consumer
        self._group_count += consumer.for_group
        self._attached(given.key, None)
        start = given.sink.start
        if start.group:
            self._begin_named(consumer, start)
        else:
            self._begin(consumer, start)

    # -- offsets by name -------------------------------------------------------------------------------------------

    def _begin_named(self, consumer: StreamConsumer, start: Start) -> None:
        """A consumer with a name goes on where that was. Whoever had the name before loses it."""
        for other, progress in list(self._progress.items()):
            if progress.name == start.group:
                del self._progress[other]
                self._detach(other)
                self.queue.consumer_lost(other)
        self._progress[consumer.key] = Progress(start.group)
        known = self._names.offsets.get(start.group)
        self._begin(consumer, (start.otherwise or NEXT) if known is None else Start(offset=known))

    def _note_progress(self, verb: str, key: Key, low: int, high: int) -> None:
        progress = self._progress.get(key)
        if progress is None:
            return
        if verb != "settle":
            progress.refused(low, high)
        else:
            before = progress.committed
            progress.acked(low, high)
            if progress.committed != before:
                self._keep(key, progress)
        if not progress.holds and key not in self._consumers:
            del self._progress[key]

    def _keep(self, key: Key, progress: Progress) -> None:
        """Have noted where a name goes on."""
        position, note = self._names.put(progress.name, progress.committed)
        self._services.journal.annotate(self.queue_id, position, note)
        self._services.commits.request()

    # -- readers ---------------------------------------------------------------------------------------------------

    def _detach(self, key: Key) -> None:
        consumer = self._consumers.pop(key, None)
        if consumer is not None:
            consumer.detached = True
            consumer.let_go()
            self._group_count -= consumer.for_group
            self.queue.consumer_gone(self.consumer_count)

    def _begin(self, consumer: StreamConsumer, start: Start) -> None:
        """Find out where the consumer begins."""
        consumer.reading = True

        def found(offset: int) -> None:
            consumer.reading = False
            if offset >= 0 and not (self.ended or consumer.detached):
                self._begins(consumer, offset)

        self.look_up(start, found)

    def look_up(self, start: Start, found: Callable[[int], None]) -> None:
        """Find out which offset is meant; what is in segments is looked up by a thread. Below zero: the stream has failed."""
        if start.offset is not None:
            found(start.offset)
        elif start.name == "first":
            found(0)
        elif start.name == "last":
            synced = [each.batch.base for each in self._tail if each.batch.stop <= self._synced]
            if synced:
                found(synced[-1])
            else:
                self._look_up(self._log.last, found)
        elif start.name == "next":
            found(self._synced)
        else:
            self._look_up_time(self._time_of(start), found)

    def _time_of(self, start: Start) -> int:
        """Return the time by the clock of the messages, which is near wall time; see quorum_queue.clock."""
        if start.time_ms is not None:
            return start.time_ms
        assert start.ago_ms is not None
        return self._services.queue_time.now_ms() - start.ago_ms

    def _look_up_time(self, time_ms: int, found: Callable[[int], None]) -> None:
        segments = self._log.segments
        if segments and segments[-1].size and segments[-1].last_ms >= time_ms:
            self._look_up(partial(self._log.find, time_ms), found)
            return
        later = [each.batch.base for each in self._tail if each.batch.time_ms >= time_ms]
        found(later[0] if later else self._synced)

    def _look_up(self, find: Callable[[], int], found: Callable[[int], None]) -> None:
        def looked(outcome: Outcome[int]) -> None:
            if isinstance(outcome, Error):
                found(-1)
                self._turn.contain(self, outcome.unwrap)
            else:
                found(outcome.unwrap())

        self._services.store.read(find, looked)

    def _begins(self, consumer: StreamConsumer, offset: int) -> None:
        consumer.next_offset = offset
        progress = consumer.progress = self._progress.get(consumer.key) if self._progress else None
        if progress is not None:
            progress.begin(offset)
            self._keep(consumer.key, progress)
        if consumer.for_group:
            self._turn.contain(consumer.sink, consumer.sink.began, offset)
        self._serve(consumer)

    # -- groups ----------------------------------------------------------------------------------------------------

    def go_on(self, key: Key, offset: int) -> None:
        """Have who reads for a group go on at this offset; it says itself how much it takes."""
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

    def fetch(self, low: int, stop: int, most: int, done: Callable[[list[Batch]], None]) -> None:
        """Look for messages from one offset up to another; `done` is told of them, each a batch of its own."""
        self._fetch(low, stop, most, done, [])

    def _fetch(
        self, low: int, stop: int, most: int, done: Callable[[list[Batch]], None], found: list[Batch]
    ) -> None:
        stop = min(stop, self._synced)
        tail = self._tail
        if tail and low >= tail[0].batch.base:
            for encoded in tail[max(bisect_right(tail, low, key=_base_of) - 1, 0) :]:
                _cut_out(encoded.batch, low, stop, most, found)
            done(found)
        elif self.ended or low >= stop or len(found) >= most:
            done(found)
        else:

            def has_read(outcome: Outcome[Read]) -> None:
                if isinstance(outcome, Error):
                    done(found)
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

            self._services.store.read(partial(self._log.read, low), has_read)

    def time_of(self, offset: int) -> int | None:
        """Return the time of the first message at or behind an offset; None if there is none."""
        tail = self._tail
        if tail and offset >= tail[0].batch.base:
            for encoded in tail[max(bisect_right(tail, offset, key=_base_of) - 1, 0) :]:
                if encoded.batch.stop > offset:
                    return encoded.batch.time_ms if encoded.batch.stop <= self._synced else None
            return None
        found = self._log.time_of(offset)
        return found if found is not None or not tail else tail[0].batch.time_ms

    # -- reading ---------------------------------------------------------------------------------------------------

    def _serve(self, consumer: StreamConsumer) -> None:
        """Hand out what the consumer may have and what is at hand; have more read if need be."""
        while consumer.credit > 0 and not (consumer.paused or consumer.detached):
            reader = consumer.reader
            if reader is None or not reader.left:
                batch = self._next_batch(consumer)
                if batch is None:
                    return
                reader = consumer.reader = BatchReader(batch)
                if batch.base < consumer.next_offset:
                    reader.skip_to(consumer.next_offset)
            wanted = consumer.wanted
            count = min(consumer.credit, reader.left)
            if wanted is not None:
                count = _next_wanted(reader, wanted, count)
            if count:
                self._hand(consumer, reader, count)
            consumer.next_offset = reader.offset
            if not reader.left:
                self._used_up(consumer, reader.batch)

    def _hand(self, consumer: StreamConsumer, reader: BatchReader, count: int) -> None:
        first_id = consumer.next_id
        consumer.next_id = first_id + count
        consumer.credit -= count
        if consumer.progress is not None:
            consumer.progress.handed(offsets_of(reader, count), first_id)
        sink = consumer.sink
        # If that raises, the sink has failed and not the stream.
        self._turn.contain(sink, sink.deliver_batch, consumer, reader, count, first_id)

    def _used_up(self, consumer: StreamConsumer, batch: Batch) -> None:
        consumer.reader = None
        if consumer.held_bytes:
            self._services.hold(consumer, -min(batch.size, consumer.held_bytes))

    def _next_batch(self, consumer: StreamConsumer) -> Batch | None:
        """Return the batch with the consumer's next message, or the first one behind it; None if it has to wait."""
        ahead, place = consumer.ahead, consumer.place
        if ahead:
            batch = ahead.popleft()
            if not ahead and place is not None and place.offset < self._log.stop:
                self._read(consumer, place.offset)
            return batch
        if consumer.reading or consumer.next_offset < 0:
            return None
        if place is not None and place.offset > consumer.next_offset:
            # The filter passed over the rest.
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
            # Behind a hole.
            index += 1
        batch = tail[index].batch
        return batch if batch.stop <= self._synced else None

    def _read(self, consumer: StreamConsumer, offset: int) -> None:
        """Have batches read from this offset on."""
        if consumer.reading:
            return
        consumer.reading = True
        self._services.store.read(
            partial(self._log.read, offset, consumer.place, consumer.wanted),
            partial(self._has_read, consumer, consumer.reads),
        )

    def _has_read(self, consumer: StreamConsumer, reads: int, outcome: Outcome[Read]) -> None:
        consumer.reading = False
        if self.ended or consumer.detached:
            return
        if isinstance(outcome, Error):
            # A defect, or a disk that does not read: the stream stops on this node.
            self._turn.contain(self, outcome.unwrap)
            return
        read = outcome.unwrap()
        for lost in read.lost:
            self._note_lost(lost)
        if reads == consumer.reads:
            consumer.place = read.place
            consumer.ahead.extend(read.batches)
            self._services.hold(consumer, sum([batch.size for batch in read.batches]))
            if read.place.base < 0:
                # The segments end here. What comes next is in memory, or is still to come.
                consumer.place = None
                if consumer.reader is None and not consumer.ahead:
                    first = self._tail[0].batch.base if self._tail else self._synced
                    consumer.next_offset = max(consumer.next_offset, min(first, self._synced))
        self._serve(consumer)


def _cut_out(batch: Batch, low: int, stop: int, most: int, found: list[Batch]) -> None:
    """Add the messages from one offset up to another, each as a batch of its own."""
    if not batch.count:
        return
    reader = BatchReader(batch)
    reader.skip(below(reader, low))
    for _ in range(min(below(reader, stop), most - len(found))):
        found.append(cut(reader, 1))


def _next_wanted(reader: BatchReader, wanted: Wanted, most: int) -> int:
    """Pass over messages that are not wanted; return how many come then that are, at most so many."""
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


def _nothing(result: object) -> None: ...


_base_of: Callable[[Encoded], int] = attrgetter("batch.base")
_stop_of: Callable[[Encoded], int] = attrgetter("batch.stop")

__all__ = ["StreamConsumer", "StreamHost", "StreamOptions", "StreamServices"]
