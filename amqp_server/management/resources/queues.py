"""Queues: listed, shown, explained, declared, purged, deleted.

In a cluster each queue's own node reports it, and the counts of messages include clients of all nodes. For a
page, this node asks the others twice: first for the sort column of all their queues, then for whole rows of
the queues on the page. A node of an earlier version sends whole rows of all its queues both times, which also
works.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
from pamqp import commands

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.declared.queue_types import CLASSIC, GROUP, QUEUE_TYPES, QUORUM, STREAM
from amqp_server.broker.topology.consumer_groups import streams_of
from amqp_server.management.changes.internal_session import Direct
from amqp_server.management.request.answer import (
    NO_CONTENT,
    Answer,
    Refusal,
    created,
    known,
    not_found,
    plain,
)
from amqp_server.management.request.call import Call
from amqp_server.management.request.columns import (
    ABSENT,
    Column,
    Level,
    Merge,
    Read,
    Row,
    Table,
    at,
    nested,
    reader,
)
from amqp_server.management.request.listing import columns_read, listing, sort_path
from amqp_server.management.request.other_nodes import ask_others
from amqp_server.management.request.questions import Part
from amqp_server.management.resources.connections import consumer_rows, consumers_of_queue
from amqp_server.management.resources.explained import catch_up
from amqp_server.management.resources.explained import explain as explained
from amqp_server.management.statistics.head_timestamp import head_timestamp
from amqp_server.management.statistics.stats import Stats, merged
from amqp_server.streams.local_host import StreamHost
from amqp_server.wire import methods
from quorum_queue.local_host import LocalHost

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.management.parts import ManagedParts
    from amqp_server.management.request.listing import Shown
    from quorum_queue.ports import Host


# -- columns -------------------------------------------------------------------------------------------------


class QueueReads:
    """What one request reads queues with. The columns of each method's values are declared in COLUMNS."""

    def __init__(self, parts: ManagedParts, stats: Stats) -> None:
        self.parts = parts
        self.stats = stats
        self._broker = parts.broker
        self._node = parts.config.node

    def places(self, queue: Queue) -> Sequence[Any]:
        broker, record, name = self._broker, queue.record, self._node
        leader = broker.hosts.leader(queue) if queue.type.replicated else ""
        members = members_of(self.parts, queue) if queue.type.replicated else []
        owner: Any = ABSENT
        if queue.exclusive:
            here = broker.replication.node, broker.replication.incarnation
            session = broker.sessions.get(record.owner) if (record.node, record.incarnation) == here else None
            owner = {"node": record.node} if session is None else {"name": session.client.name}
        # No call that a row can do without.
        state = "paused" if record.deliveries_paused or record.publishes_paused else "running"
        if broker.failures.find(queue) is not None:
            state = "crashed"
        return (
            leader or record.node or record.leader or name,
            leader or (name if members == [name] else ""),
            members,
            online(self.parts, members) if members else members,
            state,
            owner,
        )

    def settings(self, queue: Queue) -> Sequence[Any]:
        policies = queue.policies
        policy, operator = policies.policy, policies.operator_policy
        return (
            plain(dict(queue.arguments)) if queue.arguments else {},
            None if policy is None else policy.name,
            None if operator is None else operator.name,
            {} if policy is None and operator is None else dict(policies.definition),
        )

    def counts(self, queue: Queue) -> Sequence[Any]:
        host = queue.host
        consumers, ready, unacked, delayed = host.counts()
        keeps_up = 1.0 if consumers and not ready else 0.0
        exclusive = single = None
        if queue.subscriptions:
            exclusive = next((each.tag for each in queue.subscriptions.values() if each.exclusive), None)
        if queue.parsed.single_active_consumer:
            single = next((consumer.key[-2] for consumer in host.consumers() if consumer.active), None)
        return (
            consumers,
            keeps_up,
            keeps_up,
            exclusive,
            single,
            single,
            ready + unacked + delayed,
            ready,
            unacked,
            delayed,
            host.oldest_age_ms() if ready else None,
            *(self._waits(host) if delayed else _NO_WAITS),
        )

    def _waits(self, host: Host) -> Sequence[Any]:
        order, now_ms = host.order(), self._broker.clock.wall_ms()
        if order is None or order.next_ms is None or order.last_ms is None:
            return _NO_WAITS
        return now_ms + order.next_ms, now_ms + order.last_ms

    def limits(self, queue: Queue) -> Sequence[Any]:
        settings = queue.settings
        limit, retry = settings.delivery_limit, str(settings.retry_type)
        if retry != "disabled":
            backoff = ", exponential" if settings.retry_doubles else ""
            retry += f" (min: {settings.retry_min_ms}ms, max: {settings.retry_max_ms}ms{backoff})"
        return "unlimited" if limit is None else limit, retry

    def order(self, queue: Queue) -> Sequence[Any]:
        host = queue.host if isinstance(queue.host, LocalHost) else host_of(self._broker, queue)
        order = host.order()
        if order is None:
            return (ABSENT,) * 5
        ranks = {str(rank): count for rank, count in order.by_rank.items()}
        return ranks, len(ranks), order.returned, order.held, order.held_bytes

    def bodies(self, queue: Queue) -> Sequence[Any]:
        host = queue.host
        ready, unacked = host.ready_bytes, host.unacked_bytes
        if not isinstance(host, LocalHost):
            host = host_of(self._broker, queue)
        return ready + unacked, ready, unacked, head_timestamp(host)

    def stream(self, queue: Queue) -> Sequence[Any]:
        host = host_of(self._broker, queue)
        if not isinstance(host, StreamHost):
            return (ABSENT,) * 12
        host.look()
        return (
            host.first_offset,
            host.next_offset,
            host.segment_count,
            host.first_ms,
            host.lost_count,
            host.codec,
            None if host.compacting is None else host.compacting.stop,
            *((None,) * 3 if host.tier is None else host.tier_figures()),
            *host.table_figures(),
        )

    def statistics(self, queue: Queue) -> Sequence[Any]:
        return self.stats.queue(queue)


