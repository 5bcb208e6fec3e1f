"""Consumer groups: listed, with their members and partitions, and reset.

This node knows the groups that it serves: in a cluster, those that it has a copy of. It asks a member of the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from amqp_server.config import age_ms
from amqp_server.errors import PreconditionFailed, Unavailable
from amqp_server.management.changes.answers import ANSWER_S, answers_of
from amqp_server.management.request.answer import known
from amqp_server.management.request.call import Call
from amqp_server.management.request.columns import Column, Read, Row, Table
from amqp_server.management.request.listing import Ahead, listing
from amqp_server.management.request.other_nodes import ask_others
from amqp_server.streams.consumer_groups.local_host import ConsumerGroupHost
from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost
from amqp_server.streams.consumer_groups.member_reading import end_of
from amqp_server.streams.consumer_groups.requests import InUse
from amqp_server.streams.layout.consumer_start import NEXT, Start
from amqp_server.streams.local_host import StreamHost
from amqp_server.streams.remote_host import StreamRemoteHost
from quorum_queue.consumer_groups.group import Group, Key
from quorum_queue.consumer_groups.partition import Partition
from quorum_queue.machine.versions import SEALS
from quorum_queue.ports import Host, Refused

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.topology.queue import Queue


class ResetRequest(msgspec.Struct, forbid_unknown_fields=True):
    #: first, last, next, an offset, a time, or a text such as -1h.
    to: str | int
    #: Number of one partition; all of them unless given.
    partition: int | None = None
    dry_run: bool = False
    #: Reset even if the group has members: messages that they hold are delivered again from the new position
    #: on.
    force: bool = False


_NAMES = {"first": Start("first"), "last": Start("last"), "next": NEXT}
#: Digits of an offset at most: no offset has as many.
_DIGITS_MAX = 20


def parse_to(text: str) -> Start:
    """Return what `first`, an offset, a time or `-1h` means. Raises PreconditionFailed."""
    found = _NAMES.get(text)
    if found is not None:
        return found
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
        return Start(offset=int(text))
    try:
        if text.startswith("-"):
            return Start(ago_ms=age_ms(text[1:]))
        time = datetime.fromisoformat(text)
    except ValueError:
        raise PreconditionFailed(
            f"to: expected first, last, next, an offset, a time such as 2027-01-31T12:00Z, or an age such as -1h, "
            f"not '{text[:100]}'"
        ) from None
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return Start(time_ms=int(aware.timestamp() * 1000))


class Place:
    """A partition of a group, and its stream."""

    def __init__(self, partition: Partition, host: Any, name: str) -> None:
        self.partition = partition
        #: None if the stream does not serve on this node.
        self.host: StreamHost | None = host if isinstance(host, StreamHost) else None
        self.name = name

    @property
    def end(self) -> int:
        """The offset of the next message, as far as this node knows."""
        host = self.host
        if isinstance(host, StreamRemoteHost):
            return end_of(host)
        return 0 if host is None else host.end_offset

    @property
    def oldest(self) -> tuple[StreamHost, int] | None:
        """The offset of the first unacked message, if this node can tell the time of that message."""
        host, partition = self.host, self.partition
        if host is None or isinstance(host, StreamRemoteHost) or partition.cursor < 0:
            return None
        offset = partition.committed
        return (host, offset) if offset < host.end_offset else None

    @property
    def unread(self) -> int:
        """Number of messages of the partition that are still to be handed out."""
        host = self.host
        return 0 if host is None else self.partition.unread(host.first_offset, self.end)


class Ages:
    """Ages of the oldest unacked messages of groups, for one request, and the ends of partitions of which
    this node has no copy: members tell them.

    Threads look up the times of messages in segments: for many groups together, and once for groups at the
    same offset of a stream. A request waits ANSWER_S for the threads, for any number of groups.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._ends = trio.current_time() + ANSWER_S
        #: Times by stream and offset, None while a time is not known.
        self._times: dict[tuple[StreamHost, int], int | None] = {}
        self._asked: set[StreamRemoteHost] = set()
        #: The partitions of each group, and the offset that was looked up for each.
        self._found: dict[Queue, list[tuple[Place, tuple[StreamHost, int] | None]]] = {}

    async def look_up(self, queues: Sequence[Queue]) -> None:
        """Look up the times that `of` needs for these groups, and the ends of partitions."""
        wanted: list[tuple[StreamHost, int]] = []
        elsewhere: list[StreamRemoteHost] = []
        for queue in queues:
            found = self._found[queue] = [(place, place.oldest) for place in _places(queue.host)]
            for place, at in found:
                if at is not None and at not in self._times:
                    self._times[at] = None
                    wanted.append(at)
                if isinstance(place.host, StreamRemoteHost) and place.host not in self._asked:
                    self._asked.add(place.host)
                    elsewhere.append(place.host)
        looked_up = trio.Event()
        left = len(wanted) + len(elsewhere)

        def answered() -> None:
            nonlocal left
            left -= 1
            if not left:
                looked_up.set()

        def told(at: tuple[StreamHost, int], time_ms: int | None) -> None:
            self._times[at] = time_ms
            answered()

        def ask() -> None:
            for host, offset in wanted:
                host.time_of(offset, partial(told, (host, offset)))
            for remote in elsewhere:
                # The host notes what it is told.
                remote.offsets(lambda _: answered())

        if left:
            self._broker.turn.run(ask)
            with trio.move_on_at(self._ends):
                await looked_up.wait()

    def of(self, queue: Queue) -> list[tuple[Place, int | None]]:
        """Return each partition of a group with its age in ms; None if everything was acked, or if the age is
        not known here.
        """
        now_ms = self._broker.services.queue_time.now_ms()
        times = [(place, None if at is None else self._times[at]) for place, at in self._found.pop(queue, ())]
        return [(place, None if time is None else max(now_ms - time, 0)) for place, time in times]


