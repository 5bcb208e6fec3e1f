"""Connections to the port for links from programs that are no peers; and a peer that sends nonsense."""

from __future__ import annotations

import os
import random
import socket
import tracemalloc

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance_tests.patience import PATIENCE_S
from quorum_queue.links.framing import HEAD
from quorum_queue.links.handshake import MESSAGE_BYTES_MAX, Dialler, Hello, Keys, Standing
from quorum_queue.links.handshake_io import Greeter, read_message, write_message
from quorum_queue.links.plain_wire import PlainWire
from quorum_queue.links.sessions import ADOPTED, START
from quorum_queue.links.wire import readable

from .nodes import SECRET, LinkNode, nodes, until

KEYS = Keys(SECRET)
N2 = Hello("n2", 1, "disk of n2")


async def connect(node: LinkNode, source: str = "") -> trio.SocketStream:
    """Connect, from another address than that of the peers if `source` is given."""
    sock = trio.socket.socket()
    if source:
        await sock.bind((source, 0))
    await sock.connect((node.address.host, node.address.port))
    return trio.SocketStream(sock)


async def rest_of(stream: trio.SocketStream) -> bytes:
    """Return all bytes until the other side closes."""
    data = b""
    with trio.fail_after(PATIENCE_S):
        try:
            async for part in stream:
                data += part
        except trio.BrokenResourceError:
            pass
    return data


def opening(keys: Keys = KEYS, hello: Hello = N2, to: str = "n1") -> bytes:
    message = Dialler(keys, "c", hello, to, os.urandom(32)).open()
    return HEAD.pack(len(message)) + message


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
        HEAD.pack(MESSAGE_BYTES_MAX + 1),
        HEAD.pack(0),
        HEAD.pack(100) + bytes(100),
        opening(keys=Keys(b"another secret, long enough")),
        opening(hello=Hello("n9", 1, "")),
        opening(hello=Hello("n1", 1, "")),
        opening(to="n2"),
    ],
    # Nonces differ from process to process; names of tests must not.
    ids=["http", "amqp", "too long", "empty", "zeros", "wrong secret", "unknown", "ourselves", "for another"],
)
async def test_a_stranger_gets_nothing(said: bytes) -> None:
    async with nodes("n1", "n2", handshake_ms=60_000) as (one, _):
        stream = await connect(one)
        await stream.send_all(said)
        assert await rest_of(stream) == b""
        assert one.connected() == {"n2"}
        assert len(one.events.told) == 1


async def test_silent_one_is_closed_in_time() -> None:
    async with nodes("n1", "n2", handshake_ms=200) as (one, _):
        for said in (b"", b"\0", opening()[:-1]):
            stream = await connect(one)
            await stream.send_all(said or b"\0")
            assert await rest_of(stream) == b""
        # The stranger has sent a right first message, perhaps copied from a peer, and cannot go on.
        stream = await connect(one)
        await stream.send_all(opening())
        assert len(await rest_of(stream)) < MESSAGE_BYTES_MAX


async def test_crowd_is_bounded_and_does_not_keep_peers_out() -> None:
    async with nodes("n1", "n2", half_open_max=4, handshake_ms=60_000) as (one, two):
        streams = [await connect(one, "127.0.0.2") for _ in range(40)]
        accepting = one.mesh._accepting
        # The node has closed the oldest without a byte, and the last ones are still there.
        for stream in streams[:36]:
            assert await rest_of(stream) == b""
        assert len(accepting.strangers) == 4
        # The crowd pushes out nobody else: no other stranger, and nobody at a peer's address.
        another, near = await connect(one, "127.0.0.3"), await connect(one)
        assert await rest_of(streams[36]) == b""
        streams += [await connect(one, "127.0.0.2") for _ in range(40)]
        for stream in streams[37:77]:
            assert await rest_of(stream) == b""
        assert len(accepting.strangers) == 4 and len(accepting.neighbours) == 1
        for stream in (another, near):
            with trio.move_on_after(0) as looked:
                await stream.receive_some(1)
            assert looked.cancelled_caught
            await stream.aclose()
        one.mesh.drop("n2")
        two.mesh.drop("n1")
        await one.events.until(lambda: one.events.count("up", "n2") == 2)
        for _ in range(10):
            stream = await connect(one)
            await stream.send_all(opening(hello=Hello("n2", 1, "replayed")))
            await stream.receive_some(1)
            streams.append(stream)
            assert len(accepting.greeted) <= 4
        for stream in streams:
            await stream.aclose()
        await until(lambda: not accepting.strangers and not accepting.greeted)