_BASIC, _TOTAL = Level.BASIC, Level.TOTAL
_SAME, _ADDED = Merge.SAME, Merge.ADDED
#: As in RabbitMQ: what a type does not have, its rows do not show.
_ALL = frozenset(QUEUE_TYPES.values())
_REPLICATED, _NOT_STREAMS, _NOT_LOGGED = _ALL - {CLASSIC}, _ALL - {STREAM}, frozenset({CLASSIC, GROUP})
_HAVE_RETRIES = frozenset({CLASSIC, QUORUM})
_NO_WAITS = (ABSENT, ABSENT)
COLUMNS = Table(
    "Queue",
    (
        Column("name", "string", "name", _BASIC, _SAME),
        Column("vhost", "string", "vhost.name", _BASIC, _SAME),
        Column("type", "string", "type.name", _BASIC, _SAME),
        Column("durable", "boolean", "durable", _BASIC, _SAME),
        Column("auto_delete", "boolean", "auto_delete", _BASIC, _SAME),
        Column("exclusive", "boolean", "exclusive", _BASIC, _SAME),
        Column("arguments", "object", QueueReads.settings, _BASIC),
        Column("policy", "string?", QueueReads.settings, _BASIC),
        Column("operator_policy", "string?", QueueReads.settings),
        Column("effective_policy_definition", "object", QueueReads.settings),
        Column("node", "string", QueueReads.places, _BASIC),
        #: The leader of a replicated queue, its members, and the members that are up.
        Column("leader", "string", QueueReads.places, types=_REPLICATED),
        Column("members", "array", QueueReads.places, types=_REPLICATED),
        Column("online", "array", QueueReads.places, types=_REPLICATED),
        Column("state", "string", QueueReads.places, _BASIC),
        Column("deliveries_paused", "boolean", "record.deliveries_paused", types=_HAVE_RETRIES),
        Column("publishes_paused", "boolean", "record.publishes_paused", types=_HAVE_RETRIES),
        Column("protected_from_deletion", "boolean", "record.protected_from_deletion"),
        #: `{"name": connection}` of an exclusive queue's owner.
        Column("owner_pid_details", "object", QueueReads.places),
        Column("consumers", "integer", QueueReads.counts),
        #: 1.0 if consumers can take messages immediately, else 0.0.
        Column("consumer_capacity", "number", QueueReads.counts, types=_NOT_STREAMS),
        Column("consumer_utilisation", "number", QueueReads.counts, types=_NOT_STREAMS),
        Column("exclusive_consumer_tag", "string?", QueueReads.counts, types=_NOT_LOGGED),
        Column("single_active_consumer_tag", "string?", QueueReads.counts, types=_NOT_STREAMS),
        #: RabbitMQ's name for it in rows of quorum queues.
        Column("single_active_consumer_ctag", "string?", QueueReads.counts, types=frozenset({QUORUM})),
        Column("messages", "integer", QueueReads.counts, _TOTAL),
        Column("messages_ready", "integer", QueueReads.counts, _TOTAL),
        Column("messages_unacknowledged", "integer", QueueReads.counts, _TOTAL),
        #: Returned messages that wait before they are ready again.
        Column("messages_delayed", "integer", QueueReads.counts, types=_HAVE_RETRIES),
        #: Age of the oldest ready message; of those that were there when a single node started, the time
        #: since then.
        Column("oldest_message_age_ms", "integer?", QueueReads.counts, types=_HAVE_RETRIES),
        #: When the first and the last of the messages that wait are ready again, ms since 1970.
        Column("next_delayed_at", "integer", QueueReads.counts, types=_HAVE_RETRIES),
        Column("last_delayed_at", "integer", QueueReads.counts, types=_HAVE_RETRIES),
        Column("delivery_limit", "integer|string", QueueReads.limits, types=frozenset({QUORUM})),
        #: Which returned messages wait, and how long.
        Column("delayed_retry", "string", QueueReads.limits, types=frozenset({QUORUM})),
        #: Ready messages of each priority, without those that came back.
        Column("messages_by_priority", "object", QueueReads.order, types=frozenset({QUORUM})),
        Column("messages_active_priorities", "integer", QueueReads.order, types=frozenset({QUORUM})),
        Column("messages_ready_returned", "integer", QueueReads.order, types=frozenset({QUORUM})),
        #: Dead letters that the queue holds until their targets have them.
        Column("messages_dlx", "integer", QueueReads.order, types=frozenset({QUORUM})),
        Column("message_bytes_dlx", "integer", QueueReads.order, types=frozenset({QUORUM})),
        Column("message_bytes", "integer", QueueReads.bodies),
        Column("message_bytes_ready", "integer", QueueReads.bodies, types=_NOT_STREAMS),
        Column("message_bytes_unacknowledged", "integer", QueueReads.bodies, types=_NOT_STREAMS),
        #: Of the next message to be delivered if it is in memory; seconds since 1970, as its publisher set
        #: it.
        Column("head_message_timestamp", "integer?", QueueReads.bodies, types=_NOT_LOGGED),
        Column("message_bytes_ram", "integer", "host.resident_bytes", types=_NOT_STREAMS),
        Column("memory", "integer", "host.resident_bytes"),
        Column("first_offset", "integer", QueueReads.stream, types=frozenset({STREAM})),
        Column("next_offset", "integer", QueueReads.stream, types=frozenset({STREAM})),
        Column("segments", "integer", QueueReads.stream, types=frozenset({STREAM})),
        Column("oldest_timestamp", "integer?", QueueReads.stream, types=frozenset({STREAM})),
        Column("lost_messages", "integer", QueueReads.stream, types=frozenset({STREAM})),
        Column("compression", "string?", QueueReads.stream, types=frozenset({STREAM})),
        Column("compacted_offset", "integer?", QueueReads.stream, types=frozenset({STREAM})),
        #: Of a stream with a remote: the first offset on the node's disk, and what the remote has.
        Column("local_first_offset", "integer?", QueueReads.stream, types=frozenset({STREAM})),
        Column("remote_segments", "integer?", QueueReads.stream, types=frozenset({STREAM})),
        Column("remote_bytes", "integer?", QueueReads.stream, types=frozenset({STREAM})),
        #: Of a stream with a table: what the keys of its files begin with, and the offset before which it has
        #: all messages.
        Column("table", "string?", QueueReads.stream, types=frozenset({STREAM})),
        Column("table_next_offset", "integer?", QueueReads.stream, types=frozenset({STREAM})),
        Column("messages_details", "object", QueueReads.statistics),
        Column("messages_ready_details", "object", QueueReads.statistics),
        Column("messages_unacknowledged_details", "object", QueueReads.statistics),
        #: What clients did with the queue; absent if they did nothing.
        Column("message_stats", "object", QueueReads.statistics, merge=_ADDED),
    ),
    "type.name",
    QUEUE_TYPES.values(),
    gone="deleted",
)


