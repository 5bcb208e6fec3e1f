"""Finds out whether this node can change the topology now, with the reason if it cannot."""

from __future__ import annotations

from quorum_queue.cluster.replica_group import Group

NO_MAJORITY = "no majority of the cluster's nodes is reachable"
NO_LEADER = "the topology has no leader at the moment, or this node does not reach it"


def obstacle(group: Group | None) -> str:
    """Return the reason why this node cannot change the topology; `group` is the topology's group. Empty if
    it can.
    """
    if group is None or not has_majority(group):
        return NO_MAJORITY
    return "" if group.leader else NO_LEADER


def has_majority(group: Group) -> bool:
    """Return whether this node reaches a majority of the voters, itself included."""
    voters = group.core.members.voters
    up = {group.replicas.node, *group.replicas.links.connected()}
    return sum(name in up for name in voters) > len(voters) // 2
