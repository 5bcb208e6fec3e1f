"""Generated input: whatever comes in, the broker sends valid AMQP, and serves the next client.

The examples are derandomised: a failure is the same one tomorrow. With a control command they run in a
vhost of their own, so that a queue which a twisted frame happens to declare is gone afterwards.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pamqp import commands

from conformance_tests.broker import Broker, CtlError
from conformance_tests.wire import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    ClosedByPeer,
    RawClient,
    frame_bytes,
    header_payload,
    headers_property,
    long_string,
    method_bytes,
    raw_method,
    short_string,
)

SETTINGS = settings(
    max_examples=200,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ],
)
# Reply codes that a client's bytes may lead to. 541 is not among them: it means an error in the broker.
CODES = {200, 311, 312, 313, 320, 402, 403, 404, 405, 406, 501, 502, 503, 504, 505, 506, 530, 540}
CODES_WITH_INTERNAL_ERROR = CODES | {541}


class Target:
    """The connection for the bytes, and another client that checks that the broker works."""

    def __init__(self, broker: Broker, vhost: str) -> None:
        self.url, self.vhost = broker.url, vhost
        self.neighbour = self.connect()
        self.queue = self.neighbour.declare()

    def connect(self) -> RawClient:
        return RawClient(self.url).handshake(vhost=self.vhost).open_channel()

    def check(self) -> None:
        self.neighbour.publish(b"well", routing_key=self.queue)
        self.neighbour.send_method(commands.Basic.Get(queue=self.queue, no_ack=True))
        assert self.neighbour.read_content(commands.Basic.GetOk).body == b"well"


@pytest.fixture(scope="module")
def target(broker: Broker) -> Iterator[Target]:
    vhost = "/"
    if broker.has_ctl:
        vhost = f"fuzz-{uuid4().hex[:8]}"
        broker.ctl("add_vhost", vhost)
        broker.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    try:
        target = Target(broker, vhost)
        yield target
        target.neighbour.close()
    finally:
        if vhost != "/":
            with suppress(CtlError):
                broker.ctl("delete_vhost", vhost)


def send_and_drain(client: RawClient, data: bytes, chunk: int | None = None) -> list[tuple[int, str]]:
    """Sends, closes the sending half, and reads frames until the broker has ended the connection; returns its
    refusals.
    """
    refusals = []
    with suppress(OSError):
        for start in range(0, len(data), chunk or len(data) or 1):
            client.send(data[start : start + (chunk or len(data))])
        client.socket.shutdown(1)
    with suppress(ClosedByPeer):
        while True:
            frame = client.read_frame()
            if frame.type == METHOD and frame.method_id in ((10, 50), (20, 40)):
                code, size = struct.unpack(">HB", frame.payload[4:7])
                refusals.append((code, frame.payload[7 : 7 + size].decode("utf-8", "replace")))
                if frame.method_id == (10, 50):
                    break
    client.abort()
    return refusals


def refusals_until_answered(client: RawClient, data: bytes) -> list[tuple[int, str]]:
    """Sends whole frames and then tx.select: its answer, a close or the end of the connection must come."""
    client.send(data + method_bytes(commands.Tx.Select(), 1))
    refusals = []
    with suppress(ClosedByPeer):
        while True:
            frame = client.read_frame()
            if frame.method_id == (90, 11):
                break
            if frame.method_id in ((10, 50), (20, 40)):
                code, size = struct.unpack(">HB", frame.payload[4:7])
                refusals.append((code, frame.payload[7 : 7 + size].decode("utf-8", "replace")))
                break
    client.abort()
    return refusals


def check_refusals(refusals: list[tuple[int, str]], codes: set[int]) -> None:
    for code, text in refusals:
        assert code in codes, (code, text)
        assert "Traceback" not in text and "Error(" not in text, text


# -- valid traffic, bytes twisted


def session(queue: str = "fuzz") -> bytes:
    client = RawClient.__new__(RawClient)
    client.frame_max = 131072
    properties = headers_property(b"\x01kI\0\0\0\x01\x01tF" + long_string(b"\x01xS" + long_string(b"y")))
    methods = [
        commands.Queue.Declare(queue=queue, exclusive=True, arguments={"x-max-length": 10}),
        commands.Exchange.Declare(exchange=queue, exchange_type="topic", auto_delete=True),
        commands.Queue.Bind(queue=queue, exchange=queue, routing_key="a.#"),
        commands.Basic.Qos(prefetch_count=2),
        commands.Basic.Consume(queue=queue, consumer_tag="c"),
        commands.Confirm.Select(),
    ]
    out = [method_bytes(method, 1) for method in methods]
    out.append(client.publish_bytes(b"abc", exchange=queue, routing_key="a.b", properties=properties))
    out.append(client.publish_bytes(b"", routing_key=queue, mandatory=True))
    out.append(frame_bytes(HEARTBEAT, 0, b""))
    out += [
        method_bytes(method, 1)
        for method in (
            commands.Basic.Ack(1, multiple=True),
            commands.Basic.Get(queue=queue),
            commands.Basic.Cancel("c"),
            commands.Queue.Delete(queue=queue),
            commands.Channel.Close(200, "", 0, 0),
        )
    ]
    return b"".join(out)


SESSION = session()
twist = st.tuples(
    st.sampled_from(["flip", "cut", "insert", "repeat", "length"]),
    st.integers(0, len(SESSION) - 1),
    st.binary(min_size=1, max_size=6),
)


def twisted(data: bytes, twists: list[tuple[str, int, bytes]]) -> bytes:
    for kind, at, value in twists:
        match kind:
            case "flip":
                data = data[:at] + value[:1] + data[at + 1 :]
            case "cut":
                data = data[:at] + data[at + len(value) :]
            case "insert":
                data = data[:at] + value + data[at:]
            case "repeat":
                data = data[: at + 20] + data[at:]
            case "length":
                data = data[:at] + struct.pack(">I", value[0] << 8 * (len(value) % 4)) + data[at + 4 :]
    return data


@SETTINGS
@given(twists=st.lists(twist, min_size=1, max_size=3), chunk=st.sampled_from([None, 1, 7, 1000]))
def test_twisted_session(target: Target, twists: list[tuple[str, int, bytes]], chunk: int | None) -> None:
    refusals = send_and_drain(target.connect(), twisted(SESSION, twists), chunk)
    check_refusals(refusals, CODES_WITH_INTERNAL_ERROR)
    target.check()


# -- well-formed frames of any content and order


small = st.binary(max_size=20)
channels = st.sampled_from([0, 1, 1, 1, 1, 2, 3, 2047, 65535])
known_ids = [divmod(index, 1 << 16) for index in commands.INDEX_MAPPING]
frames = st.one_of(
    st.builds(
        lambda ids, arguments, channel: raw_method(ids[0], ids[1], arguments, channel),
        st.sampled_from(known_ids),
        small,
        channels,
    ),
    st.builds(
        lambda kind, payload, channel: frame_bytes(kind, channel, payload),
        st.integers(0, 255),
        small,
        channels,
    ),
    st.builds(
        lambda size, properties, channel: frame_bytes(
            HEADER, channel, header_payload(size, properties=properties)
        ),
        st.sampled_from([0, 1, 3, 2**32, 2**64 - 1]),
        st.one_of(st.just(b"\0\0"), small),
        channels,
    ),
    st.builds(lambda payload, channel: frame_bytes(BODY, channel, payload), small, channels),
    st.sampled_from(
        [
            method_bytes(commands.Channel.Open(), 2),
            method_bytes(commands.Channel.Close(200, "", 0, 0), 1),
            method_bytes(commands.Channel.CloseOk(), 1),
            method_bytes(commands.Channel.Open(), 1),
            method_bytes(commands.Queue.Declare(queue="fuzz", exclusive=True), 1),
            method_bytes(commands.Queue.Declare(queue="none", passive=True), 1),
            method_bytes(commands.Basic.Consume(queue="fuzz"), 1),
            method_bytes(commands.Basic.Publish(routing_key="fuzz"), 1),
            method_bytes(commands.Basic.Ack(0, multiple=True), 1),
            method_bytes(commands.Basic.Nack(1), 1),
            method_bytes(commands.Basic.Recover(True), 1),
            method_bytes(commands.Tx.Select(), 1),
            method_bytes(commands.Tx.Commit(), 1),
            method_bytes(commands.Tx.Rollback(), 1),
            method_bytes(commands.Confirm.Select(), 2),
            frame_bytes(HEARTBEAT, 0, b""),
        ]
    ),
)


@SETTINGS
@given(sequence=st.lists(frames, max_size=12))
def test_frames_in_any_order(target: Target, sequence: list[bytes]) -> None:
    check_refusals(send_and_drain(target.connect(), b"".join(sequence)), CODES_WITH_INTERNAL_ERROR)
    target.check()


# -- content headers and argument tables


@SETTINGS
@given(properties=st.binary(max_size=40))
@example(properties=b"\x80")
def test_any_bytes_for_properties(target: Target, properties: bytes) -> None:
    """Kept, or refused as the client's error; never an internal error of the broker."""
    client = target.connect()
    data = method_bytes(commands.Basic.Publish(routing_key="nowhere"), 1)
    data += frame_bytes(HEADER, 1, header_payload(0, properties=properties))
    check_refusals(refusals_until_answered(client, data), CODES)
    target.check()