def read_one(reads: QueueReads, path: Sequence[str]) -> Read:
    """Return a function that reads a column, with the value that a whole row has there."""
    inner = reads.stats.part_of_queue(path) if len(path) > 1 else None
    own = inner or COLUMNS.one(reads, path[0])
    if own is None:
        return lambda queue: None
    if inner is not None or len(path) == 1:
        return own
    name = path[0]
    return lambda queue: at({name: own(queue)}, path)


# -- queues of the broker ------------------------------------------------------------------------------------


def queues_of(broker: Broker, vhosts: Iterable[str]) -> Iterator[Queue]:
    """Yield the queues that a vhost has when it is reached, without those that were deleted since: the broker
    does other work between two of them.
    """
    return (
        queue for vhost in vhosts for queue in list(broker.vhost(vhost).queues.values()) if not queue.deleted
    )


def host_of(broker: Broker, queue: Queue) -> Host:
    """Return the host, which is made now if it does not exist yet."""
    return broker.host_parts.begun(queue)


def home_of(parts: ManagedParts, queue: Queue) -> str:
    """Return the node that reports a queue: its leader, or the node that has it."""
    leader = parts.broker.hosts.leader(queue) if queue.type.replicated else ""
    return leader or queue.record.node or queue.record.leader or parts.config.node


