"""A turn's work for the other nodes: frames to send, and the Raft groups shared with them."""

from __future__ import annotations

from amqp_server.cluster.membership.disk_progress import DiskProgress
from amqp_server.cluster.topology_progress import TopologyProgress
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.links.mesh import Mesh


class Peers:
    """See amqp_server.turn.Peers. Each turn calls these several times, so they are direct references where
    possible.
    """

    def __init__(
        self, mesh: Mesh, replicas: Replicas, topology_progress: TopologyProgress, disk_progress: DiskProgress
    ) -> None:
        self._mesh = mesh
        self._topology_progress = topology_progress
        self._disk_progress = disk_progress
        self.turn_begins = mesh.turn_begins
        #: Never replaced by another object.
        self.dirty: object = replicas.dirty
        self.take_dirty = replicas.take_dirty
        self.touch_again = replicas.touch_again
        self.carry_out = replicas.carry_out
        self.write = replicas.write

    def flush(self) -> None:
        self._topology_progress.flush()
        # Piggyback on outgoing frames, above all on the answers that follow a commit: a separate frame would
        # wake the others.
        waiting = self._mesh.waiting()
        if waiting:
            self._disk_progress.tell(waiting)
        self._mesh.flush()
