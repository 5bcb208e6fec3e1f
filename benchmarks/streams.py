"""Connections of a measured run: the size of a delivery, and the check of the count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from pamqp import commands

from .blocks import Block, numbered, repeated
from .client import Connection, Unexpected
from .frames import ack_through
from .pump import Consumer, Publisher, Stream
from .settled import Settled

WINDOW_MESSAGES = 20_000
WINDOW_BYTES = 32 << 20
MESSAGES_MAX = 8_000_000


@dataclass(frozen=True, slots=True)
class Route:
    """Messages of one length, each of which reaches all these queues. With a mark, each message gets a number
    of its own.
    """

    queues: Sequence[str]
    messages: Sequence[bytes]
    mark: bytes | None = None

    def blocks(self, window: int) -> Iterator[Block]:
        if len(set(map(len, self.messages))) != 1:
            raise ValueError("messages of one route have one length")
        if self.mark is None:
            return repeated(self.messages, window)
        return numbered(self.messages[0], self.mark, window)

    @property
    def window(self) -> int:
        return max(8, min(WINDOW_MESSAGES, WINDOW_BYTES // len(self.messages[0])))


@dataclass(frozen=True, slots=True)
class Terms:
    """Auto-ack unless there is a prefetch, unconfirmed unless there is a window for confirms."""

    #: 0: acks, and no limit.
    prefetch: int | None = None
    confirm_window: int | None = None
    #: Messages that the publisher may be ahead of the slowest consumer; None: the route's window.
    ahead: int | None = None


class OpenStream:
    """The connections of one route. Probes before and after the run keep the counting honest."""

    def __init__(
        self, port: int, route: Route, terms: Terms, connections: ExitStack, consumer_port: int | None = None
    ) -> None:
        self._route = route
        self._terms = terms
        self._publisher = connections.enter_context(Connection(port))
        self._consumers = [connections.enter_context(Connection(consumer_port or port)) for _ in route.queues]
        for connection, queue in zip(self._consumers, route.queues, strict=True):
            connection.consume(queue, terms.prefetch)

    def stream(self) -> Stream:
        sizes = self._probe(1)
        settled = None
        if self._terms.confirm_window is not None:
            # Tags count from here, so the probe does not count.
            self._publisher.confirms()
            settled = Settled(MESSAGES_MAX)
        acks_from = None if self._terms.prefetch is None else 2
        consumers = [
            Consumer(connection.sock, size, acks_from)
            for connection, size in zip(self._consumers, sizes, strict=True)
        ]
        ahead = self._terms.ahead or self._route.window
        window = self._terms.confirm_window or ahead
        publisher = Publisher(
            self._publisher.sock,
            self._route.blocks(window),
            consumers,
            ahead,
            MESSAGES_MAX,
            settled,
            self._terms.confirm_window or 0,
        )
        return Stream(publisher, consumers)

    def check(self, stream: Stream) -> None:
        """Check that the next delivery of each consumer has the tag that the byte count predicts."""
        for connection in (self._publisher, *self._consumers):
            connection.sock.settimeout(20)
        self._probe(stream.publisher.sent + 2)

    def _probe(self, tag: int) -> list[int]:
        self._publisher.sock.sendall(self._route.messages[0])
        return [self._probed(connection, tag) for connection in self._consumers]

    def _probed(self, connection: Connection, tag: int) -> int:
        delivery = connection.delivery()
        if delivery.tag != tag:
            raise Unexpected(f"delivery tag {tag} was due, {delivery.tag} came: the count is wrong")
        if not self._route.messages[0].endswith(delivery.body[-64:] + b"\xce"):
            raise Unexpected("the delivery does not hold the body that was published")
        if not connection.drained():
            raise Unexpected("the broker sent more than was published")
        if self._terms.prefetch is not None:
            connection.sock.sendall(ack_through(tag))
        return delivery.wire_bytes


class Topology:
    """Queues and an exchange for one run, deleted afterwards."""

    EXCHANGE = "bench"

    def __init__(self, port: int) -> None:
        self._port = port
        self._queues: list[str] = []
        self._exchange = False

    def __enter__(self) -> Self:
        self.connection = Connection(self._port)
        return self

    def queue(self, name: str, durable: bool = False, **arguments: Any) -> str:
        self.connection.queue(name, durable, **arguments)
        self._queues.append(name)
        return name

    def exchange(self, kind: str) -> str:
        self.connection.exchange(self.EXCHANGE, kind)
        self._exchange = True
        return self.EXCHANGE

    def __exit__(self, *_: object) -> None:
        with self.connection:
            for name in self._queues:
                self.connection.delete_queue(name)
            if self._exchange:
                self.connection.delete_exchange(self.EXCHANGE)


def properties(persistent: bool = False, **values: object) -> commands.Basic.Properties:
    """The properties that most clients send: a content type and a delivery mode."""
    mode = 2 if persistent else 1
    return commands.Basic.Properties(content_type="text/plain", delivery_mode=mode, **values)  # type: ignore[arg-type]
