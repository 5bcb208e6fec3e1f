"""Protocols of the connection as a channel sees it, so that channels need no import from above."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from amqp_server.broker.topology.queue import Queue
from amqp_server.channel.unfinished_count import Unfinished
from amqp_server.config import Config
from amqp_server.errors import SoftError

if TYPE_CHECKING:
    from amqp_server.broker.access.http_permissions import RemoteGrant
    from amqp_server.broker.access.token_permissions import Grant
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.declared.operations import Operation
    from amqp_server.broker.topology.queue import Target
    from amqp_server.wire.intake import Publisher


class ChannelClient(Protocol):
    """The client at the other end; see amqp_server.connection.client."""

    username: str
    #: The key of its permissions: the user's name, or the key of a grant.
    access: str
    name: str

    @property
    def grant(self) -> Grant | RemoteGrant | None:
        """The grant of its token or of the HTTP backend; None for a user of this broker."""

    def can(self, capability: str) -> bool:
        """True if the client announced this capability."""


class FrameLimits(Protocol):
    frame_max: int


class Outbox(Protocol):
    """Bytes that wait to be sent; see amqp_server.connection.outbox."""

    size: int
    high_bytes: int

    def put(self, data: bytes | memoryview) -> None: ...


class ReadingHalf(Protocol):
    """The reading half; see amqp_server.connection.incoming."""

    publisher: Publisher
    unfinished: Unfinished

    def targets(self, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        """Return the one tuple for these queues."""

    def remembered(self, size: int) -> None:
        """Count bytes that a route itself keeps."""

    def makes_ready(self, size: int) -> None:
        """Count bytes of a message that no queue counts yet."""

    def has_made_ready(self, size: int) -> None:
        """Stop counting them."""


class Consuming(Protocol):
    """A consumer, for events about it; see amqp_server.channel.subscription."""

    tag: str
    queue: Queue
    no_ack: bool
    exclusive: bool
    prefetch: int
    arguments: dict[str, object]


class Connection(Protocol):
    """See amqp_server.connection.session."""

    broker: Broker
    config: Config
    number: int
    paused: bool
    exclusive_queues: dict[Queue, None]

    @property
    def client(self) -> ChannelClient: ...
    @property
    def limits(self) -> FrameLimits: ...
    @property
    def outbox(self) -> Outbox: ...
    @property
    def incoming(self) -> ReadingHalf: ...
    @property
    def suspended(self) -> object | None:
        """A method that waits for its answer, None if there is none."""

    def after(self, begin: Callable[[Callable[..., None]], None], then: Callable[..., None]) -> None:
        """Call `begin` with a function that takes the answer, and continue with `then` when the answer has
        arrived.
        """

    def propose(self, operation: Operation, then: Callable[[str], None]) -> None:
        """Propose a change; then call `then` with the text of its error, which is usually empty."""

    def synced(self) -> None:
        """Later answers wait until all changes so far are on disk."""

    def close_channel(self, channel: object, error: SoftError, where: tuple[int, int]) -> None:
        """Close a channel because of an error in the method with this class and method id."""

    def consumer_event(self, channel: int, consumer: Consuming, *, created: bool) -> None:
        """A consumer of the channel with this number was created or removed."""

    def copies_wait(self) -> None:
        """The connection's consumers get no messages until copies for the firehose are made; see
        broker.firehose.
        """

    def copied(self) -> None:
        """The copies are made."""

    def pause(self) -> None:
        """The outbox is full: the client's consumers get no more for now."""

    def failed(self, error: Exception) -> None:
        """Code that works for this connection has raised."""
