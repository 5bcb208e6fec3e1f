"""Every path of the API, who may call it, and what answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from amqp_server.broker.access.users import ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER
from amqp_server.management.definitions import definitions
from amqp_server.management.request.call import Call
from amqp_server.management.request.columns import Table
from amqp_server.management.resources import (
    bindings,
    checks,
    cluster,
    connections,
    exchanges,
    failed_queues,
    groups,
    limits,
    messages,
    node,
    offsets,
    parameters,
    policies,
    queues,
    shovels,
    users,
    vhosts,
)
from amqp_server.management.statistics import login_counts

#: Of no user: there is nothing to learn.
ANYBODY = ""

Handler = Callable[[Call], Awaitable[Any]]


class Endpoint(NamedTuple):
    method: str
    path: str
    #: The tag that a user needs at least, or ANYBODY. In a vhost, the user's permissions are checked as well.
    who: str
    handler: Handler
    #: Each node of a cluster answers with its own part; see everywhere.ask_others.
    everywhere: bool = False
    #: A line in the log says who asked for it, if it may change something.
    audited: bool = True
    #: The columns of the rows, or of the one row, that it answers with.
    columns: Table | None = None


ENDPOINTS = (
    Endpoint("GET", "/api/overview", MANAGEMENT, node.overview, everywhere=True),
    Endpoint("GET", "/api/cluster-name", MANAGEMENT, node.cluster_name),
    Endpoint("PUT", "/api/cluster-name", ADMINISTRATOR, parameters.put_cluster_name),
    Endpoint("GET", "/api/whoami", MANAGEMENT, node.whoami),
    Endpoint("GET", "/api/nodes", MONITORING, node.nodes, everywhere=True),
    Endpoint("GET", "/api/nodes/{node}", MONITORING, node.node, everywhere=True),
    Endpoint("GET", "/api/nodes/{node}/memory", MONITORING, node.memory, everywhere=True),
    Endpoint("GET", "/api/nodes/{node}/memory/relative", MONITORING, node.memory_relative, everywhere=True),
    Endpoint("PUT", "/api/nodes/{node}/memory-limit", ADMINISTRATOR, node.set_memory_limit),
    Endpoint("POST", "/api/nodes/{node}/stop", ADMINISTRATOR, node.stop),
    Endpoint("GET", "/api/auth", ANYBODY, node.auth),
    Endpoint("GET", "/api/auth/attempts/{node}", MONITORING, login_counts.attempts, everywhere=True),
    Endpoint("DELETE", "/api/auth/attempts/{node}", ADMINISTRATOR, login_counts.reset, everywhere=True),
    Endpoint(
        "GET",
        "/api/auth/attempts/{node}/source",
        MONITORING,
        login_counts.attempts_by_source,
        everywhere=True,
    ),
    Endpoint("GET", "/api/extensions", MANAGEMENT, node.none),
    Endpoint("GET", "/api/feature-flags", ADMINISTRATOR, node.feature_flags),
    Endpoint("PUT", "/api/feature-flags/{name}/enable", ADMINISTRATOR, node.enable_feature),
    Endpoint("GET", "/api/deprecated-features", ADMINISTRATOR, node.none),
    Endpoint("GET", "/api/deprecated-features/used", ADMINISTRATOR, node.none),
    Endpoint("DELETE", "/api/reset", ADMINISTRATOR, node.reset_statistics),
    Endpoint("DELETE", "/api/reset/{node}", ADMINISTRATOR, node.reset_statistics),
    Endpoint("POST", "/api/rebalance/queues", ADMINISTRATOR, cluster.rebalance_queues),
    Endpoint("GET", "/api/aliveness-test/{vhost}", MANAGEMENT, checks.aliveness),
    Endpoint("GET", "/api/healthchecks/node", MANAGEMENT, checks.node),
    Endpoint("GET", "/api/healthchecks/node/{node}", MANAGEMENT, checks.node, everywhere=True),
    Endpoint("GET", "/api/health/checks/alarms", MANAGEMENT, checks.alarms, everywhere=True),
    Endpoint("GET", "/api/health/checks/local-alarms", MANAGEMENT, checks.local_alarms),
    Endpoint("GET", "/api/health/checks/virtual-hosts", MANAGEMENT, checks.virtual_hosts),
    Endpoint("GET", "/api/health/checks/port-listener/{port}", MANAGEMENT, checks.port_listener),
    Endpoint("GET", "/api/health/checks/protocol-listener/{protocol}", MANAGEMENT, checks.protocol_listener),
    Endpoint(
        "GET",
        "/api/health/checks/certificate-expiration/{within}/{unit}",
        MANAGEMENT,
        checks.certificate_expiration,
    ),
    Endpoint(
        "GET", "/api/health/checks/node-is-mirror-sync-critical", MANAGEMENT, checks.mirror_sync_critical
    ),
    Endpoint("GET", "/api/health/checks/ready-to-serve-clients", MANAGEMENT, checks.ready_to_serve),
    Endpoint("GET", "/api/health/checks/is-in-service", MANAGEMENT, checks.ready_to_serve),
    Endpoint(
        "GET", "/api/health/checks/below-node-connection-limit", MANAGEMENT, checks.below_connection_limit
    ),
    Endpoint("GET", "/api/health/checks/node-is-quorum-critical", MANAGEMENT, cluster.quorum_critical),
    Endpoint("GET", "/api/health/checks/failed-queues", MONITORING, failed_queues.check),
    Endpoint("GET", "/api/failed-queues", MONITORING, failed_queues.failed),
    Endpoint("GET", "/api/failed-queues/{vhost}", MONITORING, failed_queues.failed),
    Endpoint("POST", "/api/failed-queues/{vhost}/{name}/retry", ADMINISTRATOR, failed_queues.retry),
    Endpoint("GET", "/api/cluster", MONITORING, cluster.status),
    Endpoint("POST", "/api/cluster/nodes", ADMINISTRATOR, cluster.join),
    Endpoint("DELETE", "/api/cluster/nodes/{node}", ADMINISTRATOR, cluster.forget),
    Endpoint("POST", "/api/cluster/nodes/{node}/grow", ADMINISTRATOR, cluster.grow),
    Endpoint("POST", "/api/cluster/nodes/{node}/shrink", ADMINISTRATOR, cluster.shrink),
    Endpoint("POST", "/api/cluster/rebalance", ADMINISTRATOR, cluster.rebalance),
    Endpoint("POST", "/api/cluster/topology/accept-loss", ADMINISTRATOR, cluster.accept_topology_loss),
    Endpoint("GET", "/api/cluster/queues", MONITORING, cluster.queues),
    Endpoint("GET", "/api/cluster/queues/{vhost}", MONITORING, cluster.queues),
    Endpoint("GET", "/api/cluster/queues/{vhost}/{name}", MONITORING, cluster.queue),
    Endpoint("PUT", "/api/cluster/queues/{vhost}/{name}/leader", ADMINISTRATOR, cluster.transfer_leader),
    Endpoint("POST", "/api/cluster/queues/{vhost}/{name}/accept-loss", ADMINISTRATOR, cluster.accept_loss),
    Endpoint("GET", "/api/users", ADMINISTRATOR, users.users),
    Endpoint("GET", "/api/users/without-permissions", ADMINISTRATOR, users.users_without_permissions),
    Endpoint("POST", "/api/users/bulk-delete", ADMINISTRATOR, users.delete_users),
    Endpoint("GET", "/api/users/{user}", ADMINISTRATOR, users.user),
    Endpoint("PUT", "/api/users/{user}", ADMINISTRATOR, users.put_user),
    Endpoint("DELETE", "/api/users/{user}", ADMINISTRATOR, users.delete_user),
    Endpoint("GET", "/api/users/{user}/permissions", ADMINISTRATOR, users.permissions_of_user),
    Endpoint("POST", "/api/users/{user}/authenticate", ADMINISTRATOR, users.authenticate, audited=False),
    Endpoint("GET", "/api/permissions", ADMINISTRATOR, users.permissions),
    Endpoint("GET", "/api/permissions/{vhost}/{user}", ADMINISTRATOR, users.permission),
    Endpoint("PUT", "/api/permissions/{vhost}/{user}", ADMINISTRATOR, users.put_permission),
    Endpoint("DELETE", "/api/permissions/{vhost}/{user}", ADMINISTRATOR, users.delete_permission),
    Endpoint("GET", "/api/users/{user}/topic-permissions", ADMINISTRATOR, users.topic_permissions),
    Endpoint("GET", "/api/vhosts/{vhost}/topic-permissions", ADMINISTRATOR, users.topic_permissions),
    Endpoint("GET", "/api/topic-permissions", ADMINISTRATOR, users.topic_permissions),
    Endpoint("GET", "/api/topic-permissions/{vhost}/{user}", ADMINISTRATOR, users.topic_permissions),
    Endpoint("PUT", "/api/topic-permissions/{vhost}/{user}", ADMINISTRATOR, users.put_topic_permission),
    Endpoint(
        "DELETE", "/api/topic-permissions/{vhost}/{user}", ADMINISTRATOR, users.delete_topic_permissions
    ),
    Endpoint(
        "DELETE",
        "/api/topic-permissions/{vhost}/{user}/{exchange}",
        ADMINISTRATOR,
        users.delete_topic_permissions,
    ),
    Endpoint("GET", "/api/parameters", MANAGEMENT, parameters.parameters),
    Endpoint("GET", "/api/parameters/{component}", MANAGEMENT, parameters.parameters),
    Endpoint("GET", "/api/parameters/{component}/{vhost}", MANAGEMENT, parameters.parameters),
    Endpoint("GET", "/api/parameters/{component}/{vhost}/{name}", MANAGEMENT, parameters.parameter),
    Endpoint("PUT", "/api/parameters/{component}/{vhost}/{name}", MANAGEMENT, parameters.put_parameter),
    Endpoint("DELETE", "/api/parameters/{component}/{vhost}/{name}", MANAGEMENT, parameters.delete_parameter),
    Endpoint("GET", "/api/global-parameters", POLICYMAKER, parameters.global_parameters),
    Endpoint("GET", "/api/global-parameters/{name}", POLICYMAKER, parameters.global_parameter),
    Endpoint("PUT", "/api/global-parameters/{name}", POLICYMAKER, parameters.put_global_parameter),
    Endpoint("DELETE", "/api/global-parameters/{name}", POLICYMAKER, parameters.delete_global_parameter),
    Endpoint("GET", "/api/shovels", MONITORING, shovels.shovels, everywhere=True),
    Endpoint("GET", "/api/shovels/{vhost}", MONITORING, shovels.shovels, everywhere=True),
    Endpoint("GET", "/api/shovels/{vhost}/{name}", MONITORING, shovels.shovel, everywhere=True),
    Endpoint(
        "GET", "/api/shovels/vhost/{vhost}/{name}", MONITORING, shovels.shovel_in_vhost, everywhere=True
    ),
    Endpoint("DELETE", "/api/shovels/vhost/{vhost}/{name}", POLICYMAKER, shovels.delete),
    Endpoint(
        "DELETE", "/api/shovels/vhost/{vhost}/{name}/restart", POLICYMAKER, shovels.restart, everywhere=True
    ),
    Endpoint("GET", "/api/vhost-limits", MANAGEMENT, limits.vhost_limits),
    Endpoint("GET", "/api/vhost-limits/{vhost}", MANAGEMENT, limits.vhost_limits),
    Endpoint("PUT", "/api/vhost-limits/{vhost}/{name}", ADMINISTRATOR, limits.put_vhost_limit),
    Endpoint("DELETE", "/api/vhost-limits/{vhost}/{name}", ADMINISTRATOR, limits.delete_vhost_limit),
    Endpoint("GET", "/api/user-limits", MANAGEMENT, limits.user_limits),
    Endpoint("GET", "/api/user-limits/{user}", MANAGEMENT, limits.user_limits),
    Endpoint("PUT", "/api/user-limits/{user}/{name}", ADMINISTRATOR, limits.put_user_limit),
    Endpoint("DELETE", "/api/user-limits/{user}/{name}", ADMINISTRATOR, limits.delete_user_limit),
    Endpoint("GET", "/api/definitions", ADMINISTRATOR, definitions.definitions),
    Endpoint("POST", "/api/definitions", ADMINISTRATOR, definitions.put_definitions),
    Endpoint("GET", "/api/definitions/{vhost}", ADMINISTRATOR, definitions.definitions),
    Endpoint("POST", "/api/definitions/{vhost}", ADMINISTRATOR, definitions.put_definitions),
    Endpoint("GET", "/api/policies", MANAGEMENT, policies.policies),
    Endpoint("GET", "/api/policies/{vhost}", MANAGEMENT, policies.policies),
    Endpoint("GET", "/api/policies/{vhost}/{name}", MANAGEMENT, policies.policy),
    Endpoint("PUT", "/api/policies/{vhost}/{name}", MANAGEMENT, policies.put_policy),
    Endpoint("DELETE", "/api/policies/{vhost}/{name}", MANAGEMENT, policies.delete_policy),
    Endpoint("GET", "/api/operator-policies", MANAGEMENT, policies.operator_policies),
    Endpoint("GET", "/api/operator-policies/{vhost}", MANAGEMENT, policies.operator_policies),
    Endpoint("GET", "/api/operator-policies/{vhost}/{name}", ADMINISTRATOR, policies.operator_policy),
    Endpoint("PUT", "/api/operator-policies/{vhost}/{name}", ADMINISTRATOR, policies.put_operator_policy),
    Endpoint(
        "DELETE", "/api/operator-policies/{vhost}/{name}", ADMINISTRATOR, policies.delete_operator_policy
    ),
    Endpoint("GET", "/api/vhosts", MANAGEMENT, vhosts.vhosts, everywhere=True),
    Endpoint("GET", "/api/vhosts/{vhost}", MANAGEMENT, vhosts.vhost, everywhere=True),
    Endpoint("PUT", "/api/vhosts/{vhost}", ADMINISTRATOR, vhosts.put_vhost),
    Endpoint("DELETE", "/api/vhosts/{vhost}", ADMINISTRATOR, vhosts.delete_vhost),
    Endpoint("POST", "/api/vhosts/{vhost}/start/{node}", ADMINISTRATOR, vhosts.start),
    Endpoint("GET", "/api/vhosts/{vhost}/permissions", ADMINISTRATOR, users.permissions_of_vhost),
    Endpoint(
        "GET",
        "/api/vhosts/{vhost}/connections",
        MANAGEMENT,
        connections.connections_of_vhost,
        everywhere=True,
        columns=connections.CONNECTIONS,
    ),
    Endpoint(
        "GET",
        "/api/vhosts/{vhost}/channels",
        MANAGEMENT,
        connections.channels_of_vhost,
        everywhere=True,
        columns=connections.CHANNELS,
    ),
    Endpoint("GET", "/api/queues", MANAGEMENT, queues.queues, everywhere=True, columns=queues.COLUMNS),
    Endpoint(
        "GET", "/api/queues/{vhost}", MANAGEMENT, queues.queues, everywhere=True, columns=queues.COLUMNS
    ),
    Endpoint(
        "GET", "/api/queues/{vhost}/{name}", MANAGEMENT, queues.queue, everywhere=True, columns=queues.COLUMNS
    ),
    Endpoint("PUT", "/api/queues/{vhost}/{name}", MANAGEMENT, queues.put_queue),
    Endpoint("DELETE", "/api/queues/{vhost}/{name}", MANAGEMENT, queues.delete_queue),
    Endpoint("DELETE", "/api/queues/{vhost}/{name}/contents", MANAGEMENT, queues.purge_queue),
    Endpoint("POST", "/api/queues/{vhost}/{name}/actions", MANAGEMENT, queues.act),
    Endpoint("GET", "/api/queues/{vhost}/{name}/explain", MANAGEMENT, queues.explain),
    Endpoint("POST", "/api/queues/{vhost}/{name}/get", MANAGEMENT, messages.get, audited=False),
    Endpoint("POST", "/api/queues/{vhost}/{name}/read", MANAGEMENT, messages.read, audited=False),
    Endpoint("POST", "/api/queues/{vhost}/{name}/move", MANAGEMENT, messages.move),
    Endpoint("GET", "/api/queues/{vhost}/{name}/offsets", MANAGEMENT, offsets.offsets, everywhere=True),
    Endpoint(
        "DELETE",
        "/api/queues/{vhost}/{name}/offsets/{offset}",
        MANAGEMENT,
        offsets.delete_offset,
        everywhere=True,
    ),
    Endpoint("GET", "/api/queues/{vhost}/{name}/bindings", MANAGEMENT, bindings.bindings_of_queue),
    Endpoint("GET", "/api/groups", MANAGEMENT, groups.groups, columns=groups.COLUMNS),
    Endpoint("GET", "/api/groups/{vhost}", MANAGEMENT, groups.groups, columns=groups.COLUMNS),
    Endpoint("GET", "/api/groups/{vhost}/{name}", MANAGEMENT, groups.group, columns=groups.COLUMNS),
    Endpoint("GET", "/api/groups/{vhost}/{name}/members", MANAGEMENT, groups.members, everywhere=True),
    Endpoint("GET", "/api/group-members", MANAGEMENT, groups.all_members, everywhere=True),
    Endpoint("GET", "/api/group-members/{vhost}", MANAGEMENT, groups.all_members, everywhere=True),
    Endpoint("POST", "/api/groups/{vhost}/{name}/reset", MANAGEMENT, groups.reset),
    Endpoint(
        "GET", "/api/exchanges", MANAGEMENT, exchanges.exchanges, everywhere=True, columns=exchanges.COLUMNS
    ),
    Endpoint(
        "GET",
        "/api/exchanges/{vhost}",
        MANAGEMENT,
        exchanges.exchanges,
        everywhere=True,
        columns=exchanges.COLUMNS,
    ),
    Endpoint(
        "GET",
        "/api/exchanges/{vhost}/{name}",
        MANAGEMENT,
        exchanges.exchange,
        everywhere=True,
        columns=exchanges.COLUMNS,
    ),
    Endpoint("PUT", "/api/exchanges/{vhost}/{name}", MANAGEMENT, exchanges.put_exchange),
    Endpoint("DELETE", "/api/exchanges/{vhost}/{name}", MANAGEMENT, exchanges.delete_exchange),
    Endpoint("POST", "/api/exchanges/{vhost}/{name}/publish", MANAGEMENT, messages.publish, audited=False),
    Endpoint("POST", "/api/exchanges/{vhost}/{name}/explain", MANAGEMENT, exchanges.explain, audited=False),
    Endpoint("POST", "/api/exchanges/{vhost}/{name}/partitions", MANAGEMENT, exchanges.add_partitions),
    Endpoint(
        "GET", "/api/exchanges/{vhost}/{name}/bindings/source", MANAGEMENT, bindings.bindings_from_exchange
    ),
    Endpoint(
        "GET", "/api/exchanges/{vhost}/{name}/bindings/destination", MANAGEMENT, bindings.bindings_to_exchange
    ),
    Endpoint("GET", "/api/bindings", MANAGEMENT, bindings.bindings),
    Endpoint("GET", "/api/bindings/{vhost}", MANAGEMENT, bindings.bindings),
    Endpoint(
        "GET", "/api/bindings/{vhost}/e/{source}/{kind}/{destination}", MANAGEMENT, bindings.bindings_between
    ),
    Endpoint(
        "POST", "/api/bindings/{vhost}/e/{source}/{kind}/{destination}", MANAGEMENT, bindings.post_binding
    ),
    Endpoint(
        "GET",
        "/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{properties}",
        MANAGEMENT,
        bindings.binding,
    ),
    Endpoint(
        "DELETE",
        "/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{properties}",
        MANAGEMENT,
        bindings.delete_binding,
    ),
    Endpoint(
        "GET",
        "/api/connections",
        MANAGEMENT,
        connections.connections,
        everywhere=True,
        columns=connections.CONNECTIONS,
    ),
    Endpoint(
        "GET",
        "/api/connections/username/{user}",
        MANAGEMENT,
        connections.connections_of_user,
        everywhere=True,
        columns=connections.CONNECTIONS,
    ),
    Endpoint(
        "DELETE",
        "/api/connections/username/{user}",
        MANAGEMENT,
        connections.close_connections_of_user,
        everywhere=True,
    ),
    Endpoint(
        "GET",
        "/api/connections/{name}",
        MANAGEMENT,
        connections.connection,
        everywhere=True,
        columns=connections.CONNECTIONS,
    ),
    Endpoint("DELETE", "/api/connections/{name}", MANAGEMENT, connections.close_connection, everywhere=True),
    Endpoint(
        "GET",
        "/api/connections/{name}/channels",
        MANAGEMENT,
        connections.channels_of_connection,
        everywhere=True,
        columns=connections.CHANNELS,
    ),
    Endpoint(
        "GET",
        "/api/channels",
        MANAGEMENT,
        connections.channels,
        everywhere=True,
        columns=connections.CHANNELS,
    ),
    Endpoint(
        "GET",
        "/api/channels/{name}",
        MANAGEMENT,
        connections.channel,
        everywhere=True,
        columns=connections.CHANNELS,
    ),
    Endpoint(
        "GET",
        "/api/consumers",
        MANAGEMENT,
        connections.consumers,
        everywhere=True,
        columns=connections.CONSUMERS,
    ),
    Endpoint(
        "GET",
        "/api/consumers/{vhost}",
        MANAGEMENT,
        connections.consumers,
        everywhere=True,
        columns=connections.CONSUMERS,
    ),
)
