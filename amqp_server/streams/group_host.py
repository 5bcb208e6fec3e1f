"""A stream on one of its members.

What this node's clients publish goes into the log that all members share. When this member applies it, it is on the disks of
a majority: it is confirmed, and this node's consumers get it, from this member's own copy. So what consumers do concerns
this node only, and who leads does not matter to them.

The Raft log is the tail: it has every message until this member's segments have it. A snapshot of the group stands for a log
whose messages are all in segments (`covered`). What segments lack, because they are those of a new member, or the disk has
damaged them, is fetched from other members by offset. A consumer waits there; it never passes over what others have.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Any

from outcome import Error, Outcome

from amqp_server.streams.answers import Answers, stop_of
from amqp_server.streams.asks import Asks, Done
from amqp_server.streams.compacting import Compaction
from amqp_server.streams.encode import Encoded, Encoder
from amqp_server.streams.filling import Fill, Filling
from amqp_server.streams.finding import Finding
from amqp_server.streams.host import StreamConsumer, StreamHost, StreamServices
from amqp_server.streams.logged_names import LoggedNames
from amqp_server.streams.named import Progress
from amqp_server.streams.publishes import Publishes
from amqp_server.streams.replicated import (
    Applied,
    CodecError,
    Note,
    Replica,
    StreamState,
    decode_entry,
    decode_state,
    encode_batch,
    encode_entry,
)
from amqp_server.streams.stable import Stable
from amqp_server.streams.start import Start
from amqp_server.streams.taking_over import begin_named, take_over
from persistence.streams.compression import NONE
from persistence.streams.log import Lost, Read, Stored, StreamLog
from persistence.streams.retention import Limits, due_ms, outdated
from quorum_queue.cluster.frames import StreamWord
from quorum_queue.cluster.group import Group
from quorum_queue.cluster.guests import GuestOrigin
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.errors import Unreadable
from quorum_queue.host import DELETED, MOVED, Key
from quorum_queue.machine.attributes import LEADER
from quorum_queue.machine.machine import ENQUEUES, Command
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import Hosted, Refused
from quorum_queue.raft.members import Members

logger = logging.getLogger("mqd.streams")


class StreamGroupHost(StreamHost):
    """The host of a stream, and the state machine of its group."""

    single = False
    #: The state of the group has it.
    knows_taken = False
    shares_names = True
    group: Group

    def __init__(
        self,
        queue: Hosted,
        queue_id: int,
        services: StreamServices,
        limits: Limits,
        segment_bytes: int | None,
        settings: Settings,
        replicas: Replicas,
        asks: Asks,
        codec: str | None = None,
        compaction: Compaction | None = None,
    ) -> None:
        """`codec` is what the stream was declared with."""
        self.replicas = replicas
        #: Other members may be of a version that knows no other.
        self._sent_codec = codec or NONE
        #: They do not change, as far as the replica looks at them.
        self._declared = settings
        self.replica = Replica(settings)
        self._asks = asks
        self._own = replicas.own_in(queue_id)
        self._ahead_ms = -(1 << 62)
        self._publishes = Publishes(self)
        self._pending_barriers: list[Callable[..., None]] = []
        #: Consumers that begin as soon as this member knows what is committed.
        self._beginning: dict[StreamConsumer, Start] = {}
        self._when_whole: list[Callable[[], None]] = []
        #: Something was applied and not told to the consumers yet.
        self._fresh = False
        self._opened = False
        #: Segments are synced up to this offset.
        self._stored = 0
        self._stable = Stable(self.replica, settings)
        #: The leader has proposed that messages below this offset go.
        self._trimming = 0
        self.filling = Filling(self, services, asks)
        super().__init__(queue, queue_id, services, limits, segment_bytes, settings, codec, compaction)
        self.finding = Finding(self, services, self._turn)
        self._answers = Answers(self, services, self._turn)
        self.names = LoggedNames(self, f"{self._own[0]}/{self._own[1]}", services.options.names_max)
        self._node_names = self.names.node_names
        asks.members[queue_id] = self

    # -- at start --------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """The log is opened when it is known how far it should reach."""

    def load(self, state: bytes) -> None:
        """Start from this node's own snapshot. Raises Unreadable."""
        self._restore(state)
        self._open_log()
        self.next_offset = self._synced = self.replica.next_offset

    def _restore(self, state: bytes) -> None:
        try:
            self.replica = replica = Replica.restore(state, self._declared)
        except CodecError as error:
            raise Unreadable(f"its snapshot can't be read by this version of mqd: {error}") from None
        self._keep_time()
        self._stable.begin_with(replica)

    def _open_log(self) -> None:
        replica, log = self.replica, self._log
        self._opened = True
        for lost in log.open(replica.next_offset, mendable=True):
            if lost.low < log.stop:
                self.filling.miss(lost)
        for low, stop in log.gaps(self.first_offset):
            self.filling.miss(Lost(low, stop, "no segment has them"))
        self._stored = log.stop
        if log.stop < replica.next_offset:
            logger.error(
                "%s: messages %d to %d are not on this disk, fetching them from another node",
                *(self.title, log.stop, replica.next_offset - 1),
            )

    def begin(self) -> None:
        """The group is open."""
        if self._opened:
            self.filling.go_on()
            return
        # An earlier host of the stream may have something to write or to delete. What is left then is right: a message
        # is always the same.
        self._writing = True
        self._services.store.write(_nothing, self._begins_empty)

    def _begins_empty(self, result: object) -> None:
        self._writing = False
        if not (self.ended or self._opened):
            self._open_log()
            self._go_on()

    # -- what it holds ---------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        return f"queue '{self.queue.name}' in vhost '{self.queue.vhost.name}'"

    @property
    def first_offset(self) -> int:
        """What is before it is gone on all members; what comes behind it and is not here is fetched."""
        return max(self.replica.first_offset, self._log.first_kept)

    def offsets(self, done: Callable[[range | None], None]) -> None:
        self._reach_committed(partial(self._tell_offsets, done))

    def _tell_offsets(self, done: Callable[[range | None], None], why: Refused | None = None) -> None:
        if why is None and self._opened:
            super().offsets(done)
        else:
            done(None)

    def place_of(self, start: Start, found: Callable[[int | Refused], None]) -> None:
        self._reach_committed(partial(self._find_place, start, found))

    def _find_place(
        self, start: Start, found: Callable[[int | Refused], None], why: Refused | None = None
    ) -> None:
        if why is not None:
            found(why)
        elif self.missing_count or not self._opened:
            # What is at a time may be among that.
            found(Refused("this node fetches messages that it lacks"))
        else:
            super().place_of(start, found)

    def _reach_committed(self, done: Callable[..., None]) -> None:
        """Call when this member has applied all that any member knows as committed now, or with the reason why not.

        What this member has applied may be less, even if it leads: another one may be the leader by now. So an empty batch
        goes through the log, behind all that was committed before.
        """
        if self.ended:
            done(Refused(self._ended_text))
            return
        self._submit([])
        self.begin_asking().barriers.append((self.group.next_number - 1, done))

    @property
    def stored_offset(self) -> int:
        """The segments have all messages below this offset."""
        return self._stored

    @property
    def committed_offset(self) -> int:
        """All messages below this offset are committed."""
        return self._synced

    @property
    def tail(self) -> list[Encoded]:
        """What was applied and is not in segments yet."""
        return self._tail

    @property
    def tail_offset(self) -> int:
        """Return where the tail begins: the segments should have all before it."""
        return self._tail[0].batch.base if self._tail else self.replica.next_offset

    @property
    def missing_count(self) -> int:
        """Messages that other members are asked for."""
        mending = sum([stop - low for low, stop in self.filling.missing.items()])
        return max(self.tail_offset - self._stored, 0) + mending

    @property
    def log(self) -> StreamLog:
        return self._log

    @property
    def opened(self) -> bool:
        """Return whether the log is open."""
        return self._opened

    # -- the state machine of the group ----------------------------------------------------------------------------

    @property
    def awaited(self) -> bool:
        return bool(self._consumers)

    def encode(self, batches: list[bytes]) -> bytes:
        self._keep_time()
        return encode_entry(self._services.clock.monotonic_ms() + self._time_ahead_ms, batches)

    def _keep_time(self) -> None:
        """Continue the group's time from its last entry, even if this node's queue time is behind that."""
        ahead_ms = self.replica.now_ms - self._services.clock.monotonic_ms()
        if ahead_ms > self._ahead_ms:
            self._ahead_ms = ahead_ms

    @property
    def _time_ahead_ms(self) -> int:
        return max(self._ahead_ms, self._services.queue_time.ahead_ms)

    def apply(self, index: int, data: bytes) -> None:
        try:
            now_ms, found = decode_entry(data)
            applied = self.replica.apply(index, now_ms, found, self._own)
        except CodecError as error:
            raise Unreadable(
                f"entry {index} of its log can't be read by this version of mqd: {error}"
            ) from None
        self._keep_time()
        self._take(applied)

    def _take(self, applied: Applied) -> None:
        for encoded in applied.batches:
            # After a start the segments have some of them.
            if encoded.batch.stop > self._stored:
                self._add(encoded)
            self._stable.add(encoded)
        self.next_offset = self.replica.next_offset
        self._synced = max(self._synced, self.next_offset)
        self._fresh = True
        self.names.fresh = self.names.fresh or applied.named
        if applied.missed:
            self._publishes.refuse(applied.missed.start, applied.missed.stop - 1)
            self.names.missed(applied.missed)
        if applied.numbers:
            self._publishes.confirm(applied.numbers[-1])
            self._passed(applied.numbers[-1])

    def passed(self, index: int) -> None:
        self.replica.applied = index

    def passed_over(self, index: int) -> None:
        self.replica.passed_over(index)
        logger.error("%s: entry %d is given up, and its contents are lost", self.title, index)

    def lose_bodies(self, indexes: list[int]) -> None:
        """Applied entries are not needed: this member has their messages."""

    def entries_applied(self) -> None:
        if self.ended:
            return
        if self._fresh:
            self._fresh = False
            if self.names.waits:
                self.names.hear()
            self._progressed()
            self._retain()
            self._schedule_upkeep()
        if (self._beginning or self._when_whole) and self.group.informed:
            beginning, self._beginning = self._beginning, {}
            for consumer, start in beginning.items():
                if not consumer.detached:
                    self._begin(consumer, start)
            whole, self._when_whole = self._when_whole, []
            for then in whole:
                then()

    # -- offsets by name -------------------------------------------------------------------------------------------

    def _begin_named(self, consumer: StreamConsumer, start: Start) -> None:
        progress = self._progress[consumer.key] = Progress(start.group)
        self.names.add(consumer.key, start.group, progress)
        self._turn.schedule(self)

    def named_begins(self, key: Key, offset: int) -> None:
        """A consumer has its name; see NodeNames."""
        begin_named(self, key, offset)

    def loses_name(self, key: Key) -> None:
        """Another one has taken the name of a consumer."""
        self._progress.pop(key, None)
        self._detach(key)
        self.queue.consumer_lost(key)

    @property
    def progress(self) -> dict[Key, Progress]:
        """Return how far consumers with names are."""
        return self._progress

    def submit_notes(self, notes: list[Note]) -> None:
        self._submit([], notes=notes)

    def _keep(self, key: Key, progress: Progress) -> None:
        self._node_names.acked(key)
        self._turn.schedule(self)

    # -- what was applied ------------------------------------------------------------------------------------------

    def _progressed(self) -> None:
        """There may be more for consumers, here and on other nodes."""
        if self._consumers:
            self._to_serve.update(dict.fromkeys(self._consumers.values()))
            self._serve_all()
        self._answers.has_more()

    def answer(self, peer: str, what: int, value: int, reply: Done, data: bytes = b"") -> None:
        """Answer a question of another node; see Asks."""
        self._answers.answer(peer, what, value, reply, data)

    def word(self, what: int, value: int = 0, data: bytes = b"") -> StreamWord:
        """Return an answer to another node, with what this member has."""
        return StreamWord(what, value, self.first_offset, self._synced, self.first_ms or 0, data)

    def when_whole(self, then: Callable[[], None]) -> None:
        """Call when this member has all that was committed before."""
        self._when_whole.append(then)
        self.replicas.touch(self.group)

    def covered(self, applied: int) -> int:
        if not self._tail and self._stored >= self.replica.next_offset and self._opened:
            index = self.replica.applied
            if index != self._stable.index:
                self._stable.reach(index, self.replica.state(), self._stable.next)
        return min(self._stable.index, applied)

    def snapshot(self) -> bytes:
        return self._stable.snapshot()

    @property
    def fills_itself(self) -> bool:
        return True

    def fill(self, state: bytes, peer: str, wanted: Callable[[], bool], then: Callable[[], None]) -> None:
        try:
            target = decode_state(state)
        except CodecError as error:
            raise Unreadable(f"its snapshot can't be read by this version of mqd: {error}") from None
        self.filling.begin(Fill(peer, target.first_offset, target.next_offset, wanted, then))

    def restore(self, state: bytes) -> None:
        """Jump to a snapshot from the leader; the segments have its messages. Raises Unreadable."""
        self._restore(state)
        self._drop_tail(len(self._tail))
        self.next_offset = self.replica.next_offset
        self._synced = max(self._synced, self.next_offset)
        last_own = self.last_own_batch()
        self._publishes.confirm(last_own)
        self._passed(last_own)
        self._fresh = self.names.fresh = True

    def kept(self) -> list[int]:
        return []

    def kept_in(self, state: bytes) -> list[int]:
        return []

    def wanted(self, index: int) -> bool:
        return index > self.group.core.log.snapshot_index

    def released(self) -> list[int]:
        return []

    def last_own_batch(self) -> int:
        incarnation, number = self.replica.batches.get(self._own[0], (0, 0))
        return number if incarnation == self._own[1] else 0

    def leader_changed(self) -> None:
        self._trimming = 0
        self._retain()
        self._schedule_upkeep()

    def members_changed(self, members: Members) -> None:
        if not self.group.is_leader and self.group.flights:
            # This node may have been no member for a while, in which the leader took nothing from it.
            self.group.sent_to = ("", 0)
            self.replicas.touch(self.group)

    def closed(self) -> None:
        """Nothing of it is under way any more."""

    def gone_members(self) -> None:
        """Consumers of other nodes are their own business."""

    def let_go(self, node: str, incarnation: int) -> None:
        """The same."""

    # -- commands --------------------------------------------------------------------------------------------------

    def apply_pending(self) -> None:
        self._apply_commands()
        if self._to_serve:
            self._serve_all()
        if self._node_names.by_key and not self.ended:
            self.names.hear()
        barriers, self._pending_barriers = self._pending_barriers, []
        if self.ended:
            why = (Refused(self._ended_text),) if self.ended != "deleted" else ()
            for done in barriers:
                done(*why)
        elif self.group.flights:
            number = self.group.next_number - 1
            if barriers:
                self.begin_asking().barriers += [(number, done) for done in barriers]
        else:
            for done in barriers:
                done()

    def barrier(self, done: Callable[..., None]) -> None:
        if self.ended:
            done()
            return
        self._pending_barriers.append(done)
        self._turn.schedule(self)

    def _enqueue(self, commands: list[Command]) -> None:
        """Submit messages to the log."""
        encoder = Encoder(self._services.layouts, 0, 0, stamped=True)
        waiting: list[tuple[Any, int, int, int]] = []
        early = False
        for command in commands:
            run, origin, first = command[1], command[2], command[3]
            named = command[0] == "enqueue_once" and self.replica.taken is not None
            encoder.add(run, command[4] if named else None)
            if origin is not None:
                level = run.attributes.confirm_level
                early = early or level == LEADER
                waiting.append((origin, first, first + len(run.seqs) - 1, level))
        low = self.group.next_number
        part: list[Encoded] = []
        size = 0
        for encoded in encoder.finish():
            if part and size + encoded.batch.size > self.replicas.options.batch_bytes:
                self._submit(part, early=early)
                part, size = [], 0
            part.append(encoded)
            size += encoded.batch.size
        self._submit(part, early=early)
        high = self.group.next_number - 1
        self._publishes.add(low, high, waiting)

    def _submit(
        self,
        encoded: list[Encoded],
        first: int = 0,
        *,
        early: bool = False,
        notes: list[Note] | None = None,
    ) -> None:
        """`early`: some of them are confirmed once the leader has them."""
        node, incarnation = self._own
        number = self.group.next_number
        batch = encode_batch(node, incarnation, number, encoded, first, codec=self._sent_codec, notes=notes)
        self.group.submit(batch, self._publishes.has_synced if early else None)

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The queue is deleted, with all that it holds."""
        if self.ended:
            return
        self.ended = "deleted"
        self._let_go()
        self.replicas.close(self.group)
        self._delete_segments()
        self._refuse_all(DELETED)

    def hand_over(self, to: Any, *, failed: bool = False) -> None:
        """Another member serves this node's clients from now on; consumers go on there where they are.

        Publishes on their way are refused, because it is unknown whether they will arrive. `failed`: what is stored stays.
        """
        self.ended = "failed" if failed else "moved"
        take_over(self, to)
        pending, self.pending = self.pending, []
        for command in pending:
            if command[0] in ENQUEUES and isinstance(command[2], GuestOrigin):
                # Its node asks another member from now on.
                command[2].refused(command[3], command[3] + len(command[1].seqs) - 1)
            else:
                to.pending.append(command)
        barriers, self._pending_barriers = self._pending_barriers, []
        for done in barriers:
            to.barrier(done)
        self.replicas.leave(self.queue_id)
        self._let_go()
        if failed:
            self._log.abandon()
            self.replicas.stop(self.group)
        else:
            self.replicas.close(self.group)
            self._delete_segments()
        self._refuse_all(MOVED)
        self._turn.schedule(to)

    def _let_go(self) -> None:
        self._release()
        if self._asks.members.get(self.queue_id) is self:
            del self._asks.members[self.queue_id]
        self.filling.end()
        self._beginning.clear()
        self._answers.close()
        self.names.close()

    def _delete_segments(self) -> None:
        services = self._services
        self._log.abandon()
        # The files go when it is certain that the queue has gone.
        services.commits.request(partial(services.store.write, self._log.delete, _told_nothing))

    def _refuse_all(self, why: Refused) -> None:
        self.group.answer_unreached(confirm=self.ended == "deleted")
        self._publishes.end(deleted=self.ended == "deleted")
        self._refuse_pending()
        self._refuse_askers(why)
        barriers, self._pending_barriers = self._pending_barriers, []
        for done in barriers:
            done(why)

    # -- segments --------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        if not self.ended:
            self.filling.go_on()
            super().wake()

    def _schedule_upkeep(self) -> None:
        if self._writing or self.ended:
            return
        services = self._services
        if self._tail:
            if services.options.flushes(len(self._tail), self._tail_bytes):
                self._flush()
            else:
                services.timers.wake(self, services.clock.monotonic_ms() + services.options.flush_ms)
        if self.compacting is not None and self._opened:
            self.compacting.look()
        if self.group.is_leader and self._trimming <= self.replica.first_offset:
            due = due_ms(self._log.segments, self._limits)
            if due is not None and not self._writing:
                services.timers.wake(self, max(due - services.queue_time.ahead_ms, 0))

    def _flush(self) -> None:
        """Have all that is applied written to the segments."""
        tail = self._tail
        if self._writing or self.filling.has_snapshot or not tail:
            return
        # They may have got there in another way.
        self._drop_tail(bisect_right(tail, self._stored, key=stop_of))
        if not tail or tail[0].batch.base > self._stored:
            self.filling.go_on()
            return
        stored = [
            Stored(each.batch.base, each.batch.stop, each.batch.time_ms, each.parts, each.batch.size)
            for each in tail
        ]
        self._writing = True
        done = partial(self._has_flushed, self.replica.applied, self.replica.state(), self._stable.next)
        self._services.store.write(partial(self._log.append, stored), done)

    def _has_flushed(self, index: int, state: StreamState, unstable: int, result: object) -> None:
        """The segments have all up to this entry: the log need not."""
        self._writing = False
        if self.ended:
            return
        self._stored = self._log.stop
        self._drop_tail(bisect_right(self._tail, self._stored, key=stop_of))
        if index > self._stable.index:
            self._stable.reach(index, state, unstable)
        self.replicas.touch(self.group)
        self._go_on()

    def _go_on(self) -> None:
        self.filling.go_on()
        self._retain()
        self._schedule_upkeep()

    def _drop_tail(self, count: int) -> None:
        if count <= 0:
            return
        services = self._services
        size = sum([each.batch.size for each in self._tail[:count]])
        del self._tail[:count]
        self._tail_bytes -= size
        services.tail_bytes -= size
        services.memory.used -= size

    def _retain(self) -> None:
        """The leader says which messages go, and every member deletes their segments."""
        if self._writing or self.ended:
            return
        segments, first = self._log.segments, self.replica.first_offset
        if self.group.is_leader and self._trimming <= first:
            count = outdated(segments, self._limits, self._services.queue_time.now_ms())
            if count:
                wanted = segments[count].base if count < len(segments) else self._stored
                if wanted > first:
                    self._trimming = wanted
                    self._submit([], wanted)
        if segments and segments[0].size and segments[0].stop <= first:
            self._writing = True
            self._services.store.write(partial(self._log.trim_to, first), self._has_trimmed)

    def _has_trimmed(self, result: object) -> None:
        self._writing = False
        if self.ended:
            return
        first = self.first_offset
        missing = self.filling.missing
        for low, stop in list(missing.items()):
            if stop <= first:
                del missing[low]
        self._go_on()

    # -- for what fills and mends the segments ---------------------------------------------------------------------

    @property
    def writing(self) -> bool:
        """Return whether a thread writes to the segments: one thing at a time."""
        return self._writing

    def write(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._writing = True
        self._services.store.write(call, done)

    def has_ended_writing(self) -> None:
        self._writing = False

    def has_written(self, result: object) -> None:
        self._writing = False
        if self.ended:
            return
        self._stored = self._log.stop
        self._drop_tail(bisect_right(self._tail, self._stored, key=stop_of))
        # All that another member gives is committed.
        self._synced = max(self._synced, self._stored)
        self._progressed()
        self._go_on()

    def skip_to(self, offset: int) -> None:
        """No member has what is between the end of the segments and this offset."""
        self._log.skip_to(offset)
        self._stored = self._log.stop
        self._go_on()

    def has_mended(self) -> None:
        """The segments have what was missing, or it is given up."""
        self._progressed()
        self._go_on()

    def note_lost(self, lost: Lost) -> None:
        self._note_lost(lost)

    # -- consuming -------------------------------------------------------------------------------------------------

    def _begin(self, consumer: StreamConsumer, start: Start) -> None:
        if start.offset is None and not self.group.informed:
            # What this member knows may be out of date.
            self._beginning[consumer] = start
            self.replicas.touch(self.group)
        elif start.name == "first":
            self._begins(consumer, self.first_offset)
        elif start.name == "next" or start.offset is not None:
            super()._begin(consumer, start)
        else:
            consumer.reading = True
            self.finding.find(start, partial(self._found, consumer))

    def time_meant(self, start: Start) -> int:
        """Return the time that a consumer begins at, in ms."""
        return self._time_of(start)

    def _found(self, consumer: StreamConsumer, offset: int) -> None:
        if not (self.ended or consumer.detached):
            consumer.reading = False
            self._begins(consumer, offset)

    def _read(self, consumer: StreamConsumer, offset: int) -> None:
        if consumer.reading:
            return
        if offset >= self._stored or any(low <= offset < stop for low, stop in self.filling.missing.items()):
            # It goes on when other members have given it.
            self.filling.go_on()
            return
        consumer.reading = True
        self._services.store.read(
            partial(self._log.read, offset, consumer.place, consumer.wanted),
            partial(self._has_read_at, consumer, consumer.reads, offset),
        )

    def _has_read_at(self, consumer: StreamConsumer, reads: int, offset: int, outcome: Outcome[Read]) -> None:
        if self.ended or consumer.detached:
            return
        consumer.reading = False
        if isinstance(outcome, Error):
            self._turn.contain(self, outcome.unwrap)
            return
        read = outcome.unwrap()
        reached = read.place.offset
        for lost in read.lost:
            self.filling.miss(lost)
        if any(low < reached and stop > offset for low, stop in self.filling.missing.items()):
            # Nothing behind a damage is handed out before it is mended.
            consumer.place = None
            self._serve_up_to_damage(consumer, reads, offset, read)
            self.filling.go_on()
            return
        self._give(consumer, reads, read)

    def _serve_up_to_damage(self, consumer: StreamConsumer, reads: int, offset: int, read: Read) -> None:
        """Give what is before the first damage that was passed."""
        low = min(low for low, stop in self.filling.missing.items() if stop > offset)
        before = [batch for batch in read.batches if batch.stop <= low]
        if before and reads == consumer.reads:
            consumer.ahead.extend(before)
            self._services.hold(consumer, sum([batch.size for batch in before]))
            self._serve(consumer)

    def _give(self, consumer: StreamConsumer, reads: int, read: Read) -> None:
        if reads == consumer.reads:
            ends = read.place.base < 0
            consumer.place = None if ends else read.place
            consumer.ahead.extend(read.batches)
            self._services.hold(consumer, sum([batch.size for batch in read.batches]))
            if ends and consumer.reader is None and not consumer.ahead:
                # The segments end here. What comes next is in memory, or is still to come.
                reached = max(consumer.next_offset, read.place.offset)
                consumer.next_offset = self.filling.given_up.get(reached, reached)
        self._serve(consumer)


def _nothing() -> None: ...


def _told_nothing(result: object) -> None: ...


__all__ = ["StreamGroupHost"]
