# mypy: disable-error-code="import-untyped, no-untyped-call, attr-defined, arg-type"
"""A member that uses kombu, again and again."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import amqp.exceptions
import kombu
from kombu.exceptions import OperationalError

from tests.cluster.group_storm.telling import GROUP, HEARTBEAT_S, Teller, a_node, chance, complain, ends


def visit() -> None:
    url = a_node()
    teller = Teller(url)
    held: list[tuple[Any, tuple[str, int]]] = []
    deliveries = 0

    def take(message: Any) -> None:
        nonlocal deliveries
        deliveries += 1
        told = teller.delivery(message.headers, again=bool(message.delivery_info["redelivered"]))
        held.append((message, told))

    connection = kombu.Connection(
        url.replace("amqp://", "pyamqp://"), heartbeat=HEARTBEAT_S, connect_timeout=20
    )
    try:
        connection.connect()
        channel = connection.channel()
        teller.join()
        consumer = kombu.Consumer(
            channel,
            [kombu.Queue(GROUP, no_declare=True)],
            on_message=take,
            prefetch_count=chance.choice([1, 10, 100]),
        )
        consumer.consume()
        messages, until = chance.choice([5, 50, 300]), time.monotonic() + chance.choice([1, 3, 10])
        beat_at = 0.0
        while not ends() and deliveries < messages and time.monotonic() < until:
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.02)
            if HEARTBEAT_S and time.monotonic() > beat_at:
                beat_at = time.monotonic() + HEARTBEAT_S / 4
                connection.heartbeat_check()
            while held and chance.random() < 0.8:
                message, told = held.pop(0)
                if chance.random() < 0.04:
                    teller.tell("r", *told)
                    message.requeue()
                else:
                    teller.tell("a", *told)
                    message.ack()
        consumer.cancel()
        while held:
            message, told = held.pop(0)
            teller.tell("a", *told)
            message.ack()
        teller.tell("q")
        channel.queue_declare(GROUP, passive=True)
        teller.tell("c")
        teller.tell("closing")
        channel.close()
        connection.close()
        teller.end("leave")
    finally:
        teller.end("gone")
        connection.collect()


def main() -> None:
    while not ends():
        try:
            visit()
        except (amqp.exceptions.AMQPError, OperationalError, OSError) as error:
            complain(error)
            time.sleep(0.1)


if __name__ == "__main__":
    main()