def _in_use(place: str, members: int) -> PreconditionFailed:
    return PreconditionFailed(f"{place} has {members} members: stop them first, or use force")


class GroupReads:
    """What one request reads groups with. See COLUMNS."""

    def __init__(self, found: Callable[[Queue], list[tuple[Place, int | None]]]) -> None:
        """`found`: see Ages.of."""
        self._found = found

    def counts(self, queue: Queue) -> Sequence[Any]:
        host = queue.host
        return host.consumer_count, host.ready_count + host.unacked_count, host.unacked_count

    def partitions(self, queue: Queue) -> Sequence[Any]:
        host, found = queue.host, self._found(queue)
        if not isinstance(host, ConsumerGroupHost | ConsumerGroupMemberHost):
            return "on other nodes" if queue.members else "failed", 0, 0, None
        known = isinstance(host, ConsumerGroupMemberHost) and not host.replica.known
        return (
            "running" if found or known else "stream is gone",
            len(found),
            _group_of(host).generation,
            max([age for _, age in found if age is not None], default=None),
        )


COLUMNS = Table(
    "ConsumerGroup",
    (
        Column("name", "string", "name"),
        Column("vhost", "string", "vhost.name"),
        Column("stream", "string", "parsed.stream"),
        Column("members", "integer", GroupReads.counts),
        Column("messages", "integer", GroupReads.counts),
        Column("messages_unacknowledged", "integer", GroupReads.counts),
        Column("state", "string", GroupReads.partitions),
        Column("partitions", "integer", GroupReads.partitions),
        Column("generation", "integer", GroupReads.partitions),
        #: Age of the oldest unacked message, ms; null if everything was acked, or if it is not known here.
        Column("oldest_unread_ms", "integer?", GroupReads.partitions),
    ),
)


# -- groups of the broker ------------------------------------------------------------------------------------


def groups_of(broker: Broker, vhost: str) -> list[Queue]:
    return list(broker.vhost(vhost).groups.values())


def keeps(queue: Queue) -> bool:
    """Return whether this node has a copy of a group."""
    return isinstance(queue.host, ConsumerGroupHost | ConsumerGroupMemberHost)


