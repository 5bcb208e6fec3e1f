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


async def alarms(call: Call) -> Any:
    told = call.broker.node()
    raised = [name for name, is_on in (("memory", told.mem_alarm), ("disk", told.disk_free_alarm)) if is_on]
    if not raised:
        return {"status": "ok"}
    return Answer(503, {"status": "failed", "reason": "There are alarms in effect", "alarms": raised})


def _require_node(call: Call) -> None:
    if call.path["node"] != call.broker.name:
        raise not_found()
