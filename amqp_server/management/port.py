"""What management needs of the broker.

Looking is quick and never awaits; a change waits until the node, or a majority of the cluster's nodes, has made it.
One that is refused raises the AMQP error that a client would get for it. Who may call what is decided here, in
management, before the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

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


class Cluster(Protocol):
    """The cluster as this node sees it; see amqp_server.cluster.administration."""

    def status(self) -> dict[str, Any]: ...
    def queues(self, vhosts: Iterable[str]) -> list[dict[str, Any]]: ...

    def queue(self, vhost: str, name: str) -> dict[str, Any]:
        """Raises NotFound."""
        ...

    def obstacle(self) -> str:
        """Why nothing can be declared through this node now; empty if it can."""
        ...

    def critical(self) -> list[str]:
        """What would have no majority without this node."""
        ...

    async def join(self, name: str, address: str) -> None: ...
    async def forget(self, name: str) -> None: ...
    async def grow(self, name: str, vhosts: Iterable[str]) -> int: ...
    async def shrink(self, name: str) -> int: ...
    async def transfer_leader(self, vhost: str, name: str, to: str) -> None: ...
    async def accept_loss(self, vhost: str, name: str) -> int: ...
    async def rebalance(self) -> int: ...


class Broker(Protocol):
    #: None for a node that stands alone.
    cluster: Cluster | None
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

    async def create_vhost(
        self, name: str, description: str, tags: tuple[str, ...], default_queue_type: str
    ) -> bool:
        """Whether it is new. Raises VhostRefused."""
        ...

    async def delete_vhost(self, name: str) -> None:
        """With all that is in it; its connections are closed."""
        ...

    async def put_user(self, name: str, password_hash: str, tags: Iterable[str]) -> bool:
        """Whether it is new. Raises UserRefused."""
        ...

    async def delete_user(self, name: str) -> None:
        """With its permissions; its connections are closed."""
        ...

    async def set_permission(self, user: str, vhost: str, configure: str, write: str, read: str) -> bool:
        """Whether there were none. Raises InvalidPermission."""
        ...

    async def clear_permission(self, user: str, vhost: str) -> None: ...

    async def declare_queue(
        self, vhost: str, name: str, *, durable: bool, auto_delete: bool, arguments: Mapping[str, object]
    ) -> bool:
        """Whether it is new."""
        ...

    async def delete_queue(self, vhost: str, name: str, *, if_unused: bool, if_empty: bool) -> None: ...
    async def purge_queue(self, vhost: str, name: str) -> int: ...

    async def declare_exchange(
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

    async def delete_exchange(self, vhost: str, name: str, *, if_unused: bool) -> None: ...
    async def bind(self, vhost: str, binding: BindingView) -> bool: ...
    async def unbind(self, vhost: str, binding: BindingView) -> bool: ...

    async def publish(
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

    async def get(self, vhost: str, queue: str, count: int, fate: Fate) -> list[MessageView]: ...

    def close_connection(self, name: str, reason: str) -> bool:
        """Whether there was one of this name."""
        ...

    def set_memory_limit(self, limit: str) -> None:
        """A share of the machine's memory ("0.6") or an amount of bytes. Raises InvalidOption."""
        ...

    async def settled(self) -> None:
        """Returns when all changes made until now are on disk."""
        ...
