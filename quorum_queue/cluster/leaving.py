"""Whether a node that is to leave a group may be told that it has left. It drops its part of the group then."""

from __future__ import annotations

from quorum_queue.cluster.group import Group
from quorum_queue.cluster.reach import Reach


def has_left(group: Group, peer: str, reach: Reach) -> bool:
    """Return whether a peer is no member any more, as far as this node can say so.

    The leader knows. A member that has just come does not know yet who the other members are, so followers leave the
    answer to the leader. If the peer does not reach the leader, a follower answers that has applied everything of which it
    knows that it is committed. Should the peer become a member again at this moment, it does so as a node without memory.
    """
    core = group.core
    if core.members_index > core.commit or peer in core.members.everyone():
        return False
    if group.is_leader:
        return True
    return not group.behind and reach.linked(reach.node, core.leader) and not reach.linked(core.leader, peer)
