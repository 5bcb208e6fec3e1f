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
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from outcome import Error, Outcome

from amqp_server.streams.asks import ABSENT, Asks, Done
from amqp_server.streams.compacting import Compaction
from amqp_server.streams.encode import Encoded, Encoder
from amqp_server.streams.host import StreamConsumer, StreamHost, StreamServices
from amqp_server.streams.named import Progress
from amqp_server.streams.node_names import NodeNames
from amqp_server.streams.replicated import (
    NO_OFFSET,
    Applied,
    CodecError,
    Note,
    Replica,
    StreamState,
    decode_entry,
    decode_state,
    encode_batch,
    encode_entry,
    encode_state,
)
from amqp_server.streams.start import NEXT, Start
from amqp_server.streams.taken import Taken
from persistence.streams.batch import Damaged, Head
from persistence.streams.compression import NONE
from persistence.streams.cutting import within
from persistence.streams.log import READ_BYTES, Lost, Raw, Read, Stored, heads_of
from persistence.streams.retention import Limits, due_ms, outdated
from quorum_queue.cluster import frames
from quorum_queue.cluster.frames import StreamWord
from quorum_queue.cluster.group import Group
from quorum_queue.cluster.guests import GuestOrigin
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.errors import Unreadable
from quorum_queue.host import DELETED, MOVED, Key
from quorum_queue.machine.attributes import ALL, LEADER, MAJORITY
from quorum_queue.machine.machine import ENQUEUES, Command
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import Hosted, Refused
from quorum_queue.raft.members import Members

logger = logging.getLogger("mqd.streams")

_names_decoder = msgspec.msgpack.Decoder(tuple[list[Note], list[str]])

#: Time until other members are asked again for what no member could give, ms.
RETRY_MS = 500


class Publish(NamedTuple):
    """Messages of one publisher in own batches, which have these numbers."""

    low: int
    high: int
    origin: Any
    first: int
    last: int
    #: When they are confirmed; see quorum_queue.machine.attributes.
    level: int = MAJORITY


