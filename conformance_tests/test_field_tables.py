"""Message headers of every field type, and all properties, come back as they were sent, to the byte."""

import struct

import pytest
from pamqp import commands

from conformance_tests.conftest import Raw
from conformance_tests.wire import (
    HEADER,
    RawClient,
    header_payload,
    headers_property,
    long_string,
    raw_method,
)


def field(tag: bytes, value: bytes, name: bytes = b"k") -> bytes:
    return bytes([len(name)]) + name + tag + value


def nested(depth: int) -> bytes:
    table = field(b"I", struct.pack(">i", depth))
    for _ in range(depth):
        table = field(b"F", long_string(table))
    return table


TABLES = {
    "boolean true": field(b"t", b"\x01"),
    "boolean false": field(b"t", b"\x00"),
    "int8 min": field(b"b", b"\x80"),
    "int8 max": field(b"b", b"\x7f"),
    "uint8 max": field(b"B", b"\xff"),
    "int16 min": field(b"s", b"\x80\x00"),
    "int16 max": field(b"s", b"\x7f\xff"),
    "uint16 max": field(b"u", b"\xff\xff"),
    "int32 min": field(b"I", struct.pack(">i", -(2**31))),
    "int32 max": field(b"I", struct.pack(">i", 2**31 - 1)),
    "uint32 max": field(b"i", struct.pack(">I", 2**32 - 1)),
    "int64 min": field(b"l", struct.pack(">q", -(2**63))),
    "int64 max": field(b"l", struct.pack(">q", 2**63 - 1)),
    "int64 as L": field(b"L", struct.pack(">q", -1)),
    "float": field(b"f", struct.pack(">f", 1.5)),
    "float that is no short decimal": field(b"f", struct.pack(">f", 0.1)),
    "float not a number": field(b"f", struct.pack(">f", float("nan"))),
    "double": field(b"d", struct.pack(">d", 0.1)),
    "double minus zero": field(b"d", struct.pack(">d", -0.0)),
    "double infinity": field(b"d", struct.pack(">d", float("inf"))),
    "decimal": field(b"D", b"\x02\x00\x00\x01\x00"),
    "decimal scale 0": field(b"D", b"\x00\x00\x00\x00\x07"),
    "decimal top bit": field(b"D", b"\x02\xff\xff\xff\xff"),
    "decimal scale 255": field(b"D", b"\xff\x00\x00\x00\x01"),
    "string": field(b"S", long_string("grüße ✓".encode())),
    "empty string": field(b"S", long_string(b"")),
    "string that is no utf-8": field(b"S", long_string(b"\xff\xfe\x00")),
    "long string": field(b"S", long_string(b"x" * 70_000)),
    "timestamp": field(b"T", struct.pack(">Q", 1_700_000_000)),
    "timestamp 0": field(b"T", struct.pack(">Q", 0)),
    "timestamp in milliseconds": field(b"T", struct.pack(">Q", 1_700_000_000_123)),
    "timestamp max": field(b"T", struct.pack(">Q", 2**64 - 1)),
    "table": field(b"F", long_string(field(b"t", b"\x01") + field(b"V", b"", b"v"))),
    "empty table": field(b"F", long_string(b"")),
    "nested tables": nested(8),
    "nested arrays": field(b"A", long_string(b"A" + long_string(b"A" + long_string(b"A\x00\x00\x00\x00")))),
    "array": field(b"A", long_string(b"I\x00\x00\x00\x01" + b"t\x01" + b"S\x00\x00\x00\x01x" + b"V")),
    "array of tables": field(b"A", long_string((b"F" + long_string(field(b"t", b"\x01"))) * 3)),
    "empty array": field(b"A", long_string(b"")),
    "void": field(b"V", b""),
    "bytes": field(b"x", long_string(b"\x00\xff\xce")),
    "empty bytes": field(b"x", long_string(b"")),
    "empty table of headers": b"",
    "unsorted keys": field(b"t", b"\x01", b"b") + field(b"t", b"\x00", b"a"),
    "the same key twice": field(b"t", b"\x01") + field(b"t", b"\x00"),
    "empty key": field(b"t", b"\x01", b""),
    "long key": field(b"t", b"\x01", b"k" * 255),
    "key in utf-8": field(b"t", b"\x01", "ключ".encode()),
    "a thousand keys": b"".join(field(b"I", struct.pack(">i", i), b"k%d" % i) for i in range(1000)),
}


def come_back(client: RawClient, properties: bytes) -> bytes:
    """Return the properties of a message with these properties after its delivery."""
    queue = client.declare()
    client.publish(b"body", routing_key=queue, properties=properties)
    client.call(commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk)
    content = client.read_content()
    assert content.body == b"body"
    assert content.header[:12] == header_payload(4)[:12]
    return content.header[12:]


