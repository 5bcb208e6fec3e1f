"""Alarms of all nodes with their texts, and other conditions that an operator has to know of."""

from __future__ import annotations

from typing import Any

from amqp_server.management.request.call import Call
from amqp_server.management.request.other_nodes import ask_others

Row = dict[str, Any]


def alarms_here(call: Call) -> list[Row]:
    return [
        {"node": call.parts.config.node, "name": name, "text": text, "blocks_publishers": blocks}
        for name, text, blocks in call.broker.alarms.told()
    ]


async def alarms(call: Call) -> Any:
    rows = alarms_here(call)
    if call.local:
        # Nodes answer with one object here; lists are for rows that are paged.
        return {"alarms": rows}
    for body in (await ask_others(call)).bodies.values():
        if body is not None:
            rows += body["alarms"]
    return sorted(rows, key=lambda row: (row["node"], not row["blocks_publishers"], row["name"]))