class Fill(NamedTuple):
    """What the segments must have before a snapshot of the leader can be taken over."""

    peer: str
    first_offset: int
    stop: int
    wanted: Callable[[], bool]
    then: Callable[[], None]


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
        self._publishes: list[Publish] = []
        self._pending_barriers: list[Callable[..., None]] = []
        #: Consumers that begin as soon as this member knows what is committed.
        self._beginning: dict[StreamConsumer, Start] = {}
        self._when_whole: list[Callable[[], None]] = []
        #: Something was applied and not told to the consumers yet.
        self._fresh = False
        self._opened = False
        #: Segments are synced up to this offset.
        self._stored = 0
        #: The last entry whose messages are all in segments, and the state there.
        self._stable_index = 0
        self._stable_state = self.replica.state()
        #: What was taken up to that entry, and the times and names of batches behind it. Numbers of such batches: the next
        #: one, and the first that is behind that entry.
        self._stable_taken = Taken(settings) if settings.deduplicates else None
        self._unstable: deque[tuple[int, Sequence[bytes]]] = deque()
        self._unstable_next = self._unstable_first = 0
        #: The leader has proposed that messages below this offset go.
        self._trimming = 0
        #: What other members are asked for: to take over a snapshot, and to mend damages, by their first offsets.
        self._fill: Fill | None = None
        self._missing: dict[int, int] = {}
        #: No member has these.
        self._given_up: dict[int, int] = {}
        self._asking = False
        self._rests_until = 0
        #: Members in turn; how many could not help since one did, and those that have what is asked for damaged.
        self._turns = 0
        self._failures = 0
        self._damaged_at: dict[str, None] = {}
        #: Nodes that wait for messages from an offset on.
        self._followers: dict[str, tuple[int, Done]] = {}
        #: The number of the batch with what was said about names here, while it is on its way.
        self._notes_number = 0
        #: Something about names was applied.
        self._fresh_names = False
        #: Other nodes that have something noted about names: the batch, the names to tell of, and the answer.
        self._names_asked: list[tuple[int, list[str], Done]] = []
        super().__init__(queue, queue_id, services, limits, segment_bytes, settings, codec, compaction)
        self._node_names = NodeNames(
            f"{self._own[0]}/{self._own[1]}",
            services.options.names_max,
            send=self._send_notes,
            begin=self._named_begins,
            lose=self._loses_name,
        )
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
        self._stable_index, self._stable_state = replica.applied, replica.state()
        if self._stable_taken is not None and replica.taken is not None:
            self._stable_taken.copy_from(replica.taken)
            self._unstable.clear()
            self._unstable_first = self._unstable_next

    def _open_log(self) -> None:
        replica, log = self.replica, self._log
        self._opened = True
        for lost in log.open(replica.next_offset, mendable=True):
            if lost.low < log.stop:
                self._miss(lost)
        for low, stop in log.gaps(self.first_offset):
            self._miss(Lost(low, stop, "no segment has them"))
        self._stored = log.stop
        if log.stop < replica.next_offset:
            logger.error(
                "%s: messages %d to %d are not on this disk, fetching them from another node",
                *(self.title, log.stop, replica.next_offset - 1),
            )

    def _miss(self, lost: Lost) -> None:
        low = max(lost.low, self.first_offset)
        if lost.stop > low and low not in self._missing and not self._is_given_up(low):
            self._missing[low] = lost.stop
            logger.error(
                "%s: messages %d to %d cannot be read, fetching them from another node: %s",
                *(self.title, low, lost.stop - 1, lost.why),
            )

    def begin(self) -> None:
        """The group is open."""
        if self._opened:
            self._go_on_filling()
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
        if self.ended or not self._opened or not self.group.informed:
            # What this member knows may be out of date.
            self.replicas.touch(self.group)
            done(None)
        else:
            super().offsets(done)

    @property
    def stored_offset(self) -> int:
        """The segments have all messages below this offset."""
        return self._stored

    @property
    def missing_count(self) -> int:
        """Messages that other members are asked for."""
        due = self._tail[0].batch.base if self._tail else self.replica.next_offset
        return max(due - self._stored, 0) + sum([stop - low for low, stop in self._missing.items()])

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
            if self._stable_taken is not None:
                self._unstable.append((encoded.batch.time_ms, encoded.names))
                self._unstable_next += 1
        self.next_offset = self.replica.next_offset
        self._synced = max(self._synced, self.next_offset)
        self._fresh = True
        self._fresh_names = self._fresh_names or applied.named
        if applied.missed:
            self._answer(applied.missed.start, applied.missed.stop - 1, confirm=False)
            if self._notes_number in applied.missed:
                self._notes_number = 0
                self._node_names.failed()
            self._answer_names(applied.missed[-1], found=False)
        if applied.numbers:
            self._answer(0, applied.numbers[-1], confirm=True)
            self._passed(applied.numbers[-1])

    def _answer(self, low: int, high: int, *, confirm: bool) -> None:
        """Answer publishes that are in own batches up to `high`, or that are in any of `low` to `high`."""
        left: list[Publish] = []
        for publish in self._publishes:
            done = publish.high <= high if confirm else publish.low <= high and publish.high >= low
            if not done:
                left.append(publish)
            elif not confirm:
                publish.origin.refused(publish.first, publish.last)
            elif publish.level == ALL:
                self.group.when_all(self.replica.applied, publish.origin, publish.first, publish.last)
            else:
                publish.origin.confirmed(publish.first, publish.last)
        self._publishes = left

    def _has_synced(self, number: int) -> None:
        """The leader has this node's batches up to this one on its disk."""
        left: list[Publish] = []
        for publish in self._publishes:
            if publish.level == LEADER and publish.high <= number:
                publish.origin.confirmed(publish.first, publish.last)
            else:
                left.append(publish)
        self._publishes = left

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
            if self._notes_number or self._fresh_names or self._names_asked:
                self._hear_of_names()
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
        self._node_names.add(consumer.key, start.group, progress)
        # What is known of the name here tells whom it is taken from.
        self._fresh_names = True
        self._turn.schedule(self)

    def _named_begins(self, key: Key, offset: int) -> None:
        begin_named(self, key, offset)

    def _loses_name(self, key: Key) -> None:
        self._progress.pop(key, None)
        self._detach(key)
        self.queue.consumer_lost(key)

    def _keep(self, key: Key, progress: Progress) -> None:
        self._node_names.acked(key)
        self._turn.schedule(self)

    def _send_notes(self, notes: list[Note]) -> None:
        self._notes_number = self.group.next_number
        self._submit([], notes=notes)

    def _hear_of_names(self) -> None:
        """Look what the log says of names, if it says anything new, and say what consumers here have to say."""
        names, last = self._node_names, self.last_own_batch()
        if self._notes_number and last >= self._notes_number:
            self._notes_number = 0
            self._fresh_names = False
            names.settled(self.replica.names)
        elif self._fresh_names:
            self._fresh_names = False
            names.heard(self.replica.names)
        if self._names_asked:
            self._answer_names(last, found=True)
        if names.by_key:
            names.flush(self._progress)

    def _answer_names(self, number: int, *, found: bool) -> None:
        """What other nodes had to say in batches up to this one is in the log, or it is not."""
        left: list[tuple[int, list[str], Done]] = []
        asked, self._names_asked = self._names_asked, left
        for each in asked:
            if each[0] > number:
                left.append(each)
            else:
                each[2](self._word_of_names(each[1]) if found else ABSENT)

    def _word_of_names(self, names: list[str]) -> StreamWord:
        kept = {name: tuple(self.replica.names[name]) for name in names if name in self.replica.names}
        return self._word(frames.TOLD_FOUND, data=msgspec.msgpack.encode(kept))

    def _note_for(self, data: bytes, reply: Done) -> None:
        """Another node, which is no member, has something to say about names."""
        try:
            notes, names = _names_decoder.decode(data)
        except msgspec.MsgspecError:
            reply(ABSENT)
            return
        if not notes:
            reply(self._word_of_names(names) if self.group.informed else ABSENT)
            return
        self._names_asked.append((self.group.next_number, names, reply))
        self._submit([], notes=notes)

    # -- what was applied ------------------------------------------------------------------------------------------

    def _progressed(self) -> None:
        """There may be more for consumers, here and on other nodes."""
        if self._consumers:
            self._to_serve.update(dict.fromkeys(self._consumers.values()))
            self._serve_all()
        followers, self._followers = self._followers, {}
        for peer, (offset, reply) in followers.items():
            self.answer(peer, frames.ASK_FOLLOW, offset, reply)

    def when_whole(self, then: Callable[[], None]) -> None:
        """Call when this member has all that was committed before."""
        self._when_whole.append(then)
        self.replicas.touch(self.group)

    def covered(self, applied: int) -> int:
        if not self._tail and self._stored >= self.replica.next_offset and self._opened:
            index = self.replica.applied
            if index != self._stable_index:
                self._is_stable(index, self.replica.state(), self._unstable_next)
        return min(self._stable_index, applied)

    def _is_stable(self, index: int, state: StreamState, unstable: int) -> None:
        """The segments have all up to this entry, and the batches with names before that number."""
        self._stable_index, self._stable_state = index, state
        taken = self._stable_taken
        while taken is not None and self._unstable_first < unstable:
            taken.apply(*self._unstable.popleft())
            self._unstable_first += 1

    def snapshot(self) -> bytes:
        return encode_state(self._stable_state, self._stable_taken)

    @property
    def fills_itself(self) -> bool:
        return True

    def fill(self, state: bytes, peer: str, wanted: Callable[[], bool], then: Callable[[], None]) -> None:
        try:
            target = decode_state(state)
        except CodecError as error:
            raise Unreadable(f"its snapshot can't be read by this version of mqd: {error}") from None
        self._rests_until = 0
        self._fill = Fill(peer, target.first_offset, target.next_offset, wanted, then)
        self._go_on_filling()

    def restore(self, state: bytes) -> None:
        """Jump to a snapshot from the leader; the segments have its messages. Raises Unreadable."""
        self._restore(state)
        self._drop_tail(len(self._tail))
        self.next_offset = self.replica.next_offset
        self._synced = max(self._synced, self.next_offset)
        last_own = self.last_own_batch()
        self._answer(0, last_own, confirm=True)
        self._passed(last_own)
        self._fresh = self._fresh_names = True

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
            self._hear_of_names()
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
        self._publishes += [Publish(low, high, *each) for each in waiting]

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
        self.group.submit(batch, self._has_synced if early else None)

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
        self._fill = None
        self._beginning.clear()
        followers, self._followers = self._followers, {}
        for _, reply in followers.values():
            reply(ABSENT)
        asked, self._names_asked = self._names_asked, []
        for _, _, reply in asked:
            reply(ABSENT)

    def _delete_segments(self) -> None:
        services = self._services
        self._log.abandon()
        # The files go when it is certain that the queue has gone.
        services.commits.request(partial(services.store.write, self._log.delete, _told_nothing))

    def _refuse_all(self, why: Refused) -> None:
        self.group.answer_unreached(confirm=self.ended == "deleted")
        publishes, self._publishes = self._publishes, []
        for publish in publishes:
            # No queue takes what was published to a deleted one: that is a confirm.
            answer = publish.origin.confirmed if self.ended == "deleted" else publish.origin.refused
            answer(publish.first, publish.last)
        self._refuse_pending()
        self._refuse_askers(why)
        barriers, self._pending_barriers = self._pending_barriers, []
        for done in barriers:
            done(why)

    # -- segments --------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        if not self.ended:
            self._go_on_filling()
            super().wake()

    def _schedule_upkeep(self) -> None:
        if self._writing or self.ended:
            return
        services = self._services
        if self._tail:
            if self._tail_bytes >= services.options.flush_bytes:
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
        if self._writing or self._filling or not tail:
            return
        # They may have got there in another way.
        self._drop_tail(bisect_right(tail, self._stored, key=_stop_of))
        if not tail or tail[0].batch.base > self._stored:
            self._go_on_filling()
            return
        stored = [
            Stored(each.batch.base, each.batch.stop, each.batch.time_ms, each.parts, each.batch.size)
            for each in tail
        ]
        self._writing = True
        done = partial(self._has_flushed, self.replica.applied, self.replica.state(), self._unstable_next)
        self._services.store.write(partial(self._log.append, stored), done)

    @property
    def _filling(self) -> bool:
        return self._fill is not None and self._fill.wanted()

    def _has_flushed(self, index: int, state: StreamState, unstable: int, result: object) -> None:
        """The segments have all up to this entry: the log need not."""
        self._writing = False
        if self.ended:
            return
        self._stored = self._log.stop
        self._drop_tail(bisect_right(self._tail, self._stored, key=_stop_of))
        if index > self._stable_index:
            self._is_stable(index, state, unstable)
        self.replicas.touch(self.group)
        self._go_on()

    def _go_on(self) -> None:
        self._go_on_filling()
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
        for low, stop in list(self._missing.items()):
            if stop <= first:
                del self._missing[low]
        self._go_on()

    # -- what is not on this disk ----------------------------------------------------------------------------------

    def _go_on_filling(self) -> None:
        """Ask other members for the next messages that this disk should have and does not have."""
        if self.ended or self._asking or self._writing or not self._opened:
            return
        if self._services.clock.monotonic_ms() < self._rests_until:
            self._services.timers.wake(self, self._rests_until)
            return
        fill = self._fill
        if fill is not None and not fill.wanted():
            fill = self._fill = None
        due, first = (
            self._tail[0].batch.base if self._tail else self.replica.next_offset,
            self.first_offset,
        )
        if fill is not None:
            due, first = max(due, fill.stop), max(first, fill.first_offset)
        if self._stored < first:
            self._reset(first)
        elif self._stored < due:
            self._ask(self._stored, due, fill.peer if fill is not None else "", self._came_forward)
        else:
            if fill is not None:
                self._fill = None
                fill.then()
            for low, stop in self._missing.items():
                self._ask(low, stop, "", partial(self._came_to_mend, low, stop))
                return

    def _reset(self, offset: int) -> None:
        """What is before this offset is gone on the other members."""
        self._writing = True
        self._missing.clear()
        self._services.store.write(partial(self._log.reset, offset), self._has_written)

    def _others(self) -> list[str]:
        """The other members; one that has just begun knows only the leader that fills it for certain."""
        names = dict.fromkeys(self.group.core.members.everyone())
        if self._fill is not None:
            names[self._fill.peer] = None
        return [name for name in names if name != self.replicas.node]

    def _ask(self, offset: int, stop: int, prefer: str, done: Done) -> None:
        members = self._others()
        others = [name for name in members if self._asks.linked(name)]
        if not members:
            done(StreamWord(frames.TOLD_DAMAGED, stop))
            return
        if prefer in others and prefer not in self._damaged_at and not self._failures:
            peer = prefer
        elif others:
            self._turns += 1
            peer = others[self._turns % len(others)]
        else:
            self._wait()
            return
        self._asking = True
        self._asks.ask(peer, self.queue_id, frames.ASK_READ, offset, self, partial(self._told, peer, done))

    def _told(self, peer: str, done: Done, word: StreamWord) -> None:
        self._asking = False
        if self.ended:
            return
        if word.what == frames.TOLD_DAMAGED:
            self._damaged_at[peer] = None
        if word.what in (frames.TOLD_GONE, frames.TOLD_LOST) or (
            word.what == frames.TOLD_FOUND and word.data
        ):
            self._failures = 0
            self._damaged_at.clear()
            done(word)
            return
        everyone = self._others()
        # One that comes back after it was no member may not know the others yet.
        if self.group.informed and all(name in self._damaged_at for name in everyone):
            self._damaged_at.clear()
            done(word)
            return
        self._failures += 1
        if self._failures % max(len(everyone), 1):
            self._go_on_filling()
        else:
            self._wait()

    def _wait(self) -> None:
        """Nobody can help now: ask again later."""
        self._rests_until = self._services.clock.monotonic_ms() + RETRY_MS
        self._services.timers.wake(self, self._rests_until)

    def _came_forward(self, word: StreamWord) -> None:
        """Messages for the end of the segments."""
        if self._writing:
            # Something else is written; it is asked for again.
            return
        if word.what == frames.TOLD_GONE:
            if word.value > self._stored:
                self._reset(word.value)
            return
        if word.what in (frames.TOLD_DAMAGED, frames.TOLD_LOST):
            self._give_up(self._stored, word.value)
            self._log.skip_to(word.value)
            self._stored = self._log.stop
            self._go_on()
            return
        stored, data = self._stored, word.data
        found = [each for each in self._heads_of(data) if each[1].stop > stored]
        if not found or found[0][1].base > stored:
            self._wait()
            return
        if found[0][1].base < stored:
            # It was compacted there.
            data = within(data, found, stored, found[-1][1].stop)
            found = self._heads_of(data)
        parts = [
            Stored(head.base, head.stop, head.time_ms, [data[at : at + head.size]], head.size)
            for at, head in found
        ]
        self._writing = True
        self._services.store.write(partial(self._log.append, parts), self._has_written)

    def _heads_of(self, data: bytes) -> list[tuple[int, Head]]:
        try:
            return list(heads_of(data))
        except Damaged as error:
            logger.error("%s: another node has sent damaged messages: %s", self.title, error)
            return []

    def _has_written(self, result: object) -> None:
        self._writing = False
        if self.ended:
            return
        self._stored = self._log.stop
        self._drop_tail(bisect_right(self._tail, self._stored, key=_stop_of))
        # All that another member gives is committed.
        self._synced = max(self._synced, self._stored)
        self._progressed()
        self._go_on()

    def _came_to_mend(self, low: int, stop: int, word: StreamWord) -> None:
        if self._missing.get(low) != stop or self._writing:
            return
        if word.what == frames.TOLD_GONE:
            del self._missing[low]
            if word.value < stop:
                self._missing[max(low, word.value)] = stop
            self._mended()
            return
        if word.what in (frames.TOLD_DAMAGED, frames.TOLD_LOST):
            del self._missing[low]
            if word.value < stop:
                self._missing[word.value] = stop
            self._give_up(low, min(stop, word.value))
            self._mended()
            return
        found = [each for each in self._heads_of(word.data) if each[1].base < stop]
        if not found or found[0][1].base > low:
            self._wait()
            return
        end = found[-1][0] + found[-1][1].size
        self._writing = True
        self._services.store.write(
            partial(self._log.mend, word.data[:end], low, stop),
            partial(self._has_mended, low, stop, found[-1][1].stop),
        )

    def _has_mended(self, low: int, stop: int, reached: int, result: object) -> None:
        self._writing = False
        if self.ended:
            return
        if self._missing.pop(low, None) is not None:
            if reached < stop:
                self._missing[reached] = stop
            else:
                logger.warning("%s: messages up to %d are whole again", self.title, stop - 1)
        for gap, end in self._log.gaps(self.first_offset):
            # Other damages of the same segment.
            self._miss(Lost(gap, end, "no segment has them"))
        self._mended()

    def _mended(self) -> None:
        self._progressed()
        self._go_on()

    def _is_given_up(self, offset: int) -> bool:
        return any(low <= offset < stop for low, stop in self._given_up.items())

    def _give_up(self, low: int, stop: int) -> None:
        """No member can read these."""
        self._given_up[low] = stop
        self._note_lost(Lost(low, stop, "no member of the stream can read them"))

    # -- for other nodes -------------------------------------------------------------------------------------------

    def answer(self, peer: str, what: int, value: int, reply: Done, data: bytes = b"") -> None:
        """Answer a question of another node; see Asks."""
        if self.ended or not self._opened:
            reply(ABSENT)
        elif what == frames.ASK_NAMES:
            self._note_for(data, reply)
        elif what in (frames.ASK_READ, frames.ASK_FOLLOW):
            self._answer_read(peer, what, value, reply)
        elif not self.group.informed:
            reply(ABSENT)
        elif what == frames.ASK_LAST:
            self._find(Start("last"), lambda offset: reply(self._word(frames.TOLD_FOUND, offset)))
        elif what == frames.ASK_FIND:
            self._find(Start(time_ms=value), lambda offset: reply(self._word(frames.TOLD_FOUND, offset)))
        else:
            reply(self._word(frames.TOLD_FOUND))

    def _word(self, what: int, value: int = 0, data: bytes = b"") -> StreamWord:
        return StreamWord(what, value, self.first_offset, self._synced, self.first_ms or 0, data)

    def _answer_read(self, peer: str, what: int, offset: int, reply: Done) -> None:
        first, tail = self.first_offset, self._tail
        if offset < first:
            reply(self._word(frames.TOLD_GONE, first))
        elif offset >= self._synced:
            if what == frames.ASK_FOLLOW:
                self._followers[peer] = offset, reply
            else:
                reply(self._word(frames.TOLD_FOUND))
        elif tail and offset >= tail[0].batch.base:
            parts: list[bytes] = []
            size = 0
            for each in tail[bisect_right(tail, offset, key=_stop_of) :]:
                if size and size + each.batch.size > READ_BYTES:
                    break
                parts += each.parts
                size += each.batch.size
            reply(self._word(frames.TOLD_FOUND, offset, b"".join(parts)))
        elif offset >= self._stored:
            # It is fetched itself.
            reply(ABSENT)
        else:
            read = partial(self._log.read_raw, offset)
            self._services.store.read(read, partial(self._has_read_raw, offset, reply))
            sending = self.group.sending
            if sending and peer in sending:
                sending[peer].moved_at = self.replicas.clock.monotonic_ms()

    def _has_read_raw(self, offset: int, reply: Done, outcome: Outcome[Raw]) -> None:
        if self.ended:
            reply(ABSENT)
            return
        if isinstance(outcome, Error):
            reply(ABSENT)
            self._turn.contain(self, outcome.unwrap)
            return
        raw = outcome.unwrap()
        if offset < self.first_offset:
            reply(self._word(frames.TOLD_GONE, self.first_offset))
        elif raw.lost is not None and self._is_given_up(raw.lost.low):
            reply(self._word(frames.TOLD_LOST, raw.lost.stop))
        elif raw.lost is not None:
            self._miss(raw.lost)
            reply(self._word(frames.TOLD_DAMAGED, raw.lost.stop))
            self._go_on_filling()
        elif not raw.data:
            reply(ABSENT)
        else:
            reply(self._word(frames.TOLD_FOUND, offset, raw.data))

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
            self._find(start, partial(self._found, consumer))

    def _found(self, consumer: StreamConsumer, offset: int) -> None:
        if not (self.ended or consumer.detached):
            consumer.reading = False
            self._begins(consumer, offset)

    def _find(self, start: Start, done: Callable[[int], None]) -> None:
        """Find the offset of the last batch, or of the first one from a time on."""
        segments, tail = self._log.segments, self._tail
        if start.name == "last":
            if tail:
                done(tail[-1].batch.base)
            else:
                self._look(self._log.last, done)
            return
        time_ms = self._time_of(start)
        if segments and segments[-1].size and segments[-1].last_ms >= time_ms:
            self._look(partial(self._log.find, time_ms), done)
        else:
            later = [each.batch.base for each in tail if each.batch.time_ms >= time_ms]
            done(later[0] if later else self._synced)

    def _look(self, find: Callable[[], int], done: Callable[[int], None]) -> None:
        def found(outcome: Outcome[int]) -> None:
            if isinstance(outcome, Error):
                self._turn.contain(self, outcome.unwrap)
            else:
                done(outcome.unwrap())

        self._services.store.read(find, found)

    def _read(self, consumer: StreamConsumer, offset: int) -> None:
        if consumer.reading:
            return
        if offset >= self._stored or any(low <= offset < stop for low, stop in self._missing.items()):
            # It goes on when other members have given it.
            self._go_on_filling()
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
            self._miss(lost)
        if any(low < reached and stop > offset for low, stop in self._missing.items()):
            # Nothing behind a damage is handed out before it is mended.
            consumer.place = None
            self._serve_up_to_damage(consumer, reads, offset, read)
            self._go_on_filling()
            return
        self._give(consumer, reads, read)

    def _serve_up_to_damage(self, consumer: StreamConsumer, reads: int, offset: int, read: Read) -> None:
        """Give what is before the first damage that was passed."""
        low = min(low for low, stop in self._missing.items() if stop > offset)
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
                consumer.next_offset = self._given_up.get(reached, reached)
        self._serve(consumer)


def begin_named(host: StreamHost, key: Key, offset: int) -> None:
    """A consumer has its name, and goes on where that was."""
    consumer = host._consumers.get(key)
    if consumer is not None and consumer.next_offset < 0:
        otherwise = consumer.sink.start.otherwise or NEXT
        host._begin(consumer, otherwise if offset == NO_OFFSET else Start(offset=offset))


def take_over(before: StreamHost, after: StreamHost) -> None:
    """Move all consumers to another host, where they go on at the same places."""
    if before.shares_names and after.shares_names:
        after._progress.update(before._progress)
        before._progress.clear()
        after._node_names.adopt(before._node_names)
    for key, consumer in list(before._consumers.items()):
        start = consumer.sink.start if consumer.next_offset < 0 else None
        del before._consumers[key]
        consumer.let_go()
        consumer.reading = False
        after._consumers[key] = consumer
        if start is not None and start.group:
            after._begin_named(consumer, start)
        elif start is not None:
            after._begin(consumer, start)
        else:
            after._to_serve[consumer] = None


def _stop_of(encoded: Encoded) -> int:
    return encoded.batch.stop


def _nothing() -> None: ...


def _told_nothing(result: object) -> None: ...


__all__ = ["StreamGroupHost", "take_over"]
