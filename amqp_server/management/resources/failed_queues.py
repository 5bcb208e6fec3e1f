"""Queues that have failed on this node and are stopped here: listed, checked, tried again."""

from __future__ import annotations

from typing import Any

from amqp_server.management.request.answer import NO_CONTENT, Answer, not_found
from amqp_server.management.request.call import Call


async def failed(call: Call) -> Any:
    return [each for vhost in call.vhosts() for each in call.broker.queues.failed(vhost)]


async def retry(call: Call) -> Answer:
    if not call.broker.queues.retry(call.own_vhost(), call.path["name"]):
        raise not_found()
    return NO_CONTENT


async def check(call: Call) -> Any:
    """503 if a queue is stopped on this node because it failed."""
    stopped = [
        f"queue '{each['name']}' in vhost '{each['vhost']}': {each['reason']}"
        for vhost in call.vhosts()
        for each in call.broker.queues.failed(vhost)
    ]
    if not stopped:
        return {"status": "ok"}
    reason = "Queues have failed on this node and are stopped here"
    return Answer(503, {"status": "failed", "reason": reason, "queues": stopped})