def leads(queue: Queue) -> bool:
    return isinstance(queue.host, ConsumerGroupMemberHost) and queue.host.group.is_leader


def _own(broker: Broker) -> tuple[str, int]:
    return broker.replication.node, broker.replication.incarnation


def _partition(broker: Broker, queue: Queue, number: int, place: Place, age_ms: int | None) -> dict[str, Any]:
    host, partition = place.host, place.partition
    known = partition.cursor >= 0 and host is not None
    owner = partition.owner
    return {
        "partition": number,
        "stream": place.name,
        "committed_offset": partition.committed if known else None,
        "next_offset": partition.cursor if known else None,
        "end_offset": place.end if known else None,
        "lag": place.unread + partition.held.count,
        "messages_unacknowledged": partition.held.count,
        "oldest_unread_ms": age_ms,
        "member": None if owner is None else owner.key[-2],
        "connection": None if owner is None else _connection(broker, queue, owner.key),
    }


def _connection(broker: Broker, queue: Queue, key: Key) -> str:
    """Return the name of a member's connection, or the name of its node if that is another node."""
    subscription = queue.subscriptions.get(key[-4:])
    if subscription is not None and (len(key) == 4 or key[:-4] == _own(broker)):
        name: str = subscription.channel.connection.client.name
        return name
    return "" if len(key) == 4 else f"on node {key[-6]}"


def members_of(broker: Broker, queue: Queue) -> dict[Key, dict[str, Any]]:
    """Return the members of a group that this node has a copy of, by their keys."""
    host = queue.host
    if not isinstance(host, ConsumerGroupHost | ConsumerGroupMemberHost):
        return {}
    return {
        each.key: {
            "group": queue.name,
            "vhost": queue.vhost.name,
            "consumer_tag": each.key[-2],
            "connection": _connection(broker, queue, each.key),
            "channel": each.key[-3],
            "prefetch_count": each.prefetch,
            "messages_unacknowledged": each.count,
            "partitions": sorted([partition.name for partition in each.owned]),
        }
        for each in _group_of(host).members.values()
    }


def connections_of(broker: Broker, queue: Queue) -> dict[Key, str]:
    """Return the names of this node's connections that consume from a group, by the members' keys in a
    cluster.
    """
    return {
        (*_own(broker), *key): subscription.channel.connection.client.name
        for key, subscription in queue.subscriptions.items()
    }


async def reset_group(
    broker: Broker, queue: Queue, to: str, *, partition: int | None, dry_run: bool, force: bool
) -> list[dict[str, Any]]:
    """Move a group; return where each partition was and is now. Raises
    PreconditionFailed, Unavailable.
    """
    start = parse_to(to)
    place = f"consumer group '{queue.name}' in vhost '{queue.vhost.name}'"
    host = queue.host
    if not isinstance(host, ConsumerGroupHost | ConsumerGroupMemberHost):
        if queue.members:
            raise Unavailable(
                f"none of {', '.join(queue.members)}, which have {place}, has answered in time: try again"
            )
        raise Unavailable(f"{place} has failed on this node")
    places = _places(host)
    if partition is not None:
        if not 0 <= partition < len(places):
            raise PreconditionFailed(f"{place} has no partition {partition}: it has {len(places)} partitions")
        places = places[partition : partition + 1]
    found: list[tuple[Place, int]] = []
    for each in places:
        found.append((each, await _look_up(broker, each, start)))
    now = {id(each.partition) for each in _places(host)}
    if queue.host is not host or any(id(each.partition) not in now for each in places):
        raise Unavailable(f"{place} or its stream has changed in the meantime; try again")
    if host.consumer_count and not (force or dry_run):
        # Its members would continue with the messages that they hold.
        raise _in_use(place, host.consumer_count)
    told = [{"stream": each.name, "from": each.partition.committed, "to": offset} for each, offset in found]
    if not dry_run:
        await _propose(broker, host, found, place, force=force)
    return told


