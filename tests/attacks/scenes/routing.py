"""Attacks through exchanges, bindings and queues."""

from __future__ import annotations

import time
from typing import Any

from pamqp import commands

from tests.reliability.client import Client

from ..scene import Scene, Target
from . import frames


def _queues(client: Client, count: int, *, exclusive: bool = False) -> None:
    frames.flood(client, [commands.Queue.Declare(queue=f"q{n}", exclusive=exclusive) for n in range(count)])


def many_bindings(target: Target) -> None:
    with target.client() as client:
        client.declare("bound", durable=False)
        frames.flood(
            client,
            [
                commands.Queue.Bind(queue="bound", exchange="amq.direct", routing_key=f"k{n}")
                for n in range(target.many(18_000))
            ],
        )


def channel_churn(target: Target) -> None:
    """Channels come and go on a connection that has published to many keys."""
    with target.client() as client:
        client.send(
            b"".join(frames.message("amq.topic", f"key.{n}", b"") for n in range(target.many(10_000)))
        )
        client.sync(0)
        for _ in range(target.many(3_000)):
            client.send(
                frames.method(commands.Channel.Open(), 2)
                + frames.method(commands.Channel.Close(200, "", 0, 0), 2)
            )
            client.expect(commands.Channel.CloseOk)


def alternate_chain(target: Target) -> None:
    """Each exchange has the next one as its alternate exchange; nothing is bound."""
    length = target.many(3_000)
    with target.client() as client:
        frames.flood(
            client,
            [
                commands.Exchange.Declare(exchange=f"x{n}", arguments={"alternate-exchange": f"x{n + 1}"})
                for n in range(length)
            ],
        )
        for number in range(200):
            client.send(frames.message("x0", f"k{number}", b""))
        client.sync(0)


def headers_chain(target: Target) -> None:
    """Each exchange looks at headers, and has the next one as its alternate. A declare before each message
    makes the node forget the route.
    """
    length = target.many(5_000)
    with target.client() as client:
        flood = [
            commands.Exchange.Declare(
                exchange=f"x{n}", exchange_type="headers", arguments={"alternate-exchange": f"x{n + 1}"}
            )
            for n in range(length)
        ]
        frames.flood(client, flood)
        for number in range(target.many(100)):
            frames.flood(client, [commands.Exchange.Declare(exchange=f"y{number}")])
            client.send(frames.message("x0", f"k{number}", b"", headers={"a": number}))
        client.sync(0)


def bound_chain(target: Target) -> None:
    """Each exchange is bound to the next one, and messages have new keys."""
    length = target.many(20_000)
    with target.client() as client:
        client.declare("bound", durable=False)
        frames.flood(
            client,
            [
                commands.Exchange.Declare(exchange=f"x{n}", exchange_type="fanout" if n % 2 else "topic")
                for n in range(length)
            ],
        )
        frames.flood(
            client,
            [
                commands.Exchange.Bind(destination=f"x{n + 1}", source=f"x{n}", routing_key="#")
                for n in range(length - 1)
            ],
        )
        for number in range(target.many(20)):
            client.send(frames.message("x0", f"k{number}", b"", headers={"a": number}))
        client.count("bound")


def many_keys(target: Target) -> None:
    """Messages with 10,000 keys (CC) go through a chain of 50 alternates."""
    with target.client() as client:
        client.declare("bound", durable=False)
        frames.flood(
            client,
            [
                commands.Exchange.Declare(exchange=f"x{n}", arguments={"alternate-exchange": f"x{n + 1}"})
                for n in range(50)
            ],
        )
        for number in range(target.many(10)):
            keys: Any = [f"{n}" for n in range(10_000)]
            client.send(frames.message("x0", f"k{number}", b"", headers={"CC": keys}))
        client.count("bound")


def auto_delete_chain(target: Target) -> None:
    """Exchanges that go when their last binding goes, each bound to the next one; the last one loses its
    queue.
    """
    length = target.many(20_000)
    with target.client() as client:
        client.declare("bound", durable=False)
        frames.flood(
            client,
            [
                commands.Exchange.Declare(exchange=f"x{n}", exchange_type="fanout", auto_delete=True)
                for n in range(length)
            ],
        )
        frames.flood(
            client,
            [commands.Exchange.Bind(destination=f"x{n + 1}", source=f"x{n}") for n in range(length - 1)],
        )
        client.call(
            commands.Queue.Bind(queue="bound", exchange=f"x{length - 1}", routing_key=""),
            commands.Queue.BindOk,
        )
        client.call(commands.Queue.Delete(queue="bound"), commands.Queue.DeleteOk)
        client.call(
            commands.Exchange.Declare(exchange="x0", exchange_type="direct"), commands.Exchange.DeclareOk
        )


def expiries_at_once(target: Target) -> None:
    """A fanout to 10,000 queues, whose messages all expire at the same time."""
    with target.client() as client:
        count = target.many(10_000)
        arguments: Any = {"x-message-ttl": 2_000}
        frames.flood(
            client,
            [
                commands.Queue.Declare(queue=f"q{n}", exclusive=True, arguments=arguments)
                for n in range(count)
            ],
        )
        frames.flood(
            client, [commands.Queue.Bind(queue=f"q{n}", exchange="amq.fanout") for n in range(count)]
        )
        for _ in range(3):
            client.send(frames.message("amq.fanout", "", b"x") * 2)
            client.sync(0)
            time.sleep(2.5)


