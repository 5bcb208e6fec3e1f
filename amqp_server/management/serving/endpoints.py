"""Every path of the API, who may call it, and what answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from amqp_server.broker.access.users import ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER
from amqp_server.management.definitions import definitions
from amqp_server.management.messages import by_hand, cancelling, carrying, moving, peeking, status
from amqp_server.management.operating import alarms, message_sizes, pausing, remotes
from amqp_server.management.operating import node as operating
from amqp_server.management.request.call import Call
from amqp_server.management.request.columns import Table
from amqp_server.management.resources import (
    arguments,
    bindings,
    checks,
    cluster,
    connections,
    exchanges,
    failed_queues,
    groups,
    limits,
    logins,
    node,
    offsets,
    parameters,
    policies,
    queues,
    shovels,
    transactions,
    users,
    vhosts,
)

#: Of no user: there is nothing to learn.
ANYBODY = ""

Handler = Callable[[Call], Awaitable[Any]]


class Endpoint(NamedTuple):
    method: str
    path: str
    #: The tag that a user needs at least, or ANYBODY. In a vhost, the user's permissions are checked as well.
    who: str
    handler: Handler
    #: Each node of a cluster answers with its own part; see other_nodes.ask_others.
    everywhere: bool = False
    #: A line in the log says who asked for it, if it may change something.
    audited: bool = True
    #: The columns of the rows, or of the one row, that it answers with.
    columns: Table | None = None


_get, _put, _post, _delete = (partial(Endpoint, method) for method in ("GET", "PUT", "POST", "DELETE"))

_LEADERLESS = "/api/health/checks/quorum-queues-without-elected-leaders"

ENDPOINTS = (
    _get("/api/overview", MANAGEMENT, node.overview, everywhere=True),
    _get("/api/cluster-name", MANAGEMENT, node.cluster_name),
    _put("/api/cluster-name", ADMINISTRATOR, parameters.put_cluster_name),
    _get("/api/whoami", MANAGEMENT, node.whoami),
    _get("/api/version", MANAGEMENT, node.version),
    _get("/api/nodes", MONITORING, node.nodes, everywhere=True),
    _get("/api/nodes/{node}", MONITORING, node.node, everywhere=True),
    _get("/api/nodes/{node}/memory", MONITORING, node.memory, everywhere=True),
    _get("/api/nodes/{node}/memory/relative", MONITORING, node.memory_relative, everywhere=True),
    _get("/api/nodes/{node}/environment", ADMINISTRATOR, operating.environment, everywhere=True),
    _put("/api/nodes/{node}/memory-limit", ADMINISTRATOR, operating.set_memory_limit),
    _put("/api/nodes/{node}/disk-free-limit", ADMINISTRATOR, operating.set_disk_free_limit),
    _put("/api/nodes/{node}/log-level", ADMINISTRATOR, operating.set_log_level),
    _put("/api/nodes/{node}/drain", ADMINISTRATOR, operating.drain),
    _put("/api/nodes/{node}/revive", ADMINISTRATOR, operating.revive),
    _post("/api/nodes/{node}/stop", ADMINISTRATOR, node.stop),
    _get("/api/alarms", MANAGEMENT, alarms.alarms, everywhere=True),
    _get("/api/stream-remotes", MONITORING, remotes.check, everywhere=True),
    _delete("/api/stream-remotes/orphans", ADMINISTRATOR, remotes.delete_orphans, everywhere=True),
    _get("/api/message-sizes", MONITORING, message_sizes.message_sizes, everywhere=True),
    _get("/api/auth", ANYBODY, node.auth),
    _get("/api/auth/attempts/{node}", MONITORING, logins.attempts, everywhere=True),
    _delete("/api/auth/attempts/{node}", ADMINISTRATOR, logins.reset, everywhere=True),
    _get("/api/auth/attempts/{node}/source", MONITORING, logins.attempts_by_source, everywhere=True),
    _get("/api/extensions", MANAGEMENT, node.none),
    _get("/api/feature-flags", ADMINISTRATOR, node.feature_flags),
    _put("/api/feature-flags/{name}/enable", ADMINISTRATOR, node.enable_feature),
    _get("/api/deprecated-features", ADMINISTRATOR, node.none),
    _get("/api/deprecated-features/used", ADMINISTRATOR, node.none),
    _delete("/api/reset", ADMINISTRATOR, node.reset_statistics),
    _delete("/api/reset/{node}", ADMINISTRATOR, node.reset_statistics),
    _post("/api/rebalance/queues", ADMINISTRATOR, cluster.rebalance_queues),
    _get("/api/aliveness-test/{vhost}", MANAGEMENT, checks.aliveness),
    _get("/api/healthchecks/node", MANAGEMENT, checks.node, everywhere=True),
    _get("/api/healthchecks/node/{node}", MANAGEMENT, checks.node, everywhere=True),
    _get("/api/health/checks/alarms", MANAGEMENT, checks.alarms, everywhere=True),
    _get("/api/health/checks/local-alarms", MANAGEMENT, checks.local_alarms, everywhere=True),
    _get("/api/health/checks/virtual-hosts", MANAGEMENT, checks.virtual_hosts),
    _get("/api/health/checks/port-listener/{port}", MANAGEMENT, checks.port_listener),
    _get("/api/health/checks/protocol-listener/{protocol}", MANAGEMENT, checks.protocol_listener),
    _get(
        "/api/health/checks/certificate-expiration/{within}/{unit}", MANAGEMENT, checks.certificate_expiration
    ),
    _get("/api/health/checks/node-is-mirror-sync-critical", MANAGEMENT, checks.mirror_sync_critical),
    _get("/api/health/checks/ready-to-serve-clients", MANAGEMENT, checks.ready_to_serve),
    _get("/api/health/checks/is-in-service", MANAGEMENT, checks.ready_to_serve),
    _get(
        "/api/health/checks/below-node-connection-limit",
        MANAGEMENT,
        checks.below_connection_limit,
        everywhere=True,
    ),
    _get("/api/health/checks/node-is-quorum-critical", MANAGEMENT, cluster.quorum_critical, everywhere=True),
    _get(_LEADERLESS + "/all-vhosts", MONITORING, checks.leaderless, everywhere=True),
    _get(_LEADERLESS + "/all-vhosts/pattern/{pattern}", MONITORING, checks.leaderless, everywhere=True),
    _get(_LEADERLESS + "/vhost/{vhost}", MONITORING, checks.leaderless, everywhere=True),
    _get(_LEADERLESS + "/vhost/{vhost}/pattern/{pattern}", MONITORING, checks.leaderless, everywhere=True),
    _get("/api/health/checks/failed-queues", MONITORING, failed_queues.check, everywhere=True),
    _get("/api/failed-queues", MONITORING, failed_queues.failed, everywhere=True),
    _get("/api/failed-queues/{vhost}", MONITORING, failed_queues.failed, everywhere=True),
    _post("/api/failed-queues/{vhost}/{name}/retry", ADMINISTRATOR, failed_queues.retry, everywhere=True),
    _get("/api/cluster", MONITORING, cluster.status),
    _post("/api/cluster/nodes", ADMINISTRATOR, cluster.join),
    _delete("/api/cluster/nodes/{node}", ADMINISTRATOR, cluster.forget, everywhere=True),
    _post("/api/cluster/nodes/{node}/grow", ADMINISTRATOR, cluster.grow),
    _post("/api/cluster/nodes/{node}/shrink", ADMINISTRATOR, cluster.shrink),
    _post("/api/cluster/rebalance", ADMINISTRATOR, cluster.rebalance),
    _post("/api/cluster/topology/accept-loss", ADMINISTRATOR, cluster.accept_topology_loss),
    _get("/api/cluster/queues", MONITORING, cluster.queues),
    _get("/api/cluster/queues/{vhost}", MONITORING, cluster.queues),
    _get("/api/cluster/queues/{vhost}/{name}", MONITORING, cluster.queue, everywhere=True),
    _get("/api/cluster/queues/{vhost}/{name}/status", MONITORING, cluster.quorum_status, everywhere=True),
    _put("/api/cluster/queues/{vhost}/{name}/leader", ADMINISTRATOR, cluster.transfer_leader),
    _post(
        "/api/cluster/queues/{vhost}/{name}/accept-loss", ADMINISTRATOR, cluster.accept_loss, everywhere=True
    ),
    _get("/api/users", ADMINISTRATOR, users.users),
    _get("/api/users/without-permissions", ADMINISTRATOR, users.users_without_permissions),
    _post("/api/users/bulk-delete", ADMINISTRATOR, users.delete_users),
    _get("/api/users/{user}", ADMINISTRATOR, users.user),
    _put("/api/users/{user}", ADMINISTRATOR, users.put_user),
    _delete("/api/users/{user}", ADMINISTRATOR, users.delete_user),
    _get("/api/users/{user}/permissions", ADMINISTRATOR, users.permissions_of_user),
    _post("/api/users/{user}/authenticate", ADMINISTRATOR, users.authenticate, audited=False),
    _get("/api/permissions", ADMINISTRATOR, users.permissions),
    _get("/api/permissions/{vhost}/{user}", ADMINISTRATOR, users.permission),
    _put("/api/permissions/{vhost}/{user}", ADMINISTRATOR, users.put_permission),
    _delete("/api/permissions/{vhost}/{user}", ADMINISTRATOR, users.delete_permission),
    _get("/api/users/{user}/topic-permissions", ADMINISTRATOR, users.topic_permissions),
    _get("/api/vhosts/{vhost}/topic-permissions", ADMINISTRATOR, users.topic_permissions),
    _get("/api/topic-permissions", ADMINISTRATOR, users.topic_permissions),
    _get("/api/topic-permissions/{vhost}/{user}", ADMINISTRATOR, users.topic_permissions),
    _put("/api/topic-permissions/{vhost}/{user}", ADMINISTRATOR, users.put_topic_permission),
    _delete("/api/topic-permissions/{vhost}/{user}", ADMINISTRATOR, users.delete_topic_permissions),
    _delete(
        "/api/topic-permissions/{vhost}/{user}/{exchange}", ADMINISTRATOR, users.delete_topic_permissions
    ),
    _get("/api/parameters", MANAGEMENT, parameters.parameters),
    _get("/api/parameters/{component}", MANAGEMENT, parameters.parameters),
    _get("/api/parameters/{component}/{vhost}", MANAGEMENT, parameters.parameters),
    _get("/api/parameters/{component}/{vhost}/{name}", MANAGEMENT, parameters.parameter),
    _put("/api/parameters/{component}/{vhost}/{name}", MANAGEMENT, parameters.put_parameter),
    _delete("/api/parameters/{component}/{vhost}/{name}", MANAGEMENT, parameters.delete_parameter),
    _get("/api/global-parameters", POLICYMAKER, parameters.global_parameters),
    _get("/api/global-parameters/{name}", POLICYMAKER, parameters.global_parameter),
    _put("/api/global-parameters/{name}", POLICYMAKER, parameters.put_global_parameter),
    _delete("/api/global-parameters/{name}", POLICYMAKER, parameters.delete_global_parameter),
    _get("/api/shovels", MONITORING, shovels.shovels, everywhere=True),
    _get("/api/shovels/{vhost}", MONITORING, shovels.shovels, everywhere=True),
    _get("/api/shovels/{vhost}/{name}", MONITORING, shovels.shovel, everywhere=True),
    _get("/api/shovels/vhost/{vhost}/{name}", MONITORING, shovels.shovel_in_vhost, everywhere=True),
    _delete("/api/shovels/vhost/{vhost}/{name}", POLICYMAKER, shovels.delete),
    _delete("/api/shovels/vhost/{vhost}/{name}/restart", POLICYMAKER, shovels.restart, everywhere=True),
    _get("/api/vhost-limits", MANAGEMENT, limits.vhost_limits),
    _get("/api/vhost-limits/{vhost}", MANAGEMENT, limits.vhost_limits),
    _put("/api/vhost-limits/{vhost}/{name}", ADMINISTRATOR, limits.put_vhost_limit),
    _delete("/api/vhost-limits/{vhost}/{name}", ADMINISTRATOR, limits.delete_vhost_limit),
    _get("/api/user-limits", MANAGEMENT, limits.user_limits),
    _get("/api/user-limits/{user}", MANAGEMENT, limits.user_limits),
    _put("/api/user-limits/{user}/{name}", ADMINISTRATOR, limits.put_user_limit),
    _delete("/api/user-limits/{user}/{name}", ADMINISTRATOR, limits.delete_user_limit),
    _get("/api/definitions", ADMINISTRATOR, definitions.definitions),
    _post("/api/definitions", ADMINISTRATOR, definitions.put_definitions),
    _get("/api/definitions/{vhost}", ADMINISTRATOR, definitions.definitions),
    _post("/api/definitions/{vhost}", ADMINISTRATOR, definitions.put_definitions),
    _get("/api/arguments", MANAGEMENT, arguments.arguments),
    _get("/api/applied-policies/{vhost}", MANAGEMENT, policies.applied_policies),
    _get("/api/policies", MANAGEMENT, policies.policies),
    _get("/api/policies/{vhost}", MANAGEMENT, policies.policies),
    _get("/api/policies/{vhost}/{name}", MANAGEMENT, policies.policy),
    _put("/api/policies/{vhost}/{name}", MANAGEMENT, policies.put_policy),
    _delete("/api/policies/{vhost}/{name}", MANAGEMENT, policies.delete_policy),
    _get("/api/operator-policies", MANAGEMENT, policies.operator_policies),
    _get("/api/operator-policies/{vhost}", MANAGEMENT, policies.operator_policies),
    _get("/api/operator-policies/{vhost}/{name}", ADMINISTRATOR, policies.operator_policy),
    _put("/api/operator-policies/{vhost}/{name}", ADMINISTRATOR, policies.put_operator_policy),
    _delete("/api/operator-policies/{vhost}/{name}", ADMINISTRATOR, policies.delete_operator_policy),
    _get("/api/vhosts", MANAGEMENT, vhosts.vhosts, everywhere=True),
    _get("/api/vhosts/{vhost}", MANAGEMENT, vhosts.vhost, everywhere=True),
    _put("/api/vhosts/{vhost}", ADMINISTRATOR, vhosts.put_vhost),
    _delete("/api/vhosts/{vhost}", ADMINISTRATOR, vhosts.delete_vhost),
    _post("/api/vhosts/{vhost}/start/{node}", ADMINISTRATOR, vhosts.start),
    _post("/api/vhosts/{vhost}/deletion/protection", ADMINISTRATOR, vhosts.protect),
    _delete("/api/vhosts/{vhost}/deletion/protection", ADMINISTRATOR, vhosts.lift_protection),
    _get("/api/vhosts/{vhost}/permissions", ADMINISTRATOR, users.permissions_of_vhost),
    _get(
        "/api/vhosts/{vhost}/connections",
        MANAGEMENT,
        connections.connections_of_vhost,
        everywhere=True,
        columns=connections.CONNECTIONS,
    ),
    _get(
        "/api/vhosts/{vhost}/channels",
        MANAGEMENT,
        connections.channels_of_vhost,
        everywhere=True,
        columns=connections.CHANNELS,
    ),
    _get("/api/queues", MANAGEMENT, queues.queues, everywhere=True, columns=queues.COLUMNS),
    _get("/api/queues/{vhost}", MANAGEMENT, queues.queues, everywhere=True, columns=queues.COLUMNS),
    _get("/api/queues/{vhost}/{name}", MANAGEMENT, queues.queue, everywhere=True, columns=queues.COLUMNS),
    _put("/api/queues/{vhost}/{name}", MANAGEMENT, queues.put_queue),
    _delete("/api/queues/{vhost}/{name}", MANAGEMENT, queues.delete_queue),
    _delete("/api/queues/{vhost}/{name}/contents", MANAGEMENT, queues.purge_queue),
    _put("/api/queues/{vhost}/{name}/pause", MANAGEMENT, pausing.pause),
    _put("/api/queues/{vhost}/{name}/resume", MANAGEMENT, pausing.resume),
    _post("/api/queues/{vhost}/{name}/deletion/protection", ADMINISTRATOR, pausing.protect),
    _delete("/api/queues/{vhost}/{name}/deletion/protection", ADMINISTRATOR, pausing.lift_protection),
    _post("/api/queues/{vhost}/{name}/actions", MANAGEMENT, queues.act),
    _get("/api/queues/{vhost}/{name}/explain", MANAGEMENT, queues.explain, everywhere=True),
    _get("/api/queues/{vhost}/{name}/peek", MANAGEMENT, peeking.peek, everywhere=True),
    _post("/api/queues/{vhost}/{name}/get", MANAGEMENT, by_hand.get, audited=False),
    _post("/api/queues/{vhost}/{name}/read", MANAGEMENT, by_hand.read, audited=False),
    _post("/api/queues/{vhost}/{name}/move", MANAGEMENT, moving.move),
    _post("/api/queues/{vhost}/{name}/purge", MANAGEMENT, moving.purge),
    _post("/api/queues/{vhost}/{name}/cancel", MANAGEMENT, cancelling.cancel),
    _post("/api/queues/{vhost}/{name}/copy", MANAGEMENT, carrying.copy),
    _post("/api/queues/{vhost}/{name}/import", MANAGEMENT, carrying.bring),
    _post("/api/queues/{vhost}/{name}/redrive", MANAGEMENT, moving.redrive),
    _get("/api/queues/{vhost}/{name}/offsets", MANAGEMENT, offsets.offsets, everywhere=True),
    _delete(
        "/api/queues/{vhost}/{name}/offsets/{offset}", MANAGEMENT, offsets.delete_offset, everywhere=True
    ),
    _get("/api/queues/{vhost}/{name}/bindings", MANAGEMENT, bindings.bindings_of_queue),
    _get("/api/groups", MANAGEMENT, groups.groups, everywhere=True, columns=groups.COLUMNS),
    _get("/api/groups/{vhost}", MANAGEMENT, groups.groups, everywhere=True, columns=groups.COLUMNS),
    _get("/api/groups/{vhost}/{name}", MANAGEMENT, groups.group, everywhere=True, columns=groups.COLUMNS),
    _get("/api/groups/{vhost}/{name}/members", MANAGEMENT, groups.members, everywhere=True),
    _get("/api/group-members", MANAGEMENT, groups.all_members, everywhere=True),
    _get("/api/group-members/{vhost}", MANAGEMENT, groups.all_members, everywhere=True),
    _post("/api/groups/{vhost}/{name}/reset", MANAGEMENT, groups.reset, everywhere=True),
    _get("/api/exchanges", MANAGEMENT, exchanges.exchanges, everywhere=True, columns=exchanges.COLUMNS),
    _get(
        "/api/exchanges/{vhost}", MANAGEMENT, exchanges.exchanges, everywhere=True, columns=exchanges.COLUMNS
    ),
    _get(
        "/api/exchanges/{vhost}/{name}",
        MANAGEMENT,
        exchanges.exchange,
        everywhere=True,
        columns=exchanges.COLUMNS,
    ),
    _put("/api/exchanges/{vhost}/{name}", MANAGEMENT, exchanges.put_exchange),
    _delete("/api/exchanges/{vhost}/{name}", MANAGEMENT, exchanges.delete_exchange),
    _post("/api/exchanges/{vhost}/{name}/publish", MANAGEMENT, by_hand.publish, audited=False),
    _get("/api/messages/{vhost}/{message_id}", MANAGEMENT, status.status),
    _post("/api/exchanges/{vhost}/{name}/explain", MANAGEMENT, exchanges.explain, audited=False),
    _post("/api/exchanges/{vhost}/{name}/partitions", MANAGEMENT, exchanges.add_partitions),
    _get("/api/exchanges/{vhost}/{name}/bindings/source", MANAGEMENT, bindings.bindings_from_exchange),
    _get("/api/exchanges/{vhost}/{name}/bindings/destination", MANAGEMENT, bindings.bindings_to_exchange),
    _get("/api/bindings", MANAGEMENT, bindings.bindings),
    _get("/api/bindings/{vhost}", MANAGEMENT, bindings.bindings),
    _get("/api/bindings/{vhost}/e/{source}/{kind}/{destination}", MANAGEMENT, bindings.bindings_between),
    _post("/api/bindings/{vhost}/e/{source}/{kind}/{destination}", MANAGEMENT, bindings.post_binding),
    _get("/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{properties}", MANAGEMENT, bindings.binding),
    _delete(
        "/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{properties}",
        MANAGEMENT,
        bindings.delete_binding,
    ),
    _get(
        "/api/connections",
        MANAGEMENT,
        connections.connections,
        everywhere=True,
        columns=connections.CONNECTIONS,
    ),
    _get(
        "/api/connections/username/{user}",
        MANAGEMENT,
        connections.connections_of_user,
        everywhere=True,
        columns=connections.CONNECTIONS,
    ),
    _delete(
        "/api/connections/username/{user}", MANAGEMENT, connections.close_connections_of_user, everywhere=True
    ),
    _get(
        "/api/connections/{name}",
        MANAGEMENT,
        connections.connection,
        everywhere=True,
        columns=connections.CONNECTIONS,
    ),
    _delete("/api/connections/{name}", MANAGEMENT, connections.close_connection, everywhere=True),
    _get(
        "/api/connections/{name}/channels",
        MANAGEMENT,
        connections.channels_of_connection,
        everywhere=True,
        columns=connections.CHANNELS,
    ),
    _get("/api/channels", MANAGEMENT, connections.channels, everywhere=True, columns=connections.CHANNELS),
    _get(
        "/api/channels/{name}", MANAGEMENT, connections.channel, everywhere=True, columns=connections.CHANNELS
    ),
    _get(
        "/api/transactions",
        MONITORING,
        transactions.transactions,
        everywhere=True,
        columns=transactions.COLUMNS,
    ),
    _delete("/api/transactions/{id}", MANAGEMENT, transactions.abort, everywhere=True),
    _get("/api/consumers", MANAGEMENT, connections.consumers, everywhere=True, columns=connections.CONSUMERS),
    _get(
        "/api/consumers/{vhost}",
        MANAGEMENT,
        connections.consumers,
        everywhere=True,
        columns=connections.CONSUMERS,
    ),
)
