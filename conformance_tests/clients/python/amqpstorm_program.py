# mypy: disable-error-code="attr-defined"
"""Stock AMQPStorm (threads, blocking calls) against any broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import amqpstorm
from amqpstorm import AMQPChannelError, AMQPConnectionError, Channel, Connection, Message

from conformance_tests.clients.python import checks
from conformance_tests.clients.python.checks import (
    AMQP_URL,
    RESTART_SECONDS,
    CheckFailed,
    Checks,
    Names,
    contains,
    equal,
    that,
    wait_until,
)

name = Names("amqpstorm")
PERSISTENT = {"delivery_mode": 2}


class Client:
    connection: Connection


client = Client()


def connect(url: str = AMQP_URL) -> Connection:
    # UriConnection takes its settings from the query; its own defaults wait too long for a restarting broker.
    return amqpstorm.UriConnection(f"{url}?heartbeat=30&timeout=5")


def temporary_queue(channel: Channel, arguments: dict[str, Any] | None = None) -> str:
    return str(channel.queue.declare("", exclusive=True, arguments=arguments)["queue"])


def get_one(channel: Channel, queue: str, *, no_ack: bool = True) -> Message:
    got: list[Any] = []

    def look() -> None:
        message = channel.basic.get(queue, no_ack=no_ack)
        if message is None:
            time.sleep(0.02)
        else:
            got.append(message)

    wait_until(lambda: got, look, f"a message in {queue}")
    message: Message = got[0]
    return message


def get_all(channel: Channel, queue: str) -> list[str]:
    bodies: list[Any] = []
    while True:
        message: Any = channel.basic.get(queue, no_ack=True)
        if message is None:
            return bodies
        bodies.append(message.body)


def ready(channel: Channel, queue: str) -> int:
    return int(channel.queue.declare(queue, passive=True)["message_count"])


def wrong_password_is_refused() -> None:
    refused(checks.other_url(password="not-the-password"), 403, "ACCESS_REFUSED")


def unknown_vhost_is_refused() -> None:
    refused(checks.other_url(vhost="no-such-vhost"), 530, "no-such-vhost")


def refused(url: str, code: int, text: str) -> None:
    try:
        connect(url).close()
    except AMQPConnectionError as error:
        equal(error.error_code, code, "reply code")
        contains(error, text)
    else:
        raise CheckFailed(f"connected to {url}")


def topology_routes() -> None:
    channel = client.connection.channel()
    source, destination, queue = name("source"), name("destination"), temporary_queue(channel)
    channel.exchange.declare(source, "topic")
    channel.exchange.declare(destination, "direct", durable=True)
    channel.exchange.bind(destination, source, "a.#")
    channel.queue.bind(queue, destination, "a.b")
    channel.confirm_deliveries()
    for key in ("a.b", "a.c", "b.b"):
        channel.basic.publish(key, key, source)
    equal(get_all(channel, queue), ["a.b"], "through both exchanges")
    channel.queue.unbind(queue, destination, "a.b")
    channel.basic.publish("a.b", "a.b", source)
    equal(ready(channel, queue), 0, "after queue.unbind")
    channel.exchange.unbind(destination, source, "a.#")
    channel.exchange.delete(source)
    channel.exchange.delete(destination)
    channel.close()


def rejected_messages_are_dead_lettered() -> None:
    channel = client.connection.channel()
    dead, exchange = temporary_queue(channel), name("dead")
    channel.exchange.declare(exchange, "fanout", auto_delete=True)
    channel.queue.bind(dead, exchange)
    queue = temporary_queue(channel, {"x-dead-letter-exchange": exchange})
    channel.basic.publish("refuse me", queue)
    get_one(channel, queue, no_ack=False).reject(requeue=False)
    message = get_one(channel, dead)
    equal(message.body, "refuse me", "dead letter")
    headers: Any = message.properties["headers"]
    equal((headers["x-death"][0]["reason"], headers["x-death"][0]["queue"]), ("rejected", queue), "x-death")
    channel.close()


def purge_and_delete_count() -> None:
    channel = client.connection.channel()
    channel.confirm_deliveries()
    queue = name("purged")
    channel.queue.declare(queue, durable=True)
    for _ in range(3):
        channel.basic.publish("x", queue)
    equal(channel.queue.purge(queue)["message_count"], 3, "purge-ok")
    channel.basic.publish("x", queue)
    equal(channel.queue.delete(queue)["message_count"], 1, "delete-ok")
    channel.close()


def publishes_are_confirmed() -> None:
    channel = client.connection.channel()
    channel.confirm_deliveries()
    queue = name("confirmed")
    channel.queue.declare(queue, durable=True)
    for n in range(100):
        equal(channel.basic.publish(str(n), queue, properties=PERSISTENT), True, f"confirm of {n}")
    equal(ready(channel, queue), 100, "after the confirms")
    channel.queue.delete(queue)
    channel.close()


def full_queue_nacks() -> None:
    channel = client.connection.channel()
    channel.confirm_deliveries()
    queue = temporary_queue(channel, {"x-max-length": 1, "x-overflow": "reject-publish"})
    equal(channel.basic.publish("fits", queue), True, "first confirm")
    equal(channel.basic.publish("does not", queue), False, "second confirm")
    channel.close()


def unroutable_mandatory_returns() -> None:
    channel = client.connection.channel()
    channel.confirm_deliveries()
    try:
        channel.basic.publish("come back", name("nowhere"), mandatory=True)
    except amqpstorm.AMQPMessageError as error:
        equal(error.error_code, 312, "reply code")
        contains(error, "NO_ROUTE")
    else:
        raise CheckFailed("nothing was returned")
    channel.close()


def prefetch_bounds_unacked() -> None:
    channel, other = client.connection.channel(), client.connection.channel()
    channel.confirm_deliveries()
    queue = temporary_queue(channel)
    for n in range(10):
        channel.basic.publish(str(n), queue)
    got: list[Message] = []
    channel.basic.qos(3)
    channel.basic.consume(got.append, queue)

    def receive(count: int) -> None:
        def step() -> None:
            channel.process_data_events()
            time.sleep(0.01)

        wait_until(lambda: len(got) >= count, step, f"{count} deliveries")
        equal(ready(other, queue), 10 - count, "ready behind the prefetch")
        channel.process_data_events()
        equal(len(got), count, "deliveries")

    receive(3)
    channel.basic.ack(got[2].delivery_tag or 0, multiple=True)
    receive(6)
    got[3].ack()
    receive(7)
    for message in got[4:7]:
        message.ack()
    receive(10)
    for message in got[7:]:
        message.ack()
    equal([message.body for message in got], [str(n) for n in range(10)], "order")
    channel.close()
    equal(ready(other, queue), 0, "after all acks")
    other.close()


def stream_with(count: int) -> str:
    """Declare a stream with so many numbered messages."""
    channel = client.connection.channel()
    channel.confirm_deliveries()
    stream = name(f"stream-{count}")
    channel.queue.declare(stream, durable=True, arguments=dict(checks.STREAM))
    for n in range(count):
        channel.basic.publish(str(n), stream)
    channel.close()
    return stream


def read(
    queue: str, count: int, arguments: dict[str, Any] | None = None, *, acks: int | None = None
) -> list[Message]:
    """Consume so many messages on a separate channel, and ack the first ones, or all. The channel is closed
    with the unacked rest.
    """
    channel = client.connection.channel()
    channel.basic.qos(checks.STREAM_PREFETCH)
    got: list[Message] = []

    def take(message: Message) -> None:
        if len(got) < (count if acks is None else acks):
            message.ack()
        if len(got) < count:
            got.append(message)

    channel.basic.consume(take, queue, arguments=arguments)

    def step() -> None:
        channel.process_data_events()
        time.sleep(0.01)

    wait_until(lambda: len(got) == count, step, f"{count} messages of {queue}")
    channel.close()
    return got


def header(message: Message, key: str) -> Any:
    headers: Any = message.properties["headers"]
    return headers[key]


def offsets(got: list[Message]) -> list[int]:
    """Offsets of messages whose bodies are their offsets."""
    found = [header(message, "x-stream-offset") for message in got]
    equal([message.body for message in got], list(map(str, found)), "bodies and offsets")
    return found


def stream_is_read_from_an_offset() -> None:
    stream = stream_with(checks.STREAM_MESSAGES)
    for start, first in ((20, 20), ("first", 0), (20, 20)):
        got = read(stream, checks.STREAM_MESSAGES - first, {"x-stream-offset": start})
        equal(offsets(got), list(range(first, checks.STREAM_MESSAGES)), f"offsets from {start}")
    client.connection.channel().queue.delete(stream)


def group_goes_on_where_it_acked() -> None:
    stream, group = stream_with(checks.STREAM_MESSAGES), name("group")
    channel = client.connection.channel()
    channel.queue.declare(group, durable=True, arguments=dict(checks.group_of(stream)))
    got = read(group, checks.GROUP_ACKS + 1, acks=checks.GROUP_ACKS)
    equal(offsets(got), list(range(checks.GROUP_ACKS + 1)), "offsets of the first member")
    equal({header(message, "x-stream") for message in got}, {stream}, "x-stream")
    got = read(group, checks.STREAM_MESSAGES - checks.GROUP_ACKS)
    equal(offsets(got), list(range(checks.GROUP_ACKS, checks.STREAM_MESSAGES)), "offsets of the second one")
    that(got[0].redelivered, "what the first member held and had not acked is flagged")
    equal(get_all(channel, group), [], "one more than was published")
    equal(ready(channel, group), 0, "messages of the group")
    channel.queue.delete(group)
    channel.queue.delete(stream)
    channel.close()


def requeued_comes_back_redelivered() -> None:
    channel = client.connection.channel()
    channel.confirm_deliveries()
    queue = temporary_queue(channel)
    for body in ("first", "second"):
        channel.basic.publish(body, queue)
    message = get_one(channel, queue, no_ack=False)
    equal((message.body, message.redelivered), ("first", False), "get")
    message.nack(requeue=True)
    message = get_one(channel, queue, no_ack=False)
    equal((message.body, message.redelivered), ("first", True), "in its old place, flagged")
    message.reject(requeue=False)
    equal(get_all(channel, queue), ["second"], "after the reject")
    channel.close()


def consumer_is_told_of_the_queues_end() -> None:
    channel, other = client.connection.channel(), client.connection.channel()
    queue = name("doomed")
    channel.queue.declare(queue)
    tag = channel.basic.consume(lambda _: None, queue)
    equal(channel.consumer_tags, [tag], "consumers before")
    other.queue.delete(queue)
    wait_until(lambda: not channel.consumer_tags, lambda: time.sleep(0.02), "basic.cancel")
    channel.close()
    other.close()


def properties_come_back_as_sent() -> None:
    channel = client.connection.channel()
    queue = temporary_queue(channel)
    sent: dict[str, Any] = {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": {
            "text": "größe",
            "int": -7,
            "long": 2**40,
            "yes": True,
            "list": [1, {"b": 2}],
            "none": None,
        },
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c-1",
        "reply_to": "r-1",
        "expiration": "60000",
        "message_id": "m-1",
        "message_type": "t-1",
        "app_id": "a-1",
    }
    channel.basic.publish("body", queue, properties=sent)
    got = get_one(channel, queue).properties
    for key, value in sent.items():
        equal(got[key], value, key)
    channel.close()


def large_message_is_whole() -> None:
    channel = client.connection.channel()
    queue = temporary_queue(channel)
    body = "0123456789abcdef" * 65536 + "tail"
    channel.basic.publish(body, queue)
    that(get_one(channel, queue).body == body, "1 MiB came back changed")
    channel.close()


def transactions_commit_and_roll_back() -> None:
    channel = client.connection.channel()
    queue = temporary_queue(channel)
    channel.tx.select()
    channel.basic.publish("rolled back", queue)
    channel.tx.rollback()
    channel.basic.publish("committed", queue)
    equal(ready(channel, queue), 0, "before the commit")
    channel.tx.commit()
    equal(get_all(channel, queue), ["committed"], "after the commit")
    channel.close()


def expect_close(code: int, text: str, act: Callable[[Channel], object]) -> None:
    channel = client.connection.channel()

    def step() -> None:
        channel.check_for_errors()
        time.sleep(0.02)

    try:
        act(channel)
        wait_until(lambda: False, step, f"channel close {code}")
    except AMQPChannelError as error:
        equal(error.error_code, code, "reply code")
        contains(error, text)
    fresh = client.connection.channel()
    temporary_queue(fresh)
    fresh.close()


def missing_things_give_404() -> None:
    missing = name("missing")
    expect_close(
        404, f"no queue '{missing}' in vhost '/'", lambda ch: ch.queue.declare(missing, passive=True)
    )
    expect_close(404, f"no exchange '{missing}' in vhost '/'", lambda ch: ch.basic.publish("x", "", missing))


def reserved_names_give_403() -> None:
    expect_close(403, "ACCESS_REFUSED", lambda ch: ch.queue.declare("amq.mine"))
    expect_close(403, "ACCESS_REFUSED", lambda ch: ch.exchange.declare("amq.mine"))


def other_connections_exclusive_queue_gives_405() -> None:
    other = connect()
    queue = temporary_queue(other.channel())
    expect_close(
        405,
        f"cannot obtain exclusive access to locked queue '{queue}'",
        lambda ch: ch.basic.get(queue),
    )
    other.close()


def disagreement_gives_406() -> None:
    channel = client.connection.channel()
    exchange = name("agreed")
    channel.exchange.declare(exchange, "direct", auto_delete=True)
    expect_close(
        406,
        f"inequivalent arg 'durable' for exchange '{exchange}' in vhost '/': received 'true' but current is 'false'",
        lambda ch: ch.exchange.declare(exchange, "direct", durable=True, auto_delete=True),
    )
    channel.exchange.delete(exchange)
    channel.close()
    expect_close(406, "unknown delivery tag 99", lambda ch: ch.basic.ack(99))


def durable_messages_survive_a_restart() -> None:
    """Reconnects by hand, because AMQPStorm has no recovery."""
    old = connect()
    channel = old.channel()
    channel.confirm_deliveries()
    queue = name("durable")
    channel.queue.declare(queue, durable=True)
    for n in range(50):
        channel.basic.publish(str(n), queue, properties=PERSISTENT, mandatory=True)
    equal(get_one(channel, queue, no_ack=False).body, "0", "held over the restart")
    checks.restart_broker()
    # The old connection is not used: this client notices the end of a socket only at its next write.
    fresh = reconnect()
    channel = fresh.channel()
    message = get_one(channel, queue)
    equal((message.body, message.redelivered), ("0", True), "first message after the restart")
    equal(get_all(channel, queue), [str(n) for n in range(1, 50)], "messages after the restart")
    channel.queue.delete(queue)
    fresh.close()


def reconnect() -> Connection:
    deadline = time.monotonic() + RESTART_SECONDS
    while True:
        try:
            return connect()
        except AMQPConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def main() -> int:
    results = Checks()
    client.connection = connect()
    for check in (
        wrong_password_is_refused,
        unknown_vhost_is_refused,
        topology_routes,
        rejected_messages_are_dead_lettered,
        purge_and_delete_count,
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
        results.run(check)
    results.run(group_goes_on_where_it_acked, needs_groups=True)
    client.connection.close()
    results.run(durable_messages_survive_a_restart, needs_restart=True)
    return results.finish()


if __name__ == "__main__":
    checks.exit_with(main())
