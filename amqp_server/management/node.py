"""The node as a whole: overview, nodes, who asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from amqp_server.broker.users import MONITORING
from amqp_server.config import InvalidOption
from amqp_server.management.answer import NO_CONTENT, Answer, bad_request, not_found
from amqp_server.management.call import Call
from amqp_server.management.connections import visible_channels, visible_connections
from amqp_server.management.counts import count_messages

#: RabbitMQ's flags of what there is here, with its words.
FEATURES = {
    "direct_exchange_routing_v2": "v2 direct exchange routing implementation",
    "maintenance_mode_status": "Maintenance mode status",
    "quorum_queue": "Support queues of type `quorum`",
    "stream_queue": "Support queues of type `stream`",
    "user_limits": "Configure connection and channel limits for a user",
    "virtual_host_metadata": "Virtual host metadata (description, tags, etc)",
}


async def overview(call: Call) -> Any:
    broker = call.broker
    vhosts = call.vhosts()
    counts = await count_messages(call, vhosts)
    told = {
        "management_version": broker.version,
        "product_name": broker.product,
        "product_version": broker.version,
        "build": broker.build,
        "rabbitmq_version": broker.version,
        "cluster_name": broker.name,
        "rates_mode": "none",
        "message_stats": {},
        "exchange_types": [
            {"name": name, "description": f"{name} exchange", "enabled": True}
            for name in broker.exchange_types()
        ],
        "queue_totals": {
            "messages": counts.messages,
            "messages_ready": counts.messages_ready,
            "messages_unacknowledged": counts.messages_unacknowledged,
        },
        "object_totals": {
            "channels": await _count(call, visible_channels(call)),
            "connections": await _count(call, visible_connections(call)),
            "consumers": counts.consumers,
            "exchanges": sum(broker.exchange_count(vhost) for vhost in vhosts),
            "queues": counts.queues,
        },
        "node": broker.name,
        "statistics_db_event_queue": 0,
    }
    if call.may(MONITORING):
        told["listeners"] = [msgspec.structs.asdict(listener) for listener in broker.listeners()]
    return told


async def _count(call: Call, items: Iterable[object]) -> int:
    count = 0
    for _ in items:
        await call.slices.rest()
        count += 1
    return count


async def cluster_name(call: Call) -> Any:
    return {"name": call.broker.name}


async def whoami(call: Call) -> Any:
    return {"name": call.user.name, "tags": list(call.user.tags), "is_internal_user": True}


async def nodes(call: Call) -> Any:
    return [call.broker.node()]


async def node(call: Call) -> Any:
    _require_node(call)
    return call.broker.node()


class MemoryLimit(msgspec.Struct):
    limit: str


async def set_memory_limit(call: Call) -> Answer:
    _require_node(call)
    try:
        call.broker.set_memory_limit(call.read(MemoryLimit).limit)
    except InvalidOption as wrong:
        raise bad_request(str(wrong)) from None
    return NO_CONTENT


async def stop(call: Call) -> Answer:
    _require_node(call)
    return Answer(202, after=call.broker.stop)


async def auth(call: Call) -> Any:
    """For pages that ask before they show a login: there is no other way than a password."""
    return {"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""}


async def none(call: Call) -> Any:
    """Extensions of management, features that are deprecated here: there are none."""
    return []


async def feature_flags(call: Call) -> Any:
    """What clients look for before they use it. All of it is on, always."""
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
    """There are none that could be reset."""
    return NO_CONTENT


async def healthy(call: Call) -> Any:
    _require_node(call)
    return {"status": "ok"}


def _require_node(call: Call) -> None:
    if call.path["node"] != call.broker.name:
        raise not_found()
