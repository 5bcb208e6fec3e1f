"""Consumer groups: listed, with their members and partitions, and reset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from amqp_server.management.request.answer import not_found
from amqp_server.management.request.call import Call
from amqp_server.management.request.columns import Read
from amqp_server.management.request.listing import Ahead, listing
from amqp_server.management.request.other_nodes import ask_others

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.management.objects.managed_groups import ManagedGroups


class ResetRequest(msgspec.Struct, forbid_unknown_fields=True):
    #: first, last, next, an offset, a time, or a text such as -1h.
    to: str | int
    #: Number of one partition; all of them unless given.
    partition: int | None = None
    dry_run: bool = False
    #: Reset even if the group has members: messages that they hold are delivered again from the new position
    #: on.
    force: bool = False


async def groups(call: Call) -> Any:
    broker = call.broker.groups
    return await summaries(call, broker, (queue for vhost in call.vhosts() for queue in broker.each(vhost)))


async def summaries(call: Call, broker: ManagedGroups, found: Iterable[Queue]) -> Any:
    """Return the rows of these groups."""
    ages = broker.ages()
    ahead = Ahead(ages.look_up, partial(broker.summary, ages))
    return await listing(call, ahead.over(found), ahead.row, _column, ahead.all_rows)


def _column(path: list[str]) -> Read | None:
    return {"name": attrgetter("name"), "vhost": attrgetter("vhost.name")}.get(".".join(path))


async def group(call: Call) -> Any:
    found = await call.broker.groups.find(call.vhost(), call.path["name"])
    if found is None:
        raise not_found()
    return found


async def members(call: Call) -> Any:
    queue = call.broker.groups.named(call.vhost(), call.path["name"])
    if queue is None:
        raise not_found()
    return await listing(call, await _members(call, [queue]))


async def all_members(call: Call) -> Any:
    queues = [queue for vhost in call.vhosts() for queue in call.broker.groups.each(vhost)]
    return await listing(call, await _members(call, queues))


async def _members(call: Call, queues: Sequence[Queue]) -> Iterable[dict[str, Any] | None]:
    """Return the members of groups. This node asks each other node once, for any number of groups: for the
    connections of its clients, and for the members of groups that this node has no copy of.
    """
    broker = call.broker.groups
    if call.local:
        return _for_others(broker, queues)
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    kept: set[tuple[str, str]] = set()
    names: dict[tuple[Any, ...], str] = {}
    for queue in queues:
        await call.slices.rest()
        place = queue.vhost.name, queue.name
        if broker.keeps(queue):
            kept.add(place)
            rows |= {(*place, *key): row for key, row in broker.members(queue).items()}
        else:
            names |= {(*place, *key): name for key, name in broker.connections(queue).items()}
    for told in (await ask_others(call)).all_rows():
        await call.slices.rest()
        place = told["vhost"], told["group"]
        key = (*place, *told.pop("key"))
        if "consumer_tag" not in told:
            names[key] = told["connection"]
        elif place not in kept:
            rows[key] = told
    for key, name in names.items():
        await call.slices.rest()
        if key in rows:
            rows[key]["connection"] = name
    return rows.values()


def _for_others(broker: ManagedGroups, queues: Sequence[Queue]) -> Iterator[dict[str, Any] | None]:
    """Yield the members of groups that this node leads, and the connections
    of its own clients in all groups.
    """
    for queue in queues:
        yield None
        told = {"vhost": queue.vhost.name, "group": queue.name}
        if broker.leads(queue):
            for key, row in broker.members(queue).items():
                yield row | {"key": key}
        for key, name in broker.connections(queue).items():
            yield told | {"key": key, "connection": name}


async def reset(call: Call) -> Any:
    vhost, name = call.own_vhost(), call.path["name"]
    asked = call.read(ResetRequest)
    call.require(vhost, "queue", name, "configure")
    if not call.broker.groups.has(vhost, name):
        raise not_found()
    return await call.broker.groups.reset(
        vhost, name, str(asked.to), partition=asked.partition, dry_run=asked.dry_run, force=asked.force
    )