@pytest.mark.parametrize("label", TABLES)
def test_header_comes_back_as_sent(raw: Raw, label: str) -> None:
    properties = headers_property(TABLES[label])
    assert come_back(raw(), properties) == properties


PROPERTIES = {
    "content_type": commands.Basic.Properties(content_type="text/plain"),
    "content_encoding": commands.Basic.Properties(content_encoding="gzip"),
    "headers": commands.Basic.Properties(headers={"a": "b"}),
    "delivery_mode 1": commands.Basic.Properties(delivery_mode=1),
    "delivery_mode 2": commands.Basic.Properties(delivery_mode=2),
    "priority": commands.Basic.Properties(priority=255),
    "correlation_id": commands.Basic.Properties(correlation_id="c" * 255),
    "reply_to": commands.Basic.Properties(reply_to="somewhere"),
    "expiration": commands.Basic.Properties(expiration="60000"),
    "message_id": commands.Basic.Properties(message_id="✓"),
    "type": commands.Basic.Properties(message_type="t"),
    "user_id": commands.Basic.Properties(user_id="guest"),
    "app_id": commands.Basic.Properties(app_id="app"),
    "all": commands.Basic.Properties(
        content_type="a",
        content_encoding="b",
        headers={"c": True},
        delivery_mode=2,
        priority=1,
        correlation_id="d",
        reply_to="e",
        expiration="60000",
        message_id="f",
        message_type="g",
        user_id="guest",
        app_id="h",
    ),
}


@pytest.mark.parametrize("label", PROPERTIES)
def test_property_comes_back_as_sent(raw: Raw, label: str) -> None:
    properties = PROPERTIES[label].marshal()
    assert come_back(raw(), properties) == properties


@pytest.mark.parametrize("value", [0, 1_700_000_000, 2**63, 2**64 - 1])
def test_timestamp_comes_back_as_sent(raw: Raw, value: int) -> None:
    properties = b"\x00\x40" + struct.pack(">Q", value)
    assert come_back(raw(), properties) == properties


@pytest.mark.parametrize("mode", [0, 3, 255])
def test_delivery_mode_is_1_or_2(raw: Raw, mode: int) -> None:
    client = raw()
    client.publish(b"body", routing_key="nowhere", properties=b"\x10\x00" + bytes([mode]))
    client.expect_channel_close(
        406, rf"^PRECONDITION_FAILED - invalid message: {{delivery_mode_unknown,{mode}}}$", method_id=(60, 40)
    )


def test_empty_properties_come_back_as_sent(raw: Raw) -> None:
    """Present but empty is not absent."""
    properties = b"\xc0\x00" + b"\x00" + b"\x00"
    assert come_back(raw(), properties) == properties


def test_cluster_id_comes_back_as_sent(raw: Raw) -> None:
    """The property is reserved, but some clients set it."""
    properties = b"\x00\x04" + b"\x01c"
    assert come_back(raw(), properties) == properties


def test_no_properties_come_back_as_none(raw: Raw) -> None:
    assert come_back(raw(), b"\0\0") == b"\0\0"


def test_messages_that_differ_in_headers_only_stay_apart(raw: Raw) -> None:
    client = raw()
    queue = client.declare()
    client.call(commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk)
    sent = [headers_property(field(b"I", struct.pack(">i", i % 7), b"k%d" % (i % 13))) for i in range(500)]
    client.send(b"".join(client.publish_bytes(b"", routing_key=queue, properties=each) for each in sent))
    assert [client.read_content().header[12:] for _ in sent] == sent


def test_headers_of_a_returned_message(raw: Raw) -> None:
    client = raw()
    properties = headers_property(TABLES["nested tables"] + TABLES["array"].replace(b"k", b"a", 1))
    client.publish(b"x", routing_key="nowhere", mandatory=True, properties=properties)
    assert client.read_content(commands.Basic.Return).header[12:] == properties


@pytest.mark.parametrize("label", sorted(set(TABLES) - {"float not a number", "double infinity"}))
def test_arguments_of_any_type_are_accepted(raw: Raw, label: str) -> None:
    """Unknown arguments of a declare have no effect, whatever their type."""
    if len(TABLES[label]) > 60_000:
        pytest.skip("no argument is that long")
    client = raw()
    client.send(raw_method(50, 10, b"\0\0\0\x04" + long_string(TABLES[label])))
    client.read(commands.Queue.DeclareOk)


def test_header_frame_on_the_wire_has_no_weight(raw: Raw) -> None:
    client = raw()
    queue = client.declare()
    client.publish(b"", routing_key=queue)
    client.send_method(commands.Basic.Get(queue=queue, no_ack=True))
    assert client.read(commands.Basic.GetOk).message_count == 0
    frame = client.read_frame()
    assert (frame.type, frame.payload) == (HEADER, header_payload(0))
    client.expect_answer_first()
