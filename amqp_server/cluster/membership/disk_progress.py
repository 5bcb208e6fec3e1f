"""Nodes tell each other how much their disks have written, so that they notice a restored old copy: see
membership.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from amqp_server.cluster.membership.membership import Seen
from quorum_queue.cluster import frames
from quorum_queue.links.handshake import Hello
from quorum_queue.links.mesh import Mesh


class DiskProgress:
    def __init__(self, mesh: Mesh, written: Callable[[], int]) -> None:
        """`written` returns the number of commits on this node's disk."""
        self._mesh = mesh
        self._written = written
        self._told: dict[str, int] = {}
        #: Directory and start of the linked peers.
        self._session_of: dict[str, tuple[str, int]] = {}
        self._seen: dict[str, Seen] = {}

    def link_up(self, peer: str, hello: Hello) -> None:
        self._session_of[peer] = hello.identity, hello.incarnation
        self._told.pop(peer, None)
        self.tell([peer])

    def tell(self, peers: Iterable[str]) -> None:
        """Tell these nodes how much this disk has written."""
        written = self._written()
        for peer in peers:
            if self._told.get(peer) != written:
                self._told[peer] = written
                self._mesh.send(peer, frames.written(written))

    def heard_frame(self, peer: str, frame: memoryview) -> None:
        """Take a peer's progress. Raises FrameError."""
        written = frames.parse_written(frame)
        identity, said_in = self._session_of[peer]
        self._seen[peer] = Seen(0, identity, said_in, written)

    def seen(self, peer: str) -> Seen:
        """Return what this node has heard about a peer's disk."""
        return self._seen.get(peer, Seen())
