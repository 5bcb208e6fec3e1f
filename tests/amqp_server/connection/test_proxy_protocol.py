"""The header of a proxy counts if the proxy is trusted, and no header does harm."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands

from amqp_server.app import Node
from amqp_server.config import Config, InvalidOption
from amqp_server.connection.session import Session
from amqp_server.connection.sockets.proxy_protocol import (
    SIGNATURE,
    BadProxyHeader,
    HostPort,
    Proxies,
    ProxyHeader,
    parse_header,
)
from conformance_tests.patience import PATIENCE_S

from .authority import Authority, tls_port
from .node import CAPABILITIES
from .served import Client, connect, handshakes_take, served, until

MOST = 4096
LOCAL = SIGNATURE + b"\x20\x00\x00\x00"
V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 5672\r\n"


def v2(family: int, addresses: bytes, *, details: bytes = b"", command: int = 0x21) -> bytes:
    size = len(addresses) + len(details)
    return SIGNATURE + bytes((command, family)) + size.to_bytes(2, "big") + addresses + details


V2 = v2(0x11, bytes((192, 0, 2, 7, 198, 51, 100, 1)) + b"\x12\x67\x16\x28", details=b"\x04\x00\x01\x00")
V2_6 = v2(0x21, bytes(15) + b"\x07" + bytes(15) + b"\x01" + b"\x12\x67\x16\x28")
CLIENT, HERE = HostPort("192.0.2.7", 4711), HostPort("198.51.100.1", 5672)

GOOD = {
    V1: (CLIENT, HERE),
    V2: (CLIENT, HERE),
    b"PROXY TCP6 2001:db8::7 ::1 1 65535\r\n": (HostPort("2001:db8::7", 1), HostPort("::1", 65535)),
    b"PROXY UNKNOWN\r\n": (None, None),
    b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n": (None, None),
    LOCAL: (None, None),
    v2(0x11, V2[16:28], command=0x20): (None, None),
    v2(0x00, b""): (None, None),
    v2(0x31, bytes(216)): (None, None),
    V2_6: (HostPort("::7", 4711), HostPort("::1", 5672)),
}


@pytest.mark.parametrize(("data", "places"), GOOD.items())
def test_whole_byte_by_byte_and_with_more(
    data: bytes, places: tuple[HostPort | None, HostPort | None]
) -> None:
    expected = ProxyHeader(len(data), *places)
    assert parse_header(data, MOST) == parse_header(data + b"AMQP\r\n", MOST) == expected
    assert [parse_header(data[:length], MOST) for length in range(len(data))] == len(data) * [None]


@pytest.mark.parametrize(
    "data",
    [
        b"AMQP\x00\x00\x09\x01",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x00",
        b"proxy TCP4",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 4711\r\n",
        b"PROXY TCP4 192.0.2.7  198.51.100.1 4711 5672\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 65536\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 -1\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 04711 5672\r\n",
        "PROXY TCP4 192.0.2.7 198.51.100.1 ٣ 5672\r\n".encode(),
        b"PROXY TCP4 ::1 ::1 1 1\r\n",
        b"PROXY TCP6 192.0.2.7 198.51.100.1 1 1\r\n",
        b"PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n",
        b"PROXY TCP4 192.0.2.07 198.51.100.1 1 1\r\n",
        b"PROXY TCP4 localhost 198.51.100.1 1 1\r\n",
        b"PROXY UDP4 192.0.2.7 198.51.100.1 1 1\r\n",
        b"PROXY \r\n",
        b"PROXY UNKNOWN " + b"x" * 93,
        b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n",
        SIGNATURE + b"\x11\x11\x00\x0c",
        SIGNATURE + b"\x22\x11\x00\x0c",
        SIGNATURE + b"\x21\x11\xff\xff",
        v2(0x11, V2[16:27]),
        v2(0x21, V2[16:28]),
        v2(0x12, V2[16:28]),
        v2(0x41, bytes(216)),
    ],
)
def test_what_is_no_header(data: bytes) -> None:
    with pytest.raises(BadProxyHeader):
        parse_header(data, MOST)


@given(
    st.one_of(
        st.binary(), *(st.binary().map(begin.__add__) for begin in (SIGNATURE, b"PROXY TCP4 ", V2[:14]))
    )
)
@example(b"PROXY TCP6 " + b":" * 200)
def test_hostile_bytes_are_refused_or_awaited(data: bytes) -> None:
    try:
        header = parse_header(data, MOST)
    except BadProxyHeader:
        return
    assert header is None or 0 < header.size <= len(data)
    if header is None:
        # With more bytes the header is complete or refused: no bytes keep a connection waiting forever.
        with suppress(BadProxyHeader):
            assert parse_header(data + b"\xff" * MOST, MOST) is not None


def test_only_the_configured_sources_are_trusted() -> None:
    proxies = Proxies(["10.0.0.0/8", "127.0.0.1", "2001:db8::/32"])
    trusted = ("10.1.2.3", "::ffff:10.1.2.3", "127.0.0.1", "2001:db8::1")
    assert all(map(proxies.trusts, trusted))
    assert not any(map(proxies.trusts, ("11.0.0.1", "127.0.0.2", "::1", "fe80::1%eth0")))
    assert not Proxies(()).trusts("127.0.0.1")
    with pytest.raises(InvalidOption, match="proxy_sources"):
        Config(proxy_sources=("10.0.0.0/33",))


async def behind(node: Node, header: bytes) -> Client:
    client = await connect(node)
    await client.send(header)
    return client


def peer_of(session: Any) -> str:
    return str(session.client.peer)


async def closed(client: Client) -> bool:
    with trio.fail_after(PATIENCE_S):
        try:
            return await client.stream.receive_some() == b""
        except trio.BrokenResourceError:
            return True


async def test_the_client_is_who_the_proxy_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trusted = ("127.0.0.1",)
    async with served(tmp_path, proxy_sources=trusted, loopback_users=()) as node:
        for header in (V1, V2):
            # The header and the bytes behind it come in any pieces.
            client = await connect(node)
            for byte in header:
                await client.send(bytes((byte,)))
            await client.log_in()
            (session,) = node.broker.sessions
            assert peer_of(session) == "192.0.2.7"
            assert session.client.name == "192.0.2.7:4711 -> 198.51.100.1:5672"
            await client.close()
            await until(lambda: not node.server.transports)
        # A proxy on both families writes addresses of IPv4 as a part of IPv6.
        client = await behind(node, b"PROXY TCP6 ::ffff:192.0.2.7 ::ffff:198.51.100.1 4711 5672\r\n")
        await client.log_in()
        (session,) = node.broker.sessions
        assert session.client.name == "192.0.2.7:4711 -> 198.51.100.1:5672"
        await client.close()
        await until(lambda: not node.server.transports)
        client = await behind(node, LOCAL)
        await client.log_in()
        (session,) = node.broker.sessions
        assert peer_of(session) == "127.0.0.1" and session.client.name.startswith("127.0.0.1:")
        await client.close()
        await until(lambda: not node.server.transports)
        # Without a header the node guesses nothing.
        for bytes_ in (b"AMQP\x00\x00\x09\x01", b"PROXY TCP4 nonsense\r\n", b"\x16\x03\x01\x02\x00"):
            assert await closed(await behind(node, bytes_))
        handshakes_take(node, 0.2)
        assert await closed(await behind(node, V2[:20]))
        await until(lambda: not node.server.half_opens and not node.server._open)
    assert "PROXY header with 127.0.0.1 failed: does not begin with a header" in caplog.text
    assert "PROXY header with 127.0.0.1 failed: it took too long" in caplog.text


async def test_guest_stays_at_home_behind_a_proxy(tmp_path: Path) -> None:
    async with served(tmp_path, proxy_sources=("127.0.0.0/8",)) as node:
        client = await behind(node, V1)
        await client.send(b"AMQP\x00\x00\x09\x01")
        properties: Any = {"capabilities": dict(CAPABILITIES)}
        login = commands.Connection.StartOk(properties, "PLAIN", "\0guest\0guest", "en_US")
        close = await client.ask(0, login, commands.Connection.Close)
        assert close.reply_code == 403
        await trio.aclose_forcefully(client.stream)


async def test_places_are_those_of_the_clients(tmp_path: Path) -> None:
    """The clients of one proxy do not count as one address."""
    options = {"proxy_sources": ("127.0.0.1",), "half_open_per_address_max": 2}
    async with served(tmp_path, **options) as node:
        clients = [
            await behind(node, f"PROXY TCP4 192.0.2.{number // 2} 198.51.100.1 1 1\r\n".encode())
            for number in range(20)
        ]
        await until(lambda: len(node.server.transports) == 20)
        assert node.server.half_opens.count_of("127.0.0.1") == 0
        assert node.server.half_opens.count_of("192.0.2.1") == 2
        assert await closed(await behind(node, b"PROXY TCP4 192.0.2.1 198.51.100.1 1 1\r\n"))
        for client in clients:
            await trio.aclose_forcefully(client.stream)
        await until(lambda: not node.server._open and not node.server.half_opens)


async def test_who_is_not_trusted_says_nothing(tmp_path: Path) -> None:
    async with served(tmp_path, proxy_sources=("192.0.2.0/24",)) as node:
        client = await behind(node, V1)
        with trio.fail_after(PATIENCE_S):
            assert (await client.stream.receive_some())[:4] == b"AMQP"
        await client.stream.aclose()
        direct = await connect(node)
        await direct.log_in()
        await direct.close()


async def test_the_header_comes_before_the_tls_handshake(tmp_path: Path, authority: Authority) -> None:
    options = authority.options | {"proxy_sources": ("127.0.0.1",), "loopback_users": ()}
    async with served(tmp_path, **options) as node:
        for header in (V1, V2):
            stream = await trio.open_tcp_stream("127.0.0.1", tls_port(node))
            await stream.send_all(header)
            tls: trio.SSLStream[trio.SocketStream] = trio.SSLStream(
                stream, authority.trusting, server_hostname="127.0.0.1", https_compatible=True
            )
            client = Client(tls)
            await client.log_in()
            (session,) = node.broker.sessions
            assert peer_of(session) == "192.0.2.7"
            assert isinstance(session, Session)
            seen = session.client.tls
            assert seen is not None and seen.protocol == "tlsv1.3" and seen.subject is None
            await client.close()
            await until(lambda: not node.server.transports)
        # The port in the header says nothing about TLS: here the proxy has ended it.
        client = await behind(node, f"PROXY TCP4 192.0.2.7 198.51.100.1 1 {tls_port(node)}\r\n".encode())
        await client.log_in()
        (session,) = node.broker.sessions
        assert isinstance(session, Session) and session.client.tls is None
        await client.close()
        await until(lambda: not node.server.transports)
        handshakes_take(node, 0.2)
        silent = await trio.open_tcp_stream("127.0.0.1", tls_port(node))
        await silent.send_all(V1)
        assert await closed(Client(silent))
        await until(lambda: not node.server._open)


async def test_on_the_management_listener(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    request = (
        b"GET /api/whoami HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
    )

    async def answer(node: Node, header: bytes) -> bytes:
        port = int(node.http_address.rpartition(":")[2])
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        said = b""
        with trio.fail_after(PATIENCE_S):
            await stream.send_all(header + request)
            try:
                while data := await stream.receive_some():
                    said += data
            except trio.BrokenResourceError:
                pass
        await stream.aclose()
        return said

    options = {"http": "127.0.0.1:0", "proxy_sources": ("127.0.0.1",)}
    async with served(tmp_path, **options) as node:
        assert (await answer(node, LOCAL)).startswith(b"HTTP/1.1 200")
        assert (await answer(node, V2)).startswith(b"HTTP/1.1 401")
        assert "user can only connect via localhost, from 192.0.2.7" in caplog.text
        assert b"HTTP" not in await answer(node, b"")
        assert b"HTTP" not in await answer(node, b"PROXY TCP4 nonsense\r\n")
