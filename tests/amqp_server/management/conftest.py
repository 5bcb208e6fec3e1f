"""A broker in dictionaries behind the port of management, and HTTP clients that need no sockets."""

import base64
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import httpx
import pytest

from amqp_server.broker.permissions import Permissions
from amqp_server.broker.users import Users
from amqp_server.broker.vhosts import Vhosts
from amqp_server.config import Config, InvalidOption
from amqp_server.errors import NotFound, PreconditionFailed, Unavailable
from amqp_server.management.http import Api
from amqp_server.management.port import Cluster, Fate
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

PASSWORDS = {
    "admin": ("administrator",),
    "watcher": ("monitoring",),
    "manager": ("management",),
    "policies": ("policymaker",),
    "plain": (),
    "guest": ("administrator",),
}
BODY_BYTES_MAX = 64 * 1024


class NoMetadata:
    def put(self, table: str, key: str, value: bytes) -> None: ...
    def delete(self, table: str, key: str) -> None: ...
    def items(self, table: str) -> list[tuple[str, bytes]]:
        return []


class FakeBroker:
    name, product, version = "n1", "mqd", "0.1.0"

    def __init__(self) -> None:
        metadata = NoMetadata()
        self.users = Users(metadata)
        self.permissions = Permissions(metadata)
        self.vhosts = Vhosts(metadata)
        self.vhosts.put("/")
        self.vhosts.put("other")
        for user, tags in PASSWORDS.items():
            # SHA-256 as RabbitMQ has it: these tests make hundreds of logins.
            self.users.put(user, sha256(user), tags)
            self.permissions.set(user, "/", ".*", ".*", ".*")
        self.queues_: dict[tuple[str, str], QueueView] = {}
        self.exchanges_: dict[tuple[str, str], ExchangeView] = {}
        for vhost in ("/", "other"):
            for exchange, type_ in (("", "direct"), ("amq.topic", "topic")):
                self.exchanges_[vhost, exchange] = ExchangeView(
                    name=exchange, vhost=vhost, type=type_, durable=True
                )
        self.failed: list[dict[str, Any]] = []
        self.bindings_: list[BindingView] = []
        self.connections_: list[ConnectionView] = []
        self.channels_: list[ChannelView] = []
        self.consumers_: list[ConsumerView] = []
        self.messages: dict[tuple[str, str], list[tuple[str, str, dict[str, Any], bytes]]] = {}
        self.closed: list[tuple[str, str]] = []
        self.memory_limit = ""
        self.memory_alarm = False
        self.settled_after: list[int] = []
        self.changes = 0
        self.cluster: Cluster | None = None
        #: Of the cluster's nodes, to make a change with.
        self.majority = True

    def node(self) -> NodeView:
        return NodeView(name=self.name, mem_alarm=self.memory_alarm)

    def listeners(self) -> Iterable[ListenerView]:
        return [ListenerView(protocol="amqp", ip_address="127.0.0.1", port=5672)]

    def exchange_types(self) -> Iterable[str]:
        return ("direct", "topic")

    def queues(self, vhost: str) -> Iterable[QueueView]:
        return [queue for (of, _), queue in self.queues_.items() if of == vhost]

    def queue(self, vhost: str, name: str) -> QueueView | None:
        return self.queues_.get((vhost, name))

    def failed_queues(self, vhost: str) -> list[dict[str, Any]]:
        return [each for each in self.failed if each["vhost"] == vhost]

    def retry_failed(self, vhost: str, name: str) -> bool:
        found = [each for each in self.failed if (each["vhost"], each["name"]) == (vhost, name)]
        for each in found:
            self.failed.remove(each)
        return bool(found)

    def exchanges(self, vhost: str) -> Iterable[ExchangeView]:
        return [exchange for (of, _), exchange in self.exchanges_.items() if of == vhost]

    def exchange(self, vhost: str, name: str) -> ExchangeView | None:
        return self.exchanges_.get((vhost, name))

    def bindings(self, vhost: str) -> Iterable[BindingView]:
        return [binding for binding in self.bindings_ if binding.vhost == vhost]

    def connections(self) -> Iterable[ConnectionView]:
        return list(self.connections_)

    def channels(self) -> Iterable[ChannelView]:
        return list(self.channels_)

    def consumers(self, vhost: str) -> Iterable[ConsumerView]:
        return [consumer for consumer in self.consumers_ if consumer.queue["vhost"] == vhost]

    def _check_majority(self) -> None:
        if not self.majority:
            raise Unavailable("no majority of the cluster's nodes is reachable")

    async def create_vhost(
        self, name: str, description: str, tags: tuple[str, ...], default_queue_type: str
    ) -> bool:
        self._check_majority()
        return self.vhosts.store(self.vhosts.prepare(name, description, tags, default_queue_type))

    async def put_user(self, name: str, password_hash: str, tags: Iterable[str]) -> bool:
        self._check_majority()
        new = self.users.get(name) is None
        self.users.put(name, password_hash, tags)
        return new

    async def delete_user(self, name: str) -> None:
        self.permissions.clear_user(name)
        self.users.delete(name)
        for each in list(self.connections_):
            if each.user == name:
                self.close_connection(each.name, f"user '{name}' is deleted")

    async def set_permission(self, user: str, vhost: str, configure: str, write: str, read: str) -> bool:
        self._check_majority()
        new = self.permissions.get(user, vhost) is None
        self.permissions.set(user, vhost, configure, write, read)
        return new

    async def clear_permission(self, user: str, vhost: str) -> None:
        self.permissions.clear(user, vhost)

    async def delete_vhost(self, name: str) -> None:
        self.vhosts.delete(name)
        self.permissions.clear_vhost(name)

    async def declare_queue(
        self, vhost: str, name: str, *, durable: bool, auto_delete: bool, arguments: Mapping[str, object]
    ) -> bool:
        self.changes += 1
        before = self.queues_.get((vhost, name))
        if before is not None:
            if before.durable != durable:
                raise PreconditionFailed(f"inequivalent arg 'durable' for queue '{name}' in vhost '{vhost}'")
            return False
        self.queues_[vhost, name] = QueueView(
            name=name, vhost=vhost, durable=durable, auto_delete=auto_delete, arguments=dict(arguments)
        )
        self.messages[vhost, name] = []
        return True

    async def delete_queue(self, vhost: str, name: str, *, if_unused: bool, if_empty: bool) -> None:
        if if_empty and self.messages[vhost, name]:
            raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' not empty")
        del self.queues_[vhost, name]

    async def purge_queue(self, vhost: str, name: str) -> int:
        count = len(self.messages[vhost, name])
        self.messages[vhost, name] = []
        return count

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
        new = (vhost, name) not in self.exchanges_
        self.exchanges_[vhost, name] = ExchangeView(
            name=name, vhost=vhost, type=type, durable=durable, arguments=dict(arguments)
        )
        return new

    async def delete_exchange(self, vhost: str, name: str, *, if_unused: bool) -> None:
        del self.exchanges_[vhost, name]

    async def bind(self, vhost: str, binding: BindingView) -> bool:
        if (vhost, binding.source) not in self.exchanges_:
            raise NotFound(f"no exchange '{binding.source}' in vhost '{vhost}'")
        self.bindings_.append(binding)
        return True

    async def unbind(self, vhost: str, binding: BindingView) -> bool:
        self.bindings_.remove(binding)
        return True

    async def publish(
        self,
        vhost: str,
        exchange: str,
        routing_key: str,
        properties: Mapping[str, object],
        body: bytes,
        user: str,
    ) -> bool:
        if exchange or (vhost, routing_key) not in self.queues_:
            return False
        self.messages[vhost, routing_key].append((exchange, routing_key, dict(properties), body))
        return True

    async def get(self, vhost: str, queue: str, count: int, fate: Fate) -> list[MessageView]:
        waiting = self.messages[vhost, queue]
        taken = waiting[:count]
        if fate != "requeue":
            del waiting[:count]
        return [
            MessageView(
                exchange=exchange,
                routing_key=key,
                redelivered=False,
                message_count=len(waiting),
                properties=properties,
                body=body,
            )
            for exchange, key, properties, body in taken
        ]

    def close_connection(self, name: str, reason: str) -> bool:
        self.closed.append((name, reason))
        found = [each for each in self.connections_ if each.name == name]
        self.connections_ = [each for each in self.connections_ if each.name != name]
        return bool(found)

    def set_memory_limit(self, limit: str) -> None:
        try:
            Config(memory_limit=limit)
        except InvalidOption:
            raise
        self.memory_limit = limit

    async def settled(self) -> None:
        self.settled_after.append(self.changes)


def sha256(password: str) -> str:
    import hashlib

    salt = b"salt"
    return "sha256$" + base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


Connect = Callable[..., httpx.AsyncClient]


@pytest.fixture
async def connect(broker: FakeBroker) -> AsyncIterator[Connect]:
    """`connect("admin")`: a client with this user's login, from 127.0.0.1 unless another peer is given."""
    app = Api(broker, BODY_BYTES_MAX).app(requests_max=8)
    clients: list[httpx.AsyncClient] = []

    def connect(user: str | None, password: str | None = None, peer: str = "127.0.0.1") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app, client=(peer, 12345))
        auth = None if user is None else httpx.BasicAuth(user, user if password is None else password)
        client = httpx.AsyncClient(transport=transport, base_url="http://broker/api/", auth=auth)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        await client.aclose()
