"""The management listener over sockets, with clients that try to block it for others."""

from __future__ import annotations

import base64
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from amqp_server.config import Config
from amqp_server.management.objects.managed_broker import ManagedBroker
from amqp_server.management.serving import listener
from conformance_tests.patience import PATIENCE_S

pytestmark = pytest.mark.trio

#: Short, where a test waits until one has passed.
SHORT_S = 0.3
#: Long, where a test must not end because one has passed.
LONG_S = 600.0


class Client:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._data = b""

    async def send(
        self, method: str, path: str, *, login: str = "", body: bytes = b"", length: int = -1
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: broker"]
        if login:
            lines.append(f"authorization: Basic {base64.b64encode(f'{login}:{login}'.encode()).decode()}")
        if length >= 0 or body:
            lines.append(f"content-length: {len(body) if length < 0 else length}")
        await self.stream.send_all("\r\n".join([*lines, "", ""]).encode() + body)

    async def status(self) -> int:
        """Return the status of the next answer, whose body is read too; 0 if the connection ends before."""
        with trio.fail_after(PATIENCE_S):
            while b"\r\n\r\n" not in self._data:
                if not await self._fill():
                    return 0
            head, _, self._data = self._data.partition(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            length = int(fields.get(b"content-length", b"0"))
            while len(self._data) < length and await self._fill():
                pass
            self._data = self._data[length:]
        return int(head.split()[1])

    @property
    def left(self) -> bytes:
        """What has come behind the last answer."""
        return self._data

    async def _fill(self) -> bool:
        try:
            more = await self.stream.receive_some(65_536)
        except trio.BrokenResourceError:
            return False
        self._data += more
        return bool(more)

    async def ask(self, method: str, path: str, **more: Any) -> int:
        await self.send(method, path, **more)
        return await self.status()

    async def ends(self) -> None:
        with trio.fail_after(PATIENCE_S):
            while await self._fill():
                pass


Dial = Callable[..., Any]


@asynccontextmanager
async def serving(broker: ManagedBroker, **options: Any) -> AsyncIterator[Dial]:
    """A listener with these options of the configuration; `await dial()` opens a connection."""
    defaults = {"http_request_timeout_s": LONG_S, "http_send_timeout_s": LONG_S}
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    address = listening.getsockname()
    stop = trio.Event()
    clients: list[Client] = []

    async def dial(receive_buffer_bytes: int = 0, source: str = "") -> Client:
        made = trio.socket.socket()
        if source:
            await made.bind((source, 0))
        if receive_buffer_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await made.connect(address)
        clients.append(Client(trio.SocketStream(made)))
        return clients[-1]

    async with trio.open_nursery() as nursery:
        config = Config(**(defaults | options))
        nursery.start_soon(listener.serve, listening, broker, config, stop.wait)
        try:
            yield dial
        finally:
            stop.set()
            for client in clients:
                await trio.aclose_forcefully(client.stream)


async def until_status(dial: Dial, wanted: int, path: str, **more: Any) -> None:
    with trio.fail_after(PATIENCE_S):
        while await (await dial()).ask("GET", path, **more) != wanted:
            pass


async def passing(clock: MockClock, seconds: float, dial: Dial, wanted: int, path: str, **more: Any) -> None:
    """The same, while time goes on by this much after each look: a wanted state can't end without being
    seen.
    """
    for _ in range(1_000):
        if await (await dial()).ask("GET", path, **more) == wanted:
            return
        clock.jump(seconds)
    raise AssertionError(f"{path} never had status {wanted}")


async def log_in(dial: Dial, user: str) -> None:
    """Log in: from now on the password is remembered, and a request takes its slot as soon as it is read."""
    assert await (await dial()).ask("GET", "/api/whoami", login=user) == 200


async def handled(dial: Dial) -> None:
    """Wait until the node has read what other connections sent before."""
    for _ in range(5):
        assert await (await dial()).ask("GET", "/health") == 200


async def test_slow_bodies_keep_nobody_from_the_probes_and_end_in_time(
    broker: ManagedBroker, mock_clock: MockClock
) -> None:
    limits = {"http_requests_max": 4, "http_requests_per_user_max": 4}
    async with serving(broker, http_request_timeout_s=3 * SHORT_S, **limits) as dial:
        await log_in(dial, "admin")
        slow = [await dial() for _ in range(4)]
        for client in slow:
            await client.send("PUT", "/api/vhosts/v", login="admin", body=b"{", length=1_000)
        await handled(dial)
        await until_status(dial, 503, "/api/whoami", login="admin")
        assert await (await dial()).ask("GET", "/health") == 200
        assert await (await dial()).ask("GET", "/health/ready") == 200

        async def drip(client: Client) -> None:
            """A byte now and then does not help."""
            try:
                while True:
                    await client.stream.send_all(b" ")
                    await trio.sleep(SHORT_S / 5)
            except trio.BrokenResourceError:
                pass

        async with trio.open_nursery() as nursery:
            for client in slow:
                nursery.start_soon(drip, client)
            await passing(mock_clock, SHORT_S / 5, dial, 200, "/api/whoami", login="admin")
            while nursery.child_tasks:
                mock_clock.jump(SHORT_S)
                await handled(dial)
        assert broker.vhosts.get("v") is None


async def test_a_head_that_never_ends(broker: ManagedBroker) -> None:
    async with serving(broker, http_request_timeout_s=SHORT_S) as dial:
        clients = [await dial() for _ in range(3)]
        await clients[1].stream.send_all(b"GET /health HT")
        assert await clients[2].ask("GET", "/health") == 200
        for client in clients:
            await client.ends()


async def test_unread_answers_give_their_slots_back(broker: ManagedBroker, mock_clock: MockClock) -> None:
    for number in range(300):
        name = f"{number}-" + "x" * 240
        await broker.queues.declare("/", name, durable=False, auto_delete=False, arguments={})
    limits = {"http_requests_max": 2, "http_requests_per_user_max": 2}
    async with serving(broker, http_send_timeout_s=SHORT_S, **limits) as dial:
        await log_in(dial, "admin")
        for _ in range(2):
            client = await dial(receive_buffer_bytes=4_096)
            for _ in range(100):
                await client.send("GET", "/api/queues", login="admin")
        await handled(dial)
        await until_status(dial, 503, "/api/whoami", login="admin")
        assert await (await dial()).ask("GET", "/health") == 200
        await passing(mock_clock, SHORT_S, dial, 200, "/api/whoami", login="admin")


async def test_pipelined_probes_that_are_not_read_end(broker: ManagedBroker) -> None:
    async with serving(broker, http_send_timeout_s=SHORT_S, http_pipelined_max=100_000) as dial:
        client = await dial(receive_buffer_bytes=4_096)
        request = b"GET /health HTTP/1.1\r\nhost: broker\r\n\r\n"
        with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
            while True:
                await client.stream.send_all(request * 1_000)
        assert await (await dial()).ask("GET", "/health") == 200


async def test_one_user_does_not_have_all_slots(broker: ManagedBroker) -> None:
    limits = {"http_requests_max": 10, "http_requests_per_user_max": 3}
    async with serving(broker, **limits) as dial:
        await log_in(dial, "manager")
        for _ in range(3):
            await (await dial()).send("PUT", "/api/queues/%2F/q", login="manager", body=b"{", length=9)
        await handled(dial)
        await until_status(dial, 503, "/api/whoami", login="manager")
        assert await (await dial()).ask("GET", "/api/whoami", login="admin") == 200


async def test_bad_logins_hold_nothing(broker: ManagedBroker, caplog: pytest.LogCaptureFixture) -> None:
    """The node does not read their body either, and they get their answer though they go on sending it."""
    limits = {"http_requests_max": 1, "http_requests_per_user_max": 1}
    async with serving(broker, **limits) as dial:
        for _ in range(5):
            client = await dial()
            await client.send("PUT", "/api/vhosts/v", body=b"x" * 400_000, length=1_000_000)
            assert await client.status() == 401
            await client.ends()
        assert await (await dial()).ask("GET", "/api/whoami", login="admin") == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_connections_that_do_nothing_are_displaced(broker: ManagedBroker) -> None:
    async with serving(broker, http_connections_max=16) as dial:
        await log_in(dial, "admin")
        first = await dial()
        await first.send("PUT", "/api/vhosts/v", login="admin", body=b"{", length=2)
        await handled(dial)
        idle = [await dial() for _ in range(60)]
        assert await (await dial()).ask("GET", "/health") == 200
        await idle[0].ends()
        # A connection with a login stays, however old it is.
        await first.stream.send_all(b"}")
        assert await first.status() == 201


async def test_there_is_no_http_2(broker: ManagedBroker, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(broker) as dial:
        prior = await dial()
        await prior.stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        assert await prior.status() in (400, 404, 505)
        upgrade = await dial()
        lines = ["GET /health HTTP/1.1", "host: broker", "connection: upgrade, http2-settings"]
        lines += ["upgrade: h2c", "http2-settings: AAMAAABkAAQAoAAAAAIAAAAA", "", ""]
        await upgrade.stream.send_all("\r\n".join(lines).encode())
        assert await upgrade.status() == 200
        assert await upgrade.ask("GET", "/health") == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_many_requests_on_one_connection(broker: ManagedBroker) -> None:
    async with serving(broker, http_request_timeout_s=5.0) as dial:
        client = await dial()
        for _ in range(50):
            assert await client.ask("GET", "/api/whoami", login="admin") == 200
            assert await client.ask("PUT", "/api/vhosts/v", login="admin", body=b"{}") in (201, 204)
        await client.send("GET", "/api/whoami", login="admin")
        await client.send("GET", "/health")
        assert (await client.status(), await client.status()) == (200, 200)


async def test_pipelined_requests_take_a_share_of_the_time(broker: ManagedBroker) -> None:
    """A bystander waits for a slice, however many connections have requests by the thousand."""
    async with serving(broker, http_slice_ms=1, http_pipelined_max=50) as dial:
        request = b"GET /health HTTP/1.1\r\nhost: broker\r\n\r\n"
        clients = [await dial() for _ in range(60)]
        waits: list[float] = []

        async def flood(client: Client) -> None:
            with suppress(trio.BrokenResourceError):
                await client.stream.send_all(request * 50)
                for _ in range(50):
                    assert await client.status() == 200

        async def bystander() -> None:
            while True:
                began = trio.current_time()
                await trio.lowlevel.checkpoint()
                waits.append(trio.current_time() - began)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bystander)
            async with trio.open_nursery() as flooding:
                for client in clients:
                    flooding.start_soon(flood, client)
            nursery.cancel_scope.cancel()
        # Sixty requests at a time would make some fifty rounds.
        assert len(waits) > 300
        assert sorted(waits)[len(waits) * 9 // 10] < (trio.current_time() - began) / 50


async def test_requests_behind_each_other_are_bounded(broker: ManagedBroker) -> None:
    """The client does not wait for an answer: after this many requests the connection ends. A client that
    waits for answers may send any number.
    """
    async with serving(broker, http_pipelined_max=3) as dial:
        client = await dial()
        await client.stream.send_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        assert [await client.status() for _ in range(4)] == [200] * 4
        await client.ends()
        few = await dial()
        await few.stream.send_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 4)
        assert [await few.status() for _ in range(4)] == [200] * 4
        assert [await few.ask("GET", "/health") for _ in range(10)] == [200] * 10
    async with serving(broker, http_pipelined_max=0) as dial:
        quick = await dial()
        assert [await quick.ask("GET", "/health") for _ in range(300)] == [200] * 300


async def test_a_client_that_speaks_tls_is_named(
    broker: ManagedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving(broker) as dial:
        client = await dial()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        through = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            through.do_handshake()
        await client.stream.send_all(outgoing.read())
        # The client's library takes the answer for another version of TLS.
        assert await client.status() == 400
        assert await (await dial()).ask("GET", "/health") == 200
    said = [each.getMessage() for each in caplog.records if each.name == "mqd.management"]
    assert [line for line in said if "TLS" in line] == [
        "the client at 127.0.0.1 uses TLS, but this listener uses plain HTTP: use http:// there, or put a TLS proxy in front "
        "of the listener"
    ]
