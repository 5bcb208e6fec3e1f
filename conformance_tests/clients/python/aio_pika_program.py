"""Stock aio-pika against any broker; its robust connection must come back by itself."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import aio_pika
import aiormq
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from conformance_tests.clients.python import checks
from conformance_tests.clients.python.checks import (
    AMQP_URL,
    CheckFailed,
    Checks,
    Names,
    contains,
    equal,
    that,
)

name = Names("aio-pika")
PROPERTIES = (
    "app_id",
    "content_encoding",
    "content_type",
    "correlation_id",
    "delivery_mode",
    "expiration",
    "headers",
    "message_id",
    "priority",
    "reply_to",
    "timestamp",
    "type",
    "user_id",
)


class Client:
    connection: aio_pika.abc.AbstractConnection


client = Client()


async def temporary_queue(channel: AbstractChannel, arguments: Any = None) -> AbstractQueue:
    return await channel.declare_queue(exclusive=True, arguments=arguments)


async def get_one(queue: AbstractQueue) -> AbstractIncomingMessage:
    while True:
        message = await queue.get(no_ack=True, fail=False)
        if message is not None:
            return message
        await asyncio.sleep(0.02)


async def get_all(queue: AbstractQueue) -> list[bytes]:
    bodies: list[bytes] = []
    while True:
        message = await queue.get(no_ack=True, fail=False)
        if message is None:
            return bodies
        bodies.append(message.body)


async def ready(channel: AbstractChannel, queue: AbstractQueue) -> int | None:
    return (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count


async def publish(channel: AbstractChannel, routing_key: str, body: bytes, **properties: Any) -> None:
    await channel.default_exchange.publish(Message(body, **properties), routing_key)


async def wrong_password_is_refused() -> None:
    await refused(checks.other_url(password="not-the-password"), "ACCESS_REFUSED")


async def unknown_vhost_is_refused() -> None:
    # aiormq reports the broker's connection.close as a frame that it did not expect, without code and text.
    await refused(checks.other_url(vhost="no-such-vhost"), "Connection.Close")


async def refused(url: str, text: str) -> None:
    try:
        connection = await aio_pika.connect(url)
    except aio_pika.exceptions.AMQPError as error:
        contains(repr(error), text)
    else:
        await connection.close()
        raise CheckFailed(f"connected to {url}")


async def exchange_types_route() -> None:
    async with client.connection.channel() as channel:
        kinds: Any = (
            (ExchangeType.DIRECT, "red", None, ("red", None), ("blue", None)),
            (ExchangeType.FANOUT, "", None, ("anything", None), None),
            (ExchangeType.TOPIC, "stock.*.#", None, ("stock.eur.a", None), ("bond.eur", None)),
            (
                ExchangeType.HEADERS,
                "",
                {"x-match": "any", "a": 1, "b": 2},
                ("", {"b": 2}),
                ("", {"b": 3}),
            ),
        )
        for kind, binding, arguments, hit, miss in kinds:
            exchange = await channel.declare_exchange(name(kind.value), kind, auto_delete=True)
            queue = await temporary_queue(channel)
            await queue.bind(exchange, binding, arguments=arguments)
            await exchange.publish(Message(b"hit", headers=hit[1]), hit[0])
            if miss is not None:
                returned = await exchange.publish(Message(b"miss", headers=miss[1]), miss[0])
                that(isinstance(returned, aiormq.abc.DeliveredMessage), f"{kind.value}: no return")
            equal(await get_all(queue), [b"hit"], kind.value)
            await queue.unbind(exchange, binding, arguments=arguments)


async def exchange_to_exchange_routes() -> None:
    async with client.connection.channel() as channel:
        source = await channel.declare_exchange(name("source"), ExchangeType.TOPIC)
        destination = await channel.declare_exchange(name("destination"), ExchangeType.FANOUT)
        queue = await temporary_queue(channel)
        await destination.bind(source, "a.#")
        await queue.bind(destination)
        await source.publish(Message(b"through two"), "a.b")
        equal(await get_all(queue), [b"through two"], "exchange to exchange")
        await destination.unbind(source, "a.#")
        await source.publish(Message(b"no more"), "a.b")
        equal(await get_all(queue), [], "after exchange.unbind")
        await source.delete()
        await destination.delete()


async def expired_messages_are_dead_lettered() -> None:
    async with client.connection.channel() as channel:
        dead = await temporary_queue(channel)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
        queue = await temporary_queue(channel, arguments)
        await publish(channel, queue.name, b"short life", expiration=0.03)
        message = await get_one(dead)
        equal(message.body, b"short life", "dead letter")
        deaths: Any = message.headers["x-death"]
        equal((deaths[0]["reason"], deaths[0]["queue"]), ("expired", queue.name), "x-death")
        equal(deaths[0]["original-expiration"], "30", "x-death original-expiration")


async def publishes_are_confirmed() -> None:
    async with client.connection.channel() as channel:
        queue = await channel.declare_queue(name("confirmed"), durable=True)
        await asyncio.gather(
            *(
                publish(channel, queue.name, b"%d" % n, delivery_mode=DeliveryMode.PERSISTENT)
                for n in range(500)
            )
        )
        equal(await ready(channel, queue), 500, "after the confirms")
        equal(await get_all(queue), [b"%d" % n for n in range(500)], "order")
        await queue.delete()


async def full_queue_nacks() -> None:
    async with client.connection.channel() as channel:
        queue = await temporary_queue(channel, {"x-max-length": 1, "x-overflow": "reject-publish"})
        await publish(channel, queue.name, b"fits")
        try:
            await publish(channel, queue.name, b"does not")
        except aio_pika.exceptions.DeliveryError as error:
            contains(error.frame.name, "Nack")
        else:
            raise CheckFailed("the second publish was confirmed")


async def unroutable_mandatory_returns() -> None:
    async with client.connection.channel(on_return_raises=True) as channel:
        try:
            await publish(channel, name("nowhere"), b"come back")
        except aio_pika.exceptions.PublishError as error:
            returned: Any = error.message
            equal(
                (returned.delivery.reply_code, returned.delivery.reply_text),
                (312, "NO_ROUTE"),
                "basic.return",
            )
            equal(returned.body, b"come back", "body")
        else:
            raise CheckFailed("nothing was returned")


async def prefetch_bounds_unacked() -> None:
    async with client.connection.channel() as channel:
        await channel.set_qos(prefetch_count=3)
        queue = await temporary_queue(channel)
        for n in range(10):
            await publish(channel, queue.name, b"%d" % n)
        arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        await queue.consume(arrived.put)
        bodies = []
        for n in range(10):
            message = await arrived.get()
            if n in (0, 5):
                while await ready(channel, queue) != 7 - n:
                    await asyncio.sleep(0.02)
                that(arrived.qsize() <= 2, f"{arrived.qsize() + 1} unacked beyond the prefetch of 3")
            bodies.append(message.body)
            await message.ack()
        equal(bodies, [b"%d" % n for n in range(10)], "order")


async def stream_with(channel: AbstractChannel, count: int) -> AbstractQueue:
    """Declare a stream with so many numbered messages."""
    stream = await channel.declare_queue(name(f"stream-{count}"), durable=True, arguments=dict(checks.STREAM))
    for n in range(count):
        await publish(channel, stream.name, b"%d" % n)
    return stream


async def read(
    queue: str, count: int, arguments: Any = None, *, acks: int | None = None
) -> list[AbstractIncomingMessage]:
    """Consume so many messages on a separate channel, and ack the first ones, or all. The channel is closed
    with the unacked rest.
    """
    async with client.connection.channel() as channel:
        await channel.set_qos(prefetch_count=checks.STREAM_PREFETCH)
        arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        await (await channel.get_queue(queue, ensure=False)).consume(arrived.put, arguments=arguments)
        got = []
        for n in range(count):
            message = await arrived.get()
            if acks is None or n < acks:
                await message.ack()
            got.append(message)
        return got


def offsets(got: list[AbstractIncomingMessage]) -> list[Any]:
    """Offsets of messages whose bodies are their offsets."""
    found = [message.headers["x-stream-offset"] for message in got]
    equal([message.body for message in got], [str(offset).encode() for offset in found], "bodies and offsets")
    return found


async def stream_is_read_from_an_offset() -> None:
    async with client.connection.channel() as channel:
        stream = await stream_with(channel, checks.STREAM_MESSAGES)
        for start, first in ((20, 20), ("first", 0), (20, 20)):
            got = await read(stream.name, checks.STREAM_MESSAGES - first, {"x-stream-offset": start})
            equal(offsets(got), list(range(first, checks.STREAM_MESSAGES)), f"offsets from {start}")
        await stream.delete(if_unused=False, if_empty=False)


async def group_goes_on_where_it_acked() -> None:
    async with client.connection.channel() as channel:
        stream = await stream_with(channel, checks.STREAM_MESSAGES)
        arguments: Any = checks.group_of(stream.name)
        group = await channel.declare_queue(name("group"), durable=True, arguments=arguments)
        got = await read(group.name, checks.GROUP_ACKS + 1, acks=checks.GROUP_ACKS)
        equal(offsets(got), list(range(checks.GROUP_ACKS + 1)), "offsets of the first member")
        equal({message.headers["x-stream"] for message in got}, {stream.name}, "x-stream")
        got = await read(group.name, checks.STREAM_MESSAGES - checks.GROUP_ACKS)
        equal(
            offsets(got), list(range(checks.GROUP_ACKS, checks.STREAM_MESSAGES)), "offsets of the second one"
        )
        that(got[0].redelivered, "what the first member held and had not acked is flagged")
        equal(await get_all(group), [], "one more than was published")
        equal(await ready(channel, group), 0, "messages of the group")
        await group.delete(if_unused=False, if_empty=False)
        await stream.delete(if_unused=False, if_empty=False)


async def requeued_comes_back_redelivered() -> None:
    async with client.connection.channel() as channel:
        queue = await temporary_queue(channel)
        for body in (b"first", b"second"):
            await publish(channel, queue.name, body)
        message = await get_unacked(queue)
        equal((message.body, message.redelivered), (b"first", False), "get")
        await message.nack(requeue=True)
        message = await get_unacked(queue)
        equal((message.body, message.redelivered), (b"first", True), "in its old place, flagged")
        await message.reject(requeue=False)
        equal(await get_all(queue), [b"second"], "after the reject")


async def get_unacked(queue: AbstractQueue) -> AbstractIncomingMessage:
    while True:
        message = await queue.get(fail=False)
        if message is not None:
            return message
        await asyncio.sleep(0.02)


async def consumer_is_told_of_the_queues_end() -> None:
    async with client.connection.channel() as channel, client.connection.channel() as other:
        queue = await channel.declare_queue(name("doomed"))
        underlay: Any = await channel.get_underlay_channel()
        consumed = asyncio.Event()

        async def consume(message: aiormq.abc.DeliveredMessage) -> None:
            consumed.set()

        tag = (await underlay.basic_consume(queue.name, consume, no_ack=True)).consumer_tag
        await publish(other, queue.name, b"last")
        await consumed.wait()
        await other.queue_delete(queue.name)
        # aiormq drops a consumer when the broker's basic.cancel comes; the check's own time limit ends this.
        while tag in underlay.consumers:
            await asyncio.sleep(0.02)


async def properties_come_back_as_sent() -> None:
    async with client.connection.channel() as channel:
        queue = await temporary_queue(channel)
        sent = Message(
            b"body",
            content_type="application/json",
            content_encoding="utf-8",
            headers={
                "text": "größe",
                "int": -7,
                "long": 2**40,
                "yes": True,
                "list": [1, {"b": 2}],
                "none": None,
            },
            delivery_mode=DeliveryMode.PERSISTENT,
            priority=7,
            correlation_id="c-1",
            reply_to="r-1",
            expiration=60,
            message_id="m-1",
            timestamp=datetime(2024, 2, 29, 12, tzinfo=UTC),
            type="t-1",
            user_id="guest" if "guest" in AMQP_URL else None,
            app_id="a-1",
        )
        await channel.default_exchange.publish(sent, queue.name)
        got = await get_one(queue)
        equal(got.body, sent.body, "body")
        want: dict[str, Any] = {**sent.info()}
        have: dict[str, Any] = {**got.info()}
        # Of the other properties, cluster_id None comes back as "", and a tag and a key come with the
        # delivery.
        for key in PROPERTIES:
            equal(have[key], want[key], key)


async def large_message_is_whole() -> None:
    async with client.connection.channel() as channel:
        queue = await temporary_queue(channel)
        body = bytes(range(256)) * 4096 + b"tail"
        await publish(channel, queue.name, body)
        that((await get_one(queue)).body == body, "1 MiB came back changed")


async def transactions_commit_and_roll_back() -> None:
    async with client.connection.channel(publisher_confirms=False) as channel:
        queue = await temporary_queue(channel)
        async with channel.transaction():
            await publish(channel, queue.name, b"committed")
        transaction = channel.transaction()
        await transaction.select()
        await publish(channel, queue.name, b"rolled back")
        await transaction.rollback()
        equal(await get_all(queue), [b"committed"], "what the transactions left")


async def expect_close(code: int, text: str, act: Callable[[AbstractChannel], Awaitable[object]]) -> None:
    channel = await client.connection.channel()
    classes = {403: "ChannelAccessRefused", 404: "ChannelNotFoundEntity", 405: "ChannelLockedResource"}
    try:
        await act(channel)
    except aio_pika.exceptions.ChannelClosed as error:
        equal(type(error).__name__, classes.get(code, "ChannelPreconditionFailed"), "exception class")
        contains(repr(error), text)
    else:
        raise CheckFailed(f"no channel close {code}")
    async with client.connection.channel() as fresh:
        await temporary_queue(fresh)


async def missing_things_give_404() -> None:
    missing = name("missing")
    await expect_close(404, f"no queue '{missing}' in vhost '/'", lambda ch: ch.get_queue(missing))
    await expect_close(404, f"no exchange '{missing}' in vhost '/'", lambda ch: ch.get_exchange(missing))


async def reserved_names_give_403() -> None:
    await expect_close(403, "ACCESS_REFUSED", lambda ch: ch.declare_queue("amq.mine"))
    await expect_close(403, "ACCESS_REFUSED", lambda ch: ch.declare_exchange("amq.mine"))


async def other_connections_exclusive_queue_gives_405() -> None:
    other = await aio_pika.connect(AMQP_URL)
    queue = await temporary_queue(await other.channel())
    await expect_close(
        405,
        f"cannot obtain exclusive access to locked queue '{queue.name}'",
        lambda ch: ch.get_queue(queue.name),
    )
    await other.close()


async def disagreement_gives_406() -> None:
    async with client.connection.channel() as channel:
        queue = name("agreed")
        await channel.declare_queue(queue, exclusive=True)
        await expect_close(
            406,
            f"inequivalent arg 'auto_delete' for queue '{queue}' in vhost '/': received 'true' but current is 'false'",
            lambda ch: ch.declare_queue(queue, exclusive=True, auto_delete=True),
        )


async def robust_connection_comes_back() -> None:
    """Queues, bindings, a consumer: the client restores all of them; its unacked messages arrive again,
    flagged.
    """
    connection = await aio_pika.connect_robust(AMQP_URL, reconnect_interval=0.3)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=1)
        exchange = await channel.declare_exchange(name("robust-exchange"), ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(name("robust"), durable=True)
        await queue.bind(exchange, "a.*")
        temporary = await channel.declare_queue(name("robust-temporary"), exclusive=True)
        arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        await queue.consume(arrived.put)
        for n in range(50):
            await exchange.publish(Message(b"%d" % n, delivery_mode=DeliveryMode.PERSISTENT), "a.b")
        held = await arrived.get()
        equal((held.body, held.redelivered), (b"0", False), "before the restart")
        reconnected = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: reconnected.set())
        await asyncio.to_thread(checks.restart_broker)
        await reconnected.wait()
        got = []
        for n in range(50):
            message = await arrived.get()
            if n == 0:
                equal(message.redelivered, True, "redelivered")
            got.append(message.body)
            await message.ack()
        equal(got, [b"%d" % n for n in range(50)], "messages after the restart")
        await channel.default_exchange.publish(Message(b"again"), temporary.name)
        equal((await get_one(temporary)).body, b"again", "the exclusive queue, declared again by the client")
        await exchange.publish(Message(b"new"), "a.c")
        message = await arrived.get()
        equal(message.body, b"new", "through the old binding to the old consumer")
        await message.ack()
        await queue.delete(if_unused=False, if_empty=False)
        await exchange.delete()


async def run() -> int:
    results = Checks()
    client.connection = await aio_pika.connect(AMQP_URL)
    for check in (
        wrong_password_is_refused,
        unknown_vhost_is_refused,
        exchange_types_route,
        exchange_to_exchange_routes,
        expired_messages_are_dead_lettered,
        publishes_are_confirmed,
        full_queue_nacks,
        unroutable_mandatory_returns,
        prefetch_bounds_unacked,
        requeued_comes_back_redelivered,
        consumer_is_told_of_the_queues_end,
        properties_come_back_as_sent,
        large_message_is_whole,
        transactions_commit_and_roll_back,
        missing_things_give_404,
        reserved_names_give_403,
        other_connections_exclusive_queue_gives_405,
        disagreement_gives_406,
        stream_is_read_from_an_offset,
    ):
        await results.run_async(check)
    await results.run_async(group_goes_on_where_it_acked, needs_groups=True)
    await client.connection.close()
    await results.run_async(robust_connection_comes_back, needs_restart=True)
    return results.finish()


if __name__ == "__main__":
    checks.exit_with(asyncio.run(run()))
