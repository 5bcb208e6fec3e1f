"""Fills a follower that lacks more than the log still holds: sends a snapshot's state, then the bodies of its
queue.

The leader sends the state of its machine in pieces. The follower then asks for the entries that hold bodies
of the queue and that it lacks. When all of them and the state are durable, it tells its core, which answers
the leader; until then the follower does not count. So an up-to-date replica always has every body of its
queue. A leader that has just started may lack bodies which its snapshot names: they were settled later in the
log, and deleted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from quorum_queue.cluster import frames
from quorum_queue.cluster.queues.body_prefetch import spans
from quorum_queue.cluster.snapshots import compaction
from quorum_queue.cluster.snapshots.ranges import taken, without
from quorum_queue.cluster.snapshots.state import pack_state
from quorum_queue.raft.errors import EntryLost
from quorum_queue.raft.members import Members

if TYPE_CHECKING:
    from quorum_queue.cluster.replica_group import Group
    from quorum_queue.cluster.replicas import Replicas

logger = logging.getLogger("mqd.replication")

#: Entries requested at once.
FETCH_ENTRIES_MAX = 128
#: Entries that a follower looks for on its disk at once.
CHECK_ENTRIES_MAX = 64


class Sending:
    """A snapshot on its way to one follower."""

    __slots__ = ("index", "log_term", "members", "moved_at", "offset", "state", "unsent")

    def __init__(self, index: int, log_term: int, members: bytes, now_ms: int) -> None:
        self.index = index
        self.log_term = log_term
        self.members = members
        #: The state; None while it is being made.
        self.state: bytes | None = None
        self.offset = 0
        self.moved_at = now_ms
        #: Bytes that waited for the link at the last look.
        self.unsent = 0


class Receiving:
    """A snapshot on its way to this node."""

    __slots__ = (
        "arrived",
        "asked",
        "checking",
        "group",
        "index",
        "last_index",
        "leader",
        "log_term",
        "members",
        "missing",
        "moved_at",
        "state",
        "storing",
        "term",
        "whole",
        "unchecked",
        "wanted",
    )

    def __init__(
        self, group: Group, leader: str, piece: frames.StatePiece, last_index: int, now_ms: int
    ) -> None:
        self.group = group
        self.leader = leader
        #: Last index of this node's log while the snapshot comes.
        self.last_index = last_index
        self.term = piece.term
        self.index = piece.index
        self.log_term = piece.log_term
        self.members = piece.members
        self.state = bytearray()
        #: The state, once it is complete.
        self.whole = b""
        #: Entries that this node may have, and has not looked for on its disk yet.
        self.unchecked: deque[range] = deque()
        #: Entries to be requested, and requested ones.
        self.wanted: deque[range] = deque()
        self.asked: dict[int, None] = {}
        #: Entries that the leader lacks, perhaps because they were settled: see frames.PERHAPS_SETTLED.
        self.missing: list[int] = []
        #: True if the search for entries waits for the disk, or for the next turn.
        self.checking = False
        self.storing = False
        self.moved_at = now_ms
        #: Bytes of an incomplete frame at the last look.
        self.arrived = 0

    def wake(self) -> None:
        if self.group.receiving is self:
            self.group.replicas.contain(self.group, _check, self.group, self)


# -- the leader's side ---------------------------------------------------------------------------------------


def begin(group: Group, to: str) -> None:
    """Send a snapshot of the present state to a follower."""
    group.complete_entry()
    core = group.core
    if group.sending is None:
        group.sending = {}
    index = group.machine.covered(group.applied)
    group.replicas.post(group.id, core.snapshot_offer(to, index))
    sending = group.sending[to] = Sending(
        index,
        core.log.term_at(index),
        core.members_at(index).encode(),
        group.replicas.clock.monotonic_ms(),
    )
    group.replicas._transfers[group] = None
    logger.info("replica group %d: sending a snapshot at %d to %s", group.id, index, to)

    def made(state: bytes) -> None:
        sending.state = state
        sending.moved_at = group.replicas.clock.monotonic_ms()
        if group.replicas.groups.get(group.id) is group:
            go_on(group)

    group.snapshot(made)


def go_on(group: Group) -> None:
    """Send more pieces as far as the links accept them; give up transfers without progress."""
    replicas = group.replicas
    now = replicas.clock.monotonic_ms()
    options = replicas.options
    for to, sending in list((group.sending or {}).items()):
        if not group.is_leader:
            # A piece would be one of the new term, and end the transfer of its leader.
            ended(group, to, ok=False)
            continue
        state = sending.state
        while state is not None and (sending.offset < len(state) or not state):
            if replicas.links.pending_bytes(to) > options.transfer_bytes_max:
                break
            data = state[sending.offset : sending.offset + options.piece_bytes]
            piece = frames.StatePiece(
                group.id,
                group.core.term,
                sending.index,
                sending.log_term,
                len(state),
                sending.offset,
                sending.members,
                data,
            )
            if not replicas.send(to, frames.state(piece)):
                break
            sending.offset += len(data)
            sending.moved_at = now
        # A large entry may take longer than a transfer may stand still.
        unsent = replicas.links.pending_bytes(to)
        if unsent != sending.unsent and unsent > options.piece_bytes:
            sending.moved_at = now
        sending.unsent = unsent
        if now - sending.moved_at > options.transfer_timeout_ms:
            ended(group, to, ok=False)
        elif group.core.leadership is not None and _matched(group, to) >= sending.index:
            ended(group, to, ok=True)
    receiving = group.receiving
    if receiving is not None:
        arrived = replicas.links.arrived_bytes(receiving.leader)
        if arrived != receiving.arrived and arrived > options.piece_bytes:
            receiving.moved_at = now
        receiving.arrived = arrived
    if (
        receiving is not None
        and not (receiving.checking or receiving.storing)
        and now - receiving.moved_at > options.transfer_timeout_ms
    ):
        group.receiving = None
    if not group.sending and group.receiving is None:
        replicas._transfers.pop(group, None)


def _matched(group: Group, to: str) -> int:
    leadership = group.core.leadership
    peer = leadership.peers.get(to) if leadership is not None else None
    return 0 if peer is None else peer.match


def ended(group: Group, to: str, *, ok: bool) -> None:
    """A transfer is over: release the entries kept for it."""
    sending = (group.sending or {}).pop(to, None)
    if sending is None:
        return
    group.core.snapshot_done(to, sending.index, ok)
    group.replicas.touch(group)
    if not group.sending:
        group.sending = None
        if group.snapshot_index > group.cleaned:
            compaction.compact(group)


def peer_gone(group: Group, peer: str) -> None:
    if group.sending and peer in group.sending:
        ended(group, peer, ok=False)
    if group.receiving is not None and group.receiving.leader == peer and not group.receiving.storing:
        group.receiving = None


def waits_for_disk(group: Group, indexes: list[int], answer: Callable[[], None]) -> bool:
    """Return whether entries of the log or below cannot be read without a wait; then `answer` is called
    later.
    """
    wanted = spans(index for index in indexes if index <= group.core.last_index)

    def came() -> None:
        if group.replicas.groups.get(group.id) is group:
            group.replicas.contain(group, answer)

    return bool(wanted) and not group.replicas.store.warm(group.id, wanted, came)


def answer_fetch(
    replicas: Replicas, peer: str, group_id: int, indexes: list[int], *, warm: bool = False
) -> None:
    """Send entries that a peer asks for, as many as fit in one answer; the rest it asks for again."""
    group = replicas.groups.get(group_id)
    if group is not None and not warm:
        again = partial(answer_fetch, replicas, peer, group_id, indexes, warm=True)
        if waits_for_disk(group, indexes, again):
            return
    found: list[frames.StoredEntry] = []
    size = 0
    for index in indexes:
        # An entry that is not applied may be another leader's.
        known = group is not None and index <= group.applied
        entry = read_entry(replicas, group, index) if group is not None and known else None
        if entry is None:
            perhaps_settled = known and group is not None and not group.informed
            why = frames.PERHAPS_SETTLED if perhaps_settled else frames.LOST
            found.append(frames.StoredEntry(index, 0, frames.GONE, why))
            if group is not None and known and group.needs(index):
                # Another member may have sent it by the time the peer asks again.
                replicas.lost_entries.add(group, index)
            continue
        found.append(entry)
        size += len(entry.data)
        if size >= replicas.options.piece_bytes:
            break
    moves = any(entry.kind != frames.GONE for entry in found)
    if group is not None and group.sending and peer in group.sending and moves:
        group.sending[peer].moved_at = replicas.clock.monotonic_ms()
    replicas.send(peer, frames.entries(group_id, found))


def read_entry(replicas: Replicas, group: Group, index: int) -> frames.StoredEntry | None:
    try:
        (entry,) = replicas.store.read(group.id, index, index, 1)
    except EntryLost:
        return None
    return frames.StoredEntry(entry.index, entry.term, entry.kind, bytes(entry.data))


# -- the follower's side -------------------------------------------------------------------------------------


def receive_state(group: Group, peer: str, piece: frames.StatePiece) -> None:
    replicas = group.replicas
    receiving = group.receiving
    if piece.term < group.core.term or piece.index <= group.applied:
        return
    if receiving is None or (receiving.leader, receiving.index) != (peer, piece.index):
        if piece.offset or (receiving is not None and receiving.storing):
            return
        receiving = group.receiving = Receiving(
            group, peer, piece, group.core.last_index, replicas.clock.monotonic_ms()
        )
        replicas._transfers[group] = None
    if receiving.whole or piece.offset != len(receiving.state):
        return
    receiving.state += piece.data
    receiving.moved_at = replicas.clock.monotonic_ms()
    if len(receiving.state) < piece.total:
        return
    receiving.whole = state = bytes(receiving.state)
    receiving.state = bytearray()
    replicas.store.begin_aside(group.id, receiving.index, receiving.log_term)
    receiving.checking = True

    def wanted() -> bool:
        return group.receiving is receiving and replicas.groups.get(group.id) is group

    def filled() -> None:
        if not wanted():
            return
        for entries in group.machine.keeps.kept_in(state):
            # A follower trusts only the committed part of its log; the rest may be another leader's.
            behind = group.applied + 1
            if entries.start < behind:
                receiving.unchecked.append(range(entries.start, min(entries.stop, behind)))
            if entries.stop > behind:
                receiving.wanted.append(range(max(entries.start, behind), entries.stop))
        receiving.moved_at = replicas.clock.monotonic_ms()
        _check(group, receiving)

    group.machine.fill(state, peer, wanted, filled)


def _check(group: Group, receiving: Receiving) -> None:
    """Look for the next entries on this disk, as soon as that needs no wait; then ask for those that are
    missing.
    """
    indexes = taken(receiving.unchecked, CHECK_ENTRIES_MAX)
    receiving.checking = True

    def look() -> None:
        if group.receiving is receiving:
            receiving.checking = False
            receiving.moved_at = group.replicas.clock.monotonic_ms()
            receiving.wanted.extend(
                range(index, index + 1)
                for index in indexes
                if read_entry(group.replicas, group, index) is None
            )
            _ask(group, receiving)

    if not waits_for_disk(group, indexes, look):
        look()


def _go_on_checking(group: Group, receiving: Receiving) -> None:
    """Look for the next entries in a turn of their own: there may be many."""
    receiving.checking = True
    group.replicas.timers.wake(receiving, 0)


def _ask(group: Group, receiving: Receiving) -> None:
    """Ask for the next entries, or finish."""
    if receiving.asked or receiving.checking or receiving.storing:
        return
    if not receiving.wanted and receiving.unchecked:
        _go_on_checking(group, receiving)
        return
    if not receiving.wanted:
        _store(group, receiving)
        return
    indexes = taken(receiving.wanted, FETCH_ENTRIES_MAX)
    receiving.asked = dict.fromkeys(indexes)
    group.replicas.send(receiving.leader, frames.fetch(group.id, indexes))


def receive_entries(group: Group, peer: str, found: list[frames.StoredEntry]) -> None:
    replicas = group.replicas
    receiving = group.receiving
    answered = False
    for entry in found:
        if entry.kind != frames.GONE:
            replicas.lost_entries.found(group, entry)
        elif peer == group.core.leader and not replicas.lost_entries.asks(peer):
            replicas.lost_entries.gone_at_leader(group, entry.index)
        if receiving is None or entry.index not in receiving.asked:
            continue
        if entry.kind == frames.GONE and entry.data == frames.PERHAPS_SETTLED:
            # This leader may need this member to find that out, so the member continues without the entry.
            answered = True
            del receiving.asked[entry.index]
            receiving.missing.append(entry.index)
            continue
        if entry.kind == frames.GONE:
            # The leader has lost it, too, or is no longer leader. Begin again.
            logger.warning("replica group %d: %s has no entry %d", group.id, peer, entry.index)
            group.receiving = None
            return
        answered = True
        del receiving.asked[entry.index]
        replicas.store.keep_aside(group.id, [entry])
    if receiving is None or not answered:
        return
    receiving.moved_at = replicas.clock.monotonic_ms()
    # An answer holds as many entries as fit: request the others again.
    receiving.wanted.extendleft(range(index, index + 1) for index in reversed(list(receiving.asked)))
    receiving.asked = {}
    replicas.commits.request()
    _ask(group, receiving)


def _store(group: Group, receiving: Receiving) -> None:
    """Everything has arrived: make it durable, then replace state and log."""
    replicas, core = group.replicas, group.core
    index, term = receiving.index, receiving.log_term
    if (
        core.last_index != receiving.last_index
        or core.leader != receiving.leader
        or not core.installing(index, term)
    ):
        # The group has changed meanwhile: the leader begins again if that is still needed.
        group.receiving = None
        return
    receiving.storing = True
    state = receiving.whole
    members = Members.decode(receiving.members)
    store = replicas.store
    # In one transaction: delete entries that were never committed, and store the snapshot.
    store.truncate(group.id, group.applied + 1)
    store.snapshot(group.id, index, term, pack_state(members, state))
    # Also delete old entries that were kept for bodies which are no longer needed.
    store.drop_entries(group.id, without(range(1, index + 1), group.machine.keeps.kept_in(state)))

    def take_over() -> None:
        """The machine has come to the state."""
        group.receiving = None
        if replicas.groups.get(group.id) is not group:
            return
        group.apply_again()
        group.drop_unapplied()
        core.restore(index, term, members)
        group.applied = group.snapshot_index = group.cleaned = index
        group.snapshot_bytes, group.since_bytes = len(state), 0
        group.released = ()
        group.machine.restore(state)
        group.forget_applied()
        for missing in receiving.missing:
            replicas.lost_entries.add(group, missing)
        replicas.touch(group)
        logger.info("replica group %d: received a snapshot at %d", group.id, index)

    def done() -> None:
        if replicas.groups.get(group.id) is group:
            group.apply_nothing()
            replicas.contain(group, group.machine.come_to, state, take_over)
        else:
            group.receiving = None

    replicas.commits.request(done)
