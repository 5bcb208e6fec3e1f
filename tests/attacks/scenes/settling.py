"""Attacks through acks, prefetch and dead letters."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from pamqp import commands

from tests.reliability.client import ChannelClosed, Client, Delivery, settle

from ..scene import Scene, Target
from . import frames
from .web import call

#: Channels of one client, and the time for which a transaction may stay open.
CHANNELS, TX_TIMEOUT_S = 1_000, 3


def _fill(target: Target, count: int, queue: str = "many") -> None:
    with target.client() as client:
        client.declare(queue, durable=False)
        one = frames.message("", queue, b"")
        for _ in range(count // 1000):
            client.send(one * 1000)
        client.send(one * (count % 1000))
        client.count(queue)


def rolled_back_acks(target: Target) -> None:
    """Many acks in one transaction, which is rolled back."""
    count = target.many(200_000)
    _fill(target, count)
    with target.client() as client:
        client.consume("many", 0)
        taken = 0
        while taken < count:
            taken += sum(isinstance(event, Delivery) for event in client.receive())
        client.call(commands.Tx.Select(), commands.Tx.SelectOk)
        for first in range(1, count + 1, 1000):
            client.send(b"".join(settle(80, tag, 0) for tag in range(first, min(first + 1000, count + 1))))
        client.call(commands.Tx.Rollback(), commands.Tx.RollbackOk)


def open_transactions(target: Target) -> None:
    """Very many channels, each with a transaction that is never committed; all of them become too old at
    about the same time, while somebody lists them.
    """
    count = target.many(10_000)
    with target.client() as client:
        client.declare("some", durable=False)
    with contextlib.ExitStack() as stack:
        for first in range(0, count, CHANNELS):
            client = stack.enter_context(target.client(channel_max=CHANNELS + 1))
            for channel in range(2, min(CHANNELS, count - first) + 2):
                client.method(commands.Channel.Open(), channel)
                client.method(commands.Tx.Select(), channel)
                client.send(frames.message("", "some", b"x", channel=channel))
        until = time.monotonic() + 2 * TX_TIMEOUT_S
        while time.monotonic() < until:
            assert call(target, "GET", "/api/transactions") == 200
            time.sleep(0.5)


def _held(target: Target, client: Client, count: int) -> None:
    """Have a channel hold many messages of two queues, never two in a row from the same queue."""
    for name in ("left", "right"):
        client.declare(name, durable=False)
        client.call(commands.Basic.Consume(queue=name, consumer_tag=name), commands.Basic.ConsumeOk)
    taken = 0
    while taken < count:
        client.send(b"".join(frames.message("", name, b"") for name in ("left", "right")))
        arrived = 0
        while arrived < 2:
            arrived += sum(isinstance(event, Delivery) for event in client.receive())
        taken += arrived


def scattered_acks(target: Target) -> None:
    """Acks in one transaction, never two in a row for one queue, which is rolled back; then the client
    disconnects while it holds the messages.
    """
    with target.client() as client:
        _held(target, client, target.many(18_000))
        client.call(commands.Tx.Select(), commands.Tx.SelectOk)
        for _ in range(3):
            client.send(settle(80, 0, 1))
            client.call(commands.Tx.Rollback(), commands.Tx.RollbackOk)
        client.send(settle(80, 0, 1))


def _deliveries(client: Client, count: int) -> None:
    taken = 0
    while taken < count:
        taken += sum(isinstance(event, Delivery) for event in client.receive())


def ack_of_many(target: Target) -> None:
    """A channel without prefetch holds many messages, never two in a row from one consumer. One nack returns
    them, and one ack settles them; some are discarded, and the last ones are acked in a transaction.
    """
    count = target.many(200_000)
    _fill(target, count)
    with target.client() as client:
        for number in range(10):
            client.consume("many", 0, tag=f"c{number}")
        _deliveries(client, count)
        client.send(settle(120, 0, 3))
        _deliveries(client, count)
        client.call(commands.Basic.Recover(requeue=True), commands.Basic.RecoverOk)
        _deliveries(client, count)
        client.send(settle(120, 3 * count - count // 2, 1))
        client.send(settle(80, 3 * count - target.many(15_000), 1))
        client.call(commands.Tx.Select(), commands.Tx.SelectOk)
        client.send(settle(80, 0, 1))
        client.call(commands.Tx.Commit(), commands.Tx.CommitOk)


def _consuming(target: Target, client: Client, queue: str, **options: Any) -> int:
    """Open channels with 40,000 consumers of one queue; return the number of channels."""
    declare = commands.Queue.Declare(queue=queue, **options)
    client.call(declare, commands.Queue.DeclareOk)
    channels = max(2, target.many(80))
    for channel in range(2, channels + 2):
        client.method(commands.Channel.Open(), channel)
        client.expect(commands.Channel.OpenOk)
        consumers = (commands.Basic.Consume(queue=queue, consumer_tag=f"c{n}") for n in range(500))
        frames.flood(client, consumers, channel=channel)
    return channels


def end_of_consumers(target: Target) -> None:
    """A queue that has 40,000 consumers on 80 channels is deleted; then the same by the end of its
    connection, which deletes an exclusive and an auto-delete queue, after it has got a message for each
    consumer.
    """
    with target.client(channel_max=200) as client:
        count = 500 * _consuming(target, client, "deleted")
        client.call(commands.Queue.Delete(queue="deleted"), commands.Queue.DeleteOk)
    for options in ({"exclusive": True}, {"auto_delete": True}):
        with target.client(channel_max=200) as client:
            count = 500 * _consuming(target, client, "ended", **options)
            client.send(frames.message("", "ended", b"x") * count)
            _deliveries(client, count)
        deadline = time.monotonic() + 60
        while _exists(target, "ended") and time.monotonic() < deadline:
            time.sleep(0.2)


def _exists(target: Target, queue: str) -> bool:
    with target.client() as client:
        try:
            client.count(queue)
        except ChannelClosed as closed:
            # An exclusive queue of another client is locked.
            return "404" not in str(closed)
    return True


def prefetch_toggled(target: Target) -> None:
    """The prefetch of a channel with many consumers goes up and down."""
    with target.client() as client:
        client.declare("quiet", durable=False)
        frames.flood(
            client,
            [commands.Basic.Consume(queue="quiet", consumer_tag=f"c{n}") for n in range(target.many(10_000))],
        )
        frames.flood(
            client,
            [commands.Basic.Qos(prefetch_count=n % 2 + 1, global_=True) for n in range(target.many(2_000))],
        )


def nacks_of_nothing(target: Target) -> None:
    """`nack(0, multiple)` on a channel with many consumers."""
    with target.client() as client:
        client.declare("quiet", durable=False)
        frames.flood(
            client,
            [commands.Basic.Consume(queue="quiet", consumer_tag=f"c{n}") for n in range(target.many(10_000))],
        )
        client.send(settle(120, 0, 3) * target.many(2_000))
        client.sync(0)


def dead_letter_cycles(target: Target) -> None:
    """Six queues whose dead letters all go back to the exchange that feeds them."""
    queues = 6 if target.size >= 1 else 4
    with target.client() as client:
        client.call(
            commands.Exchange.Declare(exchange="round", exchange_type="fanout"), commands.Exchange.DeclareOk
        )
        for number in range(queues):
            client.declare(
                f"round-{number}",
                durable=False,
                **{"x-dead-letter-exchange": "round", "x-message-ttl": 1},
            )
            client.call(commands.Queue.Bind(queue=f"round-{number}", exchange="round"), commands.Queue.BindOk)
        client.send(frames.message("round", "", b"x"))
        for _ in range(20):
            client.sync(0)


def large_commits(target: Target) -> None:
    """Many persistent messages in one transaction."""
    count = target.many(60_000)
    with target.client() as client:
        client.declare("durable", durable=True)
        for _ in range(3):
            client.call(commands.Tx.Select(), commands.Tx.SelectOk)
            one = frames.message("", "durable", b"x" * 100, delivery_mode=2)
            for _ in range(count // 1000):
                client.send(one * 1000)
            client.call(commands.Tx.Commit(), commands.Tx.CommitOk)


def wide_dead_letters(target: Target) -> None:
    """Messages expire at once, and each goes to 3,000 queues."""
    with target.client() as client:
        count = target.many(3_000)
        frames.flood(client, [commands.Queue.Declare(queue=f"q{n}", auto_delete=False) for n in range(count)])
        frames.flood(
            client, [commands.Queue.Bind(queue=f"q{n}", exchange="amq.fanout") for n in range(count)]
        )
        dying = {"x-dead-letter-exchange": "amq.fanout", "x-message-ttl": 200}
        client.declare("dying", durable=False, **dying)
        client.send(frames.message("", "dying", b"x") * 200)
        deadline = time.monotonic() + 30
        while client.count("q0") < 200 and time.monotonic() < deadline:
            time.sleep(0.1)


def full_deduplication(target: Target) -> None:
    """A queue that remembers 100,000 ids, and each new id pushes one out."""
    count = target.many(100_000)
    with target.client() as client:
        arguments: Any = {"x-deduplication": True, "x-deduplication-count": count, "x-max-length": 1}
        client.call(
            commands.Queue.Declare(queue="remembering", arguments=arguments), commands.Queue.DeclareOk
        )
        for start in range(0, count + target.many(40_000), 1_000):
            client.send(
                b"".join(
                    frames.message("", "remembering", b"", headers={"x-deduplication-id": f"{n:010}"})
                    for n in range(start, start + 1_000)
                )
            )
        client.sync(0)


def long_deaths(target: Target) -> None:
    """Messages that say that they have died very many times, in a queue that drops them."""
    with target.client() as client:
        arguments: Any = {
            "x-max-length": 0,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        }
        client.call(commands.Queue.Declare(queue="dying", arguments=arguments), commands.Queue.DeclareOk)
        arguments = {"x-max-length": 10}
        client.call(commands.Queue.Declare(queue="dead", arguments=arguments), commands.Queue.DeclareOk)
        deaths: Any = [{"queue": f"q{n}", "reason": "expired", "count": 1} for n in range(2_000)]
        one = frames.message("", "dying", b"", headers={"x-death": deaths})
        deaths = [{} for _ in range(20_000)]
        other = frames.message("", "dying", b"", headers={"x-death": deaths})
        for _ in range(target.many(50)):
            client.send(one + other)
        client.sync(0)


SCENES = (
    Scene("full-deduplication", "40,000 ids for a queue that remembers 100,000", full_deduplication),
    Scene("long-deaths", "dead letters with an `x-death` of 2,000 and 20,000 entries", long_deaths),
    Scene("large-commits", "three commits of 60,000 persistent messages each", large_commits),
    Scene("wide-dead-letters", "200 dead letters to 3,000 queues each", wide_dead_letters),
    Scene(
        "open-transactions",
        "10,000 open transactions, which all become too old",
        open_transactions,
        options=("--tx-timeout-ms", str(1_000 * TX_TIMEOUT_S)),
    ),
    Scene("rolled-back-acks", "transaction with 200,000 acks rolled back", rolled_back_acks),
    Scene(
        "scattered-acks", "transactions with 18,000 acks of two queues in turn, rolled back", scattered_acks
    ),
    Scene("ack-of-many", "200,000 deliveries returned by one nack, and settled by one ack", ack_of_many),
    Scene(
        "end-of-consumers",
        "queues with 40,000 consumers deleted, and lost with their client",
        end_of_consumers,
    ),
    Scene("prefetch-toggled", "global prefetch of 10,000 consumers changed 2,000 times", prefetch_toggled),
    Scene("nacks-of-nothing", "2,000 multiple nacks on a channel with 10,000 consumers", nacks_of_nothing),
    Scene("dead-letter-cycles", "dead letters of six queues, each fed by all", dead_letter_cycles),
)
