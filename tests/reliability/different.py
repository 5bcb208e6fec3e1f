"""Messages without anything in common: names and values of headers, message-id and correlation-id."""

from __future__ import annotations

import random
from typing import Any

from pamqp import commands, frame, header
from pamqp.body import ContentBody

from tests.reliability.client import CHANNEL, Client, Confirm

BODY_BYTES = 128
#: In place of these, each message has something else.
_MARK = "@" * 30
WINDOW, BATCH = 2_000, 100


class Different:
    """Publishes messages with so many headers to the queue q."""

    def __init__(self, headers: int, *, persistent: bool) -> None:
        table: dict[str, Any] = {f"{_MARK}{number:02}": _MARK for number in range(headers)}
        properties = commands.Basic.Properties(
            headers=table, message_id=_MARK, correlation_id=_MARK, delivery_mode=2 if persistent else 1
        )
        publish = frame.marshal(commands.Basic.Publish(exchange="", routing_key="q"), CHANNEL)
        head = frame.marshal(header.ContentHeader(0, BODY_BYTES, properties), CHANNEL)
        body = frame.marshal(ContentBody(bytes(BODY_BYTES)), CHANNEL)
        first, *self._parts = (head + body).split(_MARK.encode())
        self._first = publish + first
        #: Bytes of a message in its frames.
        self.size = len(head) + len(body)
        self._random = random.Random(7)
        self._sent = self._confirmed = 0

    def message(self) -> bytes:
        width = len(_MARK)
        noise = self._random.randbytes(width // 2 * len(self._parts)).hex().encode()
        pieces = [noise[width * at : width * (at + 1)] + part for at, part in enumerate(self._parts)]
        return self._first + b"".join(pieces)

    def publish(self, client: Client, count: int) -> None:
        """Publish so many more, and wait for their confirms; the client is in confirm mode."""
        stop = self._sent + count
        while self._confirmed < stop:
            while self._sent < stop and self._sent - self._confirmed < WINDOW:
                batch = min(BATCH, stop - self._sent)
                client.send(b"".join([self.message() for _ in range(batch)]))
                self._sent += batch
            for event in client.receive():
                assert isinstance(event, Confirm) and not event.nack, event
                # One queue confirms in order.
                self._confirmed = max(self._confirmed, event.tag)
