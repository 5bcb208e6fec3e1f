"""Every path of the API, who may call it, and what answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from amqp_server.broker.users import ADMINISTRATOR, MANAGEMENT, MONITORING
from amqp_server.management import (
    bindings,
    cluster,
    connections,
    exchanges,
    failed,
    groups,
    messages,
    node,
    queues,
    users,
    vhosts,
)
from amqp_server.management.call import Call

Handler = Callable[[Call], Awaitable[Any]]


class Route(NamedTuple):
    method: str
    path: str
    #: The tag that a user needs at least. In a vhost, the user's permissions are checked as well.
    who: str
    handler: Handler
    #: Each node of a cluster answers with its own part; see everywhere.ask_others.
    everywhere: bool = False


ROUTES = (
    Route("GET", "/api/overview", MANAGEMENT, node.overview, everywhere=True),
    Route("GET", "/api/cluster-name", MANAGEMENT, node.cluster_name),
    Route("GET", "/api/whoami", MANAGEMENT, node.whoami),
    Route("GET", "/api/nodes", MONITORING, node.nodes, everywhere=True),
    Route("GET", "/api/nodes/{node}", MONITORING, node.node, everywhere=True),
    Route("PUT", "/api/nodes/{node}/memory-limit", ADMINISTRATOR, node.set_memory_limit),
    Route("POST", "/api/nodes/{node}/stop", ADMINISTRATOR, node.stop),
    Route("GET", "/api/health/checks/alarms", MANAGEMENT, node.alarms),
    Route("GET", "/api/health/checks/node-is-quorum-critical", MANAGEMENT, cluster.quorum_critical),
    Route("GET", "/api/health/checks/failed-queues", MONITORING, failed.check),
    Route("GET", "/api/failed-queues", MONITORING, failed.failed),
    Route("GET", "/api/failed-queues/{vhost}", MONITORING, failed.failed),
    Route("POST", "/api/failed-queues/{vhost}/{name}/retry", ADMINISTRATOR, failed.retry),
    Route("GET", "/api/cluster", MONITORING, cluster.status),
    Route("POST", "/api/cluster/nodes", ADMINISTRATOR, cluster.join),
    Route("DELETE", "/api/cluster/nodes/{node}", ADMINISTRATOR, cluster.forget),
    Route("POST", "/api/cluster/nodes/{node}/grow", ADMINISTRATOR, cluster.grow),
    Route("POST", "/api/cluster/nodes/{node}/shrink", ADMINISTRATOR, cluster.shrink),
    Route("POST", "/api/cluster/rebalance", ADMINISTRATOR, cluster.rebalance),
    Route("POST", "/api/cluster/topology/accept-loss", ADMINISTRATOR, cluster.accept_topology_loss),
    Route("GET", "/api/cluster/queues", MONITORING, cluster.queues),
    Route("GET", "/api/cluster/queues/{vhost}", MONITORING, cluster.queues),
    Route("GET", "/api/cluster/queues/{vhost}/{name}", MONITORING, cluster.queue),
    Route("PUT", "/api/cluster/queues/{vhost}/{name}/leader", ADMINISTRATOR, cluster.transfer_leader),
    Route("POST", "/api/cluster/queues/{vhost}/{name}/accept-loss", ADMINISTRATOR, cluster.accept_loss),
    Route("GET", "/api/users", ADMINISTRATOR, users.users),
    Route("GET", "/api/users/without-permissions", ADMINISTRATOR, users.users_without_permissions),
    Route("POST", "/api/users/bulk-delete", ADMINISTRATOR, users.delete_users),
    Route("GET", "/api/users/{user}", ADMINISTRATOR, users.user),
    Route("PUT", "/api/users/{user}", ADMINISTRATOR, users.put_user),
    Route("DELETE", "/api/users/{user}", ADMINISTRATOR, users.delete_user),
    Route("GET", "/api/users/{user}/permissions", ADMINISTRATOR, users.permissions_of_user),
    Route("POST", "/api/users/{user}/authenticate", ADMINISTRATOR, users.authenticate),
    Route("GET", "/api/permissions", ADMINISTRATOR, users.permissions),
    Route("GET", "/api/permissions/{vhost}/{user}", ADMINISTRATOR, users.permission),
    Route("PUT", "/api/permissions/{vhost}/{user}", ADMINISTRATOR, users.put_permission),
    Route("DELETE", "/api/permissions/{vhost}/{user}", ADMINISTRATOR, users.delete_permission),
    Route("GET", "/api/vhosts", MANAGEMENT, vhosts.vhosts, everywhere=True),
    Route("GET", "/api/vhosts/{vhost}", MANAGEMENT, vhosts.vhost, everywhere=True),
    Route("PUT", "/api/vhosts/{vhost}", ADMINISTRATOR, vhosts.put_vhost),
    Route("DELETE", "/api/vhosts/{vhost}", ADMINISTRATOR, vhosts.delete_vhost),
    Route("GET", "/api/vhosts/{vhost}/permissions", ADMINISTRATOR, users.permissions_of_vhost),
    Route(
        "GET",
        "/api/vhosts/{vhost}/connections",
        MANAGEMENT,
        connections.connections_of_vhost,
        everywhere=True,
    ),
    Route("GET", "/api/vhosts/{vhost}/channels", MANAGEMENT, connections.channels_of_vhost, everywhere=True),
    Route("GET", "/api/queues", MANAGEMENT, queues.queues, everywhere=True),
    Route("GET", "/api/queues/{vhost}", MANAGEMENT, queues.queues, everywhere=True),
    Route("GET", "/api/queues/{vhost}/{name}", MANAGEMENT, queues.queue, everywhere=True),
    Route("PUT", "/api/queues/{vhost}/{name}", MANAGEMENT, queues.put_queue),
    Route("DELETE", "/api/queues/{vhost}/{name}", MANAGEMENT, queues.delete_queue),
    Route("DELETE", "/api/queues/{vhost}/{name}/contents", MANAGEMENT, queues.purge_queue),
    Route("POST", "/api/queues/{vhost}/{name}/get", MANAGEMENT, messages.get),
    Route("GET", "/api/queues/{vhost}/{name}/bindings", MANAGEMENT, bindings.bindings_of_queue),
    Route("GET", "/api/groups", MANAGEMENT, groups.groups),
    Route("GET", "/api/groups/{vhost}", MANAGEMENT, groups.groups),
    Route("GET", "/api/groups/{vhost}/{name}", MANAGEMENT, groups.group),
    Route("GET", "/api/groups/{vhost}/{name}/members", MANAGEMENT, groups.members),
    Route("POST", "/api/groups/{vhost}/{name}/reset", MANAGEMENT, groups.reset),
    Route("GET", "/api/exchanges", MANAGEMENT, exchanges.exchanges, everywhere=True),
    Route("GET", "/api/exchanges/{vhost}", MANAGEMENT, exchanges.exchanges, everywhere=True),
    Route("GET", "/api/exchanges/{vhost}/{name}", MANAGEMENT, exchanges.exchange, everywhere=True),
    Route("PUT", "/api/exchanges/{vhost}/{name}", MANAGEMENT, exchanges.put_exchange),
    Route("DELETE", "/api/exchanges/{vhost}/{name}", MANAGEMENT, exchanges.delete_exchange),
    Route("POST", "/api/exchanges/{vhost}/{name}/publish", MANAGEMENT, messages.publish),
    Route("POST", "/api/exchanges/{vhost}/{name}/partitions", MANAGEMENT, exchanges.add_partitions),
    Route(
        "GET", "/api/exchanges/{vhost}/{name}/bindings/source", MANAGEMENT, bindings.bindings_from_exchange
    ),
    Route(
        "GET", "/api/exchanges/{vhost}/{name}/bindings/destination", MANAGEMENT, bindings.bindings_to_exchange
    ),
    Route("GET", "/api/bindings", MANAGEMENT, bindings.bindings),
    Route("GET", "/api/bindings/{vhost}", MANAGEMENT, bindings.bindings),
    Route(
        "GET", "/api/bindings/{vhost}/e/{source}/{kind}/{destination}", MANAGEMENT, bindings.bindings_between
    ),
    Route("POST", "/api/bindings/{vhost}/e/{source}/{kind}/{destination}", MANAGEMENT, bindings.post_binding),
    Route(
        "GET",
        "/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{properties}",
        MANAGEMENT,
        bindings.binding,
    ),
    Route(
        "DELETE",
        "/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{properties}",
        MANAGEMENT,
        bindings.delete_binding,
    ),
    Route("GET", "/api/connections", MANAGEMENT, connections.connections, everywhere=True),
    Route(
        "GET",
        "/api/connections/username/{user}",
        MANAGEMENT,
        connections.connections_of_user,
        everywhere=True,
    ),
    Route(
        "DELETE",
        "/api/connections/username/{user}",
        MANAGEMENT,
        connections.close_connections_of_user,
        everywhere=True,
    ),
    Route("GET", "/api/connections/{name}", MANAGEMENT, connections.connection, everywhere=True),
    Route("DELETE", "/api/connections/{name}", MANAGEMENT, connections.close_connection, everywhere=True),
    Route(
        "GET",
        "/api/connections/{name}/channels",
        MANAGEMENT,
        connections.channels_of_connection,
        everywhere=True,
    ),
    Route("GET", "/api/channels", MANAGEMENT, connections.channels, everywhere=True),
    Route("GET", "/api/channels/{name}", MANAGEMENT, connections.channel, everywhere=True),
    Route("GET", "/api/consumers", MANAGEMENT, connections.consumers, everywhere=True),
    Route("GET", "/api/consumers/{vhost}", MANAGEMENT, connections.consumers, everywhere=True),
)
