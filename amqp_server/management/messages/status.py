"""What became of a message."""

from __future__ import annotations

from functools import partial
from typing import Any

from amqp_server.broker import message_status
from amqp_server.errors import AMQPError, Unavailable
from amqp_server.management.changes.answers import ANSWER_S, answers_of
from amqp_server.management.request.answer import refusal_of
from amqp_server.management.request.call import Call


async def status(call: Call) -> Any:
    """Say what became of a message, as the queue in the query knows it, or all queues that keep a record and
    that the user may read.
    """
    vhost, broker = call.vhost(), call.broker
    queue = call.query.get("queue", "")
    try:
        message_id = message_status.id_of(call.path["message_id"], hex=call.switch("hex"))
        if queue:
            call.require_own(vhost, "queue", queue, "read")
        asked = partial(broker.statuses.ask, broker.vhost(vhost), call.access, message_id, queue)
        found = await answers_of(broker.turn, asked, ANSWER_S)
        if not found:
            raise Unavailable(f"not all queues in vhost '{vhost}' have answered; name one")
        answer = found[0]
        if queue and answer["failed"]:
            raise Unavailable(f"queue '{queue}' in vhost '{vhost}': {answer['failed'][0]['reason']}")
    except AMQPError as error:
        raise refusal_of(error) from None
    return answer
