"""A stream on one of its members.

Messages from this node's clients go into the log that all members share. When this member applies an entry, a
majority has it on disk: the publish is confirmed, and this node's consumers get the messages from this
member's own copy. So the actions of consumers concern only this node, and the leader does not matter to them.

The Raft log is the tail: it has every message until this member's segments have it. A snapshot of the group
stands for a log whose messages are all in segments (`covered`); see member_segments. The consumers on this
member are in member_readers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from amqp_server.streams.beginnings import Beginnings
from amqp_server.streams.compacting import Compaction, Copies
from amqp_server.streams.layout.consumer_start import Start
from amqp_server.streams.layout.deduplication import Taken
from amqp_server.streams.layout.encode import Encoded, Encoder, begin_large
from amqp_server.streams.local_host import StreamConsumer, StreamServices
from amqp_server.streams.members.answers import MemberAnswers
from amqp_server.streams.members.copies import MemberCopies
from amqp_server.streams.members.entries import (
    ABORT,
    COMMIT,
    PEND,
    PREPARE,
    CodecError,
    Note,
    PartStep,
    RemoteStep,
    decode_entry,
    encode_batch,
    encode_entry,
)
from amqp_server.streams.members.filling import Fill, Filling
from amqp_server.streams.members.log_trimming import Stable, encode_in_parts, read_names
from amqp_server.streams.members.named_offsets import LoggedNames
from amqp_server.streams.members.parts import StreamParts
from amqp_server.streams.members.readers import MemberReaders
from amqp_server.streams.members.replica import Applied, StreamReplica, decode_state
from amqp_server.streams.members.requests import Asks, Done
from amqp_server.streams.members.start_offset import Finding
from amqp_server.streams.publishes import Publishes
from amqp_server.streams.stream_options import Tiering
from amqp_server.streams.taking_over import take_over
from persistence.streams.compression import NONE
from persistence.streams.retention import RetentionLimits
from quorum_queue.cluster import read_index
from quorum_queue.cluster.frames import StreamWord
from quorum_queue.cluster.kept_entries import NOTHING_KEPT, KeptEntries
from quorum_queue.cluster.queues.deferred_host import without_larger
from quorum_queue.cluster.queues.guests import GuestOrigin
from quorum_queue.cluster.queues.member_host import UNKNOWN
from quorum_queue.cluster.queues.parts import UNKNOWN_PART, Prepared, applied_parts, when_all_have_it
from quorum_queue.cluster.replica_group import Foresee
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.cluster.snapshots.state_of import unreadable
from quorum_queue.errors import Unreadable
from quorum_queue.host import DELETED, MOVED
from quorum_queue.machine.attributes import LEADER
from quorum_queue.machine.machine import ENQUEUES, Command
from quorum_queue.machine.seal import SEALED, Sealed
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import Hosted, Preparing, Refused
from quorum_queue.raft.members import Members

logger = logging.getLogger("mqd.streams")


class StreamMemberHost(MemberReaders):
    """The host of a stream, and the state machine of its group."""

    single = False
    takes_parts = True
    parts_have_acks = False
    foresee: Foresee | None = None
    #: The state of the group has the names that the stream has taken.
    knows_taken = False
    shares_names = True

    def __init__(
        self,
        queue: Hosted,
        queue_id: int,
        services: StreamServices,
        limits: RetentionLimits,
        segment_bytes: int | None,
        settings: Settings,
        replicas: Replicas,
        asks: Asks,
        codec: str | None = None,
        compaction: Compaction | None = None,
        tiering: Tiering | None = None,
    ) -> None:
        """`codec` is the declared compression of the stream."""
        self.replicas = replicas
        #: Without a declared codec messages are sent uncompressed: other members may be of a version that
        #: knows no codec.
        self._sent_codec = codec or NONE
        #: The settings that the replica uses do not change.
        self._declared = settings
        self.replica = StreamReplica(settings)
        self._asks = asks
        self._own = replicas.own_in(queue_id)
        self._ahead_ms = -(1 << 62)
        self._publishes = Publishes(self)
        self._pending_barriers: list[Callable[..., None]] = []
        self._beginning: dict[StreamConsumer, Start] = {}
        self._when_whole: list[Callable[[], None]] = []
        #: Batch and token of seals, and of parts of transactions, without an answer.
        self._seals_sent: list[tuple[int, int]] = []
        #: True if applied messages were not handed to the consumers yet.
        self._fresh = False
        self._opened = False
        self._stored = 0
        self._stable = Stable(self.replica, settings)
        #: A snapshot of the leader whose names were read, and these.
        self._names_read: tuple[bytes, Taken] | None = None
        self._trimming = 0
        self.filling = Filling(self, services, asks)
        super().__init__(
            queue, queue_id, services, limits, segment_bytes, settings, codec, compaction, tiering
        )
        self.finding = Finding(self, services, self._turn)
        self.beginnings = Beginnings(self, services, self._turn)
        self._answers = MemberAnswers(self, services, self._turn)
        self.names = LoggedNames(self, f"{self._own[0]}/{self._own[1]}", services.options.names_max)
        self._node_names = self.names.node_names
        asks.members[queue_id] = self

    # -- at start --------------------------------------------------------------------------------------------

    def _copies(self) -> Copies:
        return MemberCopies(self, self._asks)

    def _recover(self) -> None:
        """Does nothing: the log is opened when its expected end is known."""

    def load(self, state: bytes) -> None:
        """Start from this node's own snapshot. Raises Unreadable."""
        self._restore(state)
        self._open_log()
        self.next_offset = self._synced = self.replica.next_offset

    def _restore(self, state: bytes) -> None:
        # Its names may have been read before.
        read, self._names_read = self._names_read, None
        taken = read[1] if read is not None and read[0] == state else None
        try:
            self.replica = replica = StreamReplica.restore(state, self._declared, taken)
        except CodecError as error:
            raise unreadable(error) from None
        self._keep_time()
        self._stable.begin_with(replica)
        self.show_manifest()

    # -- the state machine of the group ----------------------------------------------------------------------

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
            # After a start the segments have some of these messages already.
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
            self._unknown_seals(applied.missed.stop - 1)
        if applied.taken:
            self._publishes.confirm(applied.taken)
        if applied.remote or (applied.trimmed and self.replica.manifest is not None):
            self.manifest_changed(applied.removed, told=applied.remote)
        applied_parts(self, applied, self._services.undecided)
        for token, found in applied.seals:
            self._answer_seal(token, found)
        if applied.numbers:
            self._unknown_seals(applied.numbers[-1])
            self._passed(applied.numbers[-1])
        if applied.sealed and self.group.is_leader:
            self.queue.sealed()

    def passed(self, index: int) -> None:
        self.replica.applied = index

    def passed_over(self, index: int) -> None:
        self.replica.passed_over(index)
        logger.error("%s: entry %d is given up, and its contents are lost", self.title, index)

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
        self._begin_waiting()
        if self._when_whole and self.group.informed:
            whole, self._when_whole = self._when_whole, []
            for then in whole:
                then()

    # -- what was applied ------------------------------------------------------------------------------------

    def answer(self, peer: str, what: int, value: int, reply: Done, data: bytes = b"") -> None:
        """Answer a question of another node; see Asks."""
        self._answers.answer(peer, what, value, reply, data)

    def word(self, what: int, value: int = 0, data: bytes = b"") -> StreamWord:
        """Return an answer to another node, with the offsets of this member."""
        return StreamWord(what, value, self.first_offset, self._synced, self.first_ms or 0, data)

    def when_whole(self, then: Callable[[], None]) -> None:
        """Call `then` when this member has everything that was committed before this call."""
        self._when_whole.append(then)
        self.replicas.touch(self.group)

    @property
    def keeps(self) -> KeptEntries:
        return NOTHING_KEPT

    def covered(self, applied: int) -> int:
        if not self._tail and self._stored >= self.replica.next_offset and self._opened:
            index = self.replica.applied
            if index != self._stable.index:
                self._stable.reach(index, self.replica.state(), self._stable.next)
        return min(self._stable.index, applied)

    def snapshot_in_parts(self, then: Callable[[bytes], None]) -> None:
        encode_in_parts(self, self._stable, self._turn, then)

    @property
    def fills_itself(self) -> bool:
        return True

    def fill(self, state: bytes, peer: str, wanted: Callable[[], bool], then: Callable[[], None]) -> None:
        try:
            target = decode_state(state)
            first = target.first_offset
            if target.manifest is not None and target.manifest[2]:
                # What is before its end is in the store.
                first = max(first, target.manifest[2][-1].stop)
        except CodecError as error:
            raise unreadable(error) from None
        filled = partial(self._read_names, state, target.taken or (), wanted, then)
        self.filling.begin(Fill(peer, first, target.next_offset, wanted, filled))

    def _read_names(
        self, state: bytes, pieces: Sequence[bytes], wanted: Callable[[], bool], then: Callable[[], None]
    ) -> None:
        """Read the names that a snapshot of the leader has: there may be a million of them."""
        taken = Taken(self._declared)

        def are_read() -> None:
            self._names_read = state, taken
            then()

        read_names(self, taken, pieces, self._turn, wanted, are_read)

    def come_to(self, state: bytes, then: Callable[[], None]) -> None:
        then()

    def restore(self, state: bytes) -> None:
        """Jump to a snapshot from the leader; the segments have its messages. Raises Unreadable."""
        self._restore(state)
        self._drop_tail(len(self._tail))
        self.next_offset = self.replica.next_offset
        self._synced = max(self._synced, self.next_offset)
        last_own = self.last_own_batch()
        if not self.replica.sealed:
            # Otherwise it is unknown which of them were taken; they are answered when the stream is deleted.
            self._publishes.confirm(last_own)
        self._unknown_seals(last_own)
        self._passed(last_own)
        self._fresh = self.names.fresh = True

    def last_own_batch(self) -> int:
        return self.replica.order.number_of(*self._own)

    def leader_changed(self) -> None:
        self._trimming = 0
        if self.tier is not None:
            # What the last leader has proposed may be lost.
            self.tier.stored()
        self._retain()
        self._schedule_upkeep()
        if self.group.is_leader:
            # It uploads once it knows what the last one has stored.
            self.when_whole(self._schedule_upkeep)
        if len(self.replica.parts):
            self._services.undecided.has_parts(self)
        if self.replica.sealed and self.group.is_leader:
            # The last leader may have failed before it could delete the stream.
            self.queue.sealed()

    def members_changed(self, members: Members) -> None:
        if not self.group.is_leader and self.group.flights:
            # This node may have been no member for a while; the leader has taken no batches from it then.
            self.group.sent_to = ("", 0)
            self.replicas.touch(self.group)

    def closed(self) -> None:
        """Called when nothing of the group is in progress any more."""

    def gone_members(self) -> None:
        """Does nothing: other nodes manage their own consumers."""

    def let_go(self, node: str, incarnation: int) -> None:
        """Does nothing, for the same reason."""

    # -- commands --------------------------------------------------------------------------------------------

    def apply_pending(self) -> None:
        self._apply_commands()
        if self._to_serve:
            self._serve_all()
        if self._node_names.by_key and not self.ended:
            self.names.hear()
        barriers, self._pending_barriers = self._pending_barriers, []
        if self.ended:
            why = (Refused(self.ended_text),) if self.ended != "deleted" else ()
            for done in barriers:
                done(*why)
        elif self.group.flights:
            number = self.group.next_number - 1
            if barriers:
                self.begin_asking().barriers += [(number, done) for done in barriers]
        elif barriers and self.replica.sealed:
            self.begin_asking().barriers += [(0, done) for done in barriers]
        else:
            for done in barriers:
                done()

    def barrier(self, done: Callable[..., None]) -> None:
        if self.ended:
            done()
            return
        self._pending_barriers.append(done)
        self._turn.schedule(self)

    def catch_up(self, done: Callable[..., None]) -> None:
        read_index.catch_up(self, done)

    def seal(self, condition: int, done: Callable[[Sealed | Refused], None]) -> None:
        self._seal_in_order(condition, done)

    def _submit_seal(self, token: int, condition: int) -> None:
        self._seals_sent.append((self.group.next_number, token))
        self._submit([], seals=[(token, condition)])

    @property
    def parts(self) -> StreamParts:
        return self.replica.parts

    def _when_all(self, done: Prepared) -> Prepared:
        return when_all_have_it(self, done)

    def _step_of_part(self, command: Command) -> None:
        verb = command[0]
        if verb == "prepare":
            _, token, transaction, count, queues, _ = command
            self._seals_sent.append((self.group.next_number, token))
            self._submit([], step=PartStep(PREPARE, transaction, [], token, count, queues))
            return
        transaction = command[1]
        if verb == "resolve":
            self._submit([], step=PartStep(COMMIT if command[2] else ABORT, transaction))
            return
        encoder = Encoder(self._services.layouts, 0, 0, stamped=True, codec=self._sent_codec)
        for inner in without_larger([command[2]], self.replicas.message_bytes_max):
            named = inner[0] == "enqueue_once" and self.replica.taken is not None
            encoder.add(inner[1], inner[4] if named else None)
            self._submit(list(encoder.finish()), step=PartStep(PEND, transaction))

    def _unknown_seals(self, number: int) -> None:
        """Answer seals in own batches up to this one that have no answer: a snapshot has replaced their
        entry, or no member can read it.
        """
        while self._seals_sent and self._seals_sent[0][0] <= number:
            token = self._seals_sent.pop(0)[1]
            self.answer_prepare(token, UNKNOWN_PART)
            self._answer_seal(token, Sealed(SEALED, 0) if self.replica.sealed else UNKNOWN)

    def _passed(self, number: int) -> None:
        if not self.replica.sealed:
            # Otherwise clients are answered when the stream is deleted.
            super()._passed(number)

    def begin_large(self, content: bytes, head: bytes, channel: int) -> Preparing | None:
        return begin_large(self._services.layouts, content, head, channel, self._sent_codec)

    def _enqueue(self, commands: list[Command]) -> None:
        """Submit messages to the log."""
        encoder = Encoder(self._services.layouts, 0, 0, stamped=True, codec=self._sent_codec)
        waiting: list[tuple[Any, int, int, int]] = []
        early = False
        for command in without_larger(commands, self.replicas.message_bytes_max):
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
        seals: list[tuple[int, int]] | None = None,
        step: PartStep | None = None,
        remote: RemoteStep | None = None,
    ) -> None:
        """`early`: some of the messages are confirmed when the leader has them."""
        node, incarnation = self._own
        number = self.group.next_number
        batch = encode_batch(
            node,
            incarnation,
            number,
            encoded,
            first,
            codec=self._sent_codec,
            notes=notes,
            seals=seals,
            step=step,
            remote=remote,
        )
        self.group.submit(batch, self._publishes.has_synced if early else None)

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Called when the queue is deleted, with all its messages."""
        if self.ended:
            return
        self.ended = "deleted"
        self._let_go()
        self.replicas.close(self.group)
        self._delete_segments()
        if self.tier is not None:
            # Each member does it: the leader may be gone.
            self._services.commits.request(self.tier.delete_all)
        self._refuse_all(DELETED)

    def hand_over(self, to: Any, *, failed: bool = False) -> None:
        """Another member serves this node's clients from now on; consumers continue there at the same
        offsets.

        Publishes in progress are refused, because it is unknown whether they will arrive. `failed`: stored
        data stays.
        """
        self.ended = "failed" if failed else "moved"
        take_over(self, to)
        pending, self.pending = self.pending, []
        for command in pending:
            if command[0] in ("seal", "pend", "prepare"):
                # Its client is told to try again.
                continue
            if command[0] in ENQUEUES and isinstance(command[2], GuestOrigin):
                # The publisher's node asks another member from now on.
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
        self.beginnings.clear()
        self._answers.close()
        self.names.close()
        if self.tier is not None:
            self.tier.end()

    def _delete_segments(self) -> None:
        services = self._services
        self._log.abandon()
        # The files are deleted when the deletion of the queue is on disk.
        services.commits.request(partial(services.store.write, self._log.delete, _told_nothing))

    def _refuse_all(self, why: Refused) -> None:
        self.group.answer_unreached(confirm=self.ended == "deleted")
        self._publishes.end(deleted=self.ended == "deleted")
        self._refuse_pending()
        self._refuse_askers(why)
        barriers, self._pending_barriers = self._pending_barriers, []
        for done in barriers:
            done(why)


def _told_nothing(result: object) -> None: ...


__all__ = ["StreamMemberHost"]
