"""What management needs of the broker.

Every call but `settled` is quick and never awaits. One that is refused raises the AMQP error that a client
would get for it. Who may call what is decided here, in management, before the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, Protocol

from amqp_server.broker.permissions import Permissions
from amqp_server.broker.users import Users
from amqp_server.broker.vhosts import Vhosts
from amqp_server.management.views import (
    BindingView,
    ChannelView,
    ConnectionView,
    ConsumerView,
    ExchangeView,
    ListenerView,
    MessageView,
    NodeView,
    QueueView,
)

#: What becomes of a message that was got: taken out, put back, or refused as by a consumer (dead-lettered).
Fate = Literal["ack", "requeue", "reject"]


class Broker(Protocol):
    name: str
    product: str
    version: str
    users: Users
    permissions: Permissions
    vhosts: Vhosts

    def node(self) -> NodeView: ...
    def listeners(self) -> Iterable[ListenerView]: ...
    def exchange_types(self) -> Iterable[str]: ...

    def queues(self, vhost: str) -> Iterable[QueueView]: ...
    def queue(self, vhost: str, name: str) -> QueueView | None: ...
    def exchanges(self, vhost: str) -> Iterable[ExchangeView]: ...
    def exchange(self, vhost: str, name: str) -> ExchangeView | None: ...
    def bindings(self, vhost: str) -> Iterable[BindingView]: ...
    def connections(self) -> Iterable[ConnectionView]: ...
    def channels(self) -> Iterable[ChannelView]: ...
    def consumers(self, vhost: str) -> Iterable[ConsumerView]: ...

    def create_vhost(self, name: str, description: str, tags: tuple[str, ...]) -> bool:
        """Whether it is new."""
        ...

    def delete_vhost(self, name: str) -> None:
        """With all that is in it; its connections are closed."""
        ...

    def declare_queue(
        self, vhost: str, name: str, *, durable: bool, auto_delete: bool, arguments: Mapping[str, object]
    ) -> bool:
        """Whether it is new."""
        ...

    def delete_queue(self, vhost: str, name: str, *, if_unused: bool, if_empty: bool) -> None: ...
    def purge_queue(self, vhost: str, name: str) -> int: ...

    def declare_exchange(
        self,
        vhost: str,
        name: str,
        type: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, object],
    ) -> bool:
        """Whether it is new."""
        ...

    def delete_exchange(self, vhost: str, name: str, *, if_unused: bool) -> None: ...
    def bind(self, vhost: str, binding: BindingView) -> bool: ...
    def unbind(self, vhost: str, binding: BindingView) -> bool: ...

    def publish(
        self,
        vhost: str,
        exchange: str,
        routing_key: str,
        properties: Mapping[str, object],
        body: bytes,
        user: str,
    ) -> bool:
        """Whether it reached a queue. Properties under their AMQP names (`content_type`, `headers` …)."""
        ...

    def get(self, vhost: str, queue: str, count: int, fate: Fate) -> list[MessageView]: ...

    def close_connection(self, name: str, reason: str) -> bool:
        """Whether there was one of this name."""
        ...

    def set_memory_limit(self, limit: str) -> None:
        """A share of the machine's memory ("0.6") or an amount of bytes. Raises InvalidOption."""
        ...

    async def settled(self) -> None:
        """Returns when all changes made until now are on disk."""
        ...