def hash_ring(target: Target) -> None:
    """Many heavy bindings of a consistent-hash exchange, with a message after each: the sum of the weights is
    the largest permitted.
    """
    with target.client() as client:
        client.call(
            commands.Exchange.Declare(exchange="ring", exchange_type="x-consistent-hash"),
            commands.Exchange.DeclareOk,
        )
        count = target.many(1_000)
        _queues(client, count)
        for number in range(count):
            client.call(
                commands.Queue.Bind(queue=f"q{number}", exchange="ring", routing_key="65"),
                commands.Queue.BindOk,
            )
            client.send(frames.message("ring", f"k{number}", b""))


def topic_hashes(target: Target) -> None:
    """Patterns of many `#` against keys of many words."""
    with target.client() as client:
        client.declare("bound", durable=False)
        for last in "abcdefgh":
            client.call(
                commands.Queue.Bind(
                    queue="bound", exchange="amq.topic", routing_key=".".join(["#"] * 12 + [last])
                ),
                commands.Queue.BindOk,
            )
        for number in range(target.many(50)):
            client.send(frames.message("amq.topic", ".".join(["w"] * 60 + [f"{number}"]), b""))
        client.count("bound")


def wide_headers(target: Target) -> None:
    """Bindings that match any of 300 headers, and messages with 2,000."""
    with target.client() as client:
        client.declare("bound", durable=False)
        for number in range(50):
            wanted: Any = {f"h{number}-{n}": "no" for n in range(300)} | {"x-match": "any"}
            client.call(
                commands.Queue.Bind(queue="bound", exchange="amq.headers", arguments=wanted),
                commands.Queue.BindOk,
            )
        for number in range(target.many(200)):
            headers = {f"k{n}": f"{number}" for n in range(2_000)}
            client.send(frames.message("amq.headers", "", b"", headers=headers))
        client.count("bound")


def common_header(target: Target) -> None:
    """Very many bindings that match one header, and messages that all have this header and one shape."""
    with target.client() as client:
        client.declare("bound", durable=False)
        frames.flood(
            client,
            [
                commands.Queue.Bind(
                    queue="bound",
                    exchange="amq.headers",
                    arguments={"x-match": "any", "common": "x", "own": f"{n}"},
                )
                for n in range(target.many(30_000))
            ],
        )
        messages = (
            frames.message("amq.headers", "", b"", headers={"common": "x", "number": f"{n:08}"})
            for n in range(target.many(5_000))
        )
        client.send(b"".join(messages))
        client.count("bound")


def wide_fanout(target: Target) -> None:
    """A fanout to 3,000 queues."""
    with target.client() as client:
        count = target.many(3_000)
        _queues(client, count, exclusive=True)
        frames.flood(
            client, [commands.Queue.Bind(queue=f"q{n}", exchange="amq.fanout") for n in range(count)]
        )
        one = frames.message("amq.fanout", "", b"x")
        for _ in range(target.many(250)):
            client.send(one * 20)
        client.sync(0)


def passive_declares(target: Target) -> None:
    with target.client() as client:
        client.declare("here", durable=False)
        question = commands.Queue.Declare(queue="here", passive=True)
        frames.flood(client, [question] * target.many(200_000), batch=20_000)


def exclusive_queues_left(target: Target) -> None:
    """A client with 40,000 queues of its own disconnects."""
    with target.client() as client:
        _queues(client, target.many(40_000), exclusive=True)


SCENES = (
    Scene("many-bindings", "18,000 bindings of one exchange", many_bindings),
    Scene("channel-churn", "3,000 channels opened and closed beside 10,000 remembered routes", channel_churn),
    Scene("alternate-chain", "chain of 3,000 alternate exchanges", alternate_chain),
    Scene("headers-chain", "chain of 5,000 alternate exchanges that look at headers", headers_chain),
    Scene("bound-chain", "chain of 20,000 exchanges bound to each other", bound_chain),
    Scene("many-keys", "messages with 10,000 keys, over 50 alternate exchanges", many_keys),
    Scene("auto-delete-chain", "chain of 20,000 auto-delete exchanges that go at once", auto_delete_chain),
    Scene("expiries-at-once", "messages of 10,000 queues that expire at the same time", expiries_at_once),
    Scene("hash-ring", "1,000 heavy bindings of a consistent-hash exchange", hash_ring),
    Scene("topic-hashes", "topic patterns with 12 `#`, keys of 61 words", topic_hashes),
    Scene("wide-headers", "50 bindings for any of 300 headers, messages with 2,000", wide_headers),
    Scene("common-header", "30,000 bindings for one header, 5,000 messages that have it", common_header),
    Scene("wide-fanout", "5,000 messages to 3,000 queues each", wide_fanout),
    Scene("passive-declares", "200,000 passive declares", passive_declares),
    Scene("exclusive-queues-left", "40,000 exclusive queues deleted at once", exclusive_queues_left),
)
