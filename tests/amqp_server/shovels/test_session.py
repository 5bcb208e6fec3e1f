"""The client's side of a connection, with input as a broker sends it, and with input that no broker sends."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from amqp_server.shovels.errors import ChannelClosed, ClosedByPeer, PeerError, ShovelError
from amqp_server.shovels.session import (
    Answer,
    BlockedChanged,
    Cancelled,
    ClientSession,
    Delivery,
    Opened,
    Returned,
    Settled,
)
from amqp_server.wire import content, frames, methods
from amqp_server.wire.content import Properties

BODY_BYTES_MAX = 10_000


def session(**options: Any) -> ClientSession:
    given: dict[str, Any] = {
        "mechanism": "PLAIN",
        "response": b"\0guest\0secret",
        "vhost": "/",
        "name": "shovel s",
    }
    given |= {"heartbeat_s": 30, "frame_bytes_max": 8_192, "body_bytes_max": BODY_BYTES_MAX} | options
    return ClientSession(**given)


def framed(kind: Any, channel: int = 1, **fields: Any) -> bytes:
    return frames.method_frame(channel, methods.make(kind, **fields))


START = framed(
    commands.Connection.Start,
    0,
    version_major=0,
    version_minor=9,
    server_properties={"product": "RabbitMQ", "capabilities": {"basic.nack": True}},
    mechanisms="PLAIN AMQPLAIN",
    locales="en_US",
)
TUNE = framed(commands.Connection.Tune, 0, channel_max=2047, frame_max=131_072, heartbeat=60)
HANDSHAKE = (
    START + TUNE + framed(commands.Connection.OpenOk, 0, known_hosts="") + framed(commands.Channel.OpenOk)
)


def events(client: ClientSession, data: bytes, step: int = 1 << 20) -> list[Any]:
    found: list[Any] = []
    for at in range(0, len(data), step):
        client.receive(data[at : at + step])
        while (event := client.next_event()) is not None:
            found.append(event)
    return found


def opened(**options: Any) -> ClientSession:
    client = session(**options)
    assert events(client, HANDSHAKE) == [Opened()]
    client.outbox.take(1 << 20)
    return client


def delivery(tag: int, body: bytes, frame_max: int = 4_096, key: str = "key") -> bytes:
    properties = Properties({"message_id": b"\x01m"})
    deliver = framed(
        commands.Basic.Deliver,
        consumer_tag="ct",
        delivery_tag=tag,
        redelivered=False,
        exchange="x",
        routing_key=key,
    )
    return deliver + content.build(properties.encode(len(body)), body, 1, frame_max)


def sent(client: ClientSession) -> list[Any]:
    """Return the methods in the outbox."""
    data, found, at = client.outbox.take(1 << 20), [], 0
    if data.startswith(b"AMQP"):
        at = 8
    while at < len(data):
        kind, _, size = frames.prefix.unpack_from(data, at)
        if kind == frames.METHOD:
            found.append(methods.decode(data[at + 7 : at + 7 + size]))
        at += size + 8
    return found


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_handshake_and_messages_however_they_are_cut(step: int) -> None:
    client = session()
    data = HANDSHAKE + delivery(1, b"") + delivery(2, b"b" * 9_000) + frames.HEARTBEAT_FRAME
    data += framed(commands.Basic.Ack, delivery_tag=5, multiple=True)
    data += framed(commands.Basic.Nack, delivery_tag=6) + framed(commands.Basic.Ack, delivery_tag=7)
    data += framed(commands.Connection.Blocked, 0, reason="low on memory") + framed(
        commands.Connection.Unblocked, 0
    )
    data += framed(commands.Basic.Return, reply_code=312, reply_text="NO_ROUTE", exchange="", routing_key="q")
    data += content.build(Properties().encode(1), b"x", 1, 4_096)
    data += framed(commands.Queue.DeclareOk, queue="q", message_count=3) + framed(
        commands.Basic.Cancel, consumer_tag="ct"
    )
    first, one, two, *rest, answer, cancelled = events(client, data, step)
    assert first == Opened() and cancelled == Cancelled()
    assert (one.tag, one.exchange, one.routing_key, one.body) == (1, b"x", b"key", [])
    assert b"".join(two.body) == b"b" * 9_000 and int.from_bytes(two.header[4:12], "big") == 9_000
    assert rest == [
        Settled(5, True, True),
        Settled(6, False, False),
        Settled(7, False, True),
        BlockedChanged(True),
        BlockedChanged(False),
        Returned("312 NO_ROUTE"),
    ]
    assert isinstance(answer, Answer) and answer.method.message_count == 3  # type: ignore[attr-defined]
    assert (client.heartbeat_s, client.frame_bytes_max) == (30, 8_192)
    start_ok, tune_ok, open_, channel = sent(client)
    assert (
        start_ok.response == b"\0guest\0secret"
        and start_ok.client_properties["connection_name"] == "shovel s"
    )
    assert (tune_ok.frame_max, tune_ok.heartbeat, open_.virtual_host) == (8_192, 30, "/")
    assert isinstance(channel, commands.Channel.Open)


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"), [(30, 60, 30), (30, 10, 10), (0, 60, 60), (30, 0, 30), (0, 0, 0)]
)
def test_the_shorter_heartbeat_is_agreed(ours: int, theirs: int, agreed: int) -> None:
    client = session(heartbeat_s=ours)
    events(client, START + framed(commands.Connection.Tune, 0, channel_max=1, frame_max=0, heartbeat=theirs))
    assert (client.heartbeat_s, client.frame_bytes_max) == (agreed, 8_192)


BAD = {
    "another version": (b"AMQP\x01\x01\x00\x09", "does not speak AMQP"),
    "TLS": (b"\x15\x03\x01\x00\x02\x02\x28", "not an AMQP frame"),
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\n", "not an AMQP frame"),
    "a frame of 4 GiB": (
        struct.pack(">BHI", 1, 0, 0xFFFFFFF0),
        "a frame of 4294967288 bytes; the limit is 65536",
    ),
    "no end": (START[:-1] + b"\x00", "without an end"),
    "rubbish in a table": (frames.raw_frame(1, 0, START[7:20] + b"\xff" * 20), "malformed or unknown"),
    "no login that is known": (
        framed(commands.Connection.Start, 0, mechanisms="GSSAPI", locales="en_US"),
        "does not accept logins with PLAIN, only with: GSSAPI",
    ),
    "out of turn": (TUNE, "Connection.Tune out of turn"),
    "start twice": (START + START, "Connection.Start out of turn"),
    "a question": (
        START + framed(commands.Connection.Secure, 0, challenge="?"),
        "Connection.Secure out of turn",
    ),
    "tiny frames": (START + framed(commands.Connection.Tune, 0, frame_max=100), "frames of 100 bytes only"),
    "an early channel": (START + framed(commands.Channel.OpenOk), "Channel.OpenOk out of turn"),
    "an early message": (START + delivery(1, b"x"), "Basic.Deliver out of turn"),
    "another channel": (frames.raw_frame(1, 2, b"\x00\x14\x00\x0b\x00\x00\x00\x00"), "not an AMQP frame"),
}
BAD_LATER = {
    "a large frame": (struct.pack(">BHI", 3, 1, 8_185), "a frame of 8193 bytes"),
    "a body first": (frames.raw_frame(3, 1, b"x"), "a part of a message that has not begun"),
    "more body": (delivery(1, b"x") + frames.raw_frame(3, 1, b"y"), "has not begun"),
    "too much body": (delivery(1, b"xx")[:-10] + frames.raw_frame(3, 1, b"yyy"), "malformed message"),
    "an empty body frame": (delivery(1, b"xx")[:-10] + frames.raw_frame(3, 1, b""), "malformed message"),
    "two headers": (
        delivery(1, b"xx")[:-10] + frames.raw_frame(2, 1, Properties().encode(2)),
        "malformed message",
    ),
    "a method within": (
        delivery(1, b"xx")[:-10] + framed(commands.Basic.Ack, delivery_tag=1),
        "within a message",
    ),
    "a short delivery": (
        frames.raw_frame(1, 1, b"\x00\x3c\x00\x3c\x02ct")
        + content.build(Properties().encode(0), b"", 1, 4096),
        "malformed delivery",
    ),
    "a publish": (framed(commands.Basic.Publish, exchange="", routing_key="q"), "Basic.Publish out of turn"),
    "an open": (framed(commands.Channel.Open), "Channel.Open out of turn"),
    "an unknown method": (frames.raw_frame(1, 1, b"\x00\x3c\xff\xff"), "malformed or unknown"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_peer_that_is_no_broker(what: str) -> None:
    data, text = BAD[what]
    with pytest.raises(PeerError, match=text) as raised:
        events(session(), data)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("what", BAD_LATER)
def test_a_broker_that_goes_mad(what: str) -> None:
    data, text = BAD_LATER[what]
    with pytest.raises(PeerError, match=text):
        events(opened(), data)


def test_a_message_that_is_too_large_is_not_waited_for() -> None:
    client = opened()
    data = delivery(1, b"x" * (BODY_BYTES_MAX + 1))
    with pytest.raises(PeerError, match="a message has 10001 bytes; the limit is 10000"):
        events(client, data[:200])


@given(st.binary(max_size=200), st.booleans())
def test_rubbish_raises_nothing_else(data: bytes, late: bool) -> None:
    client = opened() if late else session()
    with contextlib.suppress(ShovelError):
        events(client, data)


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 3, 8]), st.integers(0, 1), st.binary(max_size=40)), max_size=5)
)
def test_frames_of_rubbish_raise_nothing_else(parts: list[tuple[int, int, bytes]]) -> None:
    with contextlib.suppress(ShovelError):
        events(opened(), b"".join(frames.raw_frame(*part) for part in parts))


def test_the_peer_closes() -> None:
    client = session()
    with pytest.raises(ClosedByPeer, match=r"connection: ACCESS_REFUSED - no\?\?"):
        text = "ACCESS_REFUSED - no\r\n"
        events(client, START + framed(commands.Connection.Close, 0, reply_code=403, reply_text=text))
    assert isinstance(sent(client)[-1], commands.Connection.CloseOk)
    client = opened()
    with pytest.raises(ChannelClosed, match="channel: NOT_FOUND") as raised:
        events(client, framed(commands.Channel.Close, reply_code=404, reply_text="NOT_FOUND"))
    assert raised.value.code == 404
    client.reopen()
    assert events(client, framed(commands.Channel.OpenOk)) == [Opened()]
    assert [type(each) for each in sent(client)] == [commands.Channel.CloseOk, commands.Channel.Open]


def test_publishes_are_cut_to_the_agreed_frames() -> None:
    sender, receiver = opened(frame_bytes_max=4_096), opened(frame_bytes_max=4_096)
    source = events(opened(), delivery(1, b"b" * 9_000, 8_192))[0]
    assert isinstance(source, Delivery) and max(map(len, source.body)) > 4_096
    method = methods.encode(methods.make(commands.Basic.Publish, exchange="", routing_key="q"))
    sender.publish(method, source.header, source.body)
    data = sender.outbox.take(1 << 20)
    size = len(method) + 8
    deliver = framed(commands.Basic.Deliver, consumer_tag="", delivery_tag=1, exchange="", routing_key="q")
    (got,) = events(receiver, deliver + data[size:])
    assert (got.header, b"".join(got.body)) == (source.header, b"b" * 9_000)


def test_the_end_in_order() -> None:
    client = opened()
    client.close()
    client.close()
    assert [type(each) for each in sent(client)] == [commands.Connection.Close]
    assert not client.closed
    assert events(client, framed(commands.Connection.CloseOk, 0)) == [] and client.closed
