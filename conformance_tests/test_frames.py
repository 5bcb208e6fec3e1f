"""Bytes that are not AMQP: each gets the right code and text, and does not affect other clients."""

import struct
from collections.abc import Callable, Iterator

import pamqp.base
import pytest
from pamqp import commands

from conformance_tests.conftest import Raw
from conformance_tests.wire import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    RawClient,
    frame_bytes,
    header_payload,
    headers_property,
    long_string,
    method_bytes,
    raw_method,
    short_string,
)

PUBLISH = method_bytes(commands.Basic.Publish(routing_key="nowhere"), 1)
DECLARE_ARGUMENTS = b"\0\0" + short_string(b"") + b"\x04"  # an exclusive queue, its argument table follows
HEADER_EXPECTED = (
    r"^UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead$"
)
BODY_EXPECTED = r"^UNEXPECTED_FRAME - expected content body, got non content body frame instead$"
METHOD_EXPECTED = r"^UNEXPECTED_FRAME - expected method frame, got non method frame instead$"


def header_frame(body_size: int, properties: bytes = b"\0\0", **kw: int) -> bytes:
    return frame_bytes(HEADER, 1, header_payload(body_size, properties=properties, **kw))


@pytest.fixture(autouse=True)
def witness(raw: Raw) -> Iterator[Callable[[], None]]:
    """Another client on its own connection: its messages come back before and after."""
    client = raw()
    queue = client.declare()
    client.call(commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk)

    def check() -> None:
        client.publish(b"still here", routing_key=queue)
        assert client.read_content().body == b"still here"

    yield check
    check()


def expect_malformed(client: RawClient, method_id: tuple[int, int] | None = None) -> None:
    """Bytes that can't be decoded: 501 or, if a field of a method or property is wrong, 502."""
    close = client.read(commands.Connection.Close, 0)
    assert close.reply_code in (501, 502), (close.reply_code, close.reply_text)
    assert close.reply_text.startswith(("FRAME_ERROR - ", "SYNTAX_ERROR - ")), close.reply_text
    if method_id is not None:
        assert (close.class_id, close.method_id) == method_id


# -- the frame itself


@pytest.mark.parametrize("channel", [0, 1, 9])
@pytest.mark.parametrize("frame_type", [0, 4, 5, 6, 7, 9, 255])
def test_unknown_frame_type(raw: Raw, frame_type: int, channel: int) -> None:
    client = raw()
    client.send_frame(frame_type, channel, b"abc")
    client.expect_connection_close(
        501, rf'^FRAME_ERROR - type {frame_type}, all octets = <<"abc">>: unknown_frame$', (0, 0)
    )


@pytest.mark.parametrize("size", [17, 200])
def test_unknown_frame_type_shows_the_first_octets_only(raw: Raw, size: int) -> None:
    client = raw()
    client.send_frame(0, 1, b"a" * size)
    client.expect_connection_close(
        501, r"^FRAME_ERROR - type 0, first 16 octets = <<.*>>: unknown_frame$", (0, 0)
    )


@pytest.mark.parametrize(
    "frame",
    [
        frame_bytes(METHOD, 1, b"\0\x14\0\x0a\0"),
        frame_bytes(HEARTBEAT, 0, b""),
        frame_bytes(METHOD, 0, b"abc"),
        frame_bytes(BODY, 1, b"a" * 1000),
    ],
    ids=["method", "heartbeat", "channel 0", "body"],
)
@pytest.mark.parametrize("end", [0, 88, 0xCD, 0xCF, 255])
def test_bad_frame_end(raw: Raw, frame: bytes, end: int) -> None:
    client = raw()
    client.send(frame[:-1] + bytes([end]))
    client.expect_connection_close(
        501, rf"^FRAME_ERROR - type {frame[0]}, .* = <<.*>>: {{invalid_frame_end_marker,\s*{end}}}$", (0, 0)
    )