async def _propose(
    broker: Broker,
    host: ConsumerGroupHost | ConsumerGroupMemberHost,
    found: list[tuple[Place, int]],
    place: str,
    *,
    force: bool,
) -> None:
    """Move the group to these offsets, in a cluster only if its log has no members then, or with `force`.
    Raises Unavailable, PreconditionFailed.
    """
    turn = broker.turn
    if isinstance(host, ConsumerGroupHost):
        readers = {each.partition.stream_id: each for each in host.readers}
        moved = [(readers[place.partition.stream_id], offset) for place, offset in found]
        turn.run(host.move, moved)

        def passed(told: Callable[[tuple[Refused, ...]], None]) -> None:
            host.barrier(lambda *why: told(why))

        # It may wait for a transaction that is being committed.
        for why in await answers_of(turn, passed):
            if why:
                raise Unavailable(why[0].text)
        synced = trio.Event()
        turn.run(broker.services.commits.request, synced.set)
        await synced.wait()
        return
    offsets = [(place.partition.stream_id, offset) for place, offset in found]
    checked = not force and broker.replication.version >= SEALS
    ask: Callable[[Callable[[Refused | InUse | None], None]], None]
    ask = partial(host.move, offsets, if_unused=checked)
    (refused,) = await answers_of(turn, ask)
    if isinstance(refused, InUse):
        raise _in_use(place, refused.members)
    if refused is not None:
        raise Unavailable(refused.text)


async def _look_up(broker: Broker, place: Place, start: Start) -> int:
    """Return the offset that `start` means in a partition. Raises Unavailable."""
    host = place.host
    if host is None or place.partition.cursor < 0:
        raise Unavailable(f"stream '{place.name}' is not available on this node at the moment; try again")
    ask: Callable[[Callable[[int | Refused], None]], None] = partial(host.place_of, start)
    answers = await answers_of(broker.turn, ask, ANSWER_S)
    if not answers:
        raise Unavailable(
            f"stream '{place.name}': no member has reported its end offset; `mqctl cluster status` shows "
            "whether it has a majority"
        )
    answer = answers[0]
    if isinstance(answer, Refused):
        raise Unavailable(f"stream '{place.name}' is not available at the moment: {answer.text}")
    return answer


def _group_of(host: ConsumerGroupHost | ConsumerGroupMemberHost) -> Group:
    return host.group if isinstance(host, ConsumerGroupHost) else host.replica.group


def _places(host: Host) -> list[Place]:
    """Return the partitions of a group, in order."""
    if isinstance(host, ConsumerGroupHost):
        return [Place(each.partition, each.stream.host, each.stream.name) for each in host.readers]
    if not isinstance(host, ConsumerGroupMemberHost):
        return []
    streams = host.stream_hosts()
    partitions = sorted(host.replica.group.partitions.values(), key=lambda each: each.number)
    return [Place(each, streams.get(each.stream_id), each.name) for each in partitions]


# -- answers -------------------------------------------------------------------------------------------------


async def groups(call: Call) -> Any:
    found = [queue for vhost in call.vhosts() for queue in groups_of(call.broker, vhost)]
    if call.local:
        return await groups_listed(call, filter(keeps, found))
    return await groups_listed(call, found, await _rows_of_others(call, found))


async def _rows_of_others(call: Call, queues: Iterable[Queue]) -> dict[tuple[str, str], Row]:
    """Return the rows of groups of which this node has no copy, by vhost and name: a member of each has told
    its row.
    """
    asked = {queue: _members_to_ask(call, queue)[:1] for queue in queues if not keeps(queue)}
    nodes = sorted({member for members in asked.values() for member in members})
    rows = (await ask_others(call, nodes)).rows if nodes else {}
    told = {(node, row["vhost"], row["name"]): row for node, found in rows.items() for row in found}
    found = {
        (queue.vhost.name, queue.name): told.get((member, queue.vhost.name, queue.name))
        for queue, members in asked.items()
        for member in members
    }
    return {place: row for place, row in found.items() if row is not None}


