"""Bytes become messages, whatever the chunks, and messages become columns."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame, heartbeat

from spark_sink.rows import BadColumn, source_schema
from spark_sink.source.columns import Decoder, check_schema
from spark_sink.source.deliveries import OVERHEAD_BYTES, Garbled, Run, Splitter, digest
from spark_sink.source.field_table import as_text
from spark_sink.source.pieces import PIECE_MESSAGES, Deliveries, cut
from spark_sink.source.properties import COLUMNS, UNREADABLE, BadMessage, decode_properties, without_ids
from tests.spark_sink.wire import Message, Reader, delivery, run_of

HEARTBEAT = frame.marshal(heartbeat.Heartbeat(), 0)
ACK = frame.marshal(commands.Basic.Ack(7), 1)
FRAME_MAX = 64

texts = st.text(max_size=20)
properties = st.fixed_dictionaries(
    {},
    optional={
        "content_type": texts,
        "headers": st.dictionaries(
            st.text(min_size=1, max_size=5), st.one_of(texts, st.integers(0, 9)), max_size=2
        ),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "message_id": texts,
        "correlation_id": texts,
        "app_id": texts,
    },
)
names = st.text("ab.-_:", max_size=10)  # pamqp checks them
messages = st.builds(Message, st.binary(max_size=200), names, texts, properties)


def rows(runs: list[Run]) -> list[dict[str, Any]]:
    decoder = Decoder(source_schema(), "q")
    if not runs:
        return []
    return [row for batch in decoder.batches(Run.joined(runs), 5) for row in batch.to_pylist()]


@given(
    st.lists(st.one_of(messages, st.sampled_from([HEARTBEAT, ACK])), max_size=12),
    st.integers(1, 400),
    st.data(),
)
def test_any_chunks_give_the_same_messages(
    given_frames: list[Message | bytes], chunk: int, data: st.DataObject
) -> None:
    wire, sent, others = b"", [], []
    for tag, each in enumerate(given_frames, 1):
        if isinstance(each, bytes):
            wire += each
            others.append(each)
        else:
            wire += delivery(each, tag, data.draw(st.booleans()), FRAME_MAX)
            sent.append((tag, each))
    reader = Reader()
    for start in range(0, len(wire), chunk):
        reader.feed(wire[start : start + chunk])
    assert reader.whole and reader.others == others
    runs = reader.splitter.runs
    assert [run.tag(index) for run in runs for index in range(len(run))] == [tag for tag, _ in sent]
    found = rows(runs)
    assert [row["value"] for row in found] == [message.body for _, message in sent]
    assert [row["offset"] for row in found] == list(range(5, 5 + len(sent)))
    for row, (_, message) in zip(found, sent, strict=True):
        assert (row["exchange"], row["routing_key"]) == (message.exchange, message.routing_key)
        for name in ("content_type", "delivery_mode", "priority", "message_id", "correlation_id", "app_id"):
            # pamqp leaves out empty texts and zeros, as no property.
            assert (row[name] or None) == (message.properties.get(name) or None), name
        headers = message.properties.get("headers")
        assert dict(row["headers"] or {}) == {name: as_text(value) for name, value in (headers or {}).items()}


#: All have the same length on the wire, with their parts at different places.
ALIKE = (
    Message(b"a" * 30, "", "key"),
    Message(b"z" * 30, "", "yek"),
    Message(b"b" * 29, "", "keys"),
    Message(b"b" * 29, "x", "key"),
    Message(b"c" * 26, "", "key", {"message_id": "abc"}),
    Message(b"d" * 26, "", "key", {"content_type": "abc"}),
)


@given(
    st.lists(st.tuples(st.sampled_from([*ALIKE, HEARTBEAT]), st.integers(1, 50)), max_size=8),
    st.integers(1, 3_000),
)
def test_messages_of_one_length_are_told_apart(
    repeated: list[tuple[Message | bytes, int]], chunk: int
) -> None:
    wire, sent = b"", []
    for each, count in repeated:
        for _ in range(count):
            if isinstance(each, bytes):
                wire += each
                continue
            sent.append(each)
            wire += delivery(each, len(sent), False, FRAME_MAX)
    reader = Reader()
    for start in range(0, len(wire), chunk):
        reader.feed(wire[start : start + chunk])
    found = rows(reader.splitter.runs)
    assert [(row["value"], row["exchange"], row["routing_key"]) for row in found] == [
        (message.body, message.exchange, message.routing_key) for message in sent
    ]
    assert [row["message_id"] for row in found] == [message.properties.get("message_id") for message in sent]
    tags = [run.tag(index) for run in reader.splitter.runs for index in range(len(run))]
    assert tags == list(range(1, len(sent) + 1))


def test_a_body_in_two_frames_is_no_shape_for_others() -> None:
    """This message is as long on the wire as the others: a frame has eight octets of its own."""
    halved = delivery(Message(b"e" * 22, "", "key"), 2, frame_max=11 + OVERHEAD_BYTES)
    whole = [delivery(Message(bytes([97 + tag]) * 30, "", "key"), tag) for tag in range(1, 40)]
    assert len(halved) == len(whole[0])
    wire = b"".join([*whole[:20], halved, halved, *whole[20:], halved])
    reader = Reader()
    reader.feed(wire)
    found = [row["value"] for row in rows(reader.splitter.runs)]
    bodies = [bytes([97 + tag]) * 30 for tag in range(1, 40)]
    assert found == [*bodies[:20], b"e" * 22, b"e" * 22, *bodies[20:], b"e" * 22]


@given(st.lists(messages, min_size=1, max_size=6))
def test_a_message_is_the_same_in_every_delivery(sent: list[Message]) -> None:
    first, again = Reader(), Reader()
    for tag, message in enumerate(sent, 1):
        first.feed(delivery(message, tag))
        # The header that a quorum queue adds.
        counted = {**message.properties.get("headers", {}), "x-delivery-count": 3}
        again.feed(delivery(message, tag + 100, True, headers=counted))
    assert digest(first.splitter.runs) == digest(again.splitter.runs)
    other = Reader()
    other.feed(delivery(Message(sent[0].body + b"!"), 1))
    assert digest(other.splitter.runs) != digest([first.splitter.runs[0].one(0)])


def test_a_heartbeat_among_the_frames_of_a_message() -> None:
    message = Message(b"b" * 150)
    wire = delivery(message, 1, frame_max=FRAME_MAX)
    ends = [0]
    while ends[-1] < len(wire):
        ends.append(ends[-1] + int.from_bytes(wire[ends[-1] + 3 : ends[-1] + 7]) + 8)
    for cut_at in ends[1:-1]:
        for chunk in (1, 9, len(wire) + 8):
            reader, broken = Reader(), wire[:cut_at] + HEARTBEAT + wire[cut_at:]
            for start in range(0, len(broken), chunk):
                reader.feed(broken[start : start + chunk])
            assert [row["value"] for row in rows(reader.splitter.runs)] == [message.body], (cut_at, chunk)


@pytest.mark.parametrize("break_at", ["end", "kind", "size"])
def test_broken_frames_are_an_error(break_at: str) -> None:
    wire = bytearray(delivery(Message(b"body"), 1))
    body_at = len(wire) - 12
    if break_at == "end":
        wire[-1] = 0
    elif break_at == "kind":
        wire[body_at] = 7
    else:
        header_at = body_at - 8 - 14
        wire[header_at + 7 + 11] = 3  # the header says 3 bytes
    with pytest.raises(Garbled):
        Splitter().take(bytes(wire), 0, len(wire))


def test_a_run_is_split_and_counted() -> None:
    run = run_of(b"a", b"bb", b"ccc")
    first, rest = run.split(1)
    assert [row["value"] for row in rows([first, rest])] == [b"a", b"bb", b"ccc"]
    assert [rest.tag(0), rest.tag(1), run.one(1).tag(0)] == [2, 3, 2]
    assert [run.count_within(size) for size in (0, len(first.data), len(run.data) - 1, len(run.data))] == [
        0,
        1,
        2,
        3,
    ]


def test_pieces_hold_all_messages_in_order() -> None:
    bodies = [b"%d" % number for number in range(2 * PIECE_MESSAGES + 2)]
    run = run_of(*bodies)
    runs = [*run.split(7)[:1], run.split(7)[1]]
    pieces = [piece for piece in cut(runs, 100) if isinstance(piece, Deliveries)]
    assert len(pieces) == 3
    decoder = Decoder(source_schema(), "q")
    for piece in pieces:
        splitter = Splitter()
        splitter.take(piece.run.data, 0, len(piece.run.data))
        [again] = splitter.runs
        assert (again.starts, again.heads) == (piece.run.starts, piece.run.heads)
    found = [
        row
        for piece in pieces
        for batch in decoder.batches(piece.run, piece.offset)
        for row in batch.to_pylist()
    ]
    assert [row["value"] for row in found] == bodies
    assert [row["offset"] for row in found] == list(range(100, 100 + len(bodies)))


def test_long_messages_are_pieces_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_sink.source.pieces.PIECE_BYTES_MAX", 1_000)
    run = run_of(b"a" * 5_000, b"b", b"c" * 400, b"d" * 600, b"e" * 5_000)
    pieces = [piece for piece in cut([run], 0) if isinstance(piece, Deliveries)]
    assert [piece.offset for piece in pieces] == [0, 1, 3, 4]
    assert b"".join(piece.run.data for piece in pieces) == run.data


def test_properties_and_headers_become_columns() -> None:
    moment = datetime(2024, 2, 29, 12, tzinfo=UTC)
    headers = {"text": "t", "number": 5, "flag": True, "nothing": None, "list": [1, "a"], "when": moment}
    message = Message(
        b"v", properties={"timestamp": moment, "headers": headers, "message_type": "sale", "user_id": "guest"}
    )
    reader = Reader()
    reader.feed(delivery(message, 1, True))
    [row] = rows(reader.splitter.runs)
    assert (row["timestamp"], row["type"], row["user_id"], row["redelivered"]) == (
        moment,
        "sale",
        "guest",
        True,
    )
    assert dict(row["headers"]) == {
        "text": "t",
        "number": "5",
        "flag": "true",
        "nothing": None,
        "list": '[1, "a"]',
        "when": "2024-02-29T12:00:00+00:00",
    }


def test_a_timestamp_that_spark_cannot_hold_is_null() -> None:
    assert decode_properties(b"\x00\x40" + b"\xff" * 8)[9] is None


def test_text_that_is_not_utf8() -> None:
    assert decode_properties(b"\x80\x00\x02\xff\xfe")[0] == "��"


def headers_of(*entries: bytes) -> list[tuple[str, str | None]]:
    table = b"".join(b"\x01h" + entry for entry in entries)
    found: list[tuple[str, str | None]] = decode_properties(
        b"\x20\x00" + len(table).to_bytes(4, "big") + table
    )[COLUMNS.index("headers")]
    return found


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (b"d" + struct.pack(">d", 21.7), "21.7"),
        (b"f" + struct.pack(">f", 0.5), "0.5"),
        (b"d" + struct.pack(">d", float("nan")), "nan"),
        (b"d" + struct.pack(">d", float("-inf")), "-inf"),
        (b"D" + struct.pack(">BI", 2, 314), "3.14"),
        (b"D" + struct.pack(">BI", 255, 1), "0." + "0" * 254 + "1"),
        (b"D" + struct.pack(">BI", 0, 2**32 - 5), "-5"),
        (b"b\xff", "-1"),
        (b"B\xff", "255"),
        (b"s" + struct.pack(">h", -5), "-5"),
        (b"u" + struct.pack(">H", 65535), "65535"),
        (b"I" + struct.pack(">i", -5), "-5"),
        (b"i" + struct.pack(">I", 2**32 - 1), "4294967295"),
        (b"l" + struct.pack(">q", -(2**63)), "-9223372036854775808"),
        (b"L" + struct.pack(">q", -5), "-5"),
        (b"t\x01", "true"),
        (b"V", None),
        (b"S" + struct.pack(">I", 2) + b"\xff\x00", "\ufffd\x00"),
        (b"x" + struct.pack(">I", 2) + b"\xff\x00", "\ufffd\x00"),
        (b"T" + struct.pack(">Q", 1_709_208_000), "2024-02-29T12:00:00+00:00"),
        # Milliseconds where seconds belong.
        (b"T" + struct.pack(">Q", 1_700_000_000_000), "1700000000000"),
        (b"T" + b"\xff" * 8, str(2**64 - 1)),
        (b"A" + struct.pack(">I", 9) + b"d" + struct.pack(">d", 1.5), "[1.5]"),
        (b"A" + struct.pack(">I", 6) + b"D\x02" + struct.pack(">i", 314), '["3.14"]'),
        (b"A" + struct.pack(">I", 9) + b"d" + struct.pack(">d", float("nan")), '["nan"]'),
        (b"F" + struct.pack(">I", 3) + b"\x01av"[:2] + b"V", '{"a": null}'),
    ],
)
def test_every_value_of_a_header_becomes_text(entry: bytes, text: str | None) -> None:
    assert headers_of(entry) == [("h", text)]


def test_headers_that_cannot_be_read_are_kept_as_they_are() -> None:
    """One bad message must not stop a query for ever."""
    deep = b"A" + struct.pack(">I", 0)
    for _ in range(130):
        deep = b"A" + struct.pack(">I", len(deep)) + deep
    for entry in (
        b"?",
        b"l\x00",
        b"S" + struct.pack(">I", 99) + b"a",
        b"A" + struct.pack(">I", 2) + b"l\x00",
        deep,
    ):
        assert headers_of(entry) == [(UNREADABLE, (b"\x01h" + entry).hex())]
    # The other properties of such a message are there.
    found = decode_properties(b"\x28\x00" + b"\x00\x00\x00\x03\x01a?" + b"\x07")
    assert found[COLUMNS.index("priority")] == 7


def test_properties_that_are_cut_off_are_an_error() -> None:
    with pytest.raises(BadMessage, match="cannot be decoded"):
        decode_properties(b"\x20\x00\x00\x00\x00\x09\x01a?")


@given(st.lists(st.tuples(texts, st.sampled_from(["", "a/b"]), st.integers(1, 2)), min_size=1, max_size=9))
def test_messages_that_differ_in_their_ids_are_decoded_as_others_are(
    given_properties: list[tuple[str, str, int]],
) -> None:
    reader = Reader()
    for tag, (message_id, content_type, mode) in enumerate(given_properties, 1):
        properties = {"message_id": message_id, "content_type": content_type, "delivery_mode": mode}
        reader.feed(delivery(Message(b"v", properties={"headers": {"a": 1}, **properties}), tag))
    run = Run.joined(reader.splitter.runs)
    due = [dict(zip(COLUMNS, decode_properties(run.properties(i)), strict=True)) for i in range(len(run))]
    assert [{name: row[name] for name in COLUMNS} for row in rows([run])] == due
    if len({mode for _, _, mode in given_properties}) == 1 and all(m and c for m, c, _ in given_properties):
        beginnings = {content_type for _, content_type, _ in given_properties}
        split = without_ids([run.properties(i) for i in range(len(run))])
        assert (split is not None) == (len(beginnings) == 1)
        assert split is None or [each.decode() for each in split[0]] == [m for m, _, _ in given_properties]


@pytest.mark.parametrize("broken", [b"\x01\x00", b"\x20\x80\x00\x00", b"\x80\x80\x09ab"])
def test_properties_that_end_too_early_are_not_split(broken: bytes) -> None:
    assert without_ids([broken, broken + b"\x00"]) is None


def test_a_schema_may_leave_columns_out_but_not_change_them() -> None:
    from pyspark.sql.types import StringType, StructType

    some = StructType([source_schema()["routing_key"], source_schema()["value"]])
    check_schema(some)
    [batch] = Decoder(some, "q").batches(run_of(b"x"), 0)
    assert batch.to_pylist() == [{"routing_key": "q", "value": b"x"}]
    with pytest.raises(BadColumn, match="did you mean 'value'"):
        check_schema(StructType().add("valu", StringType()))
    with pytest.raises(BadColumn, match="column 'value' is binary.*cast"):
        check_schema(StructType().add("value", StringType()))