@pytest.mark.parametrize("frame_max", [4096, 8192, 131072])
@pytest.mark.parametrize("over", [1, 1000, 2**31])
def test_frame_over_frame_max_is_refused_at_its_header(raw: Raw, frame_max: int, over: int) -> None:
    """The broker does not wait for its bytes: the close comes before the payload was sent."""
    client = raw(frame_max=frame_max)
    size = frame_max + over
    client.send(struct.pack(">BHI", BODY, 1, size))
    client.expect_connection_close(
        501, rf"^FRAME_ERROR - type 3, .*: {{frame_too_large,{size},{frame_max - 8}}}$", (0, 0)
    )


def test_largest_frame_length(raw: Raw) -> None:
    client = raw()
    client.send(struct.pack(">BHI", METHOD, 1, 2**32 - 1))
    client.expect_connection_close(501, r"\{frame_too_large,4294967295,131064\}$", (0, 0))


@pytest.mark.parametrize("frame_max", [4096, 131072])
def test_frame_of_exactly_frame_max(raw: Raw, frame_max: int) -> None:
    client = raw(frame_max=frame_max)
    queue = client.declare()
    body = b"x" * (frame_max - 8)
    client.publish(body, routing_key=queue)
    client.send_method(commands.Basic.Get(queue=queue, no_ack=True))
    content = client.read_content(commands.Basic.GetOk)
    assert (content.body, content.body_frames) == (body, 1)


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\x3c", b"\0\x3c\0"], ids=["0", "1", "2", "3"])
def test_method_frame_too_short_for_a_method(raw: Raw, payload: bytes) -> None:
    client = raw()
    client.send_frame(METHOD, 1, payload)
    client.expect_connection_close(501, r"^FRAME_ERROR - type 1, all octets = <<.*>>: unknown_frame$", (0, 0))


@pytest.mark.parametrize("payload", [b"", b"\0\x3c", b"\0\x3c\0\0", b"\0\x3c\0\0\0\0\0\0\0\0\0"], ids=len)
def test_header_frame_too_short_for_a_header(raw: Raw, payload: bytes) -> None:
    client = raw()
    client.send(PUBLISH)
    client.send_frame(HEADER, 1, payload)
    client.expect_connection_close(501, r"^FRAME_ERROR - type 2, all octets = <<.*>>: unknown_frame$")


@pytest.mark.parametrize("channel", [1, 7])
def test_heartbeat_on_a_channel(raw: Raw, channel: int) -> None:
    client = raw()
    client.send_frame(HEARTBEAT, channel, b"")
    client.expect_connection_close(505, r"^UNEXPECTED_FRAME - type 8, all octets = <<>>$", (0, 0))


@pytest.mark.parametrize("channel", [0, 1])
def test_heartbeat_with_a_payload(raw: Raw, channel: int) -> None:
    client = raw()
    client.send_frame(HEARTBEAT, channel, b"abc")
    client.expect_connection_close(
        501, r'^FRAME_ERROR - type 8, all octets = <<"abc">>: unknown_frame$', (0, 0)
    )


