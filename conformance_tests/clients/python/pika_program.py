# mypy: disable-error-code="import-untyped"
"""Stock pika (BlockingConnection) against any broker."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
from pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ChannelClosedByBroker,
    NackError,
    UnroutableError,
)

from conformance_tests.clients.python import checks
from conformance_tests.clients.python.checks import (
    AMQP_URL,
    CheckFailed,
    Checks,
    Names,
    contains,
    equal,
    that,
    wait_until,
)

name = Names("pika")
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connect(url: str = AMQP_URL) -> Any:
    parameters = pika.URLParameters(url)
    parameters.connection_attempts = 20
    parameters.retry_delay = 0.3
    parameters.blocked_connection_timeout = 20
    return pika.BlockingConnection(parameters)


class Client:
    connection: Any


client = Client()


def temporary_queue(channel: Any, **arguments: Any) -> str:
    queue: str = channel.queue_declare("", exclusive=True, arguments=arguments or None).method.queue
    return queue


def get_one(channel: Any, queue: str) -> tuple[Any, Any, bytes]:
    """Get and ack a message which is on its way to the queue."""
    got: list[tuple[Any, Any, bytes]] = []

    def look() -> None:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            channel.connection.sleep(0.02)
        else:
            got.append((method, properties, body))

    wait_until(lambda: got, look, f"a message in {queue}")
    return got[0]


def get_all(channel: Any, queue: str) -> list[bytes]:
    bodies: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return bodies
        bodies.append(body)


def ready(channel: Any, queue: str) -> int:
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


def server_properties() -> None:
    properties = client.connection._impl.server_properties
    for key in ("product", "version", "platform"):
        that(properties.get(key), f"server property {key}")
    capabilities = client.connection._impl.server_capabilities
    for key in (
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "authentication_failure_close",
        "per_consumer_qos",
        "consumer_priorities",
        "direct_reply_to",
    ):
        that(capabilities.get(key), f"capability {key}")


def wrong_password_is_refused() -> None:
    refused(checks.other_url(password="not-the-password"), "403", "ACCESS_REFUSED")


def unknown_vhost_is_refused() -> None:
    refused(checks.other_url(vhost="no-such-vhost"), "530", "no-such-vhost")


def refused(url: str, code: str, text: str) -> None:
    try:
        pika.BlockingConnection(pika.URLParameters(url)).close()
    except AMQPConnectionError as error:
        contains(repr(error), code)
        contains(repr(error), text)
    else:
        raise CheckFailed(f"connected to {url}")


def exchange_types_route() -> None:
    channel = client.connection.channel()
    for kind, binding, arguments, hit, miss in (
        ("direct", "red", None, "red", "blue"),
        ("fanout", "", None, "anything", None),
        ("topic", "stock.*.#", None, "stock.eur.a.b", "bond.eur"),
    ):
        exchange, queue = name(kind), temporary_queue(channel)
        channel.exchange_declare(exchange, kind, auto_delete=True)
        channel.queue_bind(queue, exchange, binding, arguments)
        channel.basic_publish(exchange, hit, b"hit")
        if miss is not None:
            channel.basic_publish(exchange, miss, b"miss")
        equal(get_one(channel, queue)[2], b"hit", kind)
        equal(ready(channel, queue), 0, f"{kind}: what did not match")
        channel.queue_unbind(queue, exchange, binding, arguments)
    headers_exchange_routes(channel)
    channel.close()


def headers_exchange_routes(channel: Any) -> None:
    exchange, queue = name("headers"), temporary_queue(channel)
    channel.exchange_declare(exchange, "headers", auto_delete=True)
    channel.queue_bind(queue, exchange, "", {"x-match": "all", "colour": "red", "size": 3})
    for size in (3, 4):
        properties = pika.BasicProperties(headers={"colour": "red", "size": size})
        channel.basic_publish(exchange, "", b"size %d" % size, properties)
    equal(get_one(channel, queue)[2], b"size 3", "headers")
    equal(ready(channel, queue), 0, "headers: what did not match")


def exchange_to_exchange_routes() -> None:
    channel = client.connection.channel()
    source, destination, queue = name("source"), name("destination"), temporary_queue(channel)
    channel.exchange_declare(source, "topic")
    channel.exchange_declare(destination, "fanout")
    channel.exchange_bind(destination, source, "a.#")
    channel.queue_bind(queue, destination)
    channel.basic_publish(source, "a.b", b"through two")
    equal(get_one(channel, queue)[2], b"through two", "exchange to exchange")
    channel.exchange_unbind(destination, source, "a.#")
    channel.basic_publish(source, "a.b", b"no more")
    equal(ready(channel, queue), 0, "after exchange.unbind")
    channel.exchange_delete(source)
    channel.exchange_delete(destination)
    channel.close()


def alternate_exchange_catches() -> None:
    channel = client.connection.channel()
    exchange, alternate, queue = name("narrow"), name("alternate"), temporary_queue(channel)
    channel.exchange_declare(alternate, "fanout")
    channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": alternate})
    channel.queue_bind(queue, alternate)
    channel.basic_publish(exchange, "nobody", b"unrouted")
    equal(get_one(channel, queue)[2], b"unrouted", "alternate exchange")
    channel.exchange_delete(exchange)
    channel.exchange_delete(alternate)
    channel.close()


def expired_messages_are_dead_lettered() -> None:
    channel = client.connection.channel()
    dead, queue = temporary_queue(channel), name("ttl")
    channel.queue_declare(
        queue,
        exclusive=True,
        arguments={
            "x-message-ttl": 30,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        },
    )
    channel.basic_publish("", queue, b"short life")
    _, properties, body = get_one(channel, dead)
    equal(body, b"short life", "dead letter")
    death = properties.headers["x-death"][0]
    equal(death["reason"], "expired", "x-death reason")
    equal(death["queue"], queue, "x-death queue")
    equal(death["count"], 1, "x-death count")
    equal(death["routing-keys"], [queue], "x-death routing-keys")
    equal(properties.headers["x-first-death-reason"], "expired", "x-first-death-reason")
    channel.close()


def length_limit_drops_the_head() -> None:
    channel = client.connection.channel()
    channel.confirm_delivery()
    queue = temporary_queue(channel, **{"x-max-length": 2})
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", queue, body)
    equal(get_all(channel, queue), [b"2", b"3"], "what the queue kept")
    channel.close()


def priorities_come_first() -> None:
    channel = client.connection.channel()
    channel.confirm_delivery()
    queue = temporary_queue(channel, **{"x-max-priority": 5})
    for priority in (0, 5, 1):
        channel.basic_publish("", queue, b"%d" % priority, pika.BasicProperties(priority=priority))
    equal(get_all(channel, queue), [b"5", b"1", b"0"], "order")
    channel.close()


def purge_and_delete_count() -> None:
    channel = client.connection.channel()
    channel.confirm_delivery()
    queue = name("purged")
    equal(channel.queue_declare(queue, durable=True).method.queue, queue, "declare-ok")
    for _ in range(3):
        channel.basic_publish("", queue, b"x")
    equal(channel.queue_purge(queue).method.message_count, 3, "purge-ok")
    channel.basic_publish("", queue, b"x")
    equal(channel.queue_delete(queue).method.message_count, 1, "delete-ok")
    expect_close(404, f"no queue '{queue}' in vhost", lambda ch: ch.queue_declare(queue, passive=True))
    channel.close()


def publishes_are_confirmed() -> None:
    channel = client.connection.channel()
    channel.confirm_delivery()
    queue = name("confirmed")
    channel.queue_declare(queue, durable=True)
    for n in range(100):
        channel.basic_publish("", queue, b"%d" % n, PERSISTENT, mandatory=True)
    equal(ready(channel, queue), 100, "after the confirms")
    channel.queue_delete(queue)
    channel.close()


def full_queue_nacks() -> None:
    channel = client.connection.channel()
    channel.confirm_delivery()
    queue = temporary_queue(channel, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.basic_publish("", queue, b"fits")
    try:
        channel.basic_publish("", queue, b"does not")
    except NackError:
        pass
    else:
        raise CheckFailed("the second publish was confirmed")
    equal(get_all(channel, queue), [b"fits"], "what the queue kept")
    channel.close()


def unroutable_mandatory_returns() -> None:
    channel = client.connection.channel()
    channel.confirm_delivery()
    try:
        channel.basic_publish("", name("nowhere"), b"come back", mandatory=True)
    except UnroutableError as error:
        returned = error.messages[0]
        equal(returned.method.reply_code, 312, "reply code")
        equal(returned.method.reply_text, "NO_ROUTE", "reply text")
        equal(returned.method.routing_key, name("nowhere"), "routing key")
        equal(returned.body, b"come back", "body")
    else:
        raise CheckFailed("nothing was returned")
    channel.close()


def prefetch_bounds_unacked() -> None:
    channel = client.connection.channel()
    channel.confirm_delivery()
    queue = temporary_queue(channel)
    for n in range(10):
        channel.basic_publish("", queue, b"%d" % n)
    channel.basic_qos(prefetch_count=3)
    got: list[tuple[int, bytes]] = []
    channel.basic_consume(queue, lambda ch, method, properties, body: got.append((method.delivery_tag, body)))

    def receive(count: int) -> None:
        wait_until(
            lambda: len(got) >= count,
            lambda: client.connection.process_data_events(0.1),
            f"{count} deliveries",
        )
        # A synchronous method after the deliveries: all expected deliveries have come.
        equal(ready(channel, queue), 10 - count, "ready behind the prefetch")
        client.connection.process_data_events(0)
        equal(len(got), count, "deliveries")

    receive(3)
    channel.basic_ack(got[-1][0], multiple=True)
    receive(6)
    channel.basic_ack(got[3][0])
    receive(7)
    channel.basic_ack(0, multiple=True)
    receive(10)
    channel.basic_ack(got[-1][0], multiple=True)
    equal([body for _, body in got], [b"%d" % n for n in range(10)], "order")
    channel.close()
    channel = client.connection.channel()
    equal(ready(channel, queue), 0, "after all acks")
    channel.close()


def stream_with(count: int) -> str:
    """Declare a stream with so many numbered messages."""
    channel = client.connection.channel()
    channel.confirm_delivery()
    stream = name(f"stream-{count}")
    channel.queue_declare(stream, durable=True, arguments=checks.STREAM)
    for n in range(count):
        channel.basic_publish("", stream, b"%d" % n)
    channel.close()
    return stream


def read(
    queue: str, count: int, arguments: dict[str, Any] | None = None, *, acks: int | None = None
) -> list[tuple[Any, Any, bytes]]:
    """Consume so many messages on a separate channel, and ack the first ones, or all. The channel is closed
    with the unacked rest.
    """
    channel = client.connection.channel()
    channel.basic_qos(prefetch_count=checks.STREAM_PREFETCH)
    got: list[tuple[Any, Any, bytes]] = []
    for method, properties, body in channel.consume(queue, arguments=arguments, inactivity_timeout=20):
        that(method is not None, f"a message in {queue} after {len(got)}")
        if acks is None or len(got) < acks:
            channel.basic_ack(method.delivery_tag)
        got.append((method, properties, body))
        if len(got) == count:
            break
    channel.close()
    return got


def offsets(got: list[tuple[Any, Any, bytes]]) -> list[int]:
    """Offsets of messages whose bodies are their offsets."""
    for _, properties, body in got:
        equal(body, b"%d" % properties.headers["x-stream-offset"], "body and offset")
    return [properties.headers["x-stream-offset"] for _, properties, _ in got]


def stream_is_read_from_an_offset() -> None:
    stream = stream_with(checks.STREAM_MESSAGES)
    for start in (20, "first", 20):
        first = 0 if start == "first" else 20
        got = read(stream, checks.STREAM_MESSAGES - first, {"x-stream-offset": start})
        equal(offsets(got), list(range(first, checks.STREAM_MESSAGES)), f"offsets from {start}")
    client.connection.channel().queue_delete(stream)


def group_goes_on_where_it_acked() -> None:
    stream, group = stream_with(checks.STREAM_MESSAGES), name("group")
    channel = client.connection.channel()
    channel.queue_declare(group, durable=True, arguments=checks.group_of(stream))
    got = read(group, checks.GROUP_ACKS + 1, acks=checks.GROUP_ACKS)
    equal(offsets(got), list(range(checks.GROUP_ACKS + 1)), "offsets of the first member")
    equal({properties.headers["x-stream"] for _, properties, _ in got}, {stream}, "x-stream")
    got = read(group, checks.STREAM_MESSAGES - checks.GROUP_ACKS)
    equal(offsets(got), list(range(checks.GROUP_ACKS, checks.STREAM_MESSAGES)), "offsets of the second one")
    that(got[0][0].redelivered, "what the first member held and had not acked is flagged")
    equal(channel.basic_get(group)[0], None, "one more than was published")
    equal(ready(channel, group), 0, "messages of the group")
    channel.queue_delete(group)
    channel.queue_delete(stream)
    channel.close()


def requeued_comes_back_redelivered() -> None:
    channel = client.connection.channel()
    channel.confirm_delivery()
    queue = temporary_queue(channel)
    for body in (b"first", b"second"):
        channel.basic_publish("", queue, body)
    method, _, body = channel.basic_get(queue)
    equal((body, method.redelivered, method.message_count), (b"first", False, 1), "get")
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, _, body = get_one(channel, queue)
    equal((body, method.redelivered), (b"first", True), "in its old place, flagged")
    method, _, _ = channel.basic_get(queue)
    channel.basic_reject(method.delivery_tag, requeue=False)
    equal(get_all(channel, queue), [], "after the reject")
    channel.close()


def consumer_is_told_of_the_queues_end() -> None:
    channel, other = client.connection.channel(), client.connection.channel()
    queue = name("doomed")
    channel.queue_declare(queue)
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda *_: None)
    other.queue_delete(queue)
    wait_until(lambda: cancelled, lambda: client.connection.process_data_events(0.1), "basic.cancel")
    equal(cancelled, [tag], "cancelled consumers")
    channel.close()
    other.close()


def properties_come_back_as_sent() -> None:
    channel = client.connection.channel()
    queue = temporary_queue(channel)
    sent = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={
            "text": "größe",
            "int": -7,
            "long": 2**40,
            "yes": True,
            "decimal": Decimal("3.14"),
            "time": datetime(2024, 2, 29, 12, 0, tzinfo=UTC),
            "list": [1, "two", {"three": 3}],
            "table": {"nested": {"deep": "x"}},
            "none": None,
        },
        delivery_mode=2,
        priority=7,
        correlation_id="c-1",
        reply_to="r-1",
        expiration="60000",
        message_id="m-1",
        timestamp=1_700_000_000,
        type="t-1",
        user_id=pika.URLParameters(AMQP_URL).credentials.username,
        app_id="a-1",
    )
    channel.basic_publish("", queue, b"", sent)
    _, got, body = get_one(channel, queue)
    equal(body, b"", "empty body")
    equal(got, sent, "properties")
    channel.close()


def large_message_is_whole() -> None:
    channel = client.connection.channel()
    queue = temporary_queue(channel)
    body = bytes(range(256)) * 4096 + b"tail"
    channel.basic_publish("", queue, body)
    that(get_one(channel, queue)[2] == body, "1 MiB came back changed")
    channel.close()


def transactions_commit_and_roll_back() -> None:
    channel = client.connection.channel()
    queue = temporary_queue(channel)
    channel.tx_select()
    channel.basic_publish("", queue, b"rolled back")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"committed")
    equal(ready(channel, queue), 0, "before the commit")
    channel.tx_commit()
    channel.close()
    channel = client.connection.channel()
    equal(get_one(channel, queue)[2], b"committed", "after the commit")
    equal(ready(channel, queue), 0, "what was rolled back")
    channel.close()


def expect_close(code: int, text: str, provoke: Callable[[Any], object]) -> None:
    """The act closes its own channel with this code and text, and the connection stays open."""
    channel = client.connection.channel()
    try:
        provoke(channel)
        wait_until(lambda: False, lambda: connection_step(channel), f"channel close {code}")
    except ChannelClosedByBroker as error:
        equal(error.reply_code, code, "reply code")
        contains(error.reply_text, text)
    with_new_channel = client.connection.channel()
    with_new_channel.queue_declare("", exclusive=True)
    with_new_channel.close()


def connection_step(channel: Any) -> None:
    # A synchronous method raises the error that an asynchronous one caused.
    channel.basic_qos(prefetch_count=1)
    channel.connection.sleep(0.02)


def missing_things_give_404() -> None:
    missing = name("missing")
    expect_close(404, f"NOT_FOUND - no queue '{missing}' in vhost '/'", lambda ch: ch.basic_get(missing))
    expect_close(
        404,
        f"NOT_FOUND - no exchange '{missing}' in vhost '/'",
        lambda ch: ch.exchange_declare(missing, passive=True),
    )
    expect_close(
        404,
        f"NOT_FOUND - no exchange '{missing}' in vhost '/'",
        lambda ch: ch.basic_publish(missing, "", b""),
    )


def reserved_names_give_403() -> None:
    expect_close(403, "ACCESS_REFUSED", lambda ch: ch.queue_declare("amq.mine"))
    expect_close(403, "ACCESS_REFUSED", lambda ch: ch.exchange_declare("amq.mine", "direct"))
    expect_close(
        403,
        "ACCESS_REFUSED - operation not permitted on the default exchange",
        lambda ch: ch.exchange_delete(""),
    )


def other_connections_exclusive_queue_gives_405() -> None:
    other = connect()
    queue = temporary_queue(other.channel())
    expect_close(
        405,
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}'",
        lambda ch: ch.queue_declare(queue, passive=True),
    )
    other.close()


def disagreement_gives_406() -> None:
    channel = client.connection.channel()
    queue, exchange = name("agreed"), name("agreed-exchange")
    channel.queue_declare(queue, exclusive=True, arguments={"x-max-length": 10})
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    for text, act in (
        (
            f"inequivalent arg 'x-max-length' for queue '{queue}' in vhost '/': received '11' but current is '10'",
            lambda ch: ch.queue_declare(queue, exclusive=True, arguments={"x-max-length": 11}),
        ),
        (
            f"inequivalent arg 'type' for exchange '{exchange}' in vhost '/': received 'topic' but current is 'direct'",
            lambda ch: ch.exchange_declare(exchange, "topic", auto_delete=True),
        ),
        ("unknown delivery tag 99", lambda ch: ch.basic_ack(99)),
        ("PRECONDITION_FAILED", lambda ch: ch.queue_declare("", arguments={"x-message-ttl": -1})),
    ):
        expect_close(406, text, act)
    channel.exchange_delete(exchange)
    channel.close()


def durable_messages_survive_a_restart() -> None:
    """Reconnects by hand, because pika has no recovery: confirmed messages are there, in order; unacked ones
    are redelivered.
    """
    old = connect()
    channel = old.channel()
    channel.confirm_delivery()
    queue, exchange = name("durable"), name("durable-exchange")
    channel.exchange_declare(exchange, "topic", durable=True)
    channel.queue_declare(queue, durable=True)
    channel.queue_declare(name("transient"), durable=False)
    channel.queue_bind(queue, exchange, "a.*")
    for n in range(100):
        channel.basic_publish(exchange, "a.b", b"%d" % n, PERSISTENT, mandatory=True)
    for n in range(2):
        method, _, body = channel.basic_get(queue)
        equal(body, b"%d" % n, "before the restart")
        if n == 0:
            channel.basic_ack(method.delivery_tag)
    old.process_data_events(0)
    ready(channel, queue)
    checks.restart_broker()
    try:
        channel.basic_publish("", queue, b"lost")
    except AMQPError:
        pass
    else:
        raise CheckFailed("the old connection outlived the broker")
    fresh = connect()
    channel = fresh.channel()
    channel.confirm_delivery()
    method, _, body = channel.basic_get(queue, auto_ack=True)
    equal((body, method.redelivered), (b"1", True), "first message after the restart")
    equal(get_all(channel, queue), [b"%d" % n for n in range(2, 100)], "messages after the restart")
    channel.basic_publish(exchange, "a.c", b"new", PERSISTENT, mandatory=True)
    equal(get_all(channel, queue), [b"new"], "through the old binding")
    channel.queue_delete(queue)
    channel.exchange_delete(exchange)
    with suppress(ChannelClosedByBroker):
        channel.queue_declare(name("transient"), passive=True)
        raise CheckFailed("the transient queue outlived the broker")
    fresh.close()


def main() -> int:
    results = Checks()
    client.connection = connect()
    for check in (
        server_properties,
        wrong_password_is_refused,
        unknown_vhost_is_refused,
        exchange_types_route,
        exchange_to_exchange_routes,
        alternate_exchange_catches,
        expired_messages_are_dead_lettered,
        length_limit_drops_the_head,
        priorities_come_first,
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
    results.run(durable_messages_survive_a_restart, needs_restart=True)
    return results.finish()


if __name__ == "__main__":
    checks.exit_with(main())