def members_of(parts: ManagedParts, queue: Queue) -> list[str]:
    members = list(queue.record.members)
    if not members and parts.administration is None and queue.type.replicated:
        members = [parts.config.node]
    return members


def online(parts: ManagedParts, members: list[str]) -> list[str]:
    return members if parts.administration is None else parts.administration.online(members)


def is_lost(parts: ManagedParts, queue: Queue, missing: Collection[str]) -> bool:
    """True if only missing nodes have the queue."""
    return home_of(parts, queue) in missing and not online(parts, members_of(parts, queue))


async def declare(
    broker: Broker,
    vhost: str,
    name: str,
    *,
    durable: bool,
    auto_delete: bool,
    arguments: Mapping[str, object],
) -> bool:
    """Return True if the queue is new."""
    new = name not in broker.vhost(vhost).queues
    method = methods.make(
        commands.Queue.Declare,
        queue=name,
        durable=durable,
        auto_delete=auto_delete,
        arguments=dict(arguments),
    )
    with Direct(broker, vhost, ITSELF) as direct:
        await direct.ask(method)
    return new


@dataclass
class Counts:
    queues: int = 0
    consumers: int = 0
    messages_ready: int = 0
    messages_unacknowledged: int = 0
    messages_delayed: int = 0

    @property
    def messages(self) -> int:
        return self.messages_ready + self.messages_unacknowledged + self.messages_delayed


async def count_messages(call: Call, vhosts: Iterable[str], *, own: bool = False) -> Counts:
    """Count queues and their messages and consumers; with `own`, only of queues that this node reports."""
    counts, parts, slices = Counts(), call.parts, call.slices
    for queue in queues_of(parts.broker, vhosts):
        if perf_counter() >= slices.ends:
            await slices.rest()
        if own and home_of(parts, queue) != parts.config.node:
            counts.consumers += _readers(queue)
            continue
        counts.queues += 1
        counts.consumers += queue.host.consumer_count
        counts.messages_ready += queue.host.ready_count
        counts.messages_unacknowledged += queue.host.unacked_count
        counts.messages_delayed += queue.host.delayed_count
    return counts


