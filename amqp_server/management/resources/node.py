"""The node as a whole: overview, nodes, the user of the request."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from amqp_server.broker.access.users import MONITORING
from amqp_server.broker.traffic import Traffic
from amqp_server.build import BUILD
from amqp_server.config import VERSION
from amqp_server.management.operating.node import require_node
from amqp_server.management.request import identity
from amqp_server.management.request.answer import NO_CONTENT, Answer, bad_request
from amqp_server.management.request.call import Call
from amqp_server.management.request.columns import Row
from amqp_server.management.request.listing import listing
from amqp_server.management.request.other_nodes import Answers, ask_node, ask_others, once_per_node
from amqp_server.management.resources.connections import visible_sessions
from amqp_server.management.resources.queues import count_messages
from amqp_server.management.statistics.history import DETAILED, GLOBAL
from amqp_server.management.statistics.sampler import CHURN, FIGURES
from amqp_server.management.statistics.stats import merged
from exchanges.registry import EXCHANGE_TYPES
from persistence.own_process import files_limit

if TYPE_CHECKING:
    from amqp_server.management.parts import ManagedParts

log = logging.getLogger("mqd.management")

#: RabbitMQ's feature flags for features that mqd has, with RabbitMQ's descriptions.
FEATURES = {
    "direct_exchange_routing_v2": "v2 direct exchange routing implementation",
    "maintenance_mode_status": "Maintenance mode status",
    "quorum_queue": "Support queues of type `quorum`",
    "stream_queue": "Support queues of type `stream`",
    "user_limits": "Configure connection and channel limits for a user",
    "virtual_host_metadata": "Virtual host metadata (description, tags, etc)",
}


async def version(call: Call) -> str:
    """The version that clients see."""
    return call.broker.config.announce_version


async def overview(call: Call) -> Any:
    parts, broker, stats = call.parts, call.broker, call.stats
    vhosts = call.vhosts()
    counts = await count_messages(call, vhosts, own=call.local or parts.others is not None)
    channels, connections, traffic = await _look_at_clients(call)
    lengths = {
        "messages": counts.messages,
        "messages_ready": counts.messages_ready,
        "messages_unacknowledged": counts.messages_unacknowledged,
    }
    told: dict[str, Any] = {
        "management_version": VERSION,
        "product_name": broker.config.announce_product,
        "product_version": VERSION,
        "build": BUILD,
        "rabbitmq_version": broker.config.announce_version,
        "cluster_name": identity.cluster_name(parts),
        "erlang_version": "",
        "erlang_full_version": "",
        "release_series_support_status": "supported",
        "rates_mode": "basic",
        "sample_retention_policies": {
            "global": [age_s for age_s, _ in GLOBAL],
            "basic": [age_s for age_s, _ in DETAILED],
            "detailed": [age_s for age_s, _ in DETAILED],
        },
        "disable_stats": False,
        "enable_queue_totals": False,
        "message_stats": {},
        "exchange_types": exchange_types(),
        "queue_totals": lengths,
        "object_totals": {
            "channels": channels,
            "connections": connections,
            "consumers": counts.consumers,
            "exchanges": sum(broker.vhost(vhost).router.exchange_count for vhost in vhosts),
            "queues": counts.queues,
        },
        "node": parts.config.node,
        "statistics_db_event_queue": 0,
    }
    if call.may(MONITORING):
        told["queue_totals"] = stats.queue_totals(lengths)
        told["message_stats"] = stats.message_stats(broker.counts.counted.traffic(traffic))
        told["churn_rates"] = stats.churn(_churn(call))
        told["listeners"] = listeners(parts)
        told["contexts"] = [context | {"node": parts.config.node} for context in _contexts(parts)]
    else:
        # Sums over the vhosts that the user may see.
        seen = merged(stats.vhost(vhost) for vhost in vhosts)
        told["queue_totals"] = lengths | {
            f"{name}_details": seen.get(f"{name}_details", {"rate": 0.0}) for name in lengths
        }
        told["message_stats"] = seen.get("message_stats", {})
    return told if call.local else _everywhere(call, told, await ask_others(call))


#: Fields whose lists are joined over all nodes, and fields that are added up.
JOINED, ADDED = ("listeners", "contexts"), ("message_stats", "queue_totals", "churn_rates")
COUNTED = ("channels", "connections", "consumers", "queues")


def _everywhere(call: Call, told: dict[str, Any], answers: Answers) -> dict[str, Any]:
    bodies: list[dict[str, Any]] = [body for body in answers.bodies.values() if body is not None]
    for name in JOINED:
        if name in told:
            told[name] = [each for body in (told, *bodies) for each in body.get(name, ())]
    if "listeners" in told:
        # Workers accept from the same sockets.
        told["listeners"] = once_per_node(call, told["listeners"], "protocol", "ip_address", "port")
    for name in ADDED:
        if name in told:
            told[name] = merged(body[name] for body in (told, *bodies) if name in body)
    totals: dict[str, int] = told["object_totals"]
    for name in COUNTED:
        totals[name] += sum(body["object_totals"][name] for body in bodies)
    if "churn_rates" in told:
        for words in filter(None, map(call.parts.counted_before, answers.missing)):
            for name, row in zip(
                ("message_stats", "churn_rates"), call.stats.counted_before(words), strict=True
            ):
                told[name] = merged((told[name], row))
    if answers.missing:
        told["missing_nodes"] = answers.missing
        # Queues of nodes that are down exist, too.
        totals["queues"] = max(
            totals["queues"], sum(len(call.broker.vhost(vhost).queues) for vhost in call.vhosts())
        )
    return told


async def _look_at_clients(call: Call) -> tuple[int, int, Traffic]:
    """Return the numbers of channels and connections that the user may see, and the counts of these and of
    closed ones.
    """
    channels = connections = 0
    traffic = Traffic()
    traffic.add(call.broker.counts.ended.traffic)
    for session in visible_sessions(call):
        await call.slices.rest()
        connections += 1
        channels += len(session.channels)
        for channel in list(session.channels.values()):
            if not channel.closed:
                traffic.add(channel.counted())
    return channels, connections, traffic


async def cluster_name(call: Call) -> Any:
    return {"name": identity.cluster_name(call.parts)}


async def whoami(call: Call) -> Any:
    return {"name": call.user.name, "tags": list(call.user.tags), "is_internal_user": call.scopes is None}


async def nodes(call: Call) -> Any:
    own = _node_row(call)
    if call.local:
        return own
    answers = await ask_others(call)
    rows: list[dict[str, Any]] = [own, *(body for body in answers.bodies.values() if body is not None)]
    rows += [_down(name) for name in answers.missing]
    rows.sort(key=lambda row: str(row["name"]))
    return await listing(call, rows, dict)


def _down(name: str) -> dict[str, Any]:
    """Return the row of a node that does not answer, as in RabbitMQ."""
    return {"name": name, "type": "disc", "running": False, "being_drained": False}


def _node_row(call: Call) -> Row:
    """Return the row of this node."""
    parts, config, watch = call.parts, call.parts.config, call.parts.resources
    alarms, syncs = parts.broker.alarms.names(), parts.commits.syncs
    figures = dict(zip(FIGURES, parts.sampler.figures(), strict=True))
    return {
        "name": config.node,
        "type": "disc",
        "running": True,
        "being_drained": parts.draining.drained,
        **_drained(parts),
        "os_pid": str(os.getpid()),
        "uptime": int((time.monotonic() - parts.began) * 1000),
        "processors": os.cpu_count() or 1,
        "mem_limit": watch.memory_limit_bytes,
        "mem_alarm": "memory" in alarms,
        "disk_free_limit": watch.disk_free_min_bytes,
        "disk_free_alarm": any(name.startswith("disk") for name in alarms),
        "fd_total": files_limit(),
        "sockets_total": files_limit(),
        "rates_mode": "basic",
        "partitions": [],
        "config_files": [],
        "log_files": [],
        "db_dir": config.data_dir,
        "enabled_plugins": [],
        "net_ticktime": config.cluster_dead_ms // 1000,
        "mem_calculation_strategy": "rss",
        "applications": [{"name": "mqd", "description": "AMQP 0-9-1 broker", "version": VERSION}],
        "rabbitmq_version": config.announce_version,
        "erlang_version": "",
        "erlang_full_version": "",
        "auth_mechanisms": [
            {"name": name, "description": f"SASL {name} authentication mechanism", "enabled": enabled}
            for name, enabled in (
                ("PLAIN", True),
                ("AMQPLAIN", True),
                ("EXTERNAL", bool(config.amqps) and config.tls_login_from != "off"),
            )
        ],
        "contexts": _contexts(parts),
        "exchange_types": exchange_types(),
        "cluster_links": [],
        "io_sync_avg_time": round(1000 * syncs.seconds / syncs.count, 3) if syncs.count else 0.0,
        **call.stats.churn(_churn(call)),
        **call.stats.figures(figures),
    }


def _drained(parts: ManagedParts) -> Row:
    """Return how far the draining of the node has come."""
    draining = parts.draining
    if not draining.drained:
        return {}
    return {"leaders_left": draining.leaders_left, "connections_left": draining.connections_left}


def _churn(call: Call) -> dict[str, int]:
    counts = call.broker.counts
    return dict(zip(CHURN, counts.counted.churn(counts.ended), strict=True))


def _contexts(parts: ManagedParts) -> list[Row]:
    """Return the management listener in RabbitMQ's format for its web server."""
    address = parts.addresses["http"]
    if not address:
        return []
    host, _, port = address.rpartition(":")
    return [
        {
            "description": "mqd Management",
            "path": "/",
            "ip": host.strip("[]"),
            "port": port,
            "cowboy_opts": "[]",
            "ssl_opts": [],
        }
    ]


