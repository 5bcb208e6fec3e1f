"""One running node: the options in force, those that may be changed while it runs, and its maintenance. What
is changed here holds for all workers of a node (workers.settings).
"""

from __future__ import annotations

from typing import Any

import msgspec

from amqp_server.config import InvalidOption, parse_bytes
from amqp_server.management.request.answer import NO_CONTENT, Answer, not_found, refusing
from amqp_server.management.request.call import Call
from amqp_server.management.request.other_nodes import ask_node


async def environment(call: Call) -> Any:
    """The options in force, and where each value comes from. Passwords are left out."""
    name = call.path["node"]
    if name == call.parts.config.node:
        return {"node": name, "running": True, "options": call.parts.reload.in_force()}
    return (await ask_node(call, name)).bodies.get(name) or {"node": name, "running": False, "options": []}


class MemoryLimit(msgspec.Struct):
    limit: str


class DiskFreeLimit(msgspec.Struct):
    limit: str


class LogLevel(msgspec.Struct):
    level: str


async def set_memory_limit(call: Call) -> Answer:
    # A share of the machine's memory ("0.6") or a size in bytes.
    return _change(call, "memory_limit", call.read(MemoryLimit).limit)


async def set_disk_free_limit(call: Call) -> Answer:
    limit = call.read(DiskFreeLimit).limit
    amount = parse_bytes(limit)
    return _change(call, "disk_free_min_bytes", limit if amount is None else amount)


async def set_log_level(call: Call) -> Answer:
    return _change(call, "log_level", call.read(LogLevel).level)


def _change(call: Call, option: str, value: object) -> Answer:
    """Change an option of this node until its next start."""
    require_node(call)
    with refusing(InvalidOption):
        call.parts.reload.change(option, value, f"changed in the running node by user '{call.user.name}'")
    return NO_CONTENT


async def drain(call: Call) -> Answer:
    """Let leaders and clients go to other nodes. Returns at once; `being_drained`, `leaders_left` and
    `connections_left` of the node tell how far it is.
    """
    require_node(call)
    call.parts.draining.drain()
    return NO_CONTENT


async def revive(call: Call) -> Answer:
    require_node(call)
    call.parts.draining.revive()
    return NO_CONTENT


def require_node(call: Call) -> None:
    if call.path["node"] != call.parts.config.node:
        raise not_found()
