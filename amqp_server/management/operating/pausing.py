"""Queues that operators pause and resume, and protect from deletion."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from amqp_server.broker.declared.operations import PauseQueue, ProtectQueue
from amqp_server.errors import Unavailable
from amqp_server.management.changes.answers import ANSWER_S, answers_of
from amqp_server.management.changes.proposals import propose, require_version
from amqp_server.management.request.answer import NO_CONTENT, Answer, bad_request, not_found
from amqp_server.management.request.call import Call
from amqp_server.management.resources.explained import catch_up
from amqp_server.management.resources.queues import queue_of
from quorum_queue.machine.versions import PAUSES
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.topology.queue import Queue


class PauseRequest(msgspec.Struct):
    #: What to pause or resume; both if the body names neither.
    deliveries: bool | None = None
    publishes: bool | None = None


async def pause(call: Call) -> Answer:
    return await _change(call, paused=True)


async def resume(call: Call) -> Answer:
    return await _change(call, paused=False)


async def _change(call: Call, *, paused: bool) -> Answer:
    """Answer when the queue does as it was told, whatever node it is on."""
    broker, vhost, name = call.broker, call.own_vhost(), call.path["name"]
    asked = call.read(PauseRequest)
    call.require(vhost, "queue", name, "configure")
    # Another node may have just declared it.
    await catch_up(broker)
    queue = queue_of(call, vhost)
    if queue.type.is_stream or queue.type.is_group:
        kind = "stream" if queue.type.is_stream else "consumer group"
        raise bad_request(
            f"queue '{name}' in vhost '{vhost}' is a {kind}: only classic and quorum queues can be paused"
        )
    deliveries, publishes = asked.deliveries, asked.publishes
    if deliveries is None and publishes is None:
        deliveries = publishes = True
    if not (deliveries or publishes):
        raise bad_request("body: deliveries, publishes, or both must be true; without them it is both")
    require_version(broker, PAUSES)
    change = PauseQueue(
        vhost, name, queue.queue_id, paused if deliveries else None, paused if publishes else None
    )
    await propose(broker, change)
    await _in_effect(broker, queue)
    return NO_CONTENT


async def _in_effect(broker: Broker, queue: Queue) -> None:
    """Return when the queue has its settings: at its place in the queue's log, they come before a command of
    this node. Raises Refusal, or Unavailable.
    """

    def ask(told: Callable[[tuple[Refused, ...]], None]) -> None:
        queue.host.submit(("tick",))
        queue.catch_up(lambda *refused: told(refused))

    answers = await answers_of(broker.turn, ask, ANSWER_S)
    if queue.deleted:
        raise not_found()
    if answers != [()]:
        why = answers[0][0].text if answers else "it has not answered"
        raise Unavailable(
            f"the change is stored, and takes effect as soon as queue '{queue.name}' is available: {why}"
        )


async def protect(call: Call) -> Answer:
    return await _protect(call, protected=True)


async def lift_protection(call: Call) -> Answer:
    return await _protect(call, protected=False)


async def _protect(call: Call, *, protected: bool) -> Answer:
    broker, vhost = call.broker, call.own_vhost()
    await catch_up(broker)
    queue = queue_of(call, vhost)
    if queue.exclusive:
        raise bad_request(
            f"queue '{queue.name}' in vhost '{vhost}' is exclusive: it ends with its connection"
        )
    require_version(broker, PAUSES)
    await propose(broker, ProtectQueue(vhost, queue.name, queue.queue_id, protected))
    return NO_CONTENT
