"""Consumer groups: listed, with their members and partitions, and reset."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from amqp_server.management.answer import not_found
from amqp_server.management.call import Call
from amqp_server.management.listing import listing
from amqp_server.management.queue_columns import DECLARED
from amqp_server.management.stats import Read


class ResetRequest(msgspec.Struct, forbid_unknown_fields=True):
    #: first, last, next, an offset, a time, or a text such as -1h.
    to: str | int
    #: Number of one partition; all of them unless given.
    partition: int | None = None
    dry_run: bool = False
    #: Even if there are members: what they hold comes again as the group then goes on.
    force: bool = False


async def groups(call: Call) -> Any:
    broker = call.broker.groups
    found = (queue for vhost in call.vhosts() for queue in broker.each(vhost))
    return await listing(call, found, partial(broker.summary, broker.ages()), _column)


def _column(path: list[str]) -> Read | None:
    return DECLARED[path[0]] if path in (["name"], ["vhost"]) else None


async def group(call: Call) -> Any:
    found = await call.broker.groups.find(call.vhost(), call.path["name"])
    if found is None:
        raise not_found()
    return found


async def members(call: Call) -> Any:
    found = call.broker.groups.members(call.vhost(), call.path["name"])
    if found is None:
        raise not_found()
    return found


async def reset(call: Call) -> Any:
    vhost, name = call.own_vhost(), call.path["name"]
    asked = call.read(ResetRequest)
    call.require(vhost, "queue", name, "configure")
    if not call.broker.groups.has(vhost, name):
        raise not_found()
    return await call.broker.groups.reset(
        vhost, name, str(asked.to), partition=asked.partition, dry_run=asked.dry_run, force=asked.force
    )
