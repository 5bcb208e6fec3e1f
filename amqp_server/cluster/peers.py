"""The other nodes, as far as every turn deals with them: frames to send, and the Raft groups that are shared with them."""

from __future__ import annotations

from amqp_server.cluster.spread import Spread
from amqp_server.cluster.witnesses import Witnesses
from quorum_queue.cluster.group import Group
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.links.mesh import Mesh


class Peers:
    """See amqp_server.turn.Peers."""

    def __init__(self, mesh: Mesh, replicas: Replicas, spread: Spread, witnesses: Witnesses) -> None:
        self._mesh = mesh
        self._replicas = replicas
        self._spread = spread
        self._witnesses = witnesses

    def turn_begins(self) -> None:
        self._mesh.turn_begins()

    @property
    def dirty(self) -> object:
        return self._replicas.dirty

    def take_dirty(self) -> list[Group]:
        return self._replicas.take_dirty()

    def carry_out(self, group: Group) -> None:
        self._replicas.carry_out(group)

    def write(self) -> None:
        self._replicas.write()

    def flush(self) -> None:
        self._spread.flush()
        # Piggyback on frames that leave anyway, above all the answers that rest on a commit: a frame of its own would
        # wake the others.
        self._witnesses.tell(self._mesh.waiting())
        self._mesh.flush()