async def test_logs_are_rate_limited(caplog: pytest.LogCaptureFixture) -> None:
    async with nodes("n1", "n2") as (one, _):
        for _ in range(50):
            stream = await connect(one)
            await stream.send_all(opening(keys=Keys(b"another secret, long enough")))
            await rest_of(stream)
        refused = [record for record in caplog.records if "refused" in record.getMessage()]
        assert len(refused) == 1


async def greeted(node: LinkNode, hello: Hello = N2) -> PlainWire:
    """Be a peer, and prove that to n1."""
    sock = socket.create_connection((node.address.host, node.address.port))
    sock.setblocking(False)
    wire = PlainWire(sock)
    greeter = Greeter(KEYS, "c", hello, os.urandom, lambda name: Standing(0, False))
    with trio.fail_after(PATIENCE_S):
        await greeter.dial(wire, "n1")
        if hello.name > "n1":
            assert await read_message(wire) == START
    return wire


async def authenticated(node: LinkNode, hello: Hello = N2) -> PlainWire:
    """Be a peer with a session: either n2, for which n1 chooses the connection, or n0, which chooses
    itself.
    """
    wire = await greeted(node, hello)
    if hello.name > "n1":
        await write_message(wire, ADOPTED.pack(1))
    else:
        await write_message(wire, START)
        assert len(await read_message(wire)) == ADOPTED.size
    await node.events.until(lambda: hello.name in node.connected())
    return wire


async def end_of(wire: PlainWire) -> None:
    buffer = memoryview(bytearray(4096))
    with trio.fail_after(PATIENCE_S):
        while True:
            await readable(wire)
            try:
                if wire.receive([buffer]) == 0:
                    return
            except OSError:
                return


async def test_frame_too_long_costs_nothing_but_the_session() -> None:
    async with nodes("n1", "n2", start=False) as (one, _):
        one.start()
        wire = await authenticated(one)
        tracemalloc.start()
        try:
            wire.send([HEAD.pack(0xFFFFFFFF) + bytes(1000)])
            await end_of(wire)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
            wire.close()
        await one.events.until(lambda: one.connected() == set())
        assert one.events.told == [("up", "n2"), ("down", "n2")]
        (await authenticated(one)).close()


async def test_wrong_answer_to_start() -> None:
    async with nodes("n1", "n2", start=False) as (one, _):
        one.start()
        wire = await greeted(one)
        await write_message(wire, b"what?")
        await end_of(wire)
        wire.close()
        assert one.events.told == []
        (await authenticated(one)).close()


@given(st.binary(max_size=3000), st.sampled_from(["", "n0", "n2"]), st.integers(0, 2**32))
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_bytes_harm_nobody_else(data: bytes, inside: str, seed: int) -> None:
    """Any bytes, in any pieces: before the handshake, in the middle of it, or from an authenticated peer."""
    chance = random.Random(seed)

    async def attack() -> None:
        async with nodes("n0", "n1", "n2", "n3", start=False, frame_bytes_max=100_000) as (_, one, _, three):
            one.start()
            three.start()
            await one.events.until(lambda: one.connected() == {"n3"})
            if inside:
                wire = await authenticated(one, Hello(inside, 1, "disk"))
                rest = memoryview(data)
                while rest:
                    piece = rest[: chance.randint(1, 500)]
                    try:
                        rest = rest[wire.send([piece]) :]
                    except OSError:
                        break
                    await trio.lowlevel.checkpoint()
                wire.close()
                await one.events.until(lambda: one.events.count("down", inside) == 1)
            else:
                stream = await connect(one)
                good = opening()
                try:
                    await stream.send_all(good[: chance.choice([0, 4, 20, len(good)])] + data)
                    await stream.send_eof()
                    await rest_of(stream)
                except trio.BrokenResourceError:
                    pass
                await stream.aclose()
                assert one.events.count("up", "n2") == 0
            assert one.connected() == {"n3"}
            assert one.events.count("up", "n3") == 1
            assert three.mesh.send("n1", [b"still here"])
            await one.events.until(lambda: one.events.frames.get("n3") == [b"still here"])

    trio.run(attack)
