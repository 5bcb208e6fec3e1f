"""The fastest way that was found with pika under Spark: confirms in a window, on a connection with its own
thread.

Compared with a confirm for each message, transactions and other windows; rows are passed on 500 at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pika
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

WINDOW = 5_000
CHUNK = 500
STALL_S = 60.0


class PikaDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "amqp_pika"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return PikaWriter(self.options["url"], self.options["queue"])


@dataclass
class Written(WriterCommitMessage):
    rows: int


class PikaWriter(DataSourceArrowWriter):
    def __init__(self, url: str, queue: str) -> None:
        self._url = url
        self._queue = queue

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        publisher = Publisher(self._url, self._queue)
        rows = 0
        for batch in iterator:
            bodies = batch.column("value").to_pylist()
            for start in range(0, len(bodies), CHUNK):
                publisher.publish(bodies[start : start + CHUNK])
            rows += len(bodies)
        publisher.finish()
        return Written(rows)


class Publisher:
    """The writing thread passes on bodies and waits for room; all of pika runs on the other thread."""

    def __init__(self, url: str, queue: str) -> None:
        self._queue = queue
        self._properties = pika.BasicProperties(delivery_mode=2)
        self._changed = threading.Condition()
        self._open = False
        self._error: BaseException | None = None
        self._sent = self._settled = 0
        self._channel: Any = None
        self._connection = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=lambda _, error: self._fail(error),
            on_close_callback=lambda _, error: self._fail(error),
        )
        self._thread = threading.Thread(target=self._connection.ioloop.start, daemon=True)
        self._thread.start()
        self._wait(lambda: self._open)

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._ready())

    def _ready(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
        self._connection.ioloop.stop()

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        if isinstance(method, pika.spec.Basic.Nack):
            self._fail(RuntimeError("nacked"))
        with self._changed:
            self._settled = method.delivery_tag if method.multiple else self._settled + 1
            self._changed.notify_all()

    def _wait(self, holds: Any) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._error is not None or holds(), STALL_S):
                raise TimeoutError("no confirms")
            if self._error is not None and not holds():
                raise self._error

    def publish(self, bodies: list[Any]) -> None:
        self._wait(lambda: self._sent - self._settled <= WINDOW - len(bodies))
        self._sent += len(bodies)
        self._connection.ioloop.add_callback_threadsafe(lambda: self._publish(bodies))

    def _publish(self, bodies: list[Any]) -> None:
        publish, queue, properties = self._channel.basic_publish, self._queue, self._properties
        for body in bodies:
            publish("", queue, body, properties)

    def finish(self) -> None:
        self._wait(lambda: self._settled >= self._sent)
        self._connection.ioloop.add_callback_threadsafe(self._connection.close)
        self._thread.join(STALL_S)
