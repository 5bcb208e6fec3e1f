"""Takes snapshots of a group's state, and deletes the entries that are no longer needed after that.

A queue's bodies are in the entries with which they came. Below the snapshot an entry stays as long as one of
its messages is in the queue, and is then deleted alone: one old message pins its own entry and no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_queue.cluster.snapshots.ranges import without
from quorum_queue.cluster.snapshots.state import pack_state

if TYPE_CHECKING:
    from quorum_queue.cluster.replica_group import Group

#: Entries whose last message is settled are deleted together.
RELEASED_MAX = 256


def go_on(group: Group) -> None:
    """Take a snapshot if one is due."""
    options = group.replicas.options
    if group.snapshotting or _holds(group) or group.receiving is not None or group.unapplied:
        return
    if len(group.released) >= RELEASED_MAX:
        _drop_released(group)
    entries = group.applied - group.snapshot_index
    due = group.since_bytes >= options.snapshot_bytes or entries >= options.snapshot_entries
    if not due or group.since_bytes < options.snapshot_growth * group.snapshot_bytes:
        return
    take_snapshot(group)


def take_snapshot(group: Group) -> None:
    """Write the present state; once it is durable, delete the entries that it
    covers and that are not needed.
    """
    if group.unapplied:
        # An entry is half applied. There will be another occasion.
        return
    index = group.machine.covered(group.applied)
    receiving = group.receiving
    if index <= group.snapshot_index or group.snapshotting or (receiving is not None and receiving.storing):
        return
    term, members = group.core.log.term_at(index), group.core.members_at(index)
    # Bytes of the entries that it does not cover are estimated.
    left = group.since_bytes * (group.applied - index) // max(group.applied - group.snapshot_index, 1)
    covered = group.since_bytes - left
    group.snapshotting = True

    def made(state: bytes) -> None:
        if _is_overtaken(group, index):
            group.snapshotting = False
            return
        group.snapshot_log_bytes += covered
        # Entries applied while it was made are not in it.
        group.snapshot_bytes, group.since_bytes = len(state), group.since_bytes - covered
        group.replicas.store.snapshot(group.id, index, term, pack_state(members, state))
        group.replicas.commits.request(done)

    def done() -> None:
        group.snapshotting = False
        if group.replicas.groups.get(group.id) is group and index > group.snapshot_index:
            group.snapshot_index = index
            group.replicas.contain(group, compact, group)

    group.snapshot(made)


def _is_overtaken(group: Group, index: int) -> bool:
    """Return whether a snapshot that was begun at this entry came too late: a later one has come from another
    node, or comes now, or the group is closed.
    """
    receiving = group.receiving
    stored = receiving is not None and receiving.storing
    return stored or index <= group.snapshot_index or group.replicas.groups.get(group.id) is not group


def _holds(group: Group) -> bool:
    """Return whether a follower is being filled from the entries below the snapshot."""
    return bool(group.sending) and not group.machine.fills_itself


def compact(group: Group) -> None:
    """Delete the entries below the snapshot, except those that hold bodies of the queue.

    Entries that a follower in contact still lacks stay, unless it lags too far.
    """
    if _holds(group):
        return
    _drop_released(group)
    index, at = _least_needed(group), group.cleaned + 1
    if index < at:
        return
    group.core.compact(index)
    spans = without(range(at, index + 1), group.machine.keeps.kept(at))
    group.cleaned = index
    if index == group.snapshot_index:
        group.snapshot_log_bytes = 0
    if spans:
        group.replicas.store.drop_entries(group.id, spans)
        group.replicas.commits.request()


def _least_needed(group: Group) -> int:
    """Return the entry up to which the log may be cut."""
    index = group.snapshot_index
    leadership = group.core.leadership
    # A follower that needs an entry that this disk has lost gets a snapshot instead.
    lost = group.core.log.lost
    if leadership is not None and not lost and group.log_bytes < group.replicas.options.log_bytes_max:
        for peer in leadership.peers.values():
            if peer.contact:
                index = min(index, peer.match)
    return index


def _drop_released(group: Group) -> None:
    """Delete entries below the snapshot whose last message is settled. Those
    above it wait for the next one.
    """
    released, group.released = group.released, ()
    stop = group.cleaned + 1
    spans = [range(each.start, min(each.stop, stop)) for each in released if each.start < stop]
    if spans:
        group.replicas.store.drop_entries(group.id, spans)
        group.replicas.commits.request()