def _members_to_ask(call: Call, queue: Queue) -> list[str]:
    """Return the members of a group that are up, its leader first, if this node has no copy."""
    cluster = call.parts.administration
    if cluster is None or call.local or keeps(queue):
        return []
    leader = call.broker.hosts.leader(queue)
    return sorted(cluster.online(queue.members), key=lambda name: (name != leader, name))


async def groups_listed(
    call: Call, found: Iterable[Queue], told: Mapping[tuple[str, str], Row] = MappingProxyType({})
) -> Any:
    """Return the rows of these groups; those that other nodes have told are in `told`, by vhost and name."""
    ages = Ages(call.broker)
    reads = GroupReads(ages.of)
    own = COLUMNS.rows(reads)

    def row(queue: Queue) -> Row | None:
        return told.get((queue.vhost.name, queue.name)) or own(queue)

    ahead = Ahead(ages.look_up, row)

    def column(path: list[str]) -> Read | None:
        return COLUMNS.one(reads, path[0]) if path in (["name"], ["vhost"]) else None

    return await listing(call, ahead.over(found), ahead.row, column, ahead.all_rows)


async def group(call: Call) -> Any:
    queue = _group(call, call.vhost())
    for member in _members_to_ask(call, queue):
        for body in (await ask_others(call, [member])).bodies.values():
            return body
    return await shown(call.broker, queue)


async def shown(broker: Broker, queue: Queue) -> Row:
    """Return the row of a group, with its partitions."""
    ages = Ages(broker)
    await ages.look_up([queue])
    found = ages.of(queue)
    row = COLUMNS.rows(GroupReads(lambda _: found))(queue) or {}
    partitions = [_partition(broker, queue, number, place, age) for number, (place, age) in enumerate(found)]
    return row | {"partition_details": partitions}


def _group(call: Call, vhost: str) -> Queue:
    """Return the path's group. Raises Refusal."""
    return known(call.broker.vhost(vhost).groups.get(call.path["name"]))


async def members(call: Call) -> Any:
    return await listing(call, await _members(call, [_group(call, call.vhost())]))


async def all_members(call: Call) -> Any:
    queues = [queue for vhost in call.vhosts() for queue in groups_of(call.broker, vhost)]
    return await listing(call, await _members(call, queues))


async def _members(call: Call, queues: Sequence[Queue]) -> Iterable[dict[str, Any] | None]:
    """Return the members of groups. This node asks each other node once, for any number of groups: for the
    connections of its clients, and for the members of groups that this node has no copy of.
    """
    broker = call.broker
    if call.local:
        return _for_others(broker, queues)
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    kept: set[tuple[str, str]] = set()
    names: dict[tuple[Any, ...], str] = {}
    for queue in queues:
        await call.slices.rest()
        place = queue.vhost.name, queue.name
        if keeps(queue):
            kept.add(place)
            rows |= {(*place, *key): row for key, row in members_of(broker, queue).items()}
        else:
            names |= {(*place, *key): name for key, name in connections_of(broker, queue).items()}
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


def _for_others(broker: Broker, queues: Sequence[Queue]) -> Iterator[dict[str, Any] | None]:
    """Yield the members of groups that this node leads, and the connections
    of its own clients in all groups.
    """
    for queue in queues:
        yield None
        told = {"vhost": queue.vhost.name, "group": queue.name}
        if leads(queue):
            for key, row in members_of(broker, queue).items():
                yield row | {"key": key}
        for key, name in connections_of(broker, queue).items():
            yield told | {"key": key, "connection": name}


async def reset(call: Call) -> Any:
    vhost, name = call.own_vhost(), call.path["name"]
    asked = call.read(ResetRequest)
    call.require(vhost, "queue", name, "configure")
    queue = _group(call, vhost)
    for member in _members_to_ask(call, queue):
        answers = await ask_others(call, [member], with_body=True)
        for refusal in answers.refusals.values():
            raise refusal
        for body in answers.bodies.values():
            return body
    return await reset_group(
        call.broker,
        queue,
        str(asked.to),
        partition=asked.partition,
        dry_run=asked.dry_run,
        force=asked.force,
    )
