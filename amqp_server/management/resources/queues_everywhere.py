"""The queues of a cluster: each queue's own node reports it, and the message counts include clients of all
nodes.

For a page, this node asks the others twice: first for the sort column of all their queues, then for whole
rows of the queues on the page. A node of an earlier version sends whole rows of all its queues both times,
which also works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from amqp_server.management.request.listing import listing, sort_path
from amqp_server.management.request.other_nodes import ask_others
from amqp_server.management.request.questions import Part
from amqp_server.management.resources.queue_columns import DECLARED
from amqp_server.management.statistics.stats import Read, at, merged, put

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.management.request.call import Call
    from amqp_server.management.request.listing import Shown

Row = dict[str, Any]
Whole = Callable[["Queue"], Row]


def joined(call: Call, queue: Queue, whole: Whole, told: Iterable[Row]) -> Row:
    """Return the row of a queue; `told` are the rows of other nodes for it, and `whole` makes this node's
    row.
    """
    home = next((each for each in told if "state" in each), None)
    if home is None:
        row = whole(queue)
        if call.broker.queues.is_lost(queue, call.missing):
            row["state"] = "down"
        counted = [row]
    else:
        row = dict(home)
        counted = [call.stats.queue(queue)]
    stats = [each["message_stats"] for each in (*counted, *told) if "message_stats" in each]
    return row | {"message_stats": merged(stats)} if stats else row


class QueuesEverywhere:
    """One list of queues; the node that the client asked makes it."""

    def __init__(self, call: Call, whole: Whole, read: Callable[[Sequence[str]], Read]) -> None:
        """`whole` makes this node's row of a queue, `read` returns a function that reads one column of it."""
        self._call = call
        self._whole = whole
        self._read = read
        self._told: dict[tuple[str, str], list[Row]] = {}

    async def listed(self, queues: Iterable[Queue]) -> Any:
        call = self._call
        if "page" not in call.query:
            await self._ask(None)
            return await listing(call, queues, self._row, self._column)
        path = sort_path(call.query)
        if path and not _is_declared(path):
            await self._ask(Part(column=call.query["sort"]))
        return await listing(call, queues, self._row, self._column, self._rows_of)

    async def _ask(self, part: Part | None) -> None:
        answers = await ask_others(self._call, part=part)
        self._told = {}
        for rows in answers.rows.values():
            for row in rows:
                await self._call.slices.rest()
                self._told.setdefault((row["vhost"], row["name"]), []).append(row)

    async def _rows_of(self, queues: list[Queue]) -> Shown:
        await self._ask(Part(rows=[(queue.vhost.name, queue.name) for queue in queues]))
        return self._row

    def _row(self, queue: Queue) -> Row | None:
        return None if queue.deleted else joined(self._call, queue, self._whole, self._told_of(queue))

    def _told_of(self, queue: Queue) -> Sequence[Row]:
        return self._told.get((queue.vhost.name, queue.name), ())

    def _column(self, path: list[str]) -> Read:
        own = self._read(path)
        if _is_declared(path):
            return own
        return self._counted(own, path) if path[0] == "message_stats" else self._home(own, path)

    def _counted(self, own: Read, path: list[str]) -> Read:
        def counted(queue: Queue) -> Any:
            told = self._told_of(queue)
            here = own(queue)
            if not told:
                return here
            found = [value for value in (here, *(at(row, path) for row in told)) if value is not None]
            return merged({"": value} for value in found).get("")

        return counted

    def _home(self, own: Read, path: list[str]) -> Read:
        queues, missing = self._call.broker.queues, self._call.missing

        def of_home(queue: Queue) -> Any:
            for row in self._told_of(queue):
                value = at(row, path)
                if value is not None:
                    return value
            if path == ["state"] and queues.is_lost(queue, missing):
                return "down"
            return own(queue)

        return of_home


def _is_declared(path: list[str]) -> bool:
    return len(path) == 1 and path[0] in DECLARED


def of_this_node(call: Call, whole: Whole, read: Callable[[Sequence[str]], Read]) -> Iterator[Row | None]:
    """Yield the rows that only this node knows: whole rows of its own queues, and for other queues the counts
    of its clients.
    """
    queues, part = call.broker.queues, call.part
    path = part.column.split(".") if part is not None and part.column else []
    column = read(path) if path else None
    for queue in _asked_for(call):
        here = queues.home_of(queue) == call.broker.name
        named: Row = {"vhost": queue.vhost.name, "name": queue.name}
        if column is not None:
            value = column(queue) if here or path[0] == "message_stats" else None
            if value is not None:
                put(named, path, value)
            yield None if value is None else named
        elif here:
            yield whole(queue)
        else:
            row = call.stats.queue(queue)
            yield named | {"message_stats": row["message_stats"]} if "message_stats" in row else None


def _asked_for(call: Call) -> Iterator[Queue]:
    queues, part, vhosts = call.broker.queues, call.part, call.vhosts()
    if part is None or part.rows is None:
        for vhost in vhosts:
            yield from queues.each(vhost)
        return
    visible = set(vhosts)
    for vhost, name in part.rows:
        queue = queues.get(vhost, name) if vhost in visible else None
        if queue is not None:
            yield queue


__all__ = ["QueuesEverywhere", "joined", "of_this_node"]
