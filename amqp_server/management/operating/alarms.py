"""Alarms of all nodes with their texts, and other conditions that an operator has to know of."""

from __future__ import annotations

from typing import Any

from amqp_server.management.request.call import Call
from amqp_server.management.request.other_nodes import ask_others, once_per_node

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
    rows = _of_nodes(call, rows)
    return sorted(rows, key=lambda row: (row["node"], not row["blocks_publishers"], row["name"]))


def _of_nodes(call: Call, rows: list[Row]) -> list[Row]:
    """Return one row for each alarm of a node, whichever of its workers have raised it."""
    # They share memory and disk, and measure the same. Of other conditions each may have its own.
    found = once_per_node(call, rows, "name")
    texts = once_per_node(call, (row for row in rows if not row["blocks_publishers"]), "name", "text")
    for row in found:
        if not row["blocks_publishers"]:
            same = (row["node"], row["name"])
            row["text"] = "; ".join(each["text"] for each in texts if (each["node"], each["name"]) == same)
    return found
