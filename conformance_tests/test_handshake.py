"""From the protocol header to connection.open-ok: versions, properties, negotiation, and errors in them."""

import re
import socket
import struct
import time
from contextlib import ExitStack, suppress

import pytest
from pamqp import commands

from conformance_tests.conftest import Raw
from conformance_tests.wire import (
    BODY,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    ClosedByPeer,
    RawClient,
    decode_table,
    frame_bytes,
    long_string,
    method_bytes,
    raw_method,
    short_string,
)

HANDSHAKE_S = 10.0
HALF_FRAME = struct.pack(">BHI", METHOD, 0, 4000) + b"\0\x0a"


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x00\x09\x00",
        b"AMQP\x00\x00\x09\x02",
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        b"AMQP\x02\x01\x00\x00",
        b"AMQP\x01\x01\x64\x03",
        b"AMQP0091",
        b"HTTP/1.1",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00" * 8,
        frame_bytes(HEARTBEAT, 0, b""),
    ],
    ids=repr,
)
def test_wrong_protocol_header_is_answered_with_ours(raw: Raw, header: bytes) -> None:
    client = raw(handshake=False)
    client.send(header)
    assert client.read_bytes(8) == PROTOCOL_HEADER
    client.expect_eof()


#: Net::AMQP, which Perl's AnyEvent::RabbitMQ uses, sends it.
HEADER_OF_0_9 = b"AMQP\x01\x01\x00\x09"


@pytest.mark.parametrize("header", [PROTOCOL_HEADER, HEADER_OF_0_9], ids=["0-9-1", "0-9"])
def test_protocol_header_in_pieces(raw: Raw, header: bytes) -> None:
    """The header of 0-9 is treated as that of 0-9-1."""
    client = raw(handshake=False)
    for byte in header:
        client.send(bytes([byte]))
        time.sleep(0.002)
    client.read(commands.Connection.Start, 0)


def test_broker_says_nothing_before_the_header(raw: Raw) -> None:
    client = raw(handshake=False)
    client.expect_silence()
    client.send(PROTOCOL_HEADER)
    client.read(commands.Connection.Start, 0)


def test_start_offers_version_locale_and_mechanisms(raw: Raw) -> None:
    start = raw(handshake=False).read_start()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert {"PLAIN", "AMQPLAIN"} <= set(str(start.mechanisms).split(" "))
    assert "en_US" in str(start.locales).split(" ")


def test_server_properties(raw: Raw) -> None:
    properties = raw(handshake=False).read_start().server_properties
    for key in ("product", "version", "platform", "information", "cluster_name"):
        assert isinstance(properties[key], str) and properties[key], key
    assert re.match(r"\d+\.\d+(\.\d+)?", str(properties["version"]))


@pytest.mark.parametrize(
    "capability",
    [
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ],
)
def test_capability_is_announced(raw: Raw, capability: str) -> None:
    capabilities = raw(handshake=False).read_start().server_properties["capabilities"]
    assert isinstance(capabilities, dict)
    assert capabilities[capability] is True


def test_tune_offers_limits(raw: Raw) -> None:
    tune = raw().tune
    assert tune is not None
    assert tune.frame_max == 131072
    assert tune.channel_max == 2047
    assert tune.heartbeat == 60