# -- lists ---------------------------------------------------------------------------------------------------


async def queues(call: Call) -> Any:
    parts, vhosts = call.parts, call.vhosts()
    reads = QueueReads(parts, call.stats)
    found = queues_of(parts.broker, vhosts)
    if call.flag("disable_stats"):
        names = _basic(call)
        return await listing(
            call,
            found,
            _without_stats(reads, names),
            lambda path: read_one(reads, path) if path[0] in names else lambda queue: None,
        )
    if call.local:
        return await listing(call, of_this_node(call, reads, vhosts))
    if parts.others is None:
        row = COLUMNS.rows(reads, columns_read(call.query))
        return await listing(call, found, row, lambda path: read_one(reads, path))
    return await Everywhere(call, reads).listed(found)


def _basic(call: Call) -> frozenset[str]:
    """Return the names of the columns of rows without statistics."""
    levels = (_BASIC, _TOTAL) if call.flag("enable_queue_totals") else (_BASIC,)
    return frozenset(name for name, column in COLUMNS.columns.items() if column.level in levels)


def _without_stats(reads: QueueReads, names: Collection[str]) -> Callable[[Queue], Row | None]:
    made = COLUMNS.rows(reads, names)

    def row(queue: Queue) -> Row | None:
        # Such rows have no policy if there is none.
        return {name: value for name, value in (made(queue) or {}).items() if value is not None} or None

    return row


class Everywhere:
    """One list of the queues of a cluster; the node that the client asked makes it."""

    def __init__(self, call: Call, reads: QueueReads) -> None:
        self._call = call
        self._reads = reads
        self._whole = COLUMNS.rows(reads)
        #: Rows of other nodes by vhost and name.
        self._told: dict[tuple[str, str], list[Row]] = {}

    async def listed(self, queues: Iterable[Queue]) -> Any:
        call = self._call
        if "page" not in call.query:
            await self._ask(None)
            return await listing(call, queues, self._row, self._column)
        path = sort_path(call.query)
        if path and not _is_same_everywhere(path):
            await self._ask(Part(column=call.query["sort"]))
        return await listing(call, queues, self._row, self._column, self._rows_of)

    async def _ask(self, part: Part | None) -> None:
        slices, answers = self._call.slices, await ask_others(self._call, part=part)
        self._told = {}
        for rows in answers.rows.values():
            for row in rows:
                if perf_counter() >= slices.ends:
                    await slices.rest()
                self._told.setdefault((row["vhost"], row["name"]), []).append(row)

    async def _rows_of(self, queues: list[Queue]) -> Shown:
        await self._ask(Part(rows=[(queue.vhost.name, queue.name) for queue in queues]))
        return self._row

    def _row(self, queue: Queue) -> Row | None:
        told = self._told.get((queue.vhost.name, queue.name), ())
        return joined(self._call, queue, told, self._whole)

    def _column(self, path: list[str]) -> Read:
        own, told = read_one(self._reads, path), self._told
        if _is_same_everywhere(path):
            return own
        column, value_of = COLUMNS.columns.get(path[0]), reader(path)
        parts, missing = self._call.parts, self._call.missing if path == ["state"] else ()

        def added(queue: Queue) -> Any:
            here, there = own(queue), told.get((queue.vhost.name, queue.name))
            if not there:
                return here
            found = [value for value in (here, *map(value_of, there)) if value is not None]
            return merged({"": value} for value in found).get("")

        def of_home(queue: Queue) -> Any:
            for row in told.get((queue.vhost.name, queue.name), ()):
                value = value_of(row)
                if value is not None:
                    return value
            return "down" if missing and is_lost(parts, queue, missing) else own(queue)

        if column is not None and column.merge is _ADDED:
            return added
        if path == ["consumers"]:
            return lambda queue: added(queue) if queue.type is STREAM else of_home(queue)
        return of_home