@pytest.mark.parametrize("garbage", [b"garbage " * 100, b"AMQP\0\0\x09\x01", b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_behind_the_handshake(raw: Raw, garbage: bytes) -> None:
    client = raw()
    client.send(garbage)
    client.expect_connection_close(
        501, r"^FRAME_ERROR - type \d+, .*: \{frame_too_large,\d+,131064\}$", (0, 0)
    )


def test_frames_before_the_broken_one_are_done(raw: Raw) -> None:
    client = raw()
    client.send(method_bytes(commands.Tx.Select(), 1) + frame_bytes(0, 0, b""))
    client.read(commands.Tx.SelectOk)
    client.expect_connection_close(501, "unknown_frame")


# -- methods


@pytest.mark.parametrize(
    ("class_id", "method_id"), [(77, 10), (0, 0), (65535, 65535), (60, 201), (50, 99), (20, 0)]
)
def test_unknown_class_or_method(raw: Raw, class_id: int, method_id: int) -> None:
    client = raw()
    client.send(raw_method(class_id, method_id, b""))
    close = client.read(commands.Connection.Close, 0)
    assert close.reply_code in (503, 540), (close.reply_code, close.reply_text)
    assert close.reply_text.startswith(("COMMAND_INVALID - ", "NOT_IMPLEMENTED - "))


def test_unknown_method_on_channel_0(raw: Raw) -> None:
    client = raw()
    client.send(raw_method(10, 201, b"", 0))
    close = client.read(commands.Connection.Close, 0)
    assert close.reply_code in (503, 504, 540), (close.reply_code, close.reply_text)


@pytest.mark.parametrize(
    ("class_id", "method_id", "arguments"),
    [
        (50, 10, b""),
        (50, 10, b"\0\0\x09abc"),
        (50, 10, DECLARE_ARGUMENTS + b"\0\0\0\x09abc"),
        (60, 40, b"\0\0\x05abc"),
        (60, 80, b"\0\0\0"),
        (60, 20, b"\0\0\0\0\0"),
        (90, 10, b"x"),
        (60, 80, struct.pack(">QB", 1, 0) + b"trailing"),
        (20, 40, b"\0\xc8\xff"),
    ],
    ids=[
        "declare, nothing",
        "declare, cut name",
        "declare, cut table",
        "publish, cut name",
        "ack, cut tag",
        "consume, cut",
        "tx.select, trailing",
        "ack, trailing",
        "channel.close, cut text",
    ],
)
def test_arguments_that_do_not_fit_the_method(
    raw: Raw, class_id: int, method_id: int, arguments: bytes
) -> None:
    client = raw()
    client.send(raw_method(class_id, method_id, arguments))
    client.expect_connection_close(501, r"^FRAME_ERROR - cannot decode", (class_id, method_id))


@pytest.mark.parametrize(
    "table",
    [
        b"\x01aZ",
        b"\x01aF\0\0\0\x09",
        b"\xffaF",
        b"\x01aS\0\0\0\x09abc",
        b"\x01aS\xff\xff\xff\xff",
        b"\x01aI\0",
        b"\x01a",
        b"\x01aA\0\0\0\x02Z\0",
        b"\x01aD\x02\0",
        b"\x01aT\0\0",
    ],
    ids=repr,
)
def test_malformed_table_of_arguments(raw: Raw, table: bytes) -> None:
    client = raw()
    client.send(raw_method(50, 10, DECLARE_ARGUMENTS + long_string(table)))
    expect_malformed(client)


@pytest.mark.parametrize(
    "frame",
    [
        raw_method(50, 10, b"\0\0" + short_string(b"\xff\xfe") + b"\x04" + long_string(b"")),
        raw_method(50, 10, b"\0\0" + short_string(b"\xc3") + b"\x01" + long_string(b"")),
        raw_method(
            40, 10, b"\0\0" + short_string(b"\xff") + short_string(b"direct") + b"\0" + long_string(b"")
        ),
        raw_method(40, 10, b"\0\0" + short_string(b"x") + short_string(b"\xff") + b"\0" + long_string(b"")),
        raw_method(60, 20, b"\0\0" + short_string(b"") + short_string(b"\xff") + b"\0" + long_string(b"")),
    ],
    ids=["queue", "cut sequence", "exchange", "exchange type", "consumer tag"],
)
def test_name_that_is_no_utf8(raw: Raw, frame: bytes) -> None:
    client = raw()
    client.send(method_bytes(commands.Queue.Declare(exclusive=True), 1))
    client.read(commands.Queue.DeclareOk)
    client.send(frame)
    client.expect_connection_close(501, r"^FRAME_ERROR - Malformed UTF-8 in shortstr$", (0, 0))


def test_routing_key_that_is_no_utf8_is_kept_or_refused(raw: Raw) -> None:
    """Routing keys are only compared, so RabbitMQ lets any bytes through,
    and gives them back as they came.
    """
    client = raw()
    arguments = b"\0\0" + short_string(b"") + short_string(b"\xff\xfe") + b"\x01"
    client.send(raw_method(60, 40, arguments) + header_frame(0))
    frame = client.read_frame()
    if frame.method_id == (60, 50):
        assert frame.payload == b"\x00\x3c\x00\x32\x01\x38\x08NO_ROUTE\x00\x02\xff\xfe"
        client.read_frame()
        client.call(commands.Tx.Select(), commands.Tx.SelectOk)
    else:
        assert isinstance(frame.method, commands.Connection.Close)
        assert frame.method.reply_code in (501, 502)


def test_reserved_fields_are_ignored(raw: Raw) -> None:
    client = raw()
    client.send(raw_method(50, 10, b"\xff\xff" + short_string(b"") + b"\xe4" + long_string(b"")))
    client.read(commands.Queue.DeclareOk)
    client.send(raw_method(60, 70, b"\xff\xff" + short_string(b"") + b"\xff"))
    client.read(commands.Basic.GetEmpty)


def test_newlines_are_taken_out_of_names(raw: Raw) -> None:
    client = raw()
    client.send(raw_method(50, 10, b"\0\0" + short_string(b"a\nb\r\nc") + b"\x01" + long_string(b"")))
    client.expect_channel_close(404, r"^NOT_FOUND - no queue 'abc' in vhost '/'$", method_id=(50, 10))


def test_longest_name_and_a_text_cut_to_255_bytes(raw: Raw) -> None:
    client = raw()
    client.send(raw_method(50, 10, b"\0\0" + short_string(b"z" * 255) + b"\x01" + long_string(b"")))
    close = client.expect_channel_close(404, r"^NOT_FOUND - no queue 'z+\.\.\.$", method_id=(50, 10))
    assert len(close.reply_text) == 255


@pytest.mark.parametrize(
    ("method", "tag"),
    [
        (commands.Basic.Ack(0), 0),
        (commands.Basic.Ack(2**63 - 1), 2**63 - 1),
        (commands.Basic.Ack(7, multiple=True), 7),
        (commands.Basic.Nack(1), 1),
        (commands.Basic.Reject(0), 0),
    ],
    ids=["ack 0", "ack 2^63-1", "ack 7 multiple", "nack 1", "reject 0"],
)
def test_tag_that_was_never_given(raw: Raw, method: pamqp.base.Frame, tag: int) -> None:
    client = raw()
    client.send_method(method)
    client.expect_channel_close(
        406, rf"^PRECONDITION_FAILED - unknown delivery tag {tag}$", method_id=divmod(method.index, 1 << 16)
    )


@pytest.mark.parametrize("tag", [2**63, 2**64 - 1])
@pytest.mark.parametrize(("method_id", "name"), [(80, "ack"), (120, "nack"), (90, "reject")])
def test_tag_is_unsigned(raw: Raw, tag: int, method_id: int, name: str) -> None:
    client = raw()
    client.send(raw_method(60, method_id, struct.pack(">QB", tag, 0)))
    client.expect_channel_close(
        406, rf"^PRECONDITION_FAILED - unknown delivery tag {tag}$", method_id=(60, method_id)
    )


def test_all_tags_of_none_is_no_error(raw: Raw) -> None:
    client = raw()
    client.send_method(commands.Basic.Ack(0, multiple=True))
    client.send_method(commands.Basic.Nack(0, multiple=True))
    client.call(commands.Tx.Select(), commands.Tx.SelectOk)


@pytest.mark.parametrize("count", [0, 1, 65535])
def test_prefetch_count_edges(raw: Raw, count: int) -> None:
    raw().call(commands.Basic.Qos(prefetch_count=count), commands.Basic.QosOk)


@pytest.mark.parametrize("size", [1, 2**32 - 1])
def test_prefetch_size_is_not_implemented(raw: Raw, size: int) -> None:
    client = raw()
    client.send(raw_method(60, 10, struct.pack(">IHB", size, 0, 0)))
    client.expect_connection_close(540, rf"^NOT_IMPLEMENTED - prefetch_size!=0 \({size}\)$", (60, 10))


# -- content


@pytest.mark.parametrize(
    ("data", "text", "method_id"),
    [
        (header_frame(3), METHOD_EXPECTED, (0, 0)),
        (frame_bytes(BODY, 1, b"abc"), METHOD_EXPECTED, (0, 0)),
        (PUBLISH + frame_bytes(BODY, 1, b"abc"), HEADER_EXPECTED, (60, 40)),
        (PUBLISH + PUBLISH, HEADER_EXPECTED, (60, 40)),
        (PUBLISH + method_bytes(commands.Tx.Select(), 1), HEADER_EXPECTED, (60, 40)),
        (PUBLISH + method_bytes(commands.Channel.Close(200, "", 0, 0), 1), HEADER_EXPECTED, (60, 40)),
        (PUBLISH + header_frame(3) + header_frame(3), BODY_EXPECTED, (60, 40)),
        (PUBLISH + header_frame(3) + PUBLISH, BODY_EXPECTED, (60, 40)),
        (PUBLISH + header_frame(3) + frame_bytes(BODY, 1, b"ab") + PUBLISH, BODY_EXPECTED, (60, 40)),
        (PUBLISH + header_frame(3) + method_bytes(commands.Tx.Select(), 1), BODY_EXPECTED, (60, 40)),
        (PUBLISH + header_frame(3, weight=1), HEADER_EXPECTED, (60, 40)),
        (PUBLISH + header_frame(0) + frame_bytes(BODY, 1, b""), METHOD_EXPECTED, (0, 0)),
        (PUBLISH + header_frame(0) + frame_bytes(BODY, 1, b"abc"), METHOD_EXPECTED, (0, 0)),
        (
            PUBLISH + header_frame(3) + frame_bytes(BODY, 1, b"abc") + frame_bytes(BODY, 1, b"d"),
            METHOD_EXPECTED,
            (0, 0),
        ),
        (
            PUBLISH + header_frame(3, class_id=50),
            r"^UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead$",
            (60, 40),
        ),
        (
            PUBLISH + header_frame(3, class_id=65535),
            r"^UNEXPECTED_FRAME - expected content header for class 60, got one for class 65535 instead$",
            (60, 40),
        ),
    ],
    ids=[
        "header without method",
        "body without method",
        "body instead of header",
        "publish instead of header",
        "method instead of header",
        "channel.close instead of header",
        "header instead of body",
        "publish instead of body",
        "publish inside a body",
        "method instead of body",
        "weight",
        "empty body frame behind an empty body",
        "body frame behind an empty body",
        "body frame behind a whole body",
        "header of class 50",
        "header of class 65535",
    ],
)
def test_content_out_of_turn(raw: Raw, data: bytes, text: str, method_id: tuple[int, int]) -> None:
    client = raw()
    client.send(data)
    client.expect_connection_close(505, text, method_id)


@pytest.mark.parametrize("parts", [[b"abcd"], [b"ab", b"cd"], [b"a", b"b" * 5000]], ids=["1", "2", "big"])
def test_body_longer_than_announced(raw: Raw, parts: list[bytes]) -> None:
    client = raw()
    client.send(PUBLISH + header_frame(3) + b"".join(frame_bytes(BODY, 1, part) for part in parts))
    close = client.read(commands.Connection.Close, 0)
    assert close.reply_code in (501, 505), (close.reply_code, close.reply_text)
    assert close.reply_text.startswith(("FRAME_ERROR - ", "UNEXPECTED_FRAME - "))


@pytest.mark.parametrize("sizes", [[0, 3], [1, 0, 2], [1, 1, 1], [3]], ids=str)
def test_body_in_frames_of_any_size(raw: Raw, sizes: list[int]) -> None:
    client = raw()
    queue = client.declare()
    client.send(method_bytes(commands.Basic.Publish(routing_key=queue), 1) + header_frame(3))
    sent = 0
    for size in sizes:
        client.send_frame(BODY, 1, b"abc"[sent : sent + size])
        sent += size
    client.send_method(commands.Basic.Get(queue=queue, no_ack=True))
    assert client.read_content(commands.Basic.GetOk).body == b"abc"


@pytest.mark.parametrize("size", [2**40, 2**63, 2**64 - 1])
def test_absurd_body_size_takes_no_memory(raw: Raw, size: int, witness: Callable[[], None]) -> None:
    """Refused at the header, or awaited: the broker allocates no memory in either case."""
    client = raw()
    client.send(PUBLISH + header_frame(size) + frame_bytes(BODY, 1, b"abc"))
    witness()
    client.abort()


@pytest.mark.parametrize("size", [2**40, 2**64 - 1])
def test_absurd_body_size_is_refused_at_the_header(raw: Raw, size: int) -> None:
    client = raw()
    client.send(PUBLISH + header_frame(size))
    client.expect_channel_close(
        406, rf"^PRECONDITION_FAILED - message size {size} .*larger than .*max size \d+$"
    )


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"\x80",
        b"\0\0abc",
        b"\x80\0\x09abc",
        b"\x80\0",
        b"\0\x01\0\0",
        b"\x10\0",
        b"\x00\x40\0\0",
        headers_property(b"\x01kZ"),
        headers_property(b"\x01kS\0\0\0\x09abc"),
        headers_property(b"\x09k"),
        b"\x20\0\0\0\xff\xffabc",
    ],
    ids=[
        "no flags",
        "half the flags",
        "trailing",
        "cut content-type",
        "no content-type",
        "continued flags",
        "no delivery-mode",
        "cut timestamp",
        "unknown type in headers",
        "cut string in headers",
        "cut key in headers",
        "cut headers",
    ],
)
def test_malformed_properties(raw: Raw, properties: bytes) -> None:
    client = raw()
    client.send(PUBLISH + header_frame(0, properties=properties))
    expect_malformed(client)