@pytest.mark.parametrize("frame_max", [4096, 8192, 131072])
def test_frame_max_may_be_lowered_and_is_kept_by_the_broker(raw: Raw, frame_max: int) -> None:
    client = raw(frame_max=frame_max)
    queue = client.declare()
    body = b"x" * 300_000
    client.publish(body, routing_key=queue)
    client.send_method(commands.Basic.Get(queue=queue, no_ack=True))
    content = client.read_content(commands.Basic.GetOk)
    assert content.body == body
    # The broker fills its frames: it sends no more of them than needed.
    assert content.body_frames == -(-len(body) // (frame_max - 8))


def test_channel_max_may_be_lowered(raw: Raw) -> None:
    client = raw(channel_max=2).open_channel(2)
    client.send_method(commands.Channel.Open(), 3)
    client.expect_connection_close(
        530, r"^NOT_ALLOWED - number of channels opened \(2\) has reached .*\(2\)$"
    )


def test_any_locale_is_accepted(raw: Raw) -> None:
    raw(locale="xx_YY")


def test_client_properties_of_all_sorts_are_accepted(raw: Raw) -> None:
    raw(client_properties={"product": "p" * 200, "nested": {"a": {"b": 1, "c": True}}, "π": "✓"})


def test_client_capabilities_that_are_no_table_are_ignored(raw: Raw) -> None:
    raw(client_properties={"capabilities": "none"})


def test_handshake_byte_by_byte(raw: Raw) -> None:
    client = raw(handshake=False)
    whole = client.send
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def dribble(data: bytes) -> None:
        for i in range(len(data)):
            whole(data[i : i + 1])

    client.send = dribble  # type: ignore[method-assign]
    client.handshake().open_channel()
    client.call(commands.Queue.Declare(exclusive=True), commands.Queue.DeclareOk)


def test_handshake_frames_sent_ahead(raw: Raw) -> None:
    """A client that knows the broker's part may send its whole part at once."""
    client = raw(handshake=False)
    client.tune = commands.Connection.Tune(2047, 131072, 60)
    sent: list[bytes] = [PROTOCOL_HEADER]
    whole, client.send = client.send, sent.append  # type: ignore[method-assign, assignment]
    client.send_start_ok()
    client.send_tune_ok()
    client.send_open(client.address.vhost)
    client.send_method(commands.Channel.Open(), 1)
    client.send = whole  # type: ignore[method-assign]
    client.send(b"".join(sent[:1]))
    client.read(commands.Connection.Start, 0)
    client.send(b"".join(sent[1:-1]))
    client.read(commands.Connection.Tune, 0)
    client.read(commands.Connection.OpenOk, 0)
    client.send(sent[-1])
    client.read(commands.Channel.OpenOk, 1)


def test_heartbeats_during_the_handshake_are_fine(raw: Raw) -> None:
    client = raw(handshake=False)
    beat = frame_bytes(HEARTBEAT, 0, b"")
    client.read_start()
    client.send(beat)
    client.send_start_ok()
    client.tune = client.read(commands.Connection.Tune, 0)
    client.send(beat)
    client.send_tune_ok()
    client.send(beat)
    client.send_open(client.address.vhost)
    client.read(commands.Connection.OpenOk, 0)


@pytest.mark.parametrize(
    ("frame", "code", "text"),
    [
        (method_bytes(commands.Channel.Open(), 1), 505, r"^UNEXPECTED_FRAME - type 1, all octets = <<.*>>$"),
        (
            method_bytes(commands.Connection.TuneOk(0, 131072, 0), 0),
            504,
            r"^CHANNEL_ERROR - unexpected method in connection state opening$",
        ),
        (
            method_bytes(commands.Connection.Close(200, "", 0, 0), 0),
            504,
            r"^CHANNEL_ERROR - unexpected method in connection state opening$",
        ),
        (frame_bytes(0, 0, b"abc"), 501, r"^FRAME_ERROR - type 0, .*: unknown_frame$"),
    ],
    ids=["channel.open", "tune-ok", "connection.close", "frame type 0"],
)
def test_out_of_turn_instead_of_connection_open(raw: Raw, frame: bytes, code: int, text: str) -> None:
    client = raw(handshake=False)
    client.read_start()
    client.send_start_ok()
    client.tune = client.read(commands.Connection.Tune, 0)
    client.send_tune_ok()
    client.send(frame)
    client.expect_connection_close(code, text)


def start_ok_of(properties: bytes) -> bytes:
    arguments = long_string(properties) + short_string(b"PLAIN") + long_string(b"\0guest\0guest")
    return raw_method(10, 11, arguments + short_string(b"en_US"), 0)


BAD_AFTER_START = {
    "tune-ok": method_bytes(commands.Connection.TuneOk(0, 0, 0), 0),
    "channel.open": method_bytes(commands.Channel.Open(), 1),
    "connection.open": method_bytes(commands.Connection.Open(), 0),
    "connection.close": method_bytes(commands.Connection.Close(200, "", 0, 0), 0),
    # Before tune the limit is at most 8192 bytes, whatever is agreed afterwards.
    "big frame": struct.pack(">BHI", METHOD, 0, 8193),
    "huge frame": struct.pack(">BHI", METHOD, 0, 2**32 - 1),
    "bad frame end": start_ok_of(b"")[:-1] + b"X",
    "truncated start-ok": raw_method(10, 11, b"\0", 0),
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "body": frame_bytes(BODY, 0, b"abc"),
    "start-ok on channel 1": start_ok_of(b"").replace(b"\x01\x00\x00", b"\x01\x00\x01", 1),
    "properties are garbage": start_ok_of(b"\xff\xff"),
    "properties of unknown type": start_ok_of(b"\x01aZ"),
    "properties with a cut table": start_ok_of(b"\x01aF\0\0\0\x09"),
    "properties with a cut key": start_ok_of(b"\x09ab"),
}
BAD_AFTER_TUNE = {
    "connection.open": method_bytes(commands.Connection.Open(), 0),
    "connection.close": method_bytes(commands.Connection.Close(200, "", 0, 0), 0),
    "start-ok again": start_ok_of(b""),
    "big frame": struct.pack(">BHI", METHOD, 0, 8193),
    "frame_max below 4096": method_bytes(commands.Connection.TuneOk(0, 4095, 0), 0),
    "frame_max 1": method_bytes(commands.Connection.TuneOk(2047, 1, 0), 0),
    "frame_max over the offer": method_bytes(commands.Connection.TuneOk(2047, 131073, 0), 0),
    "frame_max unlimited": method_bytes(commands.Connection.TuneOk(2047, 0, 0), 0),
    "channel_max over the offer": method_bytes(commands.Connection.TuneOk(2048, 131072, 0), 0),
    "channel_max unlimited": method_bytes(commands.Connection.TuneOk(0, 131072, 0), 0),
}


def test_bad_frames_before_login_end_the_connection(raw: Raw) -> None:
    """All cases in one test: RabbitMQ makes each of them wait for three seconds."""
    with ExitStack() as failures:
        for label, data in BAD_AFTER_START.items():
            client = raw(handshake=False)
            client.read_start()
            client.send(data)
            failures.callback(expect_end_of, label, client)
        for label, data in BAD_AFTER_TUNE.items():
            client = raw(handshake=False)
            client.read_start()
            client.send_start_ok()
            client.tune = client.read(commands.Connection.Tune, 0)
            client.send(data)
            if label.startswith(("frame_max", "channel_max")):
                client.send_open(client.address.vhost)
            failures.callback(expect_end_of, f"after tune: {label}", client)


def expect_end_of(label: str, client: RawClient) -> None:
    try:
        client.expect_end(HANDSHAKE_S - 3)
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{label}: {error}") from error


def test_slow_handshakes_are_ended_after_ten_seconds_and_harm_nobody(raw: Raw) -> None:
    """Many sockets that stop at every stage of the handshake: other clients are served meanwhile."""
    flood = [raw(handshake=False) for _ in range(100)]
    for _ in range(20):
        half_header, no_start_ok, half_frame, no_open = (raw(handshake=False) for _ in range(4))
        half_header.send(PROTOCOL_HEADER[:5])
        no_start_ok.read_start()
        half_frame.read_start()
        half_frame.send(HALF_FRAME)
        no_open.read_start()
        no_open.send_start_ok()
        no_open.tune = no_open.read(commands.Connection.Tune, 0)
        no_open.send_tune_ok()
        flood += [half_header, no_start_ok, half_frame, no_open]
    # The ten seconds are for the handshake as a whole, not for each byte of it.
    begun = time.monotonic()
    dribbling = raw(handshake=False)
    dribbling.read_start()
    dribbling.send(HALF_FRAME)
    raw().call(commands.Queue.Declare(exclusive=True), commands.Queue.DeclareOk)
    assert time.monotonic() - begun < HANDSHAKE_S - 2, "served when the flood was over"
    with suppress(ConnectionError, ClosedByPeer):
        while time.monotonic() < begun + 3 * HANDSHAKE_S:
            dribbling.send(b"x")
            with suppress(TimeoutError):
                dribbling.read_frame(0.25)
    assert HANDSHAKE_S - 2 < time.monotonic() - begun < 2 * HANDSHAKE_S
    for client in [*flood, dribbling]:
        client.expect_end()


def test_start_decodes_as_a_table_of_strings(raw: Raw) -> None:
    """The bytes of connection.start: only the table, two long strings, and the end."""
    client = raw(handshake=False)
    client.send(PROTOCOL_HEADER)
    payload = client.read_frame().payload
    assert payload[:6] == b"\x00\x0a\x00\x0a\x00\x09"
    (size,) = struct.unpack(">I", payload[6:10])
    table = decode_table(payload[6 : 10 + size])
    assert isinstance(table["capabilities"], dict)
    (mechanisms,) = struct.unpack(">I", payload[10 + size : 14 + size])
    (locales,) = struct.unpack(">I", payload[14 + size + mechanisms : 18 + size + mechanisms])
    assert len(payload) == 18 + size + mechanisms + locales
