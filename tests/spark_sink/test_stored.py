"""Rows out of batches as the broker stores them equal those out of messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header

from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.encode import Encoded, Encoder
from amqp_server.streams.layout.layouts import Layouts
from amqp_server.streams.layout.stored_delivery import StoredReader
from amqp_server.wire import content
from amqp_server.wire.deliver import DeliverTemplate
from amqp_server.wire.frames import short_string
from persistence.streams import batch as batches
from persistence.streams.batch import compressed, stored_of
from persistence.streams.compression import CODECS
from quorum_queue.machine.attributes import Attributes
from quorum_queue.machine.run import Run as QueueRun
from spark_sink.rows import source_schema
from spark_sink.sink.packing import CONTENT_ENCODING, CONTENT_TYPE
from spark_sink.source import stored_cuts
from spark_sink.source.columns import Decoder
from spark_sink.source.deliveries import Run, Splitter
from spark_sink.source.properties import BadMessage
from spark_sink.source.stored import StoredRun, batches_of
from tests.spark_sink.test_reader_deliveries import messages
from tests.spark_sink.wire import Message

FIRST = 1 << 40
TIME = 1_700_000_000_000
SCHEMA = source_schema(of_stream=True)


def encoded(sent: list[Message], base: int = FIRST, frame_max: int = 131_072) -> list[Encoded]:
    encoder = Encoder(Layouts(), base, TIME)
    for each in sent:
        properties = commands.Basic.Properties(**each.properties)
        payload = header.ContentHeader(0, len(each.body), properties).marshal()
        framed = content.build(payload, each.body, 1, frame_max)
        head = short_string(each.exchange) + short_string(each.routing_key)
        encoder.add(QueueRun(range(1), [framed], head, Attributes(True, 0, None, 1, frame_max)))
    return encoder.finish()


def delivered(made: list[Encoded], codec: str = "none", *, whole: bool) -> Run:
    template, out = DeliverTemplate(1, "spark", 131_072), list[Any]()
    for number, each in enumerate(made, 1):
        reader = (
            StoredReader(stored_of(compressed(each.parts, codec)), "s") if whole else BatchReader(each.batch)
        )
        reader.take(reader.left, template, number, out)
    data, splitter = b"".join(out), Splitter()
    assert splitter.take(data, 0, len(data)) == len(data)
    return Run.joined(splitter.runs)


def stored(made: list[Encoded], codec: str = "none") -> StoredRun:
    return StoredRun.joined(list(batches_of(delivered(made, codec, whole=True))))


def rows(run: Run | StoredRun, names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    schema = SCHEMA
    if names:
        schema = type(SCHEMA)([field for field in SCHEMA if field.name in names])
    decoder = Decoder(schema, "q")
    if isinstance(run, StoredRun):
        found = decoder.stored_batches(run, "s", 4)
    else:
        found = decoder.log_batches(run, "s", 4, False)
    return [row for batch in found for row in batch.to_pylist()]


def without_times(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in found:
        row.pop("broker_timestamp")
    return found


@given(st.lists(messages, min_size=1, max_size=8), st.sampled_from(CODECS), st.integers(0, 8))
def test_any_messages_give_the_same_rows(sent: list[Message], codec: str, cut: int) -> None:
    made = encoded(sent[:cut], FIRST) + encoded(sent[cut:], FIRST + cut)
    run = stored(made, codec)
    due = rows(delivered(made, whole=False))
    found = rows(run)
    assert {row["broker_timestamp"] for row in found} == {datetime.fromtimestamp(TIME / 1_000, UTC)}
    assert without_times(found) == without_times(due)
    for names in (("value",), ("value", "offset"), ("routing_key",), ("headers", "message_id")):
        assert rows(run, names) == [{name: row[name] for name in names} for row in due]
    if 0 < cut < len(sent):
        one, two = run.split(cut)
        assert without_times(rows(one) + rows(two)) == due
        assert (one.base, one.stop, two.base, two.stop) == (
            FIRST,
            FIRST + cut,
            FIRST + cut,
            FIRST + len(sent),
        )


ALIKE = {"delivery_mode": 2}


@pytest.mark.parametrize(
    "sent",
    [
        [Message(b"x" * 120, "", "s", ALIKE) for _ in range(50)],
        [Message(b"", "", "s", ALIKE) for _ in range(50)],
        [Message(b"x" * number, "", "s", ALIKE) for number in range(50)],
        [Message(b"x" * number, "e", f"k{number}", {"headers": {"n": number}}) for number in range(50)],
        [Message(b"x", "e", "k", {"headers": {"n": "a" * number}, "app_id": "b"}) for number in range(50)],
        [
            Message(b"x", "e", "k", {"message_id": f"{number:03}", "headers": {"a": "b"}})
            for number in range(50)
        ],
        [Message(b"x", "e", "k", {"message_id": f"{number}", "message_type": "t"}) for number in range(50)],
        [Message(b"x", "e", "k", {"content_type": "c", "content_encoding": "gzip"}) for _ in range(50)],
    ],
    ids=["alike", "empty", "sizes", "routes", "headers", "ids", "ids of sizes", "encoded"],
)
def test_messages_are_cut_by_arrow(sent: list[Message]) -> None:
    made = encoded(sent)
    run = stored(made)
    assert stored_cuts.stored_cuts(run, routes=True, properties=True) is not None
    found = rows(run)
    assert without_times(found) == without_times(rows(delivered(made, whole=False)))
    assert [row["value"] for row in found] == [each.body for each in sent]
    assert [row["offset"] for row in found] == [FIRST + number for number in range(50)]


def test_bodies_in_several_frames_and_packed_rows_are_handled_one_by_one() -> None:
    packed = {"content_type": CONTENT_TYPE, "content_encoding": CONTENT_ENCODING}
    large = [Message(bytes([number]) * 9_000, "", "s", ALIKE) for number in range(3)]
    for made in (encoded(large, frame_max=4_096), encoded([Message(b"no rows", "", "s", packed)])):
        assert stored_cuts.stored_cuts(stored(made), routes=True, properties=True) is None
    made = encoded(large, frame_max=4_096)
    assert [row["value"] for row in rows(stored(made))] == [each.body for each in large]
    with pytest.raises(BadMessage):
        rows(stored(encoded([Message(b"no rows", "", "s", packed)])))


def test_compacted_batches_have_the_offsets_of_their_messages() -> None:
    (made,) = encoded([Message(b"%d" % number, "", "s", ALIKE) for number in (3, 7, 20)])
    batch = made.batch
    made.parts = batches.encode(
        100, TIME, batch.shapes, bytes(batch.items), [None], (), span=40, offsets=[3, 7, 20]
    )
    run = stored([made, *encoded([Message(b"140", "", "s", ALIKE)], 140)])
    assert (run.base, run.stop) == (100, 141)
    assert rows(run, ("value", "offset")) == [
        {"value": b"3", "offset": 103},
        {"value": b"7", "offset": 107},
        {"value": b"20", "offset": 120},
        {"value": b"140", "offset": 140},
    ]


def test_batches_of_another_version_and_damaged_ones_are_refused() -> None:
    (made,) = encoded([Message(b"x", "", "s", ALIKE)])
    for at in (0, 4, 20):
        head = bytearray(made.parts[0])
        head[at] ^= 3
        changed = stored_of(made.parts)
        changed.front = bytes(head) + changed.front[len(head) :]
        out: list[Any] = []
        StoredReader(changed, "s").take(1, DeliverTemplate(1, "spark", 131_072), 1, out)
        splitter, data = Splitter(), b"".join(out)
        splitter.take(data, 0, len(data))
        with pytest.raises(BadMessage, match="this connector reads version 1"):
            list(batches_of(splitter.runs[0]))
