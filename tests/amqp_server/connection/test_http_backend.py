"""An operator's HTTP server decides who may log in and what they may do. It must not be able to harm the
broker.
"""

from __future__ import annotations

import gzip
import http.server
import os
import re
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import trio
import trustme
from pamqp import commands, frame

from amqp_server.app import Node
from amqp_server.config import Config, InvalidOption
from amqp_server.connection.session import Session
from amqp_server.wire import frames
from conformance_tests.http_backend import PATHS, Asked, Backend
from conformance_tests.patience import PATIENCE_S

from ..wire.published import message
from .node import CAPABILITIES
from .served import Client, client, connect, served, until

Handler = http.server.BaseHTTPRequestHandler


@pytest.fixture
def backend() -> Iterator[Backend]:
    made = Backend()
    yield made
    made.close()


def asking(backend: Backend, **options: Any) -> dict[str, Any]:
    paths = {f"auth_http_{path}_path": f"{backend.url}/{path}" for path in PATHS}
    return {"auth_backends": ("internal", "http"), **paths, **options}


async def begin(node: Node, user: str = "anna", password: str = "tea") -> tuple[Client, Any]:
    """Log in; return the answer: connection.tune or connection.close."""
    made = await connect(node)
    await made.send(b"AMQP\x00\x00\x09\x01")
    await made.wait_for(commands.Connection.Start)
    properties: Any = {"capabilities": dict(CAPABILITIES)}
    login = commands.Connection.StartOk(properties, "PLAIN", f"\0{user}\0{password}", "en_US")
    await made.send(frame.marshal(login, 0))
    with trio.fail_after(PATIENCE_S):
        while not made.received:
            assert await made.read(), "the connection was closed"
    return made, made.received.pop(0)[1]


@asynccontextmanager
async def logged_in(node: Node, user: str = "anna", channels: int = 1) -> Any:
    made, tune = await begin(node, user)
    try:
        assert isinstance(tune, commands.Connection.Tune), tune
        await made.send(frame.marshal(commands.Connection.TuneOk(2047, 131_072, 0), 0))
        await made.ask(0, commands.Connection.Open("/"), commands.Connection.OpenOk)
        for channel in range(1, channels + 1):
            await made.ask(channel, commands.Channel.Open(), commands.Channel.OpenOk)
        yield made
    finally:
        await trio.aclose_forcefully(made.stream)


async def refused(node: Node, user: str = "anna", password: str = "tea") -> None:
    made, answer = await begin(node, user, password)
    assert isinstance(answer, commands.Connection.Close) and answer.reply_code == 403, answer
    await trio.aclose_forcefully(made.stream)


def large() -> bytes:
    """A message of three frames."""
    method, header, _ = message(routing_key="q", body=b"x" * 300_000).frames(1)
    return b"".join((method, header, *3 * (frames.raw_frame(frames.BODY, 1, b"x" * 100_000),)))


def session_of(node: Node, user: str) -> Session:
    (found,) = [each for each in node.broker.sessions if each.client.username == user]
    return cast(Session, found)


def ready(node: Node, queue: str) -> int:
    return node.broker.vhost("/").queues[queue].host.ready_count


