"""The name and the id of a cluster; the id does not depend on the name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.broker.declared.parameters import CLUSTER_ID, GLOBAL

if TYPE_CHECKING:
    from amqp_server.management.parts import ManagedParts


def cluster_name(parts: ManagedParts) -> str:
    """Return the name that an operator has set, or the name of the first node, which is the same on all
    nodes.
    """
    others = () if parts.others is None else parts.others.names()
    return parts.broker.runtime.parameters.cluster_name or min([parts.config.node, *others])


def cluster_id(parts: ManagedParts) -> str:
    """Return the id that imported definitions have set, as in RabbitMQ, or the id that the first node was
    founded with.
    """
    record = parts.broker.runtime.parameters.get(GLOBAL, GLOBAL, CLUSTER_ID)
    if record is not None and isinstance(record.decoded, str):
        return record.decoded
    identity = parts.node_id
    founded = None if parts.cluster is None else parts.cluster.founded
    if founded is not None and founded.nodes:
        identity = founded.nodes[min(founded.nodes)]
    return f"rabbitmq-cluster-id-{identity}"
