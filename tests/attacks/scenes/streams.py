"""Attacks through streams and the groups over them."""

from __future__ import annotations

import time
from typing import Any

from pamqp import commands

from tests.reliability.client import Client, Delivery, settle

from ..scene import Scene, Target
from . import frames

#: Seconds for which members get partitions, and messages are handed out.
SECONDS = 3.0


def _deliveries(client: Client, count: int, wait_s: float = 30.0) -> None:
    """Take this many deliveries, or all that come in this time."""
    deadline = time.monotonic() + wait_s
    while count > 0 and time.monotonic() < deadline:
        count -= sum(isinstance(event, Delivery) for event in client.receive(1.0))


def _group(name: str, stream: str) -> commands.Queue.Declare:
    arguments: Any = {"x-queue-type": "stream-group", "x-stream": stream, "x-stream-offset": "first"}
    return commands.Queue.Declare(queue=name, durable=True, arguments=arguments)


def many_groups(target: Target) -> None:
    """2,000 groups over one stream, each with a member that holds 100 messages, and gives them back once;
    then the stream is deleted.
    """
    count = target.many(2_000)
    with target.client() as client:
        kind: Any = {"x-queue-type": "stream"}
        client.declare("read", **kind)
        one = frames.message("", "read", b"x" * 10)
        for _ in range(100):
            client.send(one * 200)
        frames.flood(client, [_group(f"g{n}", "read") for n in range(count)])
        client.sync(100)
        consumers = [commands.Basic.Consume(queue=f"g{n}", consumer_tag=f"m{n}") for n in range(count)]
        client.send(b"".join(map(frames.method, consumers)))
        _deliveries(client, 100 * count)
        client.send(settle(120, 0, 3))
        _deliveries(client, 100 * count)
        client.call(commands.Queue.Delete(queue="read"), commands.Queue.DeleteOk)


def group_churn(target: Target) -> None:
    """A group over 1,000 partitions, whose 100 members join together, give their messages back and leave
    together.
    """
    with target.client(channel_max=200) as client:
        arguments: Any = {"x-partitions": target.many(1_000)}
        client.call(
            commands.Exchange.Declare(
                exchange="parts", exchange_type="x-super-stream", durable=True, arguments=arguments
            ),
            commands.Exchange.DeclareOk,
        )
        for batch in range(20):
            client.send(b"".join(frames.message("parts", f"{batch}-{n}", b"x") for n in range(500)))
        client.call(_group("members", "parts"), commands.Queue.DeclareOk)
        channels = range(2, target.many(100) + 2)
        for _ in range(3):
            for channel in channels:
                client.method(commands.Channel.Open(), channel)
                client.expect(commands.Channel.OpenOk)
                client.method(commands.Basic.Qos(prefetch_count=100), channel)
                client.expect(commands.Basic.QosOk)
                client.method(commands.Basic.Consume(queue="members", consumer_tag="m"), channel)
            _deliveries(client, 10_000, SECONDS)
            for channel in channels:
                client.method(commands.Basic.Nack(0, True, True), channel)
            _deliveries(client, 10_000, SECONDS)
            for channel in channels:
                client.method(commands.Channel.Close(200, "", 0, 0), channel)
                client.expect(commands.Channel.CloseOk)


