"""The id of a cluster, which does not depend on its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.broker.declared.parameters import CLUSTER_ID, GLOBAL

if TYPE_CHECKING:
    from amqp_server.app import Node


def cluster_id(node: Node) -> str:
    """Return the id that imported definitions have set, as in RabbitMQ, or the id that the first node was
    founded with.
    """
    record = node.broker.runtime.parameters.get(GLOBAL, GLOBAL, CLUSTER_ID)
    if record is not None and isinstance(record.decoded, str):
        return record.decoded
    identity = node.environment.node_id
    founded = None if node.cluster is None else node.cluster.founded
    if founded is not None and founded.nodes:
        identity = founded.nodes[min(founded.nodes)]
    return f"rabbitmq-cluster-id-{identity}"
