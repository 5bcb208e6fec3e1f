"""A broker over the store in memory behind the HTTP API, and HTTP clients that need no sockets."""

import base64
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import trio

from amqp_server.broker.topology.queue import Queue
from amqp_server.cluster.membership.machines import machine_of, number_of
from amqp_server.config import Config
from amqp_server.connection.login.authentication import Authentication
from amqp_server.connection.login.password_checks import PasswordChecks
from amqp_server.descriptors import Descriptors
from amqp_server.management.parts import ManagedParts
from amqp_server.management.request.columns import Table
from amqp_server.management.serving.http import Api
from amqp_server.management.statistics.sampler import Sampler, figures
from amqp_server.resources import ResourceWatch
from amqp_server.startup.reload import Reload
from amqp_server.workers.worker import config_of
from conformance_tests.patience import PATIENCE_S
from persistence.commits.committing import Syncs

from ..connection.node import MemoryNode
from ..connection.served import served
from ..wire.published import message

PASSWORDS = {
    "admin": ("administrator",),
    "watcher": ("monitoring",),
    "manager": ("management",),
    "policies": ("policymaker",),
    "plain": (),
    "guest": ("administrator",),
}
BODY_BYTES_MAX = 64 * 1024


class ManagedNode(MemoryNode):
    """Stands in for ManagedParts. It is its own `commits`."""

    def _configured(self, **options: Any) -> Config:
        node = options["node"]
        whole, number = Config(node=machine_of(node)), number_of(node)
        return config_of(whole, number, [f"@{each}:0" for each in range(number + 1)]) if number else whole

    def __init__(self, directory: Path, node: str = "n1") -> None:
        """`node` may be a worker."""
        super().__init__(node=node)
        broker = self.broker
        broker.add_vhost("other")
        for user, tags in PASSWORDS.items():
            # SHA-256, as RabbitMQ uses it: these tests make hundreds of logins.
            broker.access.users.put(user, sha256(user), tags)
            broker.access.permissions.set(user, "/", ".*", ".*", ".*")
        self.began = time.monotonic()
        self.addresses = {
            "amqp": "127.0.0.1:5672",
            "amqp/ssl": "127.0.0.1:5671",
            "http": "",
            "http/prometheus": "",
        }
        self.node_id = self.environment.node_id
        self.cluster: Any = None
        self.administration: Any = None
        self.others: Any = None
        self.user_changes = trio.Lock()
        self.syncs = Syncs()
        self.backpressure = SimpleNamespace(waiting_bytes=0, high_bytes=1 << 20)
        self.password_checks = PasswordChecks(broker.access.users, broker.config)
        self.authentication = Authentication(broker.access.users, broker.config, self.password_checks, None)
        self.tokens: Any = None
        self.commits: Any = self
        self.descriptors = Descriptors(broker.config, broker.alarms)
        self.resources = ResourceWatch(broker.config, broker.alarms, directory)
        self.reload = Reload(broker.config, self.resources, broker.log_limit, None)
        self.draining: Any = SimpleNamespace(
            drained=False, drain=self.drain, revive=self.revive, leaders_left=0, connections_left=2
        )
        self.sampler = Sampler(
            broker,
            lambda: figures(broker, self.resources, self.commits),
            interval_s=broker.config.statistics_interval_ms / 1000,
            bytes_max=broker.config.statistics_bytes_max,
        )
        self.stopped = 0
        #: Queues of the vhost / at each commit that a request waited for.
        self.settled: list[list[str]] = []

    @property
    def config(self) -> Config:
        return self.broker.config

    @property
    def parts(self) -> ManagedParts:
        return cast(ManagedParts, self)

    def shovels(self) -> None: ...

    def counted_before(self, node: str) -> None: ...

    async def barrier(self) -> None:
        self.sync()
        self.settled.append(list(self.broker.vhost("/").queues))

    def drain(self) -> None:
        self.draining.drained = True

    def revive(self) -> None:
        self.draining.drained = False

    def stop(self) -> None:
        self.stopped += 1

    def clients_wait(self) -> bool:
        return False

    def ready(self, queue: str) -> int:
        """How many messages are ready in a queue of the vhost /."""
        return self.broker.vhost("/").queues[queue].host.ready_count


def published(channel: int, exchange: str, key: str, body: bytes, **options: Any) -> bytes:
    """A publish, as a client sends it."""
    return message(exchange, key, body, **options).encode(channel)


def sha256(password: str) -> str:
    salt = b"salt"
    return "sha256$" + base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


@pytest.fixture
def node(tmp_path: Path) -> ManagedNode:
    return ManagedNode(tmp_path)


@pytest.fixture
def parts(node: ManagedNode) -> ManagedParts:
    return node.parts


Connect = Callable[..., httpx.AsyncClient]


def before_whole_rows(monkeypatch: pytest.MonkeyPatch, act: Callable[[Queue], object]) -> None:
    """Call `act` before each row of a queue that has more than a few columns."""
    rows = Table.rows

    def noting(self: Table, reads: Any, wanted: Collection[str] | None = None) -> Callable[[Any], Any]:
        row = rows(self, reads, wanted)

        def noted(queue: Queue) -> Any:
            act(queue)
            return row(queue)

        return noted if wanted is None or len(wanted) > 5 else row

    monkeypatch.setattr(Table, "rows", noting)


@pytest.fixture
async def connect_with(parts: ManagedParts) -> AsyncIterator[Callable[..., httpx.AsyncClient]]:
    """`connect_with(slice_ms=1)`: a client of an API with these settings, logged in as admin."""
    clients: list[httpx.AsyncClient] = []

    def connect(**settings: Any) -> httpx.AsyncClient:
        app = Api(parts, BODY_BYTES_MAX, **settings).app(requests_max=64)
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 12345))
        auth = httpx.BasicAuth("admin", "admin")
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://broker/api/", auth=auth))
        return clients[-1]

    yield connect
    for client in clients:
        await client.aclose()


@pytest.fixture
async def connect(parts: ManagedParts) -> AsyncIterator[Connect]:
    """`connect("admin")`: a client with this user's login, from 127.0.0.1 unless another peer is given."""
    app = Api(parts, BODY_BYTES_MAX).app(requests_max=8)
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


@pytest.fixture
def sampler(node: ManagedNode, monkeypatch: pytest.MonkeyPatch) -> Sampler:
    """Each sample is five seconds after the one before."""
    sample = node.sampler.sample

    async def later() -> None:
        node.clock.now_ms += 5_000
        await sample()

    monkeypatch.setattr(node.sampler, "sample", later)
    return node.sampler


@asynccontextmanager
async def with_queue(directory: Path, name: str, kind: str) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a node that has this durable queue; yield an administrator's client over a socket."""
    async with (
        served(directory, http="127.0.0.1:0") as node,
        httpx.AsyncClient(base_url=f"http://{node.http_address}/api/", timeout=PATIENCE_S) as admin,
    ):
        admin.auth = httpx.BasicAuth("guest", "guest")
        queue = {"durable": True, "arguments": {"x-queue-type": kind}}
        assert (await admin.put(f"queues/%2F/{name}", json=queue)).status_code == 201
        yield admin
