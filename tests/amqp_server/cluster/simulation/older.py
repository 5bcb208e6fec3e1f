"""The features that nodes of older versions announce, and the entries that they cannot read.

All nodes here run the same code. A node that stands for an older version announces no more than that version
did, ignores the newer features that others announce, and fails the run when it comes to something that its
version would not have understood.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from amqp_server.broker.declared import operations
from amqp_server.broker.declared.operations import (
    ClearParameter,
    Operation,
    PauseQueue,
    ProtectQueue,
    PutParameter,
)
from amqp_server.cluster.topology_group import Answers, Change, Decide, Proposal, RaiseEpoch
from amqp_server.cluster.wiring import FEATURES
from quorum_queue.cluster import frames
from quorum_queue.machine import versions
from tests.turns import Violation

if TYPE_CHECKING:
    from tests.amqp_server.cluster.simulation.node import SimulatedNode

#: The feature that a node must have announced before others send it a frame of this kind. The other kinds are
#: as old as links.
NEEDED: dict[int, str] = {
    frames.REACH: frames.REACH_FEATURE,
    frames.FURTHER: frames.REACH_FEATURE,
    frames.STOPPED: frames.STOPPED_FEATURE,
    frames.SEEK: frames.LOSSES_FEATURE,
    frames.SOUGHT: frames.LOSSES_FEATURE,
    frames.PASS: frames.LOSSES_FEATURE,
    frames.TIME: frames.TIME_FEATURE,
    frames.ASK: frames.MANAGEMENT_FEATURE,
    frames.ANSWER: frames.MANAGEMENT_FEATURE,
    frames.CLIENTS: frames.CLIENTS_FEATURE,
    frames.QUERY: f"machine/{versions.STREAMS}",
    frames.TOLD: f"machine/{versions.STREAMS}",
    frames.EARLY: f"machine/{versions.CONFIRM_LEVELS}",
    frames.SYNCED: f"machine/{versions.CONFIRM_LEVELS}",
    frames.AWAIT: f"machine/{versions.CONFIRM_LEVELS}",
    frames.REACHED: f"machine/{versions.CONFIRM_LEVELS}",
}

#: The version that brought these operations of the topology, and other entries of its log.
SINCE: dict[type, int] = {
    PutParameter: versions.PARAMETERS,
    ClearParameter: versions.PARAMETERS,
    PauseQueue: versions.PAUSES,
    ProtectQueue: versions.PAUSES,
    Decide: versions.TRANSACTIONS,
    Answers: versions.TRANSACTIONS,
    RaiseEpoch: versions.TRANSACTIONS,
}


def features_of(version: int) -> tuple[str, ...]:
    """Return what a node of this version announces. The first one announced nothing."""
    if version == versions.FIRST:
        return ()
    later = versions.FEATURES[version - versions.FIRST :]
    return tuple(each for each in FEATURES if each not in later)


def check_frame(node: SimulatedNode, peer: str, kind: int) -> None:
    needed = NEEDED.get(kind)
    if needed is not None and needed not in node.features:
        raise Violation(f"{peer} sent {node.name} a frame of kind {kind}, which its version does not know")


def check_proposal(node: SimulatedNode, proposal: Proposal) -> None:
    """Check that the version of this node knows what the log brings."""
    known: Operation | Proposal = proposal
    if isinstance(proposal, Change):
        known = operations.decode(proposal.operation)
    if SINCE.get(type(known), versions.FIRST) > node.version:
        raise Violation(f"{node.name}, of version {node.version}, is to apply {known}")


def check_versions(node: SimulatedNode) -> None:
    """Check that neither the topology nor a queue has a version that this node does not know."""
    found = {"the topology": node.cluster.roster.version}
    for queue_id, host in node.cluster.hosts.grouped.items():
        if not host.queue.type.is_stream:
            found[f"queue {queue_id}"] = host.replica.machine.version
    for what, version in found.items():
        if version > node.version:
            raise Violation(f"{node.name}, of version {node.version}, has {what} of version {version}")


def lowest(nodes: Collection[SimulatedNode]) -> int:
    """Return the newest version that all of these nodes know."""
    return min(node.version for node in nodes)
