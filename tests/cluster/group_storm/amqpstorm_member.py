# mypy: disable-error-code="import-untyped, no-untyped-call, attr-defined, arg-type"
"""A member that uses AMQPStorm, again and again."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import amqpstorm

from tests.cluster.group_storm.telling import GROUP, HEARTBEAT_S, Teller, a_node, chance, complain, ends


def visit() -> None:
    url = a_node()
    teller = Teller(url)
    held: list[tuple[Any, tuple[str, int]]] = []
    deliveries = 0

    def take(message: Any) -> None:
        nonlocal deliveries
        deliveries += 1
        headers = {
            name.decode() if isinstance(name, bytes) else name: value
            for name, value in message.properties["headers"].items()
        }
        held.append((message, teller.delivery(headers, again=bool(message.redelivered))))

    parts = urlsplit(url)
    try:
        with amqpstorm.Connection(
            parts.hostname, "guest", "guest", port=parts.port, heartbeat=HEARTBEAT_S or 60, timeout=20
        ) as connection:
            channel = connection.channel()
            channel.basic.qos(chance.choice([1, 10, 100]))
            teller.join()
            tag = channel.basic.consume(take, GROUP)
            messages, until = chance.choice([5, 50, 300]), time.monotonic() + chance.choice([1, 3, 10])
            while not ends() and deliveries < messages and time.monotonic() < until:
                channel.process_data_events()
                if not channel.is_open or not channel.consumer_tags:
                    teller.end("gone")
                    return
                while held and chance.random() < 0.8:
                    message, told = held.pop(0)
                    if chance.random() < 0.04:
                        teller.tell("r", *told)
                        message.nack(requeue=True)
                    else:
                        teller.tell("a", *told)
                        message.ack()
                time.sleep(0.005)
            while held:
                message, told = held.pop(0)
                teller.tell("a", *told)
                message.ack()
            teller.tell("q")
            channel.queue.declare(GROUP, passive=True)
            teller.tell("c")
            teller.tell("closing")
            channel.basic.cancel(tag)
            channel.close()
        teller.end("leave")
    finally:
        teller.end("gone")


def main() -> None:
    while not ends():
        try:
            visit()
        except (amqpstorm.AMQPError, OSError) as error:
            complain(error)
            time.sleep(0.1)


if __name__ == "__main__":
    main()
