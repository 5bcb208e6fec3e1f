"""Chooses which of several connections between two nodes is their session. Pure.

Both nodes dial, so that neither waits for the other after a restart, and now and then there are two
connections. The node with the lower name decides for the pair: it says START on the connection that it
chooses, and the other node answers ADOPTED with a number that counts its sessions. Only then is there a
session.

A further connection from a peer with a session may mean that both nodes dialled at once, or that the peer has
lost the session while we still hold a half-dead one. A higher incarnation means the latter. Within one
incarnation the peer's standing decides: the peer sent it on the new connection either before it adopted the
session (then the session is newer), or after, and then it says whether the peer still holds the session.
"""

from __future__ import annotations

from quorum_queue.links.handshake import Hello, Standing


def decides(node: str, peer: str) -> bool:
    """Return whether `node` decides for this pair."""
    return node < peer


def takes(new: Hello, standing: Standing, old: Hello, adopted_as: int | None) -> bool:
    """Return whether the new connection replaces the old one. `adopted_as` is None until the old one is
    adopted.
    """
    if not follows(new, old):
        return False
    if new.incarnation > old.incarnation:
        return True
    # Not adopted yet: the answer is on its way, or this connection dies soon without one.
    return adopted_as is not None and standing.adopted >= adopted_as and not standing.linked


def follows(new: Hello, old: Hello) -> bool:
    """Return whether this can be the same node, now or later. If not, it must wait until the old session is
    dead.

    Otherwise two nodes that were started under one name would push each other out for ever.
    """
    return new.identity == old.identity and new.incarnation >= old.incarnation