def _is_same_everywhere(path: list[str]) -> bool:
    column = COLUMNS.columns.get(path[0])
    return len(path) == 1 and column is not None and column.merge is _SAME


def joined(call: Call, queue: Queue, told: Sequence[Row], whole: Callable[[Queue], Row | None]) -> Row | None:
    """Return the row of a queue; `told` are the rows of other nodes for it, and `whole` makes this node's
    row.
    """
    home = next((each for each in told if "state" in each), None)
    row = whole(queue) if home is None else dict(home)
    if row is None or queue.deleted:
        return None
    if home is None and call.missing and is_lost(call.parts, queue, call.missing):
        row["state"] = "down"
    if told:
        stats = [each["message_stats"] for each in told if "message_stats" in each]
        if (own := call.stats.message_stats_of(queue)) is not None:
            stats.append(own)
        if stats:
            row["message_stats"] = merged(stats)
        if queue.type is STREAM:
            # A whole row has those of its own node.
            row["consumers"] += 0 if home is None else _readers(queue)
            row["consumers"] += sum(each.get("consumers", 0) for each in told if "state" not in each)
    return row


def _readers(queue: Queue) -> int:
    """Return how many consumers of a stream this node serves. Other queues count those of all nodes."""
    return queue.host.consumer_count if queue.type is STREAM else 0


def _own_part(stats: Stats, queue: Queue) -> Row:
    """Return what this node adds to the row of a queue: the counts of its own clients."""
    part: Row = {}
    if (told := stats.message_stats_of(queue)) is not None:
        part["message_stats"] = told
    if readers := _readers(queue):
        part["consumers"] = readers
    return part


def of_this_node(call: Call, reads: QueueReads, vhosts: Sequence[str]) -> Iterator[Row | None]:
    """Yield the rows that only this node knows: whole rows of its own queues, and for other queues the counts
    of its clients.
    """
    parts, part, stats = call.parts, call.part, call.stats
    path = part.column.split(".") if part is not None and part.column else ["message_stats"]
    column = read_one(reads, path) if part is not None and part.column else None
    whole = COLUMNS.rows(reads)
    rows = None if part is None else part.rows
    for queue in queues_of(parts.broker, vhosts) if rows is None else _named(parts.broker, vhosts, rows):
        here = home_of(parts, queue) == parts.config.node
        if here and column is None:
            yield whole(queue)
            continue
        if column is None:
            # Most queues are used by clients of one node.
            used = queue.published or queue.traffic is not None or queue.type is STREAM
            added = _own_part(stats, queue) if used else None
        elif path == ["consumers"] and not here:
            added = {path[0]: readers} if (readers := _readers(queue)) else None
        else:
            value = column(queue) if here or path[0] == "message_stats" else None
            added = None if value is None else nested(path, value)
        yield {"vhost": queue.vhost.name, "name": queue.name} | added if added else None


def _named(broker: Broker, vhosts: Sequence[str], rows: Iterable[tuple[str, str]]) -> Iterator[Queue]:
    """Yield those of these queues that exist, in vhosts that the user may see."""
    by_vhost = {vhost: broker.vhost(vhost).queues for vhost in vhosts}
    found = (by_vhost[vhost].get(name) for vhost, name in rows if vhost in by_vhost)
    return (queue for queue in found if queue is not None)


# -- one queue -----------------------------------------------------------------------------------------------


