"""Consumer groups as the management API shows and resets them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import trio

from amqp_server.broker.broker import Broker
from amqp_server.broker.topology import consumer_groups
from amqp_server.broker.topology.queue import Queue
from amqp_server.config import age_ms
from amqp_server.errors import PreconditionFailed, Unavailable
from amqp_server.management.objects.internal_session import ANSWER_S
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
    """Ages of the oldest unacked messages of groups, for one request.

    Threads look up the times of messages in segments: for many groups together, and once for groups at the
    same offset of a stream. A request waits ANSWER_S for the threads, for any number of groups.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._ends = trio.current_time() + ANSWER_S
        #: Times by stream and offset, None while a time is not known.
        self._times: dict[tuple[StreamHost, int], int | None] = {}
        #: The partitions of each group, and the offset that was looked up for each.
        self._found: dict[Queue, list[tuple[Place, tuple[StreamHost, int] | None]]] = {}

    async def look_up(self, queues: Sequence[Queue]) -> None:
        """Look up the times that `of` needs for these groups."""
        wanted: list[tuple[StreamHost, int]] = []
        for queue in queues:
            found = self._found[queue] = [(place, place.oldest) for place in _places(queue.host)]
            for _, at in found:
                if at is not None and at not in self._times:
                    self._times[at] = None
                    wanted.append(at)
        looked_up = trio.Event()
        left = len(wanted)

        def told(at: tuple[StreamHost, int], time_ms: int | None) -> None:
            nonlocal left
            self._times[at] = time_ms
            left -= 1
            if not left:
                looked_up.set()

        def ask() -> None:
            for host, offset in wanted:
                host.time_of(offset, partial(told, (host, offset)))

        if wanted:
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