def listeners(parts: ManagedParts) -> list[Row]:
    found: list[Row] = []
    for protocol, address in parts.addresses.items():
        if address:
            host, _, port = address.rpartition(":")
            ip, number = host.strip("[]"), int(port)
            found.append(
                {
                    "protocol": protocol,
                    "ip_address": ip,
                    "port": number,
                    "node": parts.config.node,
                    "socket_opts": {"port": number, "ip": ip, "nodelay": True},
                }
            )
    return found


def exchange_types() -> list[Row]:
    return [
        {"name": name, "description": f"AMQP {name} exchange", "enabled": True} for name in EXCHANGE_TYPES
    ]


async def node(call: Call) -> Any:
    name = call.path["node"]
    if name == call.parts.config.node:
        return _node_row(call)
    return await _of_other(call, name, _down(name))


async def _of_other(call: Call, name: str, down: dict[str, Any]) -> Any:
    """Return another node's answer about itself, or `down` if it does not answer."""
    return (await ask_node(call, name)).bodies.get(name) or down


#: RabbitMQ's parts of the memory, of which mqd knows `queue_procs` (bodies of messages) and the rest.
MEMORY_PARTS = [
    "allocated_unused",
    "atom",
    "binary",
    "code",
    "connection_channels",
    "connection_other",
    "connection_readers",
    "connection_writers",
    "metadata_store",
    "metadata_store_ets",
    "metrics",
    "mgmt_db",
    "mnesia",
    "msg_index",
    "other_ets",
    "other_proc",
    "other_system",
    "plugins",
    "queue_procs",
    "queue_slave_procs",
    "quorum_ets",
    "quorum_queue_dlx_procs",
    "quorum_queue_procs",
    "reserved_unallocated",
    "stream_queue_coordinator_procs",
    "stream_queue_procs",
    "stream_queue_replica_reader_procs",
]