# -- how the bytes come


def test_frames_byte_by_byte(raw: Raw) -> None:
    client = raw()
    queue = client.declare()
    data = client.publish_bytes(b"abc", routing_key=queue, properties=headers_property(b"\x01kt\x01"))
    for i in range(len(data)):
        client.send(data[i : i + 1])
    client.send_method(commands.Basic.Get(queue=queue, no_ack=True))
    content = client.read_content(commands.Basic.GetOk)
    assert (content.body, content.header[12:]) == (b"abc", headers_property(b"\x01kt\x01"))


def test_a_thousand_messages_in_one_write(raw: Raw) -> None:
    client = raw()
    queue = client.declare()
    client.call(commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk)
    client.send(b"".join(client.publish_bytes(b"%d" % i, routing_key=queue) for i in range(1000)))
    assert [client.read_content().body for _ in range(1000)] == [b"%d" % i for i in range(1000)]


def test_client_that_closes_its_sending_half(raw: Raw, witness: Callable[[], None]) -> None:
    clients = [raw(channel=None) for _ in range(20)]
    for client in clients:
        client.send(struct.pack(">BHI", METHOD, 1, 50)[:5])
        client.socket.shutdown(1)
    witness()
    for client in clients:
        client.expect_eof()


def test_client_that_never_reads(raw: Raw, witness: Callable[[], None]) -> None:
    """Deliveries accumulate for it; other clients don't notice."""
    client = raw(client={"receive_buffer_bytes": 4096})
    queue = client.declare()
    client.call(commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk)
    message = client.publish_bytes(b"x" * 100_000, routing_key=queue)
    for _ in range(100):
        client.send(message)
    witness()
    assert client.read_content().body == b"x" * 100_000
    witness()


def test_nested_tables_do_no_harm(raw: Raw, witness: Callable[[], None]) -> None:
    """Deeper than needed: kept as sent or refused, never a crash."""
    table = b"\x01kI\0\0\0\x01"
    for _ in range(3000):
        table = b"\x01kF" + long_string(table)
    client = raw()
    client.publish(b"", routing_key="nowhere", mandatory=True, properties=headers_property(table))
    frame = client.read_frame()
    if frame.method_id == (60, 50):
        assert client.read_frame().payload[12:] == headers_property(table)
    else:
        assert isinstance(frame.method, commands.Connection.Close)
        assert frame.method.reply_code in (501, 502), frame.method.reply_text
        assert "ecursion" not in frame.method.reply_text
    witness()
    client = raw()
    client.send(raw_method(50, 10, DECLARE_ARGUMENTS + long_string(table)))
    frame = client.read_frame()
    if frame.method_id == (10, 50):
        assert isinstance(frame.method, commands.Connection.Close)
        assert frame.method.reply_code in (501, 502), frame.method.reply_text
    else:
        assert frame.method_id in ((50, 11), (20, 40))
    witness()