values = st.recursive(
    st.one_of(
        st.just(b"V"),
        st.builds(
            lambda tag, value: tag + value,
            st.sampled_from([b"t", b"b", b"B"]),
            st.binary(min_size=1, max_size=1),
        ),
        st.builds(
            lambda tag, value: tag + value, st.sampled_from([b"I", b"i"]), st.binary(min_size=4, max_size=4)
        ),
        st.builds(
            lambda tag, value: tag + value, st.sampled_from([b"l", b"T"]), st.binary(min_size=8, max_size=8)
        ),
        st.builds(
            lambda tag, value: tag + long_string(value), st.sampled_from([b"S", b"x"]), st.binary(max_size=20)
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: b"A" + long_string(b"".join(items))),
        st.lists(inner, max_size=4).map(
            lambda items: b"F" + long_string(b"".join(b"\x02k%d" % i + item for i, item in enumerate(items)))
        ),
    ),
    max_leaves=12,
)


@SETTINGS
@given(items=st.lists(values, max_size=6))
def test_any_table_comes_back_as_sent(target: Target, items: list[bytes]) -> None:
    table = b"".join(b"\x02k%d" % i + item for i, item in enumerate(items))
    properties = headers_property(table)
    client = target.neighbour
    client.publish(b"x", routing_key=target.queue, properties=properties)
    client.send_method(commands.Basic.Get(queue=target.queue, no_ack=True))
    assert client.read_content(commands.Basic.GetOk).header[12:] == properties


@SETTINGS
@given(table=st.binary(max_size=30))
def test_any_bytes_for_arguments(target: Target, table: bytes) -> None:
    client = target.connect()
    data = raw_method(50, 10, b"\0\0" + short_string(b"") + b"\x04" + long_string(table))
    check_refusals(refusals_until_answered(client, data), CODES_WITH_INTERNAL_ERROR)
    target.check()


# -- before login


@settings(SETTINGS, max_examples=100)
@given(data=st.binary(max_size=60), known_beginning=st.integers(0, 8), stage=st.integers(0, 2))
def test_any_bytes_before_login(target: Target, data: bytes, known_beginning: int, stage: int) -> None:
    """This does not wait for the end, which may take three seconds: only the other client matters."""
    client = RawClient(target.url)
    try:
        if stage == 0:
            client.send(PROTOCOL_HEADER[:known_beginning] + data)
        else:
            client.read_start()
            if stage == 2:
                client.send_start_ok()
                client.tune = client.read(commands.Connection.Tune, 0)
            client.send(data)
    finally:
        client.abort()
    target.check()
