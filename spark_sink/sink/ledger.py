"""A record of what a partition has written, in the broker itself: a queue that holds one message, the marker.

Rows and marker are sent in one transaction, so an attempt that finds the marker of its own batch is done. A
second queue, exclusive, keeps out other attempts of the same partition: speculative ones, and those of a
driver that died.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pika import spec

from spark_sink.client.connection import Connection
from spark_sink.client.errors import AmqpError, ChannelClosed
from spark_sink.client.frames import BODY, END, HEAD, HEADER, method_frame

LEDGER, LOCK = "spark_sink.sink.ledger.", "spark_sink.lock."
RESOURCE_LOCKED = 405
LOCK_PAUSE_S = 0.1
PERSISTENT = 2
VERSION = 1


@dataclass(frozen=True, slots=True)
class Marker:
    batch: int
    rows: int
    digest: str
    #: Rows of the committed batch that reached no queue; None: there are some, but it is not known which.
    refused: Sequence[int] | None = ()

    def encode(self) -> bytes:
        return json.dumps(
            {
                "version": VERSION,
                "batch": self.batch,
                "rows": self.rows,
                "digest": self.digest,
                "refused": None if self.refused is None else list(self.refused),
            }
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> Marker:
        """Raises AmqpError."""
        try:
            read: dict[str, Any] = json.loads(data)
            if read["version"] != VERSION:
                raise ValueError(f"version {read['version']}")
            refused = read["refused"]
            return cls(
                read["batch"], read["rows"], read["digest"], None if refused is None else tuple(refused)
            )
        except (ValueError, KeyError, TypeError) as error:
            raise AmqpError(
                f"a ledger holds a message that is not a marker: {data[:100]!r} ({error!r})"
            ) from None


class Ledger:
    """The ledger of one producer, over its own connection."""

    def __init__(self, connection: Connection, producer: str, expires_ms: int) -> None:
        self._connection = connection
        self._producer = producer
        self._expires_ms = expires_ms
        self._found_tag = 0

    @property
    def queue(self) -> str:
        return LEDGER + self._producer

    def lock(self, timeout_ms: int) -> None:
        """Wait until no other attempt writes. The lock ends with the connection. Raises AmqpError."""
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            try:
                self._connection.call(
                    spec.Queue.Declare(queue=LOCK + self._producer, exclusive=True, auto_delete=True),
                    spec.Queue.DeclareOk,
                )
                return
            except ChannelClosed as error:
                if error.code != RESOURCE_LOCKED:
                    raise
                if time.monotonic() > deadline:
                    raise AmqpError(
                        f"another attempt has been writing partition {self._producer} for {timeout_ms} ms "
                        "(option confirmTimeoutMs): is the same query, or the same txnAppId, running twice?"
                    ) from None
            self._connection.open_channel()
            time.sleep(LOCK_PAUSE_S)

    def declare(self) -> None:
        self._connection.call(
            spec.Queue.Declare(
                queue=self.queue, durable=True, arguments={"x-max-length": 1, "x-expires": self._expires_ms}
            ),
            spec.Queue.DeclareOk,
        )

    def read(self) -> Marker | None:
        """The marker stays unacked: the transaction that replaces it acks it, or it returns to its queue.

        There may be an older one in front of it, which its attempt had no time to ack.
        """
        found: Marker | None = None
        while True:
            reply, _, body = self._connection.call_for_content(
                spec.Basic.Get(queue=self.queue), spec.Basic.GetOk, spec.Basic.GetEmpty
            )
            if isinstance(reply, spec.Basic.GetEmpty):
                return found
            self._found_tag = reply.delivery_tag
            marker = Marker.decode(body)
            if found is None or marker.batch >= found.batch:
                found = marker

    def message(self, marker: Marker) -> bytes:
        """Return the frames that publish a marker outside of a transaction."""
        return self._publish(marker.encode())

    def forget(self, connection: Connection) -> None:
        """The new marker is confirmed: ack the old ones, unless their connection was lost."""
        if self._found_tag and connection is self._connection:
            connection.send(self._ack())
        self._found_tag = 0

    def _ack(self) -> bytes:
        return method_frame(1, spec.Basic.Ack(delivery_tag=self._found_tag, multiple=True))

    def begin(self) -> None:
        """Begin a transaction that removes the old marker."""
        self._connection.call(spec.Tx.Select(), spec.Tx.SelectOk)
        if self._found_tag:
            self._connection.send(self._ack())
            self._found_tag = 0

    def commit(self, marker: Marker, timeout_ms: int) -> None:
        self._connection.send(self._publish(marker.encode()))
        self._connection.call(spec.Tx.Commit(), spec.Tx.CommitOk, timeout_s=timeout_ms / 1000)

    def _publish(self, body: bytes) -> bytes:
        properties = b"".join(
            spec.BasicProperties(content_type="application/json", delivery_mode=PERSISTENT).encode()
        )
        head: bytes = (
            spec.Basic.INDEX.to_bytes(2, "big") + bytes(2) + len(body).to_bytes(8, "big") + properties
        )
        return (
            method_frame(1, spec.Basic.Publish(exchange="", routing_key=self.queue))
            + (HEAD.pack(HEADER, 1, len(head)) + head + END)
            + (HEAD.pack(BODY, 1, len(body)) + body + END)
        )