class ManagedGroups:
    """The groups that this node serves. In a cluster these are the groups that it has a copy of."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def read_by(self, vhost: str, name: str) -> list[str]:
        """Return the streams that the queue of this name reads; none unless it is a group."""
        queue = self._broker.vhost(vhost).groups.get(name)
        return [] if queue is None else self.streams_of(vhost, queue.parsed.stream)

    def streams_of(self, vhost: str, name: str) -> list[str]:
        """Return the names of the streams that a group over this one would read."""
        return [each.name for each in consumer_groups.streams_of(self._broker.vhost(vhost), name)]

    def each(self, vhost: str) -> list[Queue]:
        """Return groups; `summary` makes rows of them later, and only of those that are wanted."""
        return list(self._broker.vhost(vhost).groups.values())

    def named(self, vhost: str, name: str) -> Queue | None:
        return self._broker.vhost(vhost).groups.get(name)

    def has(self, vhost: str, name: str) -> bool:
        return self.named(vhost, name) is not None

    async def find(self, vhost: str, name: str) -> dict[str, Any] | None:
        queue = self._broker.vhost(vhost).groups.get(name)
        if queue is None:
            return None
        ages = self.ages()
        await ages.look_up([queue])
        found = ages.of(queue)
        partitions = [self._partition(queue, number, place, age) for number, (place, age) in enumerate(found)]
        return self._summary(queue, found) | {"partition_details": partitions}

    def ages(self) -> Ages:
        """Return the ages for one request."""
        return Ages(self._broker)

    def summary(self, ages: Ages, queue: Queue) -> dict[str, Any]:
        return self._summary(queue, ages.of(queue))

    def _summary(self, queue: Queue, found: list[tuple[Place, int | None]]) -> dict[str, Any]:
        host = queue.host
        told: dict[str, Any] = {
            "name": queue.name,
            "vhost": queue.vhost.name,
            "stream": queue.parsed.stream,
            "members": host.consumer_count,
            "messages": host.ready_count + host.unacked_count,
            "messages_unacknowledged": host.unacked_count,
        }
        if not isinstance(host, ConsumerGroupHost | ConsumerGroupMemberHost):
            state = "on other nodes" if queue.members else "failed"
            return told | {"state": state, "partitions": 0, "generation": 0, "oldest_unread_ms": None}
        known = isinstance(host, ConsumerGroupMemberHost) and not host.replica.known
        return told | {
            "state": "running" if found or known else "stream is gone",
            "partitions": len(found),
            "generation": _group_of(host).generation,
            "oldest_unread_ms": max([age for _, age in found if age is not None], default=None),
        }

    def _partition(self, queue: Queue, number: int, place: Place, age_ms: int | None) -> dict[str, Any]:
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
            "connection": None if owner is None else self._connection(queue, owner.key),
        }

    def _connection(self, queue: Queue, key: Key) -> str:
        """Return the name of a member's connection, or the name of its node if that is another node."""
        subscription = queue.subscriptions.get(key[-4:])
        if subscription is not None and (len(key) == 4 or key[:-4] == self._own):
            name: str = subscription.channel.connection.client.name
            return name
        return "" if len(key) == 4 else f"on node {key[-6]}"

    @property
    def _own(self) -> tuple[str, int]:
        replication = self._broker.replication
        return replication.node, replication.incarnation

    def keeps(self, queue: Queue) -> bool:
        """Return whether this node has a copy of a group."""
        return isinstance(queue.host, ConsumerGroupHost | ConsumerGroupMemberHost)

    def leads(self, queue: Queue) -> bool:
        return isinstance(queue.host, ConsumerGroupMemberHost) and queue.host.group.is_leader

    def members(self, queue: Queue) -> dict[Key, dict[str, Any]]:
        """Return the members of a group that this node has a copy of, by their keys."""
        host = queue.host
        if not isinstance(host, ConsumerGroupHost | ConsumerGroupMemberHost):
            return {}
        return {
            each.key: {
                "group": queue.name,
                "vhost": queue.vhost.name,
                "consumer_tag": each.key[-2],
                "connection": self._connection(queue, each.key),
                "channel": each.key[-3],
                "prefetch_count": each.prefetch,
                "messages_unacknowledged": each.count,
                "partitions": sorted([partition.name for partition in each.owned]),
            }
            for each in _group_of(host).members.values()
        }

    def connections(self, queue: Queue) -> dict[Key, str]:
        """Return the names of this node's connections that consume from a group, by the members' keys in a
        cluster.
        """
        return {
            (*self._own, *key): subscription.channel.connection.client.name
            for key, subscription in queue.subscriptions.items()
        }

    async def reset(
        self, vhost: str, name: str, to: str, *, partition: int | None, dry_run: bool, force: bool
    ) -> list[dict[str, Any]]:
        """Move a group; return where each partition was and is now. Raises
        PreconditionFailed, Unavailable.
        """
        start = parse_to(to)
        queue = self._broker.vhost(vhost).groups[name]
        place = f"consumer group '{name}' in vhost '{vhost}'"
        host = queue.host
        if not isinstance(host, ConsumerGroupHost | ConsumerGroupMemberHost):
            if queue.members:
                raise Unavailable(
                    f"this node is not a member of {place}: ask one of {', '.join(queue.members)}"
                )
            raise Unavailable(f"{place} has failed on this node")
        places = _places(host)
        if partition is not None:
            if not 0 <= partition < len(places):
                raise PreconditionFailed(
                    f"{place} has no partition {partition}: it has {len(places)} partitions"
                )
            places = places[partition : partition + 1]
        found: list[tuple[Place, int]] = []
        for each in places:
            found.append((each, await self._look_up(each, start)))
        now = {id(each.partition) for each in _places(host)}
        if queue.host is not host or any(id(each.partition) not in now for each in places):
            raise Unavailable(f"{place} or its stream has changed in the meantime; try again")
        if host.consumer_count and not (force or dry_run):
            # Its members would continue with the messages that they hold.
            raise _in_use(place, host.consumer_count)
        told = [
            {"stream": each.name, "from": each.partition.committed, "to": offset} for each, offset in found
        ]
        if not dry_run:
            await self._move(host, found, place, force=force)
        return told

    async def _move(
        self,
        host: ConsumerGroupHost | ConsumerGroupMemberHost,
        found: list[tuple[Place, int]],
        place: str,
        *,
        force: bool,
    ) -> None:
        """Move the group to these offsets, in a cluster only if its log has no members then, or with `force`.
        Raises Unavailable, PreconditionFailed.
        """
        done = trio.Event()
        refusals: list[Refused | InUse] = []
        if isinstance(host, ConsumerGroupHost):
            readers = {each.partition.stream_id: each for each in host.readers}
            moved = [(readers[place.partition.stream_id], offset) for place, offset in found]
            self._broker.turn.run(host.move, moved)
            self._broker.turn.run(self._broker.services.commits.request, done.set)
            await done.wait()
            return

        def has_moved(refused: Refused | InUse | None) -> None:
            if refused is not None:
                refusals.append(refused)
            done.set()

        offsets = [(place.partition.stream_id, offset) for place, offset in found]
        checked = not force and self._broker.replication.version >= SEALS
        self._broker.turn.run(partial(host.move, offsets, has_moved, if_unused=checked))
        await done.wait()
        for refused in refusals:
            if isinstance(refused, InUse):
                raise _in_use(place, refused.members)
            raise Unavailable(refused.text)

    async def _look_up(self, place: Place, start: Start) -> int:
        """Return the offset that `start` means in a partition. Raises Unavailable."""
        host = place.host
        if isinstance(host, StreamRemoteHost):
            raise Unavailable(f"this node is not a member of stream '{place.name}': ask a member")
        if host is None or place.partition.cursor < 0:
            raise Unavailable(f"stream '{place.name}' is not available on this node at the moment; try again")
        answers: list[int | Refused] = []
        answered = trio.Event()

        def found(answer: int | Refused) -> None:
            answers.append(answer)
            answered.set()

        self._broker.turn.run(host.place_of, start, found)
        with trio.move_on_after(ANSWER_S):
            await answered.wait()
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


__all__ = ["ManagedGroups", "parse_to"]
