"""Measures the hot loops in process, in ns a message: intake, machine, deliver, acks, streams.

    python -m benchmarks.hot_loops

A change to one of these files states its figure before and after. Best of several runs, since noise only
adds.

Compare two builds with MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_MMAP_THRESHOLD_=33554432: otherwise it is
chance whether glibc gives the memory of a batch back each time, which doubles rows that make large results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pamqp import commands

from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.encode import Encoded, Encoder
from amqp_server.streams.layout.layouts import Layouts
from amqp_server.streams.members import entries
from amqp_server.wire import acks, intake
from amqp_server.wire.added_fields import with_fields
from amqp_server.wire.deliver import DeliverTemplate
from amqp_server.wire.intake import Publisher, PublishRoute, Segment
from benchmarks import frames
from persistence.streams import batch as batches
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Machine, Meta
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings

COUNT = 1_000
ROUNDS = 200


def best_ns(work: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> float:
    """Return the best time of one message, in ns."""
    best = float("inf")
    for _ in range(ROUNDS):
        prepare()
        began = time.perf_counter_ns()
        work()
        best = min(best, time.perf_counter_ns() - began)
    return best / COUNT


def route(exchange: str = "", routing_key: str = "queue") -> PublishRoute:
    message = frames.message(exchange, routing_key, b"")
    size = 8 + int.from_bytes(message[3:7], "big")
    head = bytes((len(exchange),)) + exchange.encode() + bytes((len(routing_key),)) + routing_key.encode()
    return PublishRoute(
        key=message[:size],
        channel=1,
        publisher=None,
        exchange=exchange,
        routing_key=routing_key,
        head=head,
        mandatory=False,
    )


def taken(data: bytes) -> list[Segment]:
    segments: list[Segment] = []
    publisher = Publisher(131_072, b"guest", 1 << 24)
    pos, outcome, _ = intake.take(data, 0, len(data), route(), {}, publisher, segments)
    assert pos == len(data), (pos, outcome)
    return segments


def intake_ns(properties: Callable[[int], commands.Basic.Properties | None], size: int = 128) -> float:
    data = b"".join(frames.message("", "queue", b"x" * size, properties(index)) for index in range(COUNT))
    return best_ns(lambda: taken(data))


def counts_ns(properties: Callable[[int], commands.Basic.Properties | None]) -> float:
    publish_bytes = len(route().key)
    contents = [
        frames.message("", "queue", b"x" * 128, properties(index))[publish_bytes:] for index in range(COUNT)
    ]
    fields = {b"x-acquired-count": b"l" + bytes(8), b"x-delivery-count": b"l" + bytes(8)}
    return best_ns(lambda: with_fields(contents, fields))


def machine_ns(*, no_ack: bool) -> float:
    contents = [b"x" * 165] * COUNT

    def work() -> None:
        machine = Machine(Settings())
        effects = Effects()
        machine.apply(Meta(0), [("attach", Consumer(1, no_ack=no_ack))], effects)
        machine.apply(Meta(0), [("enqueue", Run(range(COUNT), contents.copy(), b"\0\0"), None, 0)], effects)
        if not no_ack:
            machine.apply(Meta(0), [("settle", 1, 0, COUNT - 1)], effects)

    return best_ns(work)


def deliver_ns(channel: int) -> float:
    contents = taken(frames.message("", "queue", b"x" * 128) * COUNT)[0].contents
    template = DeliverTemplate(channel, "ctag", 131_072)
    run = Run(range(COUNT), contents, b"\x00\x05queue")
    return best_ns(lambda: template.encode(1, run))


def acks_ns(step: int) -> float:
    data = b"".join(frames.acks(tag, tag).tobytes() for tag in range(1, COUNT * step, step))
    return best_ns(lambda: acks.take(data, 0, len(data)))


def published(properties: Callable[[int], commands.Basic.Properties | None], sizes: int) -> list[bytes]:
    """Return the contents of messages for a stream; their bodies have this many sizes."""
    messages = [
        frames.message("", "queue", b"x" * (128 + index % sizes), properties(index)) for index in range(COUNT)
    ]
    return [each[8 + int.from_bytes(each[3:7], "big") :] for each in messages]


def encoded(contents: list[bytes], layouts: Layouts, *, stamped: bool = False) -> list[Encoded]:
    encoder = Encoder(layouts, 0, 0, stamped=stamped)
    encoder.add(Run(range(COUNT), contents, b"\x00\x05queue"))
    return encoder.finish()


def append_ns(properties: Callable[[int], commands.Basic.Properties | None], sizes: int = 1) -> float:
    """Encode messages as a stream stores them."""
    contents, layouts = published(properties, sizes), Layouts()
    return best_ns(lambda: encoded(contents, layouts))


def append_by_member_ns(
    properties: Callable[[int], commands.Basic.Properties | None], sizes: int = 1
) -> float:
    """Encode messages for the log of a group, and give them their offsets on a member."""
    contents, layouts = published(properties, sizes), Layouts()

    def work() -> None:
        batch = entries.encode_batch("a", 1, 1, encoded(contents, layouts, stamped=True))
        _, (decoded,) = entries.decode_entry(entries.encode_entry(1, [batch]))
        for append in decoded.appends:
            entries.placed(append, 1_000, 1)

    return best_ns(work)


def replay_ns(
    properties: Callable[[int], commands.Basic.Properties | None], sizes: int = 1, channel: int = 1
) -> float:
    """Decode messages of a stream, and make deliveries of them."""
    stored = [b"".join(each.parts) for each in encoded(published(properties, sizes), Layouts())]
    template = DeliverTemplate(channel, "ctag", 131_072)

    def work() -> None:
        for data in stored:
            reader = BatchReader(batches.decode(batches.decode_head(data), data))
            reader.take(reader.left, template, 1, [])

    return best_ns(work)


def main() -> None:
    properties = commands.Basic.Properties

    def own_id(index: int) -> commands.Basic.Properties:
        return properties(message_id=str(10**9 + index))

    def own_header(index: int) -> commands.Basic.Properties:
        return properties(headers={"id": 10**9 + index, "kind": "a"}, delivery_mode=2)

    def own_everything(index: int) -> commands.Basic.Properties:
        return properties(
            content_type="application/json",
            headers={"id": 10**9 + index, "kind": "a" * (index % 7)},
            delivery_mode=2,
            correlation_id=str(index),
            message_id=str(10**9 + index),
            timestamp=datetime.fromtimestamp(1_700_000_000 + index, UTC),
        )

    def own_filter(index: int) -> commands.Basic.Properties:
        value = ("red", "green", "blue")[index % 3]
        return properties(headers={"id": 10**9 + index, "x-stream-filter-value": value}, delivery_mode=2)

    def in_turn(index: int) -> commands.Basic.Properties:
        return commands.Basic.Properties(delivery_mode=2, priority=(1, 5, 9)[index % 3])

    rows = [
        ("intake, all alike", intake_ns(lambda index: None)),
        ("intake, message-id and timestamp differ", intake_ns(own_id)),
        ("intake, a headers table that differs", intake_ns(own_header)),
        ("intake, three priorities in turn", intake_ns(in_turn)),
        ("counts of deliveries, headers alike", counts_ns(lambda index: None)),
        ("counts of deliveries, message-id differs", counts_ns(own_id)),
        ("machine, enqueue and hand out", machine_ns(no_ack=True)),
        ("machine, with settle", machine_ns(no_ack=False)),
        ("deliver, same channel number", deliver_ns(1)),
        ("deliver, another channel number", deliver_ns(2)),
        ("acks in order", acks_ns(1)),
        ("acks of every other tag", acks_ns(2)),
        ("stream, all alike", append_ns(lambda index: None)),
        ("stream, message-id differs", append_ns(own_id)),
        ("stream, a headers table that differs", append_ns(own_header)),
        ("stream, message-id and size differ", append_ns(own_id, sizes=61)),
        ("stream, all properties alike", append_ns(lambda index: own_everything(0))),
        ("stream, all properties and size differ", append_ns(own_everything, sizes=61)),
        ("stream, filter value and size differ", append_ns(own_filter, sizes=61)),
        ("stream of a cluster, all alike", append_by_member_ns(lambda index: None)),
        ("stream of a cluster, message-id and size", append_by_member_ns(own_id, sizes=61)),
        ("stream of a cluster, all differ", append_by_member_ns(own_everything, sizes=61)),
        ("stream replay, all alike", replay_ns(lambda index: None)),
        ("stream replay, message-id and size differ", replay_ns(own_id, sizes=61)),
        ("stream replay, all differ", replay_ns(own_everything, sizes=61)),
        ("stream replay, the same, another channel", replay_ns(own_everything, sizes=61, channel=2)),
    ]
    for name, cost in rows:
        print(f"{name:<42} {cost:7.0f} ns")


if __name__ == "__main__":
    main()
