"""Queues that have failed on this node and are stopped here: listed, checked, tried again."""

from __future__ import annotations

from typing import Any

from amqp_server.broker.recovery.failures import describe
from amqp_server.management.request.answer import NO_CONTENT, Answer, not_found
from amqp_server.management.request.call import Call
from amqp_server.management.request.other_nodes import ask_workers


async def failed(call: Call) -> Any:
    vhosts, stopped = call.vhosts(), call.broker.failures.stopped()
    found = [describe(each) for vhost in vhosts for each in stopped if each.queue.vhost.name == vhost]
    for body in (await ask_workers(call)).bodies.values():
        found += body
    return found


async def retry(call: Call) -> Answer:
    broker = call.broker
    queue = broker.vhost(call.own_vhost()).queues.get(call.path["name"])
    if queue is not None and broker.failures.find(queue) is not None:
        broker.turn.run(broker.failures.retry, queue)
    elif not (await ask_workers(call)).bodies:
        raise not_found()
    return NO_CONTENT


async def check(call: Call) -> Any:
    """503 if a queue is stopped on this node because it failed."""
    found = await failed(call)
    if call.local or not found:
        return found if call.local else {"status": "ok"}
    stopped = [f"queue '{each['name']}' in vhost '{each['vhost']}': {each['reason']}" for each in found]
    reason = "Queues have failed on this node and are stopped here"
    return Answer(503, {"status": "failed", "reason": reason, "queues": stopped})
