"""Virtual hosts."""

from __future__ import annotations

from typing import Any

import msgspec

from amqp_server.broker.vhosts import VhostRecord, VhostRefused
from amqp_server.management.answer import NO_CONTENT, Answer, bad_request, created, not_found
from amqp_server.management.call import Call
from amqp_server.management.listing import listing


def _shown(call: Call, vhost: VhostRecord) -> dict[str, Any]:
    queues = list(call.broker.queues(vhost.name))
    return {
        "name": vhost.name,
        "description": vhost.description,
        "tags": list(vhost.tags),
        "metadata": {"description": vhost.description, "tags": list(vhost.tags)},
        "tracing": False,
        "cluster_state": {call.broker.name: "running"},
        "messages": sum(queue.messages for queue in queues),
        "messages_ready": sum(queue.messages_ready for queue in queues),
        "messages_unacknowledged": sum(queue.messages_unacknowledged for queue in queues),
    }


async def vhosts(call: Call) -> Any:
    return listing([_shown(call, vhost) for vhost in call.visible_vhosts()], call.query)


async def vhost(call: Call) -> Any:
    return _shown(call, call.broker.vhosts.require(call.vhost()))


class VhostRequest(msgspec.Struct):
    description: str = ""
    tags: str | list[str] = []


async def put_vhost(call: Call) -> Answer:
    asked = call.read(VhostRequest)
    tags = asked.tags.split(",") if isinstance(asked.tags, str) else asked.tags
    told = tuple(tag.strip() for tag in tags if tag.strip())
    try:
        return created(call.broker.create_vhost(call.path["vhost"], asked.description, told))
    except VhostRefused as refused:
        raise bad_request(str(refused)) from None


async def delete_vhost(call: Call) -> Answer:
    name = call.path["vhost"]
    if name not in call.broker.vhosts:
        raise not_found()
    call.broker.delete_vhost(name)
    return NO_CONTENT
