"""A stock client that sets up queues for Spark, and checks the messages."""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType
from typing import Any, Self

import pika

from conformance_tests.patience import PATIENCE_S, patient

QUIET_S = 0.5


class Peer:
    def __init__(self, url: str) -> None:
        parameters = pika.URLParameters(url)
        parameters.heartbeat = 0
        self.connection = pika.BlockingConnection(patient(parameters))
        self.channel = self.connection.channel()
        self._queues: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.connection.is_open:
            for queue in self._queues:
                self.channel.queue_delete(queue)
            self.connection.close()

    def queue(self, name: str, **arguments: Any) -> str:
        """A durable queue, deleted when the test is over."""
        self.channel.queue_declare(
            name, durable=True, arguments={k.replace("_", "-"): v for k, v in arguments.items()}
        )
        self._queues.append(name)
        return name

    def count(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def publish(self, queue: str, bodies: list[bytes], **properties: Any) -> None:
        for body in bodies:
            self.channel.basic_publish("", queue, body, pika.BasicProperties(**properties))

    def take(self, queue: str, at_least: int = 0) -> list[tuple[Any, Any, bytes]]:
        """Take all messages of the queue, and at least this many: (method, properties, body) of each."""
        found: list[tuple[Any, Any, bytes]] = []
        deadline = time.monotonic() + PATIENCE_S
        while True:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            if method is not None:
                found.append((method, properties, body))
            elif len(found) >= at_least:
                return found
            else:
                assert time.monotonic() < deadline, f"{len(found)} of {at_least} messages came"
                time.sleep(0.01)

    def drain(self, queue: str, at_least: int) -> list[tuple[Any, Any, bytes]]:
        """Like `take`, for thousands of messages: with a consumer, until no message has come for a while."""
        found: list[tuple[Any, Any, bytes]] = []
        deadline = time.monotonic() + PATIENCE_S
        for method, properties, body in self.channel.consume(queue, inactivity_timeout=QUIET_S):
            if method is not None:
                found.append((method, properties, body))
            elif len(found) >= at_least:
                break
            else:
                assert time.monotonic() < deadline, f"{len(found)} of {at_least} messages came"
        if found:
            self.channel.basic_ack(found[-1][0].delivery_tag, multiple=True)
        self.channel.cancel()
        return found

    def bodies(self, queue: str, at_least: int = 0) -> Counter[bytes]:
        return Counter(body for _, _, body in self.take(queue, at_least))
