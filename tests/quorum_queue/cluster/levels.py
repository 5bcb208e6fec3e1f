"""The promises of the confirm levels, checked from outside: on the disks, and in the logs of all nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from quorum_queue.cluster.replica_group import Group
from tests.turns import Violation

if TYPE_CHECKING:
    from quorum_queue.cluster.replicas import Replicas
    from tests.quorum_queue.cluster.node import SimulatedNode
    from tests.stores.memory import MemoryEnvironment


def running(nodes: Mapping[str, SimulatedNode]) -> dict[str, Replicas | None]:
    """Return the groups of each node; None for a node that is down, or whose disk may have lost entries."""
    return {
        name: node.replicas if node.alive and not node.environment.groups.was_damaged else None
        for name, node in nodes.items()
    }


def check_reached(group: Group, index: int, members: Mapping[str, Replicas | None]) -> None:
    """A leader says that all voters in reach have the log up to an index. `members` are the running ones."""
    core = group.core
    leadership = core.leadership
    if leadership is None:
        raise Violation(f"{core.node} says what the members of group {group.id} have, and leads nothing")
    having = may_have = 0
    for name in core.members.voters:
        replicas = members.get(name)
        own = None if replicas is None else replicas.groups.get(group.id)
        peer = leadership.peers.get(name)
        if own is not None and own.core.log.stable_index >= index:
            having += 1
        elif own is not None and (peer is None or peer.contact) and not own.core.amnesiac:
            raise Violation(f"{name} is in reach and has not {index}, {core.node} says that all have it")
        elif peer is None or peer.match >= index:
            # This member is or was down, nobody reaches it, or its disk is damaged: its earlier answer
            # counts.
            having += 1
        elif not peer.match:
            # If it answered, then an earlier leader.
            may_have += 1
    if 2 * (having + may_have) <= len(core.members.voters):
        raise Violation(f"{core.node} says that all have {index}, and no majority has")


def is_on_a_disk(environments: list[MemoryEnvironment], group_id: int, body: bytes) -> bool:
    for environment in environments:
        group = environment.groups.groups.get(group_id)
        if group is not None and any(body in entry.data for entry in group.entries.values()):
            return True
        if any(body in record for record in environment._log.values()):
            return True
    return False


def newest_term(nodes: Mapping[str, SimulatedNode], group_id: int) -> int:
    """Return the newest term that any node knows."""
    found = [node.replicas.groups.get(group_id) for node in nodes.values() if node.alive]
    return max((group.core.term for group in found if group is not None), default=0)