def scattered_group_acks(target: Target) -> None:
    """A group's member takes 200,000 messages of 20 partitions without a limit, and acks every second one of
    the first ones, so that each partition has as many gaps as it may; then the rest is acked, given back or
    left at once.
    """
    count = target.many(200_000)
    with target.client() as client:
        partitions: Any = {"x-partitions": 20}
        client.call(
            commands.Exchange.Declare(
                exchange="parts", exchange_type="x-super-stream", durable=True, arguments=partitions
            ),
            commands.Exchange.DeclareOk,
        )
        for batch in range(0, count, 500):
            client.send(b"".join(frames.message("parts", f"{batch}-{n}", b"x") for n in range(500)))
        for end in (commands.Basic.Ack(0, True), commands.Basic.Nack(0, True, True), None):
            group = f"group-{end and end.name}"
            client.call(_group(group, "parts"), commands.Queue.DeclareOk)
            with target.client() as member:
                member.call(commands.Basic.Consume(queue=group, consumer_tag="m"), commands.Basic.ConsumeOk)
                _deliveries(member, count)
                acks = b"".join(frames.method(commands.Basic.Ack(tag)) for tag in range(1, count, 2))
                for at in range(0, len(acks), 100_000):
                    member.send(acks[at : at + 100_000])
                member.call(commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)
                if end is not None:
                    member.method(end)
                    _deliveries(member, count // 2, SECONDS)


def dead_letter_streams(target: Target) -> None:
    """Six streams get the dead letters of the groups over them, and of a quorum queue: a message that a
    client refuses in one group comes back in all of them.
    """
    with target.client(channel_max=20) as client:
        client.call(
            commands.Exchange.Declare(exchange="again", exchange_type="fanout"), commands.Exchange.DeclareOk
        )
        quorum: Any = {"x-queue-type": "quorum", "x-message-ttl": 0, "x-dead-letter-exchange": "again"}
        client.declare("first", **quorum)
        for number in range(6):
            kind: Any = {"x-queue-type": "stream"}
            client.declare(f"s{number}", **kind)
            for queue in (f"s{number}", "first"):
                client.call(commands.Queue.Bind(queue=queue, exchange="again"), commands.Queue.BindOk)
            arguments: Any = {
                "x-queue-type": "stream-group",
                "x-stream": f"s{number}",
                "x-stream-offset": "first",
                "x-dead-letter-exchange": "again",
            }
            group = commands.Queue.Declare(queue=f"g{number}", durable=True, arguments=arguments)
            client.call(group, commands.Queue.DeclareOk)
            client.call(
                commands.Basic.Consume(queue=f"g{number}", consumer_tag=f"m{number}"),
                commands.Basic.ConsumeOk,
            )
        client.send(frames.message("", "first", b"x" * 100) * 10)
        until, taken = time.monotonic() + 10.0, 0
        while taken < target.many(200_000) and time.monotonic() < until:
            fresh = sum(isinstance(event, Delivery) for event in client.receive(1.0))
            taken += fresh
            if fresh:
                client.send(settle(120, 0, 1))


def group_rebinds(target: Target) -> None:
    """200 groups with a member each over an exchange with 300 streams, one of which is bound and unbound
    without end: each time all groups look for their streams, and all members' permissions are checked.
    """
    groups, streams = target.many(200), target.many(300)
    with target.client() as client:
        marked: Any = {"x-super-stream": True}
        exchange = commands.Exchange.Declare(
            exchange="marked", exchange_type="direct", durable=True, arguments=marked
        )
        client.call(exchange, commands.Exchange.DeclareOk)
        kind: Any = {"x-queue-type": "stream"}
        frames.flood(
            client,
            [commands.Queue.Declare(queue=f"r{n}", durable=True, arguments=kind) for n in range(streams)],
        )
        client.sync(100)
        binds = [_bind(n) for n in range(streams)]
        client.send(b"".join(map(frames.method, binds)))
        for _ in binds:
            client.expect(commands.Queue.BindOk)
        frames.flood(client, [_group(f"m{n}", "marked") for n in range(groups)])
        client.sync(100)
        client.method(commands.Basic.Qos(prefetch_count=10), 1)
        client.expect(commands.Basic.QosOk)
        for number in range(groups):
            consume = commands.Basic.Consume(queue=f"m{number}", consumer_tag=f"m{number}")
            client.call(consume, commands.Basic.ConsumeOk)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            again = _bind(0)
            unbind = commands.Queue.Unbind(
                queue="r0", exchange="marked", routing_key="0", arguments=again.arguments
            )
            client.call(unbind, commands.Queue.UnbindOk)
            client.call(again, commands.Queue.BindOk)


def _bind(number: int) -> commands.Queue.Bind:
    order: Any = {"x-stream-partition-order": number}
    return commands.Queue.Bind(
        queue=f"r{number}", exchange="marked", routing_key=str(number), arguments=order
    )


SCENES = (
    Scene("many-groups", "2,000 consumer groups over one stream, which is deleted", many_groups),
    Scene("group-churn", "100 members of a group over 1,000 partitions come and go together", group_churn),
    Scene(
        "group-rebinds",
        "a stream bound to an exchange that 200 groups read, and unbound, without a pause",
        group_rebinds,
    ),
    Scene(
        "scattered-group-acks",
        "every second of 200,000 messages of a group acked, and the others all at once",
        scattered_group_acks,
    ),
    Scene(
        "dead-letter-streams",
        "dead letters of six groups, each of which feeds the streams of all",
        dead_letter_streams,
    ),
)