async def test_methods_wait_for_their_permission_and_others_go_on(tmp_path: Path, backend: Backend) -> None:
    async with served(tmp_path, **asking(backend)) as node, client(node) as guest, logged_in(node) as anna:
        backend.awake.clear()
        # All in one write: nothing overtakes the method that waits for its permission, and nothing is lost.
        await anna.send(
            frame.marshal(commands.Queue.Declare(queue="q"), 1),
            frame.marshal(commands.Confirm.Select(), 1),
            *(message(routing_key="q", body=b"%d" % number).encode(1) for number in range(3)),
            large(),
            frame.marshal(commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="a"), 1),
            message("amq.topic", "a", b"last").encode(1),
            frame.marshal(commands.Queue.Declare(queue="q", passive=True), 1),
        )
        await until(lambda: backend.questions("resource"))
        assert session_of(node, "anna").suspended is not None
        # Meanwhile another connection, about which the backend is not asked.
        await guest.ask(1, commands.Queue.Declare(queue="guests"), commands.Queue.DeclareOk)
        await guest.send(message(routing_key="guests", body=b"tea").encode(1))
        await until(lambda: ready(node, "guests") == 1)
        assert "q" not in node.broker.vhost("/").queues
        backend.awake.set()
        await anna.wait_for(commands.Queue.DeclareOk)
        declared = await anna.wait_for(commands.Queue.DeclareOk)
        assert declared.message_count == 5
        got: list[bytes] = []
        for _ in range(5):
            await anna.send(frame.marshal(commands.Basic.Get(queue="q", no_ack=True), 1))
            got += [each.body for each in await anna.deliveries(1)]
        assert got == [b"0", b"1", b"2", b"x" * 300_000, b"last"]
        asked = [(each["name"], each["permission"]) for each in backend.questions("resource", "topic")]
        # One question for each, in the order of the methods.
        assert asked == [
            ("q", "configure"),
            ("amq.default", "write"),
            ("q", "write"),
            ("amq.topic", "read"),
            ("amq.topic", "read"),
            ("amq.topic", "write"),
            ("amq.topic", "write"),
            ("q", "read"),
        ]
    assert not node.broker.access.permissions._grants


@contextmanager
def server_of_the_page() -> Iterator[int]:
    """Run the program of docs/security.md; yield its port."""
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    (text,) = re.findall(r"```python\n(from http.server.*?)```", page, re.DOTALL)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    command = [sys.executable, "-c", text.replace("8000", str(port))]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            yield port
        finally:
            server.kill()


async def test_the_server_of_the_page(tmp_path: Path) -> None:
    """anna may do anything in / and bert nothing."""
    with server_of_the_page() as port:
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    await trio.aclose_forcefully(await trio.open_tcp_stream("127.0.0.1", port))
                    break
                except OSError:
                    await trio.sleep(0.02)
        options = asking(cast(Backend, SimpleNamespace(url=f"http://127.0.0.1:{port}")))
        async with served(tmp_path, **options) as node:
            async with logged_in(node) as anna:
                await anna.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
            await refused(node, password="coffee")
            bert, tune = await begin(node, "bert", "coffee")
            assert isinstance(tune, commands.Connection.Tune), tune
            await bert.send(frame.marshal(commands.Connection.TuneOk(2047, 131_072, 0), 0))
            await bert.send(frame.marshal(commands.Connection.Open("/"), 0))
            closed = await bert.wait_for(commands.Connection.Close)
            assert closed.reply_code == 530
            await trio.aclose_forcefully(bert.stream)


async def test_a_name_is_generated_once(tmp_path: Path, backend: Backend) -> None:
    async with served(tmp_path, **asking(backend)) as node, logged_in(node) as anna:
        names = [
            (await anna.ask(1, commands.Queue.Declare(queue=""), commands.Queue.DeclareOk)).queue
            for _ in range(2)
        ]
        assert names == [each["name"] for each in backend.questions("resource")]
        assert len(set(names)) == 2


async def test_a_large_message_waits_whose_permission_has_changed(tmp_path: Path, backend: Backend) -> None:
    options = asking(backend, auth_http_cache_s=1.0)
    async with served(tmp_path, **options) as node, logged_in(node, channels=2) as anna:
        await anna.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        whole = large()
        for _ in range(2):
            # Its first frames come before the topology changes, and the others when the cached answer has
            # expired.
            await anna.send(whole[:150_000])
            await until(lambda: session_of(node, "anna").channels[1].assembly)
            await trio.sleep(1.1)
            node.broker.changed()
            await anna.send(whole[150_000:])
        await until(lambda: ready(node, "q") == 2)
        backend.permits = lambda asked: asked.parameters.get("permission") != "write"
        await anna.send(whole[:150_000])
        await until(lambda: session_of(node, "anna").channels[1].assembly)
        await trio.sleep(1.1)
        node.broker.changed()
        await anna.send(whole[150_000:])
        close = await anna.wait_for(commands.Channel.Close)
        assert close.reply_code == 403 and "access to exchange 'amq.default'" in close.reply_text
        assert ready(node, "q") == 2


