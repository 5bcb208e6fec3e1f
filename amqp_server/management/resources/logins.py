"""How often clients have logged in to a node, by protocol. The addresses are in the log; they are not
counted.
"""

from __future__ import annotations

from typing import Any

from amqp_server.management.request.answer import NO_CONTENT, Answer, Refusal
from amqp_server.management.request.call import Call
from amqp_server.management.request.other_nodes import ask_node


async def attempts(call: Call) -> Any:
    if call.path["node"] != call.parts.config.node:
        return await _of_other(call)
    return [
        {
            "protocol": protocol,
            "auth_attempts": logins.accepted + logins.refused,
            "auth_attempts_failed": logins.refused,
            "auth_attempts_succeeded": logins.accepted,
        }
        for protocol, logins in call.broker.counts.ended.logins().items()
    ]


async def attempts_by_source(call: Call) -> Any:
    """The same answer as RabbitMQ gives if it is not configured to track sources."""
    if call.path["node"] != call.parts.config.node:
        return await _of_other(call)
    return []


async def reset(call: Call) -> Answer:
    if call.path["node"] != call.parts.config.node:
        await _of_other(call)
        return NO_CONTENT
    for logins in call.broker.counts.ended.logins().values():
        logins.accepted = logins.refused = 0
    return NO_CONTENT


async def _of_other(call: Call) -> Any:
    """Return what another node answers. Raises Refusal if there is no such node, or if it does not answer."""
    name = call.path["node"]
    answers = await ask_node(call, name)
    if name in answers.missing:
        raise Refusal(503, "unavailable", f"node {name} does not answer")
    return answers.bodies.get(name)
