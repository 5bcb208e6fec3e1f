"""Which of several connections between two nodes is their session. Pure.

Both nodes dial, so that neither waits for the other after a restart, and now and then there are two connections.
The node with the lower name decides for the pair: it says START on the one it takes, and the other node answers
ADOPTED with a number that counts its sessions. Only then is there a session.

Is a further connection from a peer that has a session already the fruit of both dialling at once, or has the peer lost
the session while we still hold a half-dead one? A higher incarnation tells. Within one incarnation the peer's standing
tells: what it said on the new connection either came before it adopted the session (then the session is newer), or
after, and then it says whether it still holds it.
"""

from __future__ import annotations

from quorum_queue.links.handshake import Hello, Standing


def decides(node: str, peer: str) -> bool:
    """Does `node` choose for this pair?"""
    return node < peer


def takes(new: Hello, standing: Standing, old: Hello, adopted_as: int | None) -> bool:
    """Shall the new connection replace the old one? `adopted_as` is None while that has not been adopted yet."""
    if not follows(new, old):
        return False
    if new.incarnation > old.incarnation:
        return True
    # Not adopted yet: the answer is on its way, or this connection dies soon for want of one.
    return adopted_as is not None and standing.adopted >= adopted_as and not standing.linked


def follows(new: Hello, old: Hello) -> bool:
    """Can this be the same node, now or later? If not, it has to wait until the old session is dead.

    Two nodes started under one name would otherwise push each other out for ever.
    """
    return new.identity == old.identity and new.incarnation >= old.incarnation
