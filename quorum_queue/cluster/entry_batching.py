"""Decides when a leader makes an entry of its batches: at once, or together with batches that come a moment
later.

Even a small entry costs each member a write and a few turns. A single client that waits for each confirm is
served at once. If many messages come one by one, an entry for each would keep the nodes so busy that all
messages came later. Then the leader gathers the batches that came while the last entry was on its way, or
within `gather_ms` of it, into one entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from quorum_queue.cluster.replica_group import Group

#: The fixed cost of an entry, in bytes of data that cost the same.
SMALL_ENTRY_BYTES: Final = 16 * 1024
#: Most entries under way. Two, so that a publish and the ack of an earlier message need not wait for each
#: other.
UNDER_WAY_MAX: Final = 2


def waits(group: Group) -> bool:
    """Return whether the batches in a leader's inbox wait. A later turn
    follows by itself when they need not.
    """
    if group.machine.single or sum(map(len, group.inbox)) >= SMALL_ENTRY_BYTES:
        return False
    if group.early:
        # The commit by other members does not matter to these batches; one sync of this disk serves all that
        # came meanwhile.
        return group.core.log.stable_index < group.core.last_index
    if group.core.last_index - group.core.commit >= (1 if group.crowded else UNDER_WAY_MAX):
        return True
    if not group.crowded:
        return False
    replicas = group.replicas
    due_ms = group.proposed_ms + replicas.options.gather_ms
    if replicas.clock.monotonic_ms() >= due_ms:
        return False
    if not group.wakes:
        group.wakes = True
        replicas.timers.wake(group, due_ms)
    return True
