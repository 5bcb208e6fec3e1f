"""How often clients have logged in to a node, by protocol. The addresses are in the log; they are not
counted.
"""

from __future__ import annotations

from typing import Any

from amqp_server.management.request.answer import NO_CONTENT, Answer
from amqp_server.management.request.call import Call
from amqp_server.management.request.other_nodes import ask_whole_node

Row = dict[str, Any]


async def attempts(call: Call) -> Any:
    here, parts = await _asked(call)
    if here:
        parts.append(_attempts_here(call))
    # All processes have the same protocols.
    return [_sum(rows) for rows in zip(*parts, strict=True)]


def _attempts_here(call: Call) -> list[Row]:
    return [
        {
            "protocol": protocol,
            "auth_attempts": logins.accepted + logins.refused,
            "auth_attempts_failed": logins.refused,
            "auth_attempts_succeeded": logins.accepted,
        }
        for protocol, logins in call.broker.counts.ended.logins().items()
    ]


def _sum(rows: tuple[Row, ...]) -> Row:
    first = rows[0]
    return {
        name: value if isinstance(value, str) else sum(row[name] for row in rows)
        for name, value in first.items()
    }


async def attempts_by_source(call: Call) -> Any:
    """The same answer as RabbitMQ gives if it is not configured to track sources."""
    await _asked(call)
    return []


async def reset(call: Call) -> Answer:
    here, _ = await _asked(call)
    if here:
        for logins in call.broker.counts.ended.logins().values():
            logins.accepted = logins.refused = 0
    return NO_CONTENT


async def _asked(call: Call) -> tuple[bool, list[list[Row]]]:
    """Return whether this process is one of the node's, and what the others answer. Raises Refusal if there
    is no such node, or if one of its processes does not answer.
    """
    here, answers = await ask_whole_node(call, call.path["node"])
    return here, answers.complete()
