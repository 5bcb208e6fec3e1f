"""The parts of a cluster's node that need no broker: its links, its Raft groups, and its knowledge of the
others.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from dataclasses import dataclass

from amqp_server.cluster import settings
from amqp_server.cluster.groups import Groups
from amqp_server.cluster.membership import zones
from amqp_server.cluster.membership.disk_progress import DiskProgress
from amqp_server.cluster.membership.machines import number_of
from amqp_server.cluster.membership.membership import Directory
from amqp_server.cluster.membership.roster import Roster
from amqp_server.cluster.membership.zones import Zones
from amqp_server.cluster.peers import Peers
from amqp_server.cluster.replication import ClusterReplication
from amqp_server.cluster.store import GroupStore
from amqp_server.cluster.topology_progress import TopologyProgress
from amqp_server.config import Config
from persistence.environment import Environment
from quorum_queue.boundary import Boundary
from quorum_queue.clock import Clock
from quorum_queue.cluster import frames
from quorum_queue.cluster.connectivity import Reach
from quorum_queue.cluster.ports import Commits
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.links.mesh import Mesh
from quorum_queue.links.ports import Peer
from quorum_queue.links.shared_port import Processes
from quorum_queue.machine import versions
from quorum_queue.ports import Timers
from quorum_queue.raft.options import Options

#: One tick of the election clock, s.
TICK_S = 0.05


#: Features that this version of mqd announces in the handshake of each link.
FEATURES = (
    frames.REACH_FEATURE,
    frames.STOPPED_FEATURE,
    frames.LOSSES_FEATURE,
    frames.TIME_FEATURE,
    frames.MANAGEMENT_FEATURE,
    frames.CLIENTS_FEATURE,
    frames.ALARM_FEATURE,
    *versions.FEATURES,
)


@dataclass(frozen=True)
class ClusterParts:
    """Made by `make_parts`; node.ClusterNode connects them with the broker."""

    environment: Environment
    directory: Directory
    #: Number of this start, higher than that of any earlier start of this node.
    incarnation: int
    commits: Commits
    mesh: Mesh
    store: GroupStore
    replicas: Replicas
    groups: Groups
    roster: Roster
    reach: Reach
    topology_progress: TopologyProgress
    disk_progress: DiskProgress
    replication: ClusterReplication
    peers: Peers


def begin(environment: Environment, clock: Clock) -> tuple[Directory, int]:
    """Return this node's directory, and the number of this start, which is on disk before others see it."""
    directory = Directory(environment, environment.node_id, environment.found)
    incarnation = directory.begin(clock.wall_ms(), salt=clock.monotonic_ms())
    environment.flush()
    return directory, incarnation


def peer_at(name: str, address: tuple[str, int]) -> Peer:
    """Return a node that listens there; all workers of a node listen at one address."""
    return Peer(name, *address, process=number_of(name))


def make_mesh(
    config: Config,
    environment: Environment,
    incarnation: int,
    listens: Collection[socket.socket],
    processes: Processes,
) -> Mesh:
    """Make the mesh of links. Raises ClusterError for a secret or certificates that cannot be used."""
    return Mesh(
        node=config.node,
        incarnation=incarnation,
        identity=environment.node_id,
        cluster="mqd",
        listens=listens,
        peers=[peer_at(name, address) for name, address in config.peer_addresses.items()],
        secret=settings.secret(config),
        tls=settings.tls(config),
        options=settings.link_options(config),
        features=(*FEATURES, *zones.features(config.zone)),
        processes=processes,
    )


def make_parts(
    config: Config,
    environment: Environment,
    commits: Commits,
    clock: Clock,
    timers: Timers,
    directory: Directory,
    incarnation: int,
    mesh: Mesh,
    boundary: Boundary,
) -> ClusterParts:
    """Make the parts that need no broker."""
    store = GroupStore(environment)
    founded = directory.founded
    lost_before = founded.forgotten_before if founded is not None else 0
    options = settings.replication_options(config)
    replicas = Replicas(
        config.node,
        incarnation,
        store=store,
        commits=commits,
        links=mesh,
        clock=clock,
        timers=timers,
        options=options,
        boundary=boundary,
        raft=Options(election_ticks=max(2, round(config.election_ms / 1000 / TICK_S))),
    )
    roster = Roster(Zones(config.node, config.zone))
    replicas.version = lambda: roster.version
    reach = Reach(config.node, mesh, clock, leads=lambda: replicas.takes_leaders, options=options)
    topology_progress = TopologyProgress(mesh, clock, reach)
    disk_progress = DiskProgress(mesh, lambda: environment.written)
    return ClusterParts(
        environment=environment,
        directory=directory,
        incarnation=incarnation,
        commits=commits,
        mesh=mesh,
        store=store,
        replicas=replicas,
        groups=Groups(replicas, store, store.recovered(), lost_before=lost_before),
        roster=roster,
        reach=reach,
        topology_progress=topology_progress,
        disk_progress=disk_progress,
        replication=ClusterReplication(
            config.node, incarnation, clock=clock, timeout_ms=config.change_timeout_ms
        ),
        peers=Peers(mesh, replicas, topology_progress, disk_progress),
    )
