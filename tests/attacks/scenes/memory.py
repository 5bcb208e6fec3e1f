"""Attacks on the broker's memory, and attacks that could end it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from pamqp import base, commands

from tests.reliability.client import ChannelClosed, Client, Delivery, Gone

from ..scene import MIB, Scene, Target
from . import frames

#: Seconds for which the attacker keeps still.
HELD_S = 3.0
#: With this limit the memory alarm comes first.
NO_LIMIT = ("--unfinished-bytes-max", "4GiB")
#: Seconds within which the broker ends it: twice `unfinished_timeout_s`, and some more.
ENDED_S = 60.0
#: The same for clients that read nothing: `unfinished_timeout_s`, and a moment for the data that the socket
#: still has.
UNTAKEN_S = 25.0


def long_dead_letter_key(target: Target) -> None:
    """A dead-letter routing key that does not fit into a short string, when a timer needs it."""
    with target.client() as client:
        with contextlib.suppress(ChannelClosed):
            arguments: Any = {
                "x-dead-letter-exchange": "amq.fanout",
                "x-dead-letter-routing-key": "k" * 300,
                "x-message-ttl": 50,
            }
            client.declare("keys", **arguments)
            client.send(frames.message("", "keys", b"x", delivery_mode=2))
        time.sleep(0.5)
    target.node.mqctl("list_queues")


def deleted_queues(target: Target) -> None:
    """Fill a queue and delete it, again and again: in all four times the memory."""
    body = bytes(MIB)
    for _ in range(8):
        with target.client() as client:
            client.declare("full", durable=False)
            for _ in range(target.many(150)):
                client.send(frames.message("", "full", body))
            client.call(commands.Queue.Delete(queue="full"), commands.Queue.DeleteOk)


def got_and_nacked(target: Target) -> None:
    """A few bytes request one large message a hundred times."""
    with target.client() as client:
        client.declare("large", durable=False)
        client.send(frames.message("", "large", bytes(16 * MIB - 1024)))
        client.count("large")
        times = target.many(100)
        got = [
            frames.method(commands.Basic.Get(queue="large"))
            + frames.method(commands.Basic.Nack(tag, False, True))
            for tag in range(1, times + 1)
        ]
        client.send(b"".join(got))
        # For a while it does not read the answers.
        time.sleep(HELD_S)


def distinct_headers(target: Target) -> None:
    """Large headers, no two alike, at a headers exchange."""
    with target.client() as client:
        client.declare("some", durable=False)
        client.call(
            commands.Queue.Bind(queue="some", exchange="amq.headers", arguments={"wanted": "none"}),
            commands.Queue.BindOk,
        )
        for number in range(target.many(14_000)):
            client.send(
                frames.message("amq.headers", "", b"", headers={"filler": f"{number:08}" + "x" * 60_000})
            )
        client.count("some")


def large_arguments(target: Target) -> None:
    """Durable queues, bindings and consumers with 100 kB of arguments each."""
    arguments: Any = {"filler": "x" * 100_000}
    makers: list[Callable[[int], base.Frame]] = [
        lambda n: commands.Queue.Declare(queue=f"large{n}", durable=True, arguments=arguments),
        lambda n: commands.Queue.Bind(
            queue="some", exchange="amq.headers", arguments=arguments | {"own": n}, routing_key=f"{n}"
        ),
        lambda n: commands.Basic.Consume(queue="some", consumer_tag=f"{n}", arguments=arguments),
    ]
    for make in makers:
        with target.client() as client:
            client.declare("some", durable=False)
            for start in range(0, target.many(8_000), 100):
                frames.flood(client, [make(n) for n in range(start, start + 100)])


def untaken(target: Target) -> None:
    """60 clients that request a message of 16 MiB from a stream and from a queue whose bodies are out of
    memory, and read nothing. The last one reads.
    """
    kinds: list[dict[str, Any]] = [{"x-queue-type": "stream"}, {}]
    for kind in kinds:
        count = target.many(60)
        with target.client() as client:
            client.declare("full", **kind)
            for number in range(count):
                body = number.to_bytes(4, "big") * (4 * MIB - 256)
                client.send(frames.message("", "full", body, delivery_mode=2))
                client.count("full")
            consume = commands.Basic.Consume(
                queue="full", arguments={"x-stream-offset": "first"} if kind else {}
            )
            with contextlib.ExitStack() as stack:
                for _ in range(count - 1):
                    one = stack.enter_context(target.client())
                    one.call(commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
                    one.send(frames.method(consume))
                time.sleep(HELD_S)
            client.call(commands.Queue.Delete(queue="full"), commands.Queue.DeleteOk)


def untaken_replies(target: Target) -> None:
    """A client that waits for direct replies, and reads none of 600 with 1 MiB each; it stays."""
    asking = "amq.rabbitmq.reply-to"
    with target.client() as client, target.client() as serving:
        client.call(commands.Basic.Consume(queue=asking, no_ack=True), commands.Basic.ConsumeOk)
        serving.declare("asked", durable=False)
        serving.call(commands.Basic.Consume(queue="asked", no_ack=True), commands.Basic.ConsumeOk)
        client.send(frames.message("", "asked", b"", reply_to=asking))
        (request,) = serving.receive()
        assert isinstance(request, Delivery)
        at = request.head.index(asking.encode())
        token = request.head[at : at + request.head[at - 1]].decode()
        serving.sock.settimeout(HELD_S)
        with contextlib.suppress(Gone):
            for _ in range(target.many(600)):
                serving.send(frames.message("", token, bytes(MIB)))
        if target.size == 1:
            time.sleep(UNTAKEN_S)
            assert "alarms none" in target.node.mqctl("status"), "the alarm stands"


def unfinished_contents(target: Target) -> None:
    """Many channels, each with a large content whose last frame never comes; the client stays."""
    body = bytes(16 * MIB - 1024)
    with target.client(channel_max=200, timeout_s=10.0) as client:
        client.declare("some", durable=False)
        client.sock.settimeout(HELD_S)
        # Send until the broker stops reading.
        with contextlib.suppress(Gone):
            for channel in range(2, target.many(137) + 2):
                client.method(commands.Channel.Open(), channel)
                client.send(frames.message("", "some", body, channel=channel, whole=False))
        if target.size == 1:
            _ended(client)


def unfinished_transactions(target: Target) -> None:
    """Many channels, each with a large transaction that is never committed; the client stays."""
    body = bytes(MIB)
    with target.client(channel_max=200, timeout_s=10.0) as client:
        client.declare("some", durable=False)
        client.sock.settimeout(HELD_S)
        with contextlib.suppress(Gone):
            for channel in range(2, target.many(10) + 2):
                client.method(commands.Channel.Open(), channel)
                client.method(commands.Tx.Select(), channel)
                for _ in range(100):
                    client.send(frames.message("", "some", body, channel=channel))
        if target.size == 1:
            _ended(client)


def _ended(client: Client) -> None:
    """Send nothing until the broker ends the connection."""
    began = time.monotonic()
    try:
        while time.monotonic() < began + ENDED_S:
            for _ in client.receive(1.0):
                pass
    except Gone as gone:
        assert "unfinished" in str(gone), f"closed with {gone}"
        return
    raise AssertionError("the broker has kept the connection")


SCENES = (
    Scene("long-dead-letter-key", "dead-letter routing key of 300 bytes", long_dead_letter_key),
    Scene("deleted-queues", "1.2 GB queued and deleted, 150 MB at a time", deleted_queues),
    Scene("got-and-nacked", "16 MiB message fetched and returned 100 times in one read", got_and_nacked),
    Scene("distinct-headers", "14,000 messages with 60 kB of headers each, no two alike", distinct_headers),
    Scene("large-arguments", "queues, bindings and consumers with 100 kB of arguments each", large_arguments),
    Scene("untaken", "60 clients that ask for 16 MiB each and take nothing, twice", untaken),
    Scene(
        "untaken-replies",
        "600 replies of 1 MiB to a client that takes none, and stays",
        untaken_replies,
        alarms=True,
    ),
    Scene(
        "unfinished-contents",
        "137 unfinished contents of 16 MiB each, whose client stays",
        unfinished_contents,
        alarms=True,
        options=NO_LIMIT,
    ),
    Scene(
        "unfinished-transactions",
        "1 GB in ten transactions that are never committed, whose client stays",
        unfinished_transactions,
        alarms=True,
        options=NO_LIMIT,
    ),
)