async def test_answers_are_kept(tmp_path: Path, backend: Backend) -> None:
    async with served(tmp_path, **asking(backend)) as node, logged_in(node, channels=2) as anna:
        await anna.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        for channel in (1, 2, 1):
            await anna.send(message(routing_key="q", body=b"tea").encode(channel))
        async with logged_in(node) as again:
            await again.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
            await again.send(message(routing_key="q", body=b"tea").encode(1))
            await until(lambda: ready(node, "q") == 4)
        assert [each.path for each in backend.asked] == ["user", "vhost", "resource", "resource"]


async def test_answers_are_forgotten(tmp_path: Path, backend: Backend) -> None:
    options = asking(backend, auth_http_cache_s=1.0)
    async with served(tmp_path, **options) as node, logged_in(node) as anna:
        await anna.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        publish = message(routing_key="q", body=b"tea").encode(1)
        await anna.send(publish)
        await until(lambda: ready(node, "q") == 1)
        backend.permits = lambda asked: False
        with trio.fail_after(PATIENCE_S):
            # The route is remembered, as for any client, but no longer than the cached answer is valid.
            while not any(isinstance(found, commands.Channel.Close) for _, found in anna.received):
                await anna.send(publish)
                with trio.move_on_after(0.05):
                    await anna.read()
        refused = [found for _, found in anna.received if isinstance(found, commands.Channel.Close)]
        assert "access to exchange 'amq.default' in vhost '/' refused" in refused[0].reply_text


