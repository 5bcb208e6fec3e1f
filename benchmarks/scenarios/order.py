"""Priorities and message groups: what an order of its own costs a queue, against a queue without it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from ..blocks import repeated
from ..brokers import Broker
from ..client import Connection, Unexpected
from ..frames import ack_through, message
from ..pump import Consumer, Pace, Publisher, Run, Stream, pump
from ..settled import Settled
from ..streams import MESSAGES_MAX, Topology, properties
from .scenario import CPU_US, Figure, Figures, Scenario, mqd_at_least

QUEUE = "bench-0"
BODY = b"b" * 128
CONFIRM_WINDOW = 1_000
PREFETCH = 500
#: The compared ways take turns, because a machine is not equally fast all the time.
TURNS = 3
PRIORITIES = (1, 5, 9)
GROUPS, GROUP_CONSUMERS = 10_000, 8


class _Shared:
    """All consumers of one queue, as the publisher sees them: what it waits for is their sum."""

    def __init__(self, consumers: Sequence[Consumer]) -> None:
        self._consumers = consumers

    @property
    def count(self) -> int:
        return sum([consumer.count for consumer in self._consumers])


@dataclass(frozen=True, slots=True)
class SharedStream(Stream):
    """One publisher, and consumers that share its messages."""

    def idle(self) -> bool:
        consumers = self.consumers
        return (
            self.publisher.idle()
            and all(consumer.idle() for consumer in consumers)
            and sum([consumer.count for consumer in consumers]) == self.publisher.sent
        )


def _shared(
    broker: Broker, messages: Sequence[bytes], consumers: int, pace: Pace, **arguments: object
) -> Run:
    """Let messages of one length go through a durable queue to consumers that share it: confirms, and acks
    one by one.
    """
    with Topology(broker.port) as topology, ExitStack() as connections:
        topology.queue(QUEUE, durable=True, **arguments)
        publishing, *consuming = [
            connections.enter_context(Connection(broker.port)) for _ in range(consumers + 1)
        ]
        consuming[0].consume(QUEUE, PREFETCH)
        # The deliveries of all of them have one size.
        publishing.sock.sendall(messages[0])
        probe = consuming[0].delivery()
        if not messages[0].endswith(probe.body + b"\xce") or not consuming[0].drained():
            raise Unexpected("the delivery is not what was published")
        consuming[0].sock.sendall(ack_through(probe.tag))
        publishing.confirms()
        takers = [Consumer(consuming[0].sock, probe.wire_bytes, probe.tag + 1)]
        for connection in consuming[1:]:
            connection.consume(QUEUE, PREFETCH)
            takers.append(Consumer(connection.sock, probe.wire_bytes, 1))
        publisher = Publisher(
            publishing.sock,
            repeated(messages, CONFIRM_WINDOW),
            [_Shared(takers)],
            CONFIRM_WINDOW * consumers,
            MESSAGES_MAX,
            Settled(MESSAGES_MAX),
            CONFIRM_WINDOW,
        )
        run = pump([SharedStream(publisher, takers)], pace, broker.cpu_seconds)
        if any(taker.bytes % probe.wire_bytes for taker in takers):
            raise Unexpected("the consumers' bytes are no whole deliveries")
        for connection in (publishing, *consuming):
            connection.sock.settimeout(20)
        return run


class Ordered(Scenario):
    """Two ways of one queue in turns; the figure is the one's rate as a share of the other's."""

    quick = False
    consumers = 1

    def ways(
        self,
    ) -> tuple[tuple[Sequence[bytes], dict[str, object]], tuple[Sequence[bytes], dict[str, object]]]:
        """Return the messages and the queue's arguments of the measured way, and those of the plain one."""
        raise NotImplementedError

    def run(self, broker: Broker, pace: Pace) -> Figures:
        runs: list[list[Run]] = [[], []]
        for _ in range(TURNS):
            for found, (messages, arguments) in zip(runs, self.ways(), strict=True):
                broker.settle()
                found.append(_shared(broker, messages, self.consumers, pace, **arguments))
        rate, plain = (median([run.rate for run in found]) for found in runs)
        cpu_us, plain_us = (median([run.cpu_us for run in found]) for found in runs)
        return {
            "share": rate / plain,
            "rate": rate,
            "plain": plain,
            "cpu_share": plain_us / cpu_us,
            "plain_us": plain_us,
            CPU_US: cpu_us,
        }


class Priorities(Ordered):
    name = "priorities"
    title = "a quorum queue with messages of three priorities in turn, against one priority; confirms, acks one by one"
    figures = (
        Figure("share", "of one priority's rate", mqd_at_least(0.8)),
        Figure("cpu_share", "of one priority's messages a CPU second"),
        Figure("rate", "deliveries/s, three priorities"),
        Figure("plain", "deliveries/s, one priority"),
        Figure("plain_us", "broker CPU µs, one priority"),
    )

    def ways(
        self,
    ) -> tuple[tuple[Sequence[bytes], dict[str, object]], tuple[Sequence[bytes], dict[str, object]]]:
        quorum: dict[str, object] = {"x-queue-type": "quorum"}
        mixed = [
            message("", QUEUE, BODY, properties(persistent=True, priority=priority))
            for priority in PRIORITIES
        ]
        alike = [message("", QUEUE, BODY, properties(persistent=True, priority=PRIORITIES[1]))]
        return (mixed, quorum), (alike, quorum)


class MessageGroups(Ordered):
    name = "message-groups"
    title = (
        "10,000 message groups (mqd only), 8 consumers, durable, confirms, acks one by one, against the same "
        "messages in a queue without groups"
    )
    figures = (
        Figure("share", "of the plain queue's rate", mqd_at_least(0.5)),
        Figure("cpu_share", "of the plain queue's messages a CPU second"),
        Figure("rate", "deliveries/s, groups"),
        Figure("plain", "deliveries/s, plain queue"),
        Figure("plain_us", "broker CPU µs, plain queue"),
    )
    consumers = GROUP_CONSUMERS

    def run(self, broker: Broker, pace: Pace) -> Figures:
        return super().run(broker, pace) if broker.name.startswith("mqd") else {}

    def ways(
        self,
    ) -> tuple[tuple[Sequence[bytes], dict[str, object]], tuple[Sequence[bytes], dict[str, object]]]:
        groups = [f"customer-{number:06}" for number in range(GROUPS)]
        random.Random(1).shuffle(groups)
        messages = [
            message("", QUEUE, BODY, properties(persistent=True, headers={"x-group-id": group}))
            for group in groups
        ]
        quorum: dict[str, object] = {"x-queue-type": "quorum"}
        return (messages, quorum | {"x-message-groups": True}), (messages, quorum)


ORDER_SCENARIOS = (Priorities(), MessageGroups())
