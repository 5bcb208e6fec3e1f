"""Queues that have failed on this node and are stopped here: listed, checked, tried again."""

from __future__ import annotations

from typing import Any

from amqp_server.broker.recovery.failures import describe
from amqp_server.management.request.answer import NO_CONTENT, Answer, not_found
from amqp_server.management.request.call import Call


async def failed(call: Call) -> Any:
    return _stopped(call)


def _stopped(call: Call) -> list[dict[str, Any]]:
    vhosts, stopped = call.vhosts(), call.broker.failures.stopped()
    return [describe(each) for vhost in vhosts for each in stopped if each.queue.vhost.name == vhost]


async def retry(call: Call) -> Answer:
    broker = call.broker
    queue = broker.vhost(call.own_vhost()).queues.get(call.path["name"])
    if queue is None or broker.failures.find(queue) is None:
        raise not_found()
    broker.turn.run(broker.failures.retry, queue)
    return NO_CONTENT


async def check(call: Call) -> Any:
    """503 if a queue is stopped on this node because it failed."""
    stopped = [
        f"queue '{each['name']}' in vhost '{each['vhost']}': {each['reason']}" for each in _stopped(call)
    ]
    if not stopped:
        return {"status": "ok"}
    reason = "Queues have failed on this node and are stopped here"
    return Answer(503, {"status": "failed", "reason": reason, "queues": stopped})