async def queue(call: Call) -> Any:
    parts, vhost = call.parts, call.vhost()
    found = queue_of(call, vhost)
    reads = QueueReads(parts, call.stats)
    if call.flag("disable_stats"):
        return _without_stats(reads, _basic(call))(found)
    answers = await ask_others(call)
    told = [body for body in answers.bodies.values() if body is not None]
    row = joined(call, found, told, COLUMNS.rows(reads))
    if row is None:
        raise not_found()
    own = await consumer_rows(call, consumers_of_queue(parts, found))
    here = [each for each in own if each["channel_details"]["node"] == parts.config.node]
    if call.local:
        # For a queue of another node, the row has only what this node knows.
        if home_of(parts, found) != parts.config.node:
            row = {"vhost": vhost, "name": found.name} | _own_part(call.stats, found)
        return row | {"consumer_details": here}
    there = [each for body in told for each in body.get("consumer_details", ())]
    named = {each["channel_details"]["node"] for each in (*here, *there)}
    unknown = [each for each in own if each["channel_details"]["node"] not in named]
    row["consumer_details"] = [*here, *there, *unknown]
    # Counts for each pair of channel or exchange and queue are not kept.
    return row | {"deliveries": [], "incoming": []}


def queue_of(call: Call, vhost: str) -> Queue:
    """Return the path's queue. Raises Refusal."""
    return known(call.broker.vhost(vhost).queues.get(call.path["name"]))


async def explain(call: Call) -> Any:
    """Say where a queue is, where its settings come from, and where decisions about it are taken. The worker
    of this node that has the queue answers.
    """
    parts, vhost = call.parts, call.vhost()
    cluster = parts.administration
    workers = [] if cluster is None else cluster.other_workers_with(vhost, call.path["name"])
    for body in (await ask_others(call, workers, passed_on=())).bodies.values():
        return body
    await catch_up(parts.broker)
    found = queue_of(call, vhost)
    node, leader, members, up, *_ = QueueReads(parts, call.stats).places(found)
    placed = {
        "name": found.name,
        "vhost": found.vhost.name,
        "type": found.type.name,
        "node": node,
        "leader": leader,
        "members": members,
        "online": up,
        "asked_node": parts.config.node,
    }
    return plain(placed | await explained(parts.broker, found))


class QueueRequest(msgspec.Struct):
    durable: bool = True
    auto_delete: bool = False
    arguments: dict[str, Any] = {}


async def put_queue(call: Call) -> Answer:
    broker, vhost, name = call.broker, call.own_vhost(), call.path["name"]
    asked = call.read(QueueRequest)
    call.require(vhost, "queue", name, "configure")
    dead_letter_exchange = asked.arguments.get("x-dead-letter-exchange")
    if isinstance(dead_letter_exchange, str):
        call.require(vhost, "queue", name, "read")
        call.require(vhost, "exchange", dead_letter_exchange, "write")
    stream = asked.arguments.get("x-stream")
    if isinstance(stream, str):
        for each in streams_of(broker.vhost(vhost), stream):
            call.require(vhost, "queue", each.name, "read")
    new = await declare(
        broker, vhost, name, durable=asked.durable, auto_delete=asked.auto_delete, arguments=asked.arguments
    )
    return created(new)


async def delete_queue(call: Call) -> Answer:
    vhost, name = call.own_vhost(), call.path["name"]
    call.require(vhost, "queue", name, "configure")
    queue_of(call, vhost)
    if_unused, if_empty = call.switch("if-unused"), call.switch("if-empty")
    with Direct(call.broker, vhost, ITSELF) as direct:
        await direct.ask(
            methods.make(commands.Queue.Delete, queue=name, if_unused=if_unused, if_empty=if_empty)
        )
    return NO_CONTENT


async def purge_queue(call: Call) -> Answer:
    vhost, name = call.own_vhost(), call.path["name"]
    call.require(vhost, "queue", name, "read")
    queue_of(call, vhost)
    with Direct(call.broker, vhost, ITSELF) as direct:
        await direct.ask(methods.make(commands.Queue.Purge, queue=name))
    return NO_CONTENT


class ActionRequest(msgspec.Struct):
    action: str


async def act(call: Call) -> Answer:
    """Actions on RabbitMQ's mirrored queues: mqd accepts them and does nothing."""
    vhost = call.own_vhost()
    asked = call.read(ActionRequest)
    call.require(vhost, "queue", call.path["name"], "configure")
    queue_of(call, vhost)
    if asked.action not in ("sync", "cancel_sync"):
        raise Refusal(400, "bad_request", ["unknown", asked.action])
    return NO_CONTENT
