"""What management sees of consumer groups, and does with them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import trio

from amqp_server.broker import consumer_groups
from amqp_server.broker.broker import Broker
from amqp_server.broker.queue import Queue
from amqp_server.config import age_ms
from amqp_server.errors import PreconditionFailed, Unavailable
from amqp_server.streams.consumer_group import ConsumerGroupHost, Reader
from amqp_server.streams.host import StreamHost
from amqp_server.streams.start import NEXT, Start
from quorum_queue.consumer_groups.group import Member

_NAMES = {"first": Start("first"), "last": Start("last"), "next": NEXT}


def parse_to(text: str) -> Start:
    """Return what `first`, an offset, a time or `-1h` means. Raises PreconditionFailed."""
    found = _NAMES.get(text)
    if found is not None:
        return found
    if text.isdecimal():
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


class ManagedGroups:
    """The groups of a node that stands alone; a cluster has none."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def streams_of(self, vhost: str, name: str) -> list[str]:
        """Return the names of the streams that a group over this one would read."""
        return [each.name for each in consumer_groups.streams_of(self._broker.vhost(vhost), name)]

    def all(self, vhost: str) -> list[dict[str, Any]]:
        return [self._summary(queue) for queue in list(self._broker.vhost(vhost).groups.values())]

    def has(self, vhost: str, name: str) -> bool:
        return name in self._broker.vhost(vhost).groups

    def find(self, vhost: str, name: str) -> dict[str, Any] | None:
        queue = self._broker.vhost(vhost).groups.get(name)
        if queue is None:
            return None
        host = queue.host
        readers = host.readers if isinstance(host, ConsumerGroupHost) else []
        partitions = [self._partition(queue, *each) for each in enumerate(readers)]
        return self._summary(queue) | {"partition_details": partitions}

    def _summary(self, queue: Queue) -> dict[str, Any]:
        host = queue.host
        told: dict[str, Any] = {
            "name": queue.name,
            "vhost": queue.vhost.name,
            "stream": queue.parsed.stream,
            "members": host.consumer_count,
            "messages": host.ready_count + host.unacked_count,
            "messages_unacknowledged": host.unacked_count,
        }
        if not isinstance(host, ConsumerGroupHost):
            return told | {"state": "failed", "partitions": 0, "generation": 0, "oldest_unread_ms": None}
        readers = host.readers
        state = "running" if readers else "stream is gone"
        ages = [age for age in map(self._age_of, readers) if age is not None]
        return told | {
            "state": state,
            "partitions": len(readers),
            "generation": host.group.generation,
            "oldest_unread_ms": max(ages, default=None),
        }

    def _age_of(self, reader: Reader) -> int | None:
        """Return how old the oldest message is that was not acked; None if there is none."""
        host, partition = reader.stream.host, reader.partition
        if not isinstance(host, StreamHost) or partition.cursor < 0 or partition.committed >= host.end_offset:
            return None
        time = host.time_of(partition.committed)
        return None if time is None else max(self._broker.services.queue_time.now_ms() - time, 0)

    def _partition(self, queue: Queue, number: int, reader: Reader) -> dict[str, Any]:
        host, partition = reader.stream.host, reader.partition
        known = partition.cursor >= 0 and isinstance(host, StreamHost)
        owner = partition.owner
        return {
            "partition": number,
            "stream": reader.stream.name,
            "committed_offset": partition.committed if known else None,
            "next_offset": partition.cursor if known else None,
            "end_offset": host.end_offset if known else None,
            "lag": reader.unread + partition.held.count,
            "messages_unacknowledged": partition.held.count,
            "oldest_unread_ms": self._age_of(reader),
            "member": None if owner is None else owner.key[2],
            "connection": None if owner is None else self._connection(queue, owner),
        }

    def _connection(self, queue: Queue, member: Member) -> str:
        subscription = queue.subscriptions.get(member.key)
        return "" if subscription is None else subscription.channel.connection.client.name

    def members(self, vhost: str, name: str) -> list[dict[str, Any]] | None:
        queue = self._broker.vhost(vhost).groups.get(name)
        if queue is None:
            return None
        host = queue.host
        members = list(host.group.members.values()) if isinstance(host, ConsumerGroupHost) else []
        return [
            {
                "consumer_tag": each.key[2],
                "connection": self._connection(queue, each),
                "channel": each.key[1],
                "prefetch_count": each.prefetch,
                "messages_unacknowledged": each.count,
                "partitions": sorted([partition.name for partition in each.owned]),
            }
            for each in members
        ]

    async def reset(
        self, vhost: str, name: str, to: str, *, partition: int | None, dry_run: bool, force: bool
    ) -> list[dict[str, Any]]:
        """Move a group; return where each partition was and is now. Raises PreconditionFailed, Unavailable."""
        start = parse_to(to)
        queue = self._broker.vhost(vhost).groups[name]
        place = f"group '{name}' in vhost '{vhost}'"
        host = queue.host
        if not isinstance(host, ConsumerGroupHost):
            raise Unavailable(f"{place} has failed on this node")
        readers = host.readers
        if partition is not None:
            if not 0 <= partition < len(readers):
                raise PreconditionFailed(f"{place} has {len(readers)} partitions, and no number {partition}")
            readers = readers[partition : partition + 1]
        found: list[tuple[Reader, int]] = []
        for reader in readers:
            found.append((reader, await self._look_up(reader, start)))
        if queue.host is not host or any(reader.closed for reader in readers):
            raise Unavailable(f"{place} or its stream has changed meanwhile; try again")
        if host.consumer_count and not (force or dry_run):
            # Its members would go on with what they hold.
            raise PreconditionFailed(
                f"{place} has {host.consumer_count} members: stop them first, or force it"
            )
        told = [
            {"stream": reader.stream.name, "from": reader.partition.committed, "to": offset}
            for reader, offset in found
        ]
        if not dry_run:
            self._broker.turn.run(host.move, found)
            stored = trio.Event()
            self._broker.turn.run(self._broker.services.commits.request, stored.set)
            await stored.wait()
        return told

    async def _look_up(self, reader: Reader, start: Start) -> int:
        """Return the offset that is meant in a partition. Raises Unavailable."""
        host = reader.stream.host
        if not isinstance(host, StreamHost) or reader.partition.cursor < 0:
            raise Unavailable(f"stream '{reader.stream.name}' does not serve; try again")
        answers: list[int] = []
        answered = trio.Event()

        def found(offset: int) -> None:
            answers.append(offset)
            answered.set()

        look: Callable[..., None] = host.look_up
        self._broker.turn.run(look, start, found)
        await answered.wait()
        if answers[0] < 0:
            raise Unavailable(f"stream '{reader.stream.name}' could not be read; try again")
        return min(max(answers[0], host.first_offset), host.end_offset)


__all__ = ["ManagedGroups", "parse_to"]
