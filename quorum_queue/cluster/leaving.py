"""Decides whether to tell a leaving node that it has left a group. The node
then drops its data of the group.
"""

from __future__ import annotations

from quorum_queue.cluster.connectivity import Reach
from quorum_queue.cluster.replica_group import Group


def has_left(group: Group, peer: str, reach: Reach) -> bool:
    """Return whether a peer is no longer a member, as far as this node can tell.

    The leader knows. A new member does not know the other members yet, so followers leave the answer to the
    leader. If the peer does not reach the leader, a follower answers if it has applied all entries that it
    knows to be committed. If the peer becomes a member again at this moment, it does so as a node without
    memory.
    """
    core = group.core
    if core.members_index > core.commit or peer in core.members.everyone():
        return False
    if group.is_leader:
        return True
    return not group.behind and reach.linked(reach.node, core.leader) and not reach.linked(core.leader, peer)
