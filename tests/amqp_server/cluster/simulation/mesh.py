"""The links of a simulated node, used instead of quorum_queue.links.mesh.Mesh."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from quorum_queue.links.ports import Peer

if TYPE_CHECKING:
    from tests.amqp_server.cluster.simulation.node import SimulatedNode


class SimulatedMesh:
    def __init__(
        self,
        simulated: SimulatedNode,
        node: str,
        peers: Iterable[str],
    ) -> None:
        self._simulated = simulated
        self._node = node
        self.peers = {name: Peer(name, "127.0.0.1", 1) for name in peers if name != node}
        #: Sessions that end as soon as the current work is over.
        self.dropped: dict[str, None] = {}
        self._waiting: dict[str, None] = {}

    def lets_in(self, peer: str) -> bool:
        return peer in self.peers or self._simulated.cluster.admits(peer)

    def send(self, peer: str, parts: list[bytes]) -> bool:
        if peer in self.dropped:
            return False
        self._waiting[peer] = None
        frame = b"".join(parts)
        self._simulated.sends(frame)
        return self._simulated.network.send(self._node, peer, frame)

    def turn_begins(self) -> None: ...

    def flush(self) -> None:
        self._waiting.clear()

    def waiting(self) -> Collection[str]:
        return list(self._waiting)

    def pending_bytes(self, peer: str) -> int:
        session = self._simulated.sessions.get(peer)
        return 0 if session is None else session.bytes_to(peer)

    def arrived_bytes(self, peer: str) -> int:
        """Frames of this network come as a whole."""
        return 0

    def connected(self) -> Collection[str]:
        return [peer for peer in self._simulated.sessions if peer not in self.dropped]

    def features_of(self, peer: str) -> Collection[str]:
        return self._simulated.features_of(peer)

    def add_peer(self, peer: Peer) -> None:
        if peer.name != self._node:
            self.peers[peer.name] = peer

    def remove_peer(self, peer: str) -> None:
        self.peers.pop(peer, None)
        self.drop(peer)

    def drop(self, peer: str) -> None:
        if peer in self._simulated.sessions:
            self.dropped[peer] = None
