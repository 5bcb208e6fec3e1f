"""The data of one member of a stream: segments on its disk, and the tail in memory that the segments lack.

The Raft log is the tail: it has every message until this member's segments have it. If segments lack
messages, because the member is new or the disk is damaged, the member fetches them from other members by
offset; see filling.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Any

from amqp_server.streams.layout.encode import Encoded
from amqp_server.streams.local_host import StreamHost
from amqp_server.streams.members.answers import stop_of
from amqp_server.streams.members.entries import Note, RemoteStep
from amqp_server.streams.members.filling import Filling
from amqp_server.streams.members.log_trimming import Stable
from amqp_server.streams.members.replica import StreamReplica, StreamState
from amqp_server.streams.stream_options import Tiering
from amqp_server.streams.tiers.tier import Tier
from persistence.streams.log import Lost, Stored, StreamLog
from persistence.streams.remote import manifest as manifests
from persistence.streams.remote.manifest import Manifest, Range
from persistence.streams.retention import RetentionLimits, outdated
from quorum_queue.cluster.replica_group import Group
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.machine.versions import STREAM_REMOTES

logger = logging.getLogger("mqd.streams")


class MemberSegments(StreamHost):
    """The part of a member's host that manages segments and tail. See StreamMemberHost."""

    in_journal = False
    replicas: Replicas
    group: Group
    replica: StreamReplica
    filling: Filling
    _stable: Stable
    #: True if the log is open.
    _opened: bool
    #: Segments are synced up to this offset.
    _stored: int
    #: The leader has proposed to delete messages below this offset.
    _trimming: int

    def _submit(
        self,
        encoded: list[Encoded],
        first: int = 0,
        *,
        early: bool = False,
        notes: list[Note] | None = None,
        remote: RemoteStep | None = None,
    ) -> None:
        """Submit messages, and the offset below which messages are deleted, to the log."""
        raise NotImplementedError

    def _progressed(self) -> None:
        """There may be more messages for consumers, here and on other nodes."""
        raise NotImplementedError

    # -- at start --------------------------------------------------------------------------------------------

    def _open_log(self) -> None:
        replica, log = self.replica, self._log
        self._opened = True
        for lost in log.open(replica.next_offset, mendable=True):
            if lost.low < log.stop:
                self.filling.miss(lost)
        for low, stop in log.gaps(self.kept_offset):
            self.filling.miss(Lost(low, stop, "no segment has them"))
        self._stored = log.stop
        if log.stop < replica.next_offset:
            logger.error(
                "%s: messages %d to %d are not on this disk, fetching them from another node",
                *(self.title, log.stop, replica.next_offset - 1),
            )

    def begin(self) -> None:
        """Called when the group is open."""
        if self._opened:
            self.filling.go_on()
            return
        # An earlier host of the stream may still write or delete. The data is right after that, too: a
        # message always has the same bytes.
        self._writing = True
        self._services.store.write(_nothing, self._begins_empty)

    def _begins_empty(self, result: object) -> None:
        self._writing = False
        if not (self.ended or self._opened):
            self._open_log()
            self._go_on()

    # -- what it holds ---------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        return f"queue '{self.queue.name}' in vhost '{self.queue.vhost.name}'"

    @property
    def kept_offset(self) -> int:
        """This node keeps no messages before this offset; missing messages behind it are fetched."""
        return max(self.replica.first_offset, self._log.first_kept)

    @property
    def first_offset(self) -> int:
        """Messages before this offset are deleted on all members."""
        manifest = self.replica.manifest
        if manifest is not None and manifest.ranges:
            return max(self.replica.first_offset, min(manifest.first, self.kept_offset))
        return self.kept_offset

    @property
    def stored_offset(self) -> int:
        """The offset below which the segments have all messages."""
        return self._stored

    @property
    def committed_offset(self) -> int:
        """The offset below which all messages are committed."""
        return self._synced

    @property
    def tail(self) -> list[Encoded]:
        """Batches that were applied and are not in segments yet."""
        return self._tail

    @property
    def tail_offset(self) -> int:
        """Return where the tail begins: the segments should have all messages before it."""
        return self._tail[0].batch.base if self._tail else self.replica.next_offset

    @property
    def missing_count(self) -> int:
        """Number of messages that this member fetches from others."""
        mending = sum([stop - low for low, stop in self.filling.missing.items()])
        return max(self.tail_offset - self._stored, 0) + mending

    @property
    def log(self) -> StreamLog:
        return self._log

    @property
    def opened(self) -> bool:
        """Return whether the log is open."""
        return self._opened

    # -- segments --------------------------------------------------------------------------------------------

    def wake(self) -> None:
        if not self.ended:
            self.filling.go_on()
            super().wake()

    def _schedule_upkeep(self) -> None:
        if self.ended:
            return
        services = self._services
        if self._tail and not self._writing:
            if services.options.flushes(len(self._tail), self._tail_bytes):
                self._flush()
            else:
                services.timers.wake(self, services.clock.monotonic_ms() + services.options.flush_ms)
        if self.compacting is not None and self._opened:
            self.compacting.look()
        decides = self.group.is_leader and self._trimming <= self.replica.first_offset
        if self.tier is not None:
            self.tier.look()
            self._wake_to_trim(self.tier, self._limits if decides else RetentionLimits())
        elif decides:
            self._wake_to_retain()

    def _flush(self) -> None:
        """Let a thread write all applied messages to the segments."""
        tail = self._tail
        if self._writing or self.filling.has_snapshot or not tail:
            return
        # The segments may have got some of these messages in another way.
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
        """The segments have all messages up to this entry: the log does not need them."""
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
        """The leader decides which messages are deleted, and every member deletes their segments, also while
        a write waits for disk space.
        """
        if self.ended:
            return
        segments, first = self._log.segments, self.replica.first_offset
        tier, now_ms = self.tier, self._services.queue_time.now_ms()
        if self.group.is_leader and self._trimming <= first:
            if tier is not None and tier.ranges:
                wanted = manifests.deleted_before(tier.ranges, segments, self._limits, now_ms)
            else:
                count = outdated(segments, self._limits, now_ms)
                wanted = self._stored if count else 0
                if 0 < count < len(segments):
                    wanted = segments[count].base
            if wanted > first:
                self._trimming = wanted
                self._submit([], wanted)
        if tier is not None:
            first = max(first, manifests.trimmed_before(segments, tier.stop, tier.local_limits, now_ms))
        if segments and segments[0].size and segments[0].stop <= first and not self._trims:
            self._trims = True
            self._services.store.write(partial(self._log.trim_to, first), self._has_trimmed)

    def _has_trimmed(self, result: object) -> None:
        self._trims = False
        if self.ended:
            return
        first = self.kept_offset
        missing = self.filling.missing
        for low, stop in list(missing.items()):
            if stop <= first:
                del missing[low]
        self._go_on()

    # -- the remote; see tiers.tier.TierOwner ----------------------------------------------------------------

    def _tier_as(self, tiering: Tiering) -> None:
        super()._tier_as(tiering)
        self.show_manifest()

    def show_manifest(self) -> None:
        """The state of this member may have another manifest."""
        manifest = self.replica.manifest
        if manifest is not None:
            (self.tier or self._make_tier()).show(manifest, self.replica.first_offset)

    def manifest_changed(self, removed: tuple[Range, ...], *, told: bool) -> None:
        """An entry has changed the manifest, or was meant to (`told`)."""
        self.show_manifest()
        tier, manifest = self.tier, self.replica.manifest
        if tier is None:
            return
        if removed and manifest is not None:
            if self.group.is_leader:
                tier.delete(manifest, removed)
            elif tier.table.wrote:
                # It may have written a file after the leader has deleted it.
                tier.doom_table(manifest, removed)
        if told:
            tier.stored()

    @property
    def may_upload(self) -> bool:
        return (
            self._opened
            and self.group.is_leader
            and self.group.informed
            and not self.replica.sealed
            and self.replicas.version() >= STREAM_REMOTES
        )

    def lacks_before(self, offset: int, stop: int) -> bool:
        while offset < stop and self.filling.is_given_up(offset):
            offset = next(end for low, end in self.filling.given_up.items() if low <= offset < end)
        return offset < stop

    def found_damage(self, lost: list[Lost]) -> bool:
        given_up = True
        for each in lost:
            if self.lacks_before(each.low, each.stop):
                given_up = False
                self.filling.miss(each)
        self.filling.go_on()
        return given_up

    def begin_manifest(self, manifest: Manifest) -> None:
        self._submit([], remote=RemoteStep(manifest.identity, manifest.remote))

    def add_range(self, after: int, added: Range) -> None:
        manifest = self.replica.manifest
        assert manifest is not None
        self._submit([], remote=RemoteStep(manifest.identity, manifest.remote, added, after))

    def _wake_to_trim(self, tier: Tier, limits: RetentionLimits) -> None:
        services = self._services
        due = manifests.due_ms(tier.ranges, self._log.segments, limits, tier.local_limits)
        if due is not None and not self._trims:
            services.timers.wake(self, max(due - services.queue_time.ahead_ms, 0))

    # -- for what fills and mends the segments ---------------------------------------------------------------

    @property
    def writing(self) -> bool:
        """Return whether a thread writes to the segments: only one write at a time."""
        return self._writing or self._trims

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
        # All messages that another member sends are committed.
        self._synced = max(self._synced, self._stored)
        self._progressed()
        self._go_on()

    def skip_to(self, offset: int) -> None:
        """Continue the segments at this offset: no member has the messages before it."""
        self._log.skip_to(offset)
        self._stored = self._log.stop
        self._progressed()
        self._go_on()

    def has_mended(self) -> None:
        """The segments have the missing messages, or these are given up."""
        self._progressed()
        self._go_on()

    def note_lost(self, lost: Lost) -> None:
        self._note_lost(lost)


def _nothing() -> None: ...


__all__ = ["MemberSegments"]
