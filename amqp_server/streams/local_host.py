"""The host of a stream that lives on this node alone.

Published messages go to the journal, whose sync is the only sync of the node. After the sync they are
confirmed, and consumers get them from memory. From time to time a thread moves them to the stream's segments,
and the journal forgets them. For consumers that are behind, threads read segments, each consumer at its own
position. See docs/adr/0019-streams.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from amqp_server.streams.compacting import Compacting, Compaction, Copies, NoCopies
from amqp_server.streams.freeing import Leftover
from amqp_server.streams.layout.consumer_start import NAMES_FULL, NEXT, Start
from amqp_server.streams.layout.deduplication import Taken
from amqp_server.streams.layout.encode import Encoded, Encoder, begin_large
from amqp_server.streams.layout.named_offsets import NAME_ABSENT, NAME_IN_USE, Names, Progress
from amqp_server.streams.node_named_offsets import NodeNames
from amqp_server.streams.readers import BOUNDLESS, StreamReaders
from amqp_server.streams.services import StreamServices
from amqp_server.streams.stream_consumer import StreamConsumer
from amqp_server.streams.stream_options import StreamOptions, Tiering
from amqp_server.streams.tiers.node_manifest import (
    IDENTITY,
    RANGES,
    encode_identity,
    encode_range,
    manifest_of,
)
from amqp_server.streams.tiers.tier import Tier
from persistence.errors import CorruptRecord
from persistence.streams import batch as batches
from persistence.streams.batch import HEAD_BYTES, Damaged
from persistence.streams.log import Lost, Stored
from persistence.streams.remote import manifest as manifests
from persistence.streams.remote.manifest import Manifest, Range
from persistence.streams.retention import RetentionLimits, due_ms, outdated
from persistence.streams.segment import Segment
from quorum_queue.host import DELETED, Key, answer_publishes
from quorum_queue.machine.machine import ENQUEUES, Command
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import Hosted, Preparing, Refused

#: Error for a client that asks a stream for an unsupported operation; the channel has better texts.
NOT_FOR_STREAMS = Refused("not supported by stream queues")
#: Batches that one job moves to the segments, and their bytes: freeing 16 MiB takes a ms.
FLUSH_BATCHES_MAX, FLUSH_BYTES_MAX = 4096, 32 << 20


class StreamHost(StreamReaders):
    shares_windows = False
    #: Retention looks at segments.
    counts_bytes = False
    #: The names that the stream has taken follow from its own log.
    knows_taken = True
    #: True if other nodes must agree which consumer has a name: then the host has `_node_names`.
    shares_names = False
    _node_names: NodeNames

    def __init__(
        self,
        queue: Hosted,
        queue_id: int,
        services: StreamServices,
        limits: RetentionLimits,
        segment_bytes: int | None,
        settings: Settings,
        codec: str | None = None,
        compaction: Compaction | None = None,
        tiering: Tiering | None = None,
    ) -> None:
        self.codec = codec or services.options.codec
        #: The names that were taken, if duplicates are dropped: those of all published messages, and those of
        #: messages in segments.
        knows = settings.deduplicates and self.knows_taken
        self._taken = Taken(settings) if knows else None
        self._stored_taken = Taken(settings) if knows else None
        segment_bytes = services.options.segment_size(segment_bytes)
        log = services.store.log(queue_id, segment_bytes, keeper=self._stored_taken, codec=self.codec)
        super().__init__(queue, services, log)
        self.queue_id = queue_id
        self._settings = settings
        self._limits = self._limits_of(limits)
        #: None if the stream is not compacted.
        self.compacting: Compacting | None = None
        if compaction is not None:
            self.compacting = Compacting(
                log,
                services.store,
                compaction,
                segment_bytes,
                self.codec,
                services.queue_time.now_ms,
                f"stream '{queue.name}' in vhost '{queue.vhost.name}'",
                self._copies(),
            )
        self.tiering = tiering or Tiering()
        if self.tiering.remote is not None:
            self._make_tier()
        self._last_ms = 0
        #: True while a thread has messages to write, which may have to wait for disk space; and while it has
        #: segments to delete.
        self._writing = self._trims = False
        #: Offsets kept by name.
        self._names = Names(services.options.names_max)
        self._recover()

    def _copies(self) -> Copies:
        return NoCopies()

    def _limits_of(self, limits: RetentionLimits) -> RetentionLimits:
        default = self._services.options.limits
        return RetentionLimits(
            default.max_age_ms if limits.max_age_ms is None else limits.max_age_ms,
            default.max_bytes if limits.max_bytes is None else limits.max_bytes,
        )

    def configure(self, settings: Settings) -> None:
        self._settings = settings

    def limit(
        self, limits: RetentionLimits, segment_bytes: int | None, tiering: Tiering | None = None
    ) -> None:
        """Set the retention limits, the maximum size of new segments, and what goes to a remote."""
        self._limits = self._limits_of(limits)
        self._tier_as(tiering or Tiering())
        self._log.segment_bytes = self._services.options.segment_size(segment_bytes)
        if self.compacting is not None:
            self.compacting.segment_bytes = self._log.segment_bytes
        if not self.ended:
            self._retain()
            self._schedule_upkeep()

    @property
    def settings(self) -> Settings:
        return self._settings

    # -- the remote; see tiers.tier.TierOwner ----------------------------------------------------------------

    def _make_tier(self) -> Tier:
        tiering, services = self.tiering, self._services
        tier = self.tier = Tier(self, services, services.remotes, self._log, *tiering)
        return tier

    def _tier_as(self, tiering: Tiering) -> None:
        self.tiering = tiering
        if self.tier is not None:
            self.tier.remote, self.tier.local_limits, self.tier.table_format = tiering
        elif tiering.remote is not None:
            self._make_tier()

    @property
    def may_upload(self) -> bool:
        return True

    def lacks_before(self, offset: int, stop: int) -> bool:
        """The messages of a single node are nowhere else."""
        return False

    def found_damage(self, lost: list[Lost]) -> bool:
        for each in lost:
            self._note_lost(each)
        return True

    def begin_manifest(self, manifest: Manifest) -> None:
        self._services.journal.annotate(self.queue_id, IDENTITY, encode_identity(manifest))
        self._services.commits.request(partial(self._manifest_stored, manifest))

    def _manifest_stored(self, manifest: Manifest) -> None:
        tier = self.tier
        if tier is not None and not self.ended:
            tier.show(manifest)
            tier.stored()
            self._schedule_upkeep()

    def add_range(self, after: int, added: Range) -> None:
        self._services.journal.annotate(self.queue_id, RANGES + added.first, encode_range(added))
        self._services.commits.request(partial(self._range_stored, after, added))

    def _range_stored(self, after: int, added: Range) -> None:
        tier = self.tier
        if tier is None or tier.manifest is None or self.ended:
            return
        manifest = tier.manifest.with_range(after, added, 0)
        if manifest is None:
            raise AssertionError("ranges come one by one")
        tier.show(manifest)
        self._retain()
        tier.stored()
        self._schedule_upkeep()

    def _drop_ranges(self, tier: Tier, offset: int) -> None:
        """Remove the ranges before this offset from the manifest; their objects are deleted when that is on
        disk.
        """
        manifest, services = tier.manifest, self._services
        if manifest is None:
            return
        left, removed = manifest.without_before(offset)
        if removed:
            for each in removed:
                position = RANGES + each.first
                services.journal.settle(self.queue_id, range(position, position + 1))
            tier.show(left)
            services.commits.request(partial(tier.delete, manifest, removed))

    # -- at start --------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Read the indexes of the segments, and from the journal the messages that segments lack."""
        found = self._services.journal.recover_queue(self.queue_id)
        state = found.state if found is not None else None
        stored_stop = int.from_bytes(state, "big") if state is not None else 0
        if found is not None:
            self._names.restore(found.annotations)
            manifest = manifest_of(found.annotations)
            if manifest is not None:
                (self.tier or self._make_tier()).show(manifest)
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
            # The node ended before it could make the journal forget them.
            self._forget_in_journal(max(written, 0), log.stop)
        self._synced = self.next_offset
        self._schedule_upkeep()

    def look(self) -> None:
        """Nothing to do when an operator looks at the stream."""

    # -- commands --------------------------------------------------------------------------------------------

    def apply_pending(self) -> None:
        self._apply_commands()
        if self._to_serve:
            self._serve_all()
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
        for command in commands:
            verb = command[0]
            if verb in ENQUEUES:
                enqueues.append(command)
            elif verb in ("settle", "return", "discard"):
                if self._progress:
                    self._note_progress(verb, command[1], command[2], command[3])
                consumer = self._consumers.get(command[1])
                if consumer is not None:
                    # A delivery that is settled, in any way, makes room for another one.
                    consumer.credit += command[3] - command[2] + 1
                    self._to_serve[consumer] = None
            elif verb == "attach":
                self._attach(command[1])
            elif verb == "detach":
                self._detach(command[1])
                progress = self._progress.get(command[1])
                if progress is not None and (command[2] or not progress.holds):
                    del self._progress[command[1]]
                # It may still wait for its name.
                self._attached(command[1], "the consumer is gone")
            elif verb == "pause":
                consumer = self._consumers.get(command[1])
                if consumer is not None:
                    consumer.paused = command[2]
                    self._to_serve[consumer] = None
            elif verb == "get":
                self._refuse_get(command[1].key)
            elif verb == "seal":
                if enqueues:
                    self._enqueue(enqueues)
                    enqueues = []
                self._submit_seal(command[1], command[2])
            elif verb in ("pend", "prepare", "resolve"):
                if enqueues:
                    self._enqueue(enqueues)
                    enqueues = []
                self._step_of_part(command)
            elif verb == "purge":
                done = self.asking.purging.pop(command[1], None)
                if done is not None:
                    done(NOT_FOR_STREAMS)
        if enqueues:
            self._enqueue(enqueues)

    def _step_of_part(self, command: Command) -> None:
        """Only streams of a cluster get parts of transactions."""
        raise NotImplementedError

    def _submit_seal(self, token: int, condition: int) -> None:
        """Only a member of a stream in a cluster gets this command."""
        raise NotImplementedError

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
        """Called when the queue is deleted, with all its messages."""
        self.ended = "deleted"
        self._release()
        services = self._services
        services.journal.drop(self.queue_id)
        # The files are deleted when the deletion of the queue is on disk.
        self._log.abandon()
        services.commits.request(partial(services.store.write, self._log.delete, _nothing))
        if self.tier is not None:
            services.commits.request(self.tier.delete_all)
        self._refuse_pending()
        self._refuse_askers(DELETED)

    def stop(self, why: Refused) -> None:
        """Stop serving clients, and keep the stored data."""
        self.ended = "failed"
        self._log.abandon()
        self._release()
        self._refuse_pending()
        self._refuse_askers(why)

    def _release(self) -> None:
        services = self._services
        services.memory.used -= self._tail_bytes
        services.tail_bytes -= self._tail_bytes
        tail, self._tail, self._tail_bytes = self._tail, [], 0
        Leftover(list(self._consumers.values()), tail, self._turn).free()
        self._consumers, self._group_count = {}, 0
        self._progress.clear()
        if self.tier is not None:
            self.tier.end()
        self._to_serve.clear()

    def _refuse_pending(self) -> None:
        """A publish that came after the queue was deleted reached no queue, and is not refused."""
        commands, self.pending = self.pending, []
        answer_publishes(commands, gone=self.ended == "deleted")

    # -- publishing ------------------------------------------------------------------------------------------

    def begin_large(self, content: bytes, head: bytes, channel: int) -> Preparing | None:
        return begin_large(self._services.layouts, content, head, channel)

    def _enqueue(self, commands: list[Command]) -> None:
        """Store messages; they are confirmed and delivered after the sync."""
        services = self._services
        # Times never go back, so that they can be searched.
        self._last_ms = max(self._last_ms, services.queue_time.now_ms())
        encoder = Encoder(services.layouts, self.next_offset, self._last_ms)
        waiting: list[tuple[Any, int, int]] = []
        for command in commands:
            run, origin, first = command[1], command[2], command[3]
            if origin is not None:
                # Duplicates wait as well: the next sync covers the first message, too.
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

    # -- segments --------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Called when it is time to move messages to the segments, or to delete segments."""
        if not self.ended:
            self._flush()
            self._retain()
            self._schedule_upkeep()

    def _schedule_upkeep(self) -> None:
        services = self._services
        if self._tail and not self._writing:
            if services.options.flushes(len(self._tail), self._tail_bytes):
                self._flush()
            else:
                services.timers.wake(self, services.clock.monotonic_ms() + services.options.flush_ms)
        if self.compacting is not None:
            self.compacting.look()
        if self.tier is not None:
            self.tier.look()
        self._wake_to_retain()

    def _wake_to_retain(self) -> None:
        """Set a timer for the time when the oldest segment has to be deleted."""
        services = self._services
        tier = self.tier
        if tier is None:
            due = due_ms(self._log.segments, self._limits)
        else:
            due = manifests.due_ms(tier.ranges, self._log.segments, self._limits, tier.local_limits)
        if due is not None and not self._trims:
            services.timers.wake(self, max(due - services.queue_time.ahead_ms, 0))

    def _flush(self) -> None:
        """Let a thread write the synced messages to the segments."""
        if self._writing:
            return
        stored: list[Stored] = []
        size = 0
        for each in self._tail[:FLUSH_BATCHES_MAX]:
            batch = each.batch
            size += batch.size
            if batch.stop > self._synced or (stored and size > FLUSH_BYTES_MAX):
                break
            stored.append(Stored(batch.base, batch.stop, batch.time_ms, each.parts, batch.size, each.names))
        if stored:
            self._writing = True
            self._services.store.write(partial(self._log.append, stored), self._flushed)

    def _flushed(self, result: object) -> None:
        """The segments have the messages: the journal does not need them."""
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
        """Make the journal forget these messages: the segments have them on disk."""
        services = self._services
        services.journal.settle(self.queue_id, range(first, stop))
        services.journal.state(self.queue_id, stop.to_bytes(8, "big"))
        services.commits.request()

    def _retain(self) -> None:
        """Delete segments that are too old or too many, also while a write waits for disk space, which this
        may free.
        """
        if self._trims:
            return
        segments, now_ms = self._log.segments, self._services.queue_time.now_ms()
        if self.tier is not None:
            self._retain_tiers(self.tier, segments, now_ms)
            return
        count = outdated(segments, self._limits, now_ms)
        if count:
            self._trim_to(segments[count - 1].stop)

    def _retain_tiers(self, tier: Tier, segments: Sequence[Segment], now_ms: int) -> None:
        """Delete what is too old or too much, in the remote and on the disk; and on the disk what only the
        remote should have.
        """
        offset = manifests.deleted_before(tier.ranges, segments, self._limits, now_ms)
        if offset:
            self._drop_ranges(tier, offset)
        offset = max(offset, manifests.trimmed_before(segments, tier.stop, tier.local_limits, now_ms))
        if segments and segments[0].size and segments[0].stop <= offset:
            self._trim_to(offset)

    def _trim_to(self, offset: int) -> None:
        self._trims = True
        self._services.store.write(partial(self._log.trim_to, offset), self._trimmed)

    def _trimmed(self, result: object) -> None:
        self._trims = False
        if not self.ended:
            self._schedule_upkeep()

    # -- consuming -------------------------------------------------------------------------------------------

    def _attach(self, given: Any) -> None:
        """`given` is a quorum_queue.machine.consumers.Consumer."""
        start = given.sink.start
        if start.group and not self.shares_names and not self._admits(start.group):
            self._attached(given.key, NAMES_FULL)
            return
        consumer = StreamConsumer(
            self._services, given.key, given.sink, given.own_prefetch, paused=given.paused
        )
        self._consumers[given.key] = consumer
        self._group_count += consumer.for_group
        if start.group:
            self._begin_named(consumer, start)
        else:
            self._begin(consumer, start)

    # -- offsets by name -------------------------------------------------------------------------------------

    def _begin_named(self, consumer: StreamConsumer, start: Start) -> None:
        """Begin a consumer with a name at the name's offset. An earlier consumer with the name loses it."""
        for other, progress in list(self._progress.items()):
            if progress.name == start.group:
                del self._progress[other]
                self._detach(other)
                # It may still wait for the offset at which it begins.
                self._attached(other, None)
                self.queue.consumer_lost(other)
        self._progress[consumer.key] = Progress(start.group)
        known = self._names.offsets.get(start.group)
        self._begin(consumer, (start.otherwise or NEXT) if known is None else Start(offset=known))

    def _admits(self, name: str) -> bool:
        taken = self.names_here()
        new = sum([each not in self._names.offsets for each in taken])
        return self._names.admits(name, taken, new)

    def names_here(self) -> set[str]:
        """Return the names that consumers of this node have or wait for, or may still ack for."""
        return {progress.name for progress in self._progress.values()}

    def kept_names(self, done: Callable[[list[tuple[str, int | None]] | Refused], None]) -> None:
        """Find the names that the stream keeps, with their offsets; None for a name that was taken and has
        not acked yet.
        """
        found: dict[str, int | None] = {**self._names.offsets}
        for name in sorted(self.names_here()):
            found.setdefault(name, None)
        done(list(found.items()))

    def delete_name(self, name: str, done: Callable[[Refused | None], None]) -> None:
        """Delete a name, unless a consumer has it. In a cluster the caller knows that none has it, and only
        one that takes it at the same time is in the way.
        """
        if name in self.names_here():
            done(NAME_IN_USE)
        elif name not in self._names.offsets:
            done(NAME_ABSENT)
        else:
            position = self._names.delete(name)
            self._services.journal.settle(self.queue_id, range(position, position + 1))
            self._services.commits.request(partial(done, None))

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
        """Store the offset at which a name continues."""
        position, note = self._names.put(progress.name, progress.committed)
        self._services.journal.annotate(self.queue_id, position, note)
        self._services.commits.request()


def _nothing(result: object) -> None: ...


_stop_of: Callable[[Encoded], int] = attrgetter("batch.stop")

__all__ = ["BOUNDLESS", "StreamConsumer", "StreamHost", "StreamOptions", "StreamServices"]