async def memory(call: Call) -> Any:
    """How the memory of a node is used."""
    name = call.path["node"]
    if name != call.parts.config.node:
        return await _of_other(call, name, {"memory": "not_available"})
    used, bodies = call.parts.resources.memory_bytes, call.broker.services.memory.used
    total = {"rss": used, "allocated": used, "erlang": used}
    parts = dict.fromkeys(MEMORY_PARTS, 0) | {"queue_procs": bodies, "other_system": max(0, used - bodies)}
    return {"memory": parts | {"strategy": "rss", "total": total}}


async def memory_relative(call: Call) -> Any:
    """The use of memory in percent."""
    name = call.path["node"]
    if name != call.parts.config.node:
        return await _of_other(call, name, {"memory": "not_available"})
    used, bodies = call.parts.resources.memory_bytes, call.broker.services.memory.used
    share = min(100, -(-100 * bodies // max(1, used)))
    parts = dict.fromkeys(MEMORY_PARTS, 0) | {"queue_procs": share, "other_system": 100 - share}
    return {"memory": parts | {"total": 100}}


async def stop(call: Call) -> Answer:
    require_node(call)

    async def end() -> None:
        log.info("the management API requested that the node stop")
        call.parts.stop()

    return Answer(202, after=end)


async def auth(call: Call) -> Any:
    """For pages that ask how users log in before they show a form: only by a password."""
    return {"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""}


async def none(call: Call) -> Any:
    """Extensions of the management API and deprecated features: mqd has none."""
    return []


async def feature_flags(call: Call) -> Any:
    """Features that clients check before they use them. All of them are always enabled."""
    return [
        {
            "name": name,
            "desc": text,
            "doc_url": "",
            "provided_by": "mqd",
            "stability": "stable",
            "state": "enabled",
        }
        for name, text in FEATURES.items()
    ]


async def enable_feature(call: Call) -> Answer:
    if call.path["name"] not in FEATURES:
        raise bad_request("unsupported")
    return NO_CONTENT


async def reset_statistics(call: Call) -> Answer:
    """Does nothing: mqd has no statistics that could be reset."""
    return NO_CONTENT