async def test_a_slow_backend_holds_up_nobody_else(
    tmp_path: Path, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.passwords |= {f"user{number}": "tea" for number in range(12)}
    options = asking(backend, auth_http_timeout_s=2.0, auth_http_requests_max=4)
    async with served(tmp_path, **options) as node, logged_in(node) as anna, trio.open_nursery() as nursery:
        backend.awake.clear()
        for number in range(12):
            nursery.start_soon(refused, node, f"user{number}")
        await until(lambda: len(backend.questions("user")) >= 3)
        # Logins may take half of the places.
        assert len(backend.questions("user")) == 3
        assert not backend.questions("resource")
        # A client of the same address, with a password of the broker's own.
        with trio.fail_after(PATIENCE_S):
            async with client(node) as guest:
                await guest.ask(1, commands.Queue.Declare(queue="guests"), commands.Queue.DeclareOk)
        # Permissions may take the other half.
        await anna.send(frame.marshal(commands.Queue.Declare(queue="q"), 1))
        await until(lambda: backend.questions("resource"))
        close = await anna.wait_for(commands.Channel.Close)
        assert close.reply_code == 403 and "access to queue 'q'" in close.reply_text
    assert "the HTTP backend has not answered for user 'user1': no answer within 2.0 s" in caplog.text
    assert "tea" not in caplog.text


def _broken(body: bytes) -> Callable[[Handler], None]:
    def write(handler: Handler) -> None:
        handler.wfile.write(body)

    return write


def _answer(status: int, body: bytes, *headers: str) -> Callable[[Handler], None]:
    head = "\r\n".join((f"HTTP/1.1 {status} x", *headers, f"Content-Length: {len(body)}", "", ""))
    return _broken(head.encode() + body)


def _endless(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(10_000):
        handler.wfile.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")


def _headers(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(100_000):
        handler.wfile.write(b"x%d: %s\r\n" % (number, b"y" * 1000))


def _reset(handler: Handler) -> None:
    """End the connection by a reset, as a server does that has not read everything."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # The handler's files and its server would keep the socket, and end it in order.
    os.close(handler.connection.detach())


WRONG: list[tuple[str, Callable[[Handler], None]]] = [
    ("status 500", _answer(500, b"allow")),
    ("status 204", _answer(204, b"")),
    ("neither allow nor deny", _answer(200, b"allowed")),
    ("neither allow nor deny", _answer(200, b"")),
    ("not UTF-8", _answer(200, b"allow \xff")),
    ("not UTF-8", _answer(200, gzip.compress(b"allow"), "Content-Encoding: gzip")),
    ("at most 64 tags", _answer(200, b"allow" + b"".join(b" t%d" % number for number in range(100)))),
    ("more than 4096 bytes", _answer(200, b"allow" + b" " * 5_000)),
    ("more than 4096 bytes", _endless),
    ("the connection ended before the answer, or the answer is not HTTP", _broken(b"HTTP/9.9 what\r\n\r\n")),
    ("the connection ended before the answer, or the answer is not HTTP", _headers),
    ("the connection ended before the answer, or the answer is not HTTP", lambda handler: None),
    ("the connection ended before the answer, or the answer is not HTTP", _reset),
]


async def test_what_is_no_answer(tmp_path: Path, backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    options = asking(backend, login_failures_free=0)
    async with served(tmp_path, **options) as node, logged_in(node) as anna:
        for reason, misbehaves in WRONG:
            caplog.clear()
            backend.misbehaves = misbehaves
            await refused(node, "anna2")
            assert reason in caplog.text
        elsewhere = Backend()
        try:
            backend.misbehaves = _answer(302, b"", f"Location: {elsewhere.url}/user")
            await refused(node, "anna2")
            assert "status 302" in caplog.text
            backend.misbehaves = _answer(307, b"", f"Location: {elsewhere.url}/user")
            await refused(node, "anna2")
            assert elsewhere.asked == []
        finally:
            elsewhere.close()
        # Without an answer the permission is refused, and the next method asks again.
        close = await anna.ask(1, commands.Queue.Declare(queue="q"), commands.Channel.Close)
        assert close.reply_code == 403
        assert "backend has not answered for user 'anna'" in caplog.text
        backend.misbehaves = None
        backend.passwords["anna2"] = "tea"
        async with logged_in(node, "anna2") as client_:
            await client_.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        # This is no failed login of any user.
        assert not node.password_checks._sources
        assert "tea" not in caplog.text


async def test_failed_logins_count_once(tmp_path: Path, backend: Backend) -> None:
    options = asking(backend, login_memory_s=0.0)
    async with served(tmp_path, **options) as node:
        sources = node.password_checks._sources
        for _ in range(3):
            async with logged_in(node):
                pass
        # The broker itself has another password for this user, which is no failure.
        assert not sources
        await refused(node, "anna", "coffee")
        assert sources["127.0.0.1"].failures == 1
        await refused(node, "guest", "tea")
        assert sources["127.0.0.1"].failures == 2
        backend.misbehaves = _answer(500, b"")
        # While the backend is away, wrong guesses at the broker's own users count as usual.
        await refused(node, "guest", "coffee")
        assert sources["127.0.0.1"].failures == 3
        await refused(node, "bert", "coffee")
        assert sources["127.0.0.1"].failures == 3


@pytest.mark.parametrize("order", [("http", "internal"), ("http",)])
async def test_backends_are_asked_in_their_order(
    tmp_path: Path, backend: Backend, order: tuple[str, ...]
) -> None:
    async with served(tmp_path, **asking(backend, auth_backends=order)) as node:
        if "internal" in order:
            async with client(node):
                pass
        else:
            await refused(node, "guest", "guest")
        assert [each["username"] for each in backend.questions("user")] == ["guest"]
        # If both know a user, the one that accepts the login decides: a user of the backend does not get the
        # permissions of the broker's user of the same name.
        backend.passwords["guest"] = "coffee"
        backend.permits = lambda asked: asked.path == "vhost"
        made, tune = await begin(node, "guest", "coffee")
        assert isinstance(tune, commands.Connection.Tune)
        await made.send(frame.marshal(commands.Connection.TuneOk(2047, 131_072, 0), 0))
        await made.ask(0, commands.Connection.Open("/"), commands.Connection.OpenOk)
        await made.ask(1, commands.Channel.Open(), commands.Channel.OpenOk)
        close = await made.ask(1, commands.Queue.Declare(queue="q"), commands.Channel.Close)
        assert close.reply_code == 403
        await trio.aclose_forcefully(made.stream)


async def test_as_a_query(tmp_path: Path, backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    backend.passwords["ännä"] = "t&e=a%"
    options = asking(backend, auth_http_method="get", auth_http_vhost_path=f"{backend.url}/vhost?of=mqd")
    async with served(tmp_path, **options) as node:
        made, tune = await begin(node, "ännä", "t&e=a%")
        assert isinstance(tune, commands.Connection.Tune)
        await made.send(frame.marshal(commands.Connection.TuneOk(2047, 131_072, 0), 0))
        await made.ask(0, commands.Connection.Open("/"), commands.Connection.OpenOk)
        await trio.aclose_forcefully(made.stream)
    assert backend.asked[0] == Asked("GET", "user", {"username": "ännä", "password": "t&e=a%"})
    assert backend.asked[1].parameters["of"] == "mqd"
    assert "ännä" in caplog.text and "t&e" not in caplog.text and "t%26e" not in caplog.text


async def test_the_management_api(tmp_path: Path, backend: Backend) -> None:
    backend.tags = "management"
    async with served(tmp_path, http="127.0.0.1:0", **asking(backend)) as node:
        for vhost in ("shop", "hidden"):
            node.broker.turn.run(node.broker.add_vhost, vhost)
        backend.permits = lambda asked: "hidden" not in asked.parameters.values()
        async with httpx.AsyncClient(
            base_url=f"http://{node.http_address}/api/", timeout=PATIENCE_S, auth=("anna", "tea")
        ) as api:
            told = (await api.get("whoami")).json()
            assert told == {"name": "anna", "tags": ["management"], "is_internal_user": False}
            assert [each["name"] for each in (await api.get("vhosts")).json()] == ["/", "shop"]
            assert (await api.get("queues/hidden")).status_code == 401
            assert (await api.put("queues/shop/q", json={})).status_code == 201
            assert (await api.put("queues/shop/hidden", json={})).status_code == 401
            bind = "bindings/shop/e/amq.topic/q/q"
            assert (await api.post(bind, json={"routing_key": "a"})).status_code == 201
            assert (await api.post(bind, json={"routing_key": "hidden"})).status_code == 401
            sent = await api.post(
                "exchanges/shop/amq.topic/publish",
                json={"properties": {}, "routing_key": "a", "payload": "tea", "payload_encoding": "string"},
            )
            assert sent.json() == {"routed": True}
            assert (await api.get("users")).status_code == 401
            # The backend is not asked about the password for every request.
            assert len(backend.questions("user")) == 1
            ours, nobody = cast(Any, ("guest", "guest")), cast(Any, None)
            for password, outcome in (("tea", True), ("coffee", False)):
                asked = await api.post("users/anna/authenticate", json={"password": password}, auth=ours)
                assert asked.json() == {"authenticated": outcome}
            page = {"name": "anna", "password": "tea"}
            headers = {"x-mqd-csrf": ""}
            begun = await api.post("session", json=page, headers=headers, auth=nobody)
            assert begun.json()["tags"] == ["management"], begun.text
            who = await api.get("session", auth=nobody)
            assert who.json()["name"] == "anna"
            backend.tags = "administrator"
            assert (await api.get("whoami", auth=("anna", "coffee"))).status_code == 401
        assert not node.broker.access.permissions._grants


async def test_a_client_that_goes_meanwhile(tmp_path: Path, backend: Backend) -> None:
    async with served(tmp_path, **asking(backend)) as node:
        async with logged_in(node, channels=2) as anna:
            backend.awake.clear()
            await anna.send(frame.marshal(commands.Queue.Declare(queue="q"), 1))
            await until(lambda: backend.questions("resource"))
        made = await connect(node)
        await made.send(b"AMQP\x00\x00\x09\x01")
        await made.wait_for(commands.Connection.Start)
        login = commands.Connection.StartOk({}, "PLAIN", "\0bert\0tea", "en_US")
        await made.send(frame.marshal(login, 0))
        await until(lambda: len(backend.questions("user")) == 2)
        await trio.aclose_forcefully(made.stream)
        backend.awake.set()
        await until(lambda: not node.server.transports)
        assert node.http_backend is not None
        asked = node.http_backend._asked
        await until(lambda: not asked)
        assert "q" not in node.broker.vhost("/").queues
        assert not node.broker.access.permissions._grants


async def test_no_more_logins_wait_and_no_more_answers_are_kept_than_allowed(
    tmp_path: Path, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.passwords |= {f"user{number}": "tea" for number in range(6)}
    options = asking(backend, auth_http_waiting_max=2, auth_http_cache_entries_max=16)
    turned_away: list[str] = []

    async def turned(user: str) -> None:
        await refused(node, user)
        turned_away.append(user)

    async with served(tmp_path, **options) as node, logged_in(node, channels=8) as anna:
        for number in range(40):
            await anna.ask(1, commands.Queue.Declare(queue=f"q{number}"), commands.Queue.DeclareOk)
        assert node.broker.access.answers is not None and len(node.broker.access.answers) == 16
        backend.awake.clear()
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(turned, f"user{number}")
            # Two logins wait for an answer; the node refuses the others without asking.
            await until(lambda: len(turned_away) == 4)
            assert len(backend.questions("user")) == 3
            backend.passwords.clear()
            backend.awake.set()
        assert len(turned_away) == 6
        assert "too many requests wait for it (auth_http_waiting_max)" in caplog.text


# If sending fails, httpx leaves the generator of a request's body to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_the_backend_is_asked_over_tls_with_our_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, ca_file = trustme.CA(), str(tmp_path / "ca.pem")
    authority.cert_pem.write_to_path(ca_file)
    certificate = authority.issue_cert("mqd.example")
    shown = str(tmp_path / "mqd.pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(shown)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.configure_trust(tls)
    tls.verify_mode = ssl.CERT_REQUIRED
    backend = Backend(tls)
    ours = {"auth_http_ca_file": ca_file, "auth_http_cert_file": shown, "auth_http_key_file": shown}
    try:
        async with served(tmp_path / "a", **asking(backend, **ours)) as node, logged_in(node):
            pass
        assert backend.questions("user")
        backend.asked.clear()
        for number, wrong in enumerate(
            ({"auth_http_ca_file": ""}, {"auth_http_cert_file": "", "auth_http_key_file": ""})
        ):
            async with served(tmp_path / f"b{number}", **asking(backend, **ours | wrong)) as node:
                await refused(node)
        assert not backend.asked
        assert "has not answered for user 'anna': [SSL: CERTIFICATE_VERIFY_FAILED]" in caplog.text
        async with served(tmp_path / "c", **asking(backend, auth_http_ca_file="nowhere.pem")) as node:
            await refused(node)
        assert "its certificates can't be read" in caplog.text
    finally:
        backend.close()


def test_options_of_the_backend_are_checked() -> None:
    paths = {f"auth_http_{path}_path": f"https://auth.example/{path}" for path in PATHS}
    Config(auth_backends=("http",), **paths)  # type: ignore[arg-type]
    for backends in ((), ("ldap",), ("http", "http"), ("internal", "internal")):
        with pytest.raises(InvalidOption, match="auth_backends"):
            Config(auth_backends=backends, **paths)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="auth_http_topic_path"):
        Config(auth_backends=("http",), **paths | {"auth_http_topic_path": ""})  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="auth_http_user_path"):
        Config(auth_http_user_path="file:///etc/passwd")
    with pytest.raises(InvalidOption, match="auth_http_cert_file"):
        Config(auth_http_cert_file="cert.pem")
