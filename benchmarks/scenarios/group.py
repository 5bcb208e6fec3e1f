"""Consumer groups of streams. RabbitMQ has none, so there are figures of mqd only, compared with mqd without
a group.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

from ..brokers import Broker
from ..client import Connection, Refused, Unexpected
from ..frames import ack_through, message
from ..pump import READ_BYTES, Pace, Stalled
from ..settled import Settled
from ..streams import properties
from .scenario import CPU_US, Figure, Figures, Scenario, mqd_at_least, mqd_at_most
from .stream import BODY_BYTES, MESSAGES, PREFETCH, STREAM, Reader, append, hang_up, read_all, replay

WARM_MESSAGES = 20_000
#: The compared ways take turns, because a machine is not equally fast all the time.
TURNS = 5
GROUP = "bench-group"
QUEUE = "bench-queue"
PARTITIONS, MEMBERS = 8, 4
MANY_PARTITIONS, MANY_MEMBERS = 100, 10
STALL_S = 20.0


class GroupScenario(Scenario):
    quick = False

    def run(self, broker: Broker, pace: Pace) -> Figures:
        return self.measure(broker, pace) if broker.name.startswith("mqd") else {}

    def measure(self, broker: Broker, pace: Pace) -> Figures:
        raise NotImplementedError


def _declare_group(connection: Connection, stream: str) -> None:
    arguments = {"x-queue-type": "stream-group", "x-stream": stream, "x-stream-offset": "first"}
    connection.queue(GROUP, durable=True, **arguments)


def _filled(connection: Connection, queues: Sequence[str], each: int) -> None:
    """Publish so many messages to each of them, with confirms."""
    connection.confirms()
    settled = Settled(len(queues) * each)
    for number, queue in enumerate(queues, 1):
        wire = message("", queue, b"b" * BODY_BYTES, properties(persistent=True))
        append(connection, settled, number * each, [wire])


class OneMember(GroupScenario):
    name = "group"
    title = "a group of one member (mqd only), 128 B, from `first`, against a consumer of the same stream"
    figures = (
        Figure("share", "of the consumer's rate", mqd_at_least(0.8)),
        Figure("group", "msg/s, group"),
        Figure("plain", "msg/s, consumer"),
        Figure("group_us", "broker CPU µs, group"),
        Figure("plain_us", "broker CPU µs, consumer"),
    )

    def measure(self, broker: Broker, pace: Pace) -> Figures:
        count = max(int(MESSAGES * pace.share), WARM_MESSAGES)
        rates: dict[str, list[float]] = {"plain": [], "group": []}
        cpus: dict[str, list[float]] = {"plain": [], "group": []}
        with Connection(broker.port) as connection:
            connection.queue(STREAM, durable=True, **{"x-queue-type": "stream"})
            _filled(connection, [STREAM], count)
            for turn in range(TURNS + 1):
                for way in rates:
                    broker.settle()
                    cpu = broker.cpu_seconds()
                    seconds = replay(broker, 1, count) if way == "plain" else _replay_by_group(broker, count)
                    cpu = broker.cpu_seconds() - cpu
                    if turn:
                        # The first one runs warm.
                        cpus[way].append(cpu / count * 1e6)
                        rates[way].append(count / seconds)
            connection.delete_queue(STREAM)
        plain, group = median(rates["plain"]), median(rates["group"])
        group_us = median(cpus["group"])
        return {
            "share": group / plain,
            "group": group,
            "plain": plain,
            "group_us": group_us,
            "plain_us": median(cpus["plain"]),
            CPU_US: group_us,
        }


def _replay_by_group(broker: Broker, messages: int) -> float:
    """Return how long it takes until the only member of a new group has read so many messages, s."""
    with Connection(broker.port) as connection, Connection(broker.port) as member:
        _declare_group(connection, STREAM)
        began = time.perf_counter()
        member.consume(GROUP, PREFETCH)
        reader = Reader(member, messages)
        read_all([reader])
        seconds = time.perf_counter() - began
        hang_up(member)
        connection.delete_queue(GROUP)
    return seconds


class ManyMembers(GroupScenario):
    name = "group-members"
    title = "a group of four members over eight partitions (mqd only), 128 B, against a durable queue with four consumers"
    figures = (
        Figure("group", "msg/s, group"),
        Figure("queue", "msg/s, queue"),
        Figure("share", "of the queue's rate", mqd_at_least(1)),
        Figure("group_us", "broker CPU µs, group"),
        Figure("queue_us", "broker CPU µs, queue"),
    )

    def measure(self, broker: Broker, pace: Pace) -> Figures:
        each = max(int(MESSAGES * pace.share), WARM_MESSAGES) // PARTITIONS
        rates: dict[str, list[float]] = {"group": [], "queue": []}
        cpus: dict[str, list[float]] = {"group": [], "queue": []}
        with Connection(broker.port) as connection:
            _super_stream(connection, PARTITIONS)
            _filled(connection, _partitions(PARTITIONS), each)
            for turn in range(TURNS + 1):
                for way, name in (("group", GROUP), ("queue", QUEUE)):
                    with Connection(broker.port) as declaring:
                        if way == "group":
                            _declare_group(declaring, STREAM)
                        else:
                            declaring.queue(QUEUE, durable=True)
                            _filled(declaring, [QUEUE], each * PARTITIONS)
                        broker.settle()
                        cpu = broker.cpu_seconds()
                        seconds = _share(broker, name, each * PARTITIONS)
                        cpu = broker.cpu_seconds() - cpu
                        declaring.delete_queue(name)
                    if turn:
                        # The first one runs warm.
                        rates[way].append(each * PARTITIONS / seconds)
                        cpus[way].append(cpu / (each * PARTITIONS) * 1e6)
            connection.delete_exchange(STREAM)
        group, queue, group_us = median(rates["group"]), median(rates["queue"]), median(cpus["group"])
        return {
            "group": group,
            "queue": queue,
            "share": group / queue,
            "group_us": group_us,
            "queue_us": median(cpus["queue"]),
            CPU_US: group_us,
        }


def _super_stream(connection: Connection, partitions: int) -> None:
    connection.exchange(STREAM, "x-super-stream", durable=True, **{"x-partitions": partitions})


def _partitions(count: int) -> list[str]:
    """Names of the same length, so that all deliveries have the same length."""
    return [f"{STREAM}-{number}" for number in range(count)]


def _share(broker: Broker, queue: str, messages: int) -> float:
    """Return how long it takes until four consumers together have read so many messages, s.

    All received messages are acked at once: a partition goes to another member only when the former one holds
    no messages of it.
    """
    scratch = bytearray(READ_BYTES)
    with ExitStack() as opened, select.epoll() as poll:
        connections = [opened.enter_context(Connection(broker.port)) for _ in range(MEMBERS)]
        by_number = {connection.sock.fileno(): connection for connection in connections}
        received = dict.fromkeys(by_number, 0)
        acked = dict.fromkeys(by_number, 0)
        size = 0
        began = time.perf_counter()
        for number, connection in by_number.items():
            connection.consume(queue, PREFETCH)
            if not size:
                # Later ones may get nothing until something is acked.
                size = received[number] = connection.delivery().wire_bytes
            received[number] += connection.undecoded()
            poll.register(number, select.EPOLLIN)
        while sum(received.values()) < messages * size:
            for number in by_number:
                if (tag := received[number] // size) > acked[number]:
                    acked[number] = tag
                    by_number[number].sock.sendall(ack_through(tag))
            ready = poll.poll(STALL_S)
            if not ready:
                raise Stalled(f"{sum(received.values()) // size} of {messages} messages came")
            for number, _ in ready:
                count = by_number[number].sock.recv_into(scratch)
                if not count:
                    raise Refused("the broker hung up")
                received[number] += count
        seconds = time.perf_counter() - began
        if sum(received.values()) != messages * size:
            raise Unexpected("more came than was published")
        for connection in connections:
            hang_up(connection)
    return seconds


class Rebalance(GroupScenario):
    name = "group-rebalance"
    title = "a group over a hundred partitions (mqd only): nine members join the first one, then one is gone"
    figures = (
        Figure("join_s", "s until each of ten members has its messages", mqd_at_most(1)),
        Figure("death_s", "s until others have what the tenth held", mqd_at_most(1)),
    )

    def measure(self, broker: Broker, pace: Pace) -> Figures:
        return rebalanced([broker.port])


def rebalanced(ports: Sequence[int]) -> Figures:
    """Return the figures of Rebalance, with the members spread over nodes with these ports."""
    with ExitStack() as opened:
        connection = opened.enter_context(Connection(ports[0]))
        _super_stream(connection, MANY_PARTITIONS)
        partitions = _partitions(MANY_PARTITIONS)
        wire = [message("", each, b"b" * BODY_BYTES, properties(persistent=True)) for each in partitions]
        once = b"".join(wire)
        _declare_group(connection, STREAM)
        members = [opened.enter_context(Connection(ports[0]))]
        members[0].consume(GROUP, PREFETCH)
        connection.sock.sendall(once)
        found = _arrived(members, MANY_PARTITIONS)
        members[0].sock.sendall(ack_through(found[0]))
        members += [
            opened.enter_context(Connection(ports[number % len(ports)])) for number in range(1, MANY_MEMBERS)
        ]
        began = time.perf_counter()
        for member in members[1:]:
            member.consume(GROUP, PREFETCH)
        connection.sock.sendall(once)
        found = _arrived(members, MANY_PARTITIONS)
        join_s = time.perf_counter() - began
        if set(found) != {MANY_PARTITIONS // MANY_MEMBERS}:
            raise Unexpected(f"members have {found} partitions")
        # No message of the second round was acked: those of the last member go to the others.
        began = time.perf_counter()
        hang_up(members.pop())
        _arrived(members, MANY_PARTITIONS // MANY_MEMBERS)
        death_s = time.perf_counter() - began
        for member in members:
            hang_up(member)
        connection.delete_queue(GROUP)
        connection.delete_exchange(STREAM)
    return {"join_s": join_s, "death_s": death_s}


def _arrived(members: Sequence[Connection], messages: int) -> list[int]:
    """Wait until so many messages have come to all members together; return how many each has got."""
    by_number = {member.sock.fileno(): member for member in members}
    found = dict.fromkeys(by_number, 0)
    with select.epoll() as poll:
        for number, member in by_number.items():
            poll.register(number, select.EPOLLIN)
            while not member.drained():
                member.delivery()
                found[number] += 1
        while sum(found.values()) < messages:
            ready = poll.poll(STALL_S)
            if not ready:
                raise Stalled(f"{sum(found.values())} of {messages} messages came")
            for number, _ in ready:
                member = by_number[number]
                member.delivery()
                found[number] += 1
                while not member.drained():
                    member.delivery()
                    found[number] += 1
    if sum(found.values()) != messages:
        raise Unexpected(f"{messages} messages were due, {sum(found.values())} came")
    return list(found.values())


GROUP_SCENARIOS: tuple[Scenario, ...] = (OneMember(), ManyMembers(), Rebalance())
