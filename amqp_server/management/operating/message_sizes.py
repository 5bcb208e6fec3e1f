"""How large the messages are that clients of all nodes have published."""

from __future__ import annotations

from typing import Any

from amqp_server.broker.traffic import SIZE_BOUNDS
from amqp_server.management.request.call import Call
from amqp_server.management.request.other_nodes import ask_others


async def message_sizes(call: Call) -> Any:
    """Answer with counts since the starts of the nodes. `up_to` is the largest size of a row in bytes, None
    for the last row.
    """
    sizes = call.broker.counts.message_sizes
    bounds: list[int | None] = [*SIZE_BOUNDS, None]
    rows = [{"up_to": bound, "count": count} for bound, count in zip(bounds, sizes.by_bound, strict=True)]
    told = {"bytes": sizes.bytes, "sizes": rows}
    if not call.local:
        for body in (await ask_others(call)).bodies.values():
            if body is not None:
                told["bytes"] += body["bytes"]
                for mine, theirs in zip(rows, body["sizes"], strict=True):
                    mine["count"] += theirs["count"]
    return told
