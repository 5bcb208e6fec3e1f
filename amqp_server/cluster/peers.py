"""What every turn does for the other nodes: frames to send, and the Raft groups that are shared with them."""

from __future__ import annotations

from amqp_server.cluster.disk_progress import DiskProgress
from amqp_server.cluster.topology_progress import TopologyProgress
from quorum_queue.cluster.group import Group
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.links.mesh import Mesh


class Peers:
    """See amqp_server.turn.Peers."""

    def __init__(
        self, mesh: Mesh, replicas: Replicas, topology_progress: TopologyProgress, disk_progress: DiskProgress
    ) -> None:
        self._mesh = mesh
        self._replicas = replicas
        self._topology_progress = topology_progress
        self._disk_progress = disk_progress

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
        self._topology_progress.flush()
        # Piggyback on outgoing frames, above all on the answers that follow a commit: a frame of its own
        # would wake the others.
        self._disk_progress.tell(self._mesh.waiting())
        self._mesh.flush()
