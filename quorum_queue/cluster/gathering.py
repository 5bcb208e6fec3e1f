"""When the batches that have reached a leader become an entry: at once, or together with those that come in a moment.

However little is in it, an entry costs each member a write and a few turns. One client that waits for each confirm is
served at once. Where many messages come one by one, an entry for each would keep the nodes so busy that all of them
came later: then an entry takes what has come while the last one was on its way, and what comes within `gather_ms` of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorum_queue.cluster.group import Group

#: An entry costs all members about as much as this many bytes in it do.
SMALL_ENTRY_BYTES = 16 * 1024
#: A publish and the ack of what was published before it, of clients that wait for each other, need not wait.
UNDER_WAY_MAX = 2


def waits(group: Group) -> bool:
    """Shall what is in the inbox of a leader wait? There will be a turn when it need not any more."""
    if group.machine.single or sum(map(len, group.inbox)) >= SMALL_ENTRY_BYTES:
        return False
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
