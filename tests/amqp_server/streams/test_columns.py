"""Messages with properties and sizes of their own are encoded by columns. The bytes are the same as if the
messages were encoded one by one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, header

from amqp_server.streams.layout.columns import COLUMNS_MIN, columns_of
from amqp_server.streams.layout.encode import BATCH_BYTES, Encoded, Encoder
from amqp_server.streams.layout.group_headers import have_keys
from amqp_server.streams.layout.layouts import Layouts
from amqp_server.streams.layout.stored_message import is_alike, table_at
from amqp_server.streams.members.entries import stamped
from amqp_server.wire import content
from amqp_server.wire.frames import short_string
from persistence.streams import batch as batches
from persistence.streams.batch import Batch
from quorum_queue.machine.run import Attributes, Run


class Message(NamedTuple):
    key: str
    properties: dict[str, Any]
    body: bytes


BODY = st.integers(0, 4) | st.sampled_from([0, 100, 101, 4087, 4088, 4089, 9000, 30_000])
#: Each publisher's messages have some of the properties always, some of them sometimes.
ALWAYS = st.fixed_dictionaries(
    {},
    optional={
        "content_type": st.just("text/plain"),
        "content_encoding": st.sampled_from(["utf-8", "gzip"]),
        "delivery_mode": st.sampled_from([1, 2]),
        "timestamp": st.just(datetime(2026, 1, 2, tzinfo=UTC)),
        "app_id": st.just("app"),
    },
)
OWN = st.lists(
    st.sampled_from(
        [
            "message_id",
            "correlation_id",
            "id",
            "text",
            "traded",
            "table",
            "filter",
            "offset",
            "stream",
            "nothing",
        ]
    ),
    min_size=1,
    max_size=4,
)


def own(what: list[str], number: int, length: int) -> dict[str, Any]:
    """Return the properties that only this message has."""
    found: dict[str, Any] = {}
    headers: dict[str, Any] = {}
    for name in what:
        if name in ("message_id", "correlation_id"):
            found[name] = str(number**3)
        elif name == "id":
            headers["id"] = 10**9 + number
        elif name == "text":
            headers["text"] = "t" * length
        elif name == "traded":
            # The headers are longer or shorter, all properties together are not.
            headers["traded"] = "t" * (length % 3)
            found["message_type"] = "t" * (3 - length % 3)
        elif name == "table":
            headers["table"] = {"list": [number, None] * (number % 3)}
        elif name == "filter" and number % 4:
            headers["x-stream-filter-value"] = ["red", "green", "b" * 300][number % 3]
        elif name == "offset" and number % 3 == 0:
            headers["x-stream-offset"] = "o" * length
        elif name == "stream" and number % 7 == 5:
            headers["x-stream"] = "other"
    if headers:
        found["headers"] = headers
    return found


@st.composite
def messages(draw: st.DrawFn) -> list[Message]:
    always, what = draw(ALWAYS), draw(OWN)
    keys = draw(st.sampled_from([["k"], ["k", "l"], ["k", "l", "long"]]))
    few = draw(st.booleans())
    bodies = draw(st.lists(BODY, min_size=1, max_size=3)) if few else []
    found: list[Message] = []
    for number in range(draw(st.sampled_from([1, 5, COLUMNS_MIN, 40, 300]))):
        size = bodies[number * 7 % 11 % len(bodies)] if few else draw(BODY)
        properties = {**always, **own(what, number, number * 5 % 13)}
        found.append(Message(keys[number * 5 % 7 % len(keys)], properties, bytes((number % 251,)) * size))
    return found


def framed(message: Message, channel: int, frame_max: int) -> bytes:
    payload = header.ContentHeader(0, len(message.body), commands.Basic.Properties(**message.properties))
    return content.build(payload.marshal(), message.body, channel, frame_max)


def run_of(contents: list[bytes], heads: list[bytes], channel: int) -> Run:
    run = Run(range(len(contents)), contents, heads[0], Attributes(channel=channel))
    if len(set(heads)) > 1:
        run.heads = heads
    return run


def each_shape(batch: Batch) -> list[tuple[int, ...]]:
    """Return the shape of each message, without the number of messages."""
    return [shape[1:] for shape in batch.shapes for _ in range(shape.count)]


def each_value(batch: Batch) -> list[bytes | None]:
    return [batch.values[number] for number in batch.filters or [0] * batch.count]


def are_alike(batch: Batch) -> bool:
    """Return whether messages of each shape have the same bytes between routing and headers."""
    items, at = bytes(batch.items), 0
    for shape in batch.shapes:
        routing = 1 + shape.first
        opening = items[at + routing : at + table_at(items, shape.first, at) + 4]
        if not is_alike(items, at, shape, routing, opening):
            return False
        at += shape.count * shape.size
    return True


def encoded(runs: list[Run], base: int, *, with_stamps: bool) -> list[Encoded]:
    encoder = Encoder(Layouts(), base, 77, stamped=with_stamps)
    for run in runs:
        encoder.add(run)
    return encoder.finish()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(messages(), min_size=1, max_size=3),
    st.sampled_from([1, 1, 3, 700]),
    st.sampled_from([4096, 131_072]),
    st.sampled_from([0, 200, (1 << 32) - 100]),
    st.booleans(),
)
def test_together_or_one_by_one(
    published: list[list[Message]], channel: int, frame_max: int, base: int, with_stamps: bool
) -> None:
    runs: list[Run] = []
    singles: list[Run] = []
    named: list[bool] = []
    for group in published:
        contents = [framed(message, channel, frame_max) for message in group]
        heads = [short_string("x") + short_string(message.key) for message in group]
        singles += [run_of([each], [head], channel) for each, head in zip(contents, heads, strict=True)]
        runs.append(run_of(contents, heads, channel))
        named += ["x-stream" in message.properties.get("headers", {}) for message in group]
    together = encoded(runs, base, with_stamps=with_stamps)
    offset = base
    alone: list[Encoded] = []
    for single in singles:
        alone += encoded([single], offset, with_stamps=with_stamps)
        offset += 1
    assert [each.batch.base for each in together] == [
        base + sum(each.batch.count for each in together[:number]) for number in range(len(together))
    ]
    assert sum(each.batch.count for each in together) == len(singles)
    for one, other in zip(together, together[1:], strict=False):
        assert len(one.batch.items) + other.batch.shapes[0].size > BATCH_BYTES
        assert len(one.batch.items) <= BATCH_BYTES or one.batch.count == 1
    joined = b"".join([bytes(each.batch.items) for each in together])
    assert joined == b"".join([bytes(each.batch.items) for each in alone])
    for of_each in (each_shape, each_value):
        assert [found for each in together for found in of_each(each.batch)] == [
            found for each in alone for found in of_each(each.batch)
        ]
    for each in together:
        data = b"".join(each.parts)
        batch = batches.decode(batches.decode_head(data), data)
        assert (batch.shapes, batch.alike, batch.keyed) == (
            each.batch.shapes,
            each.batch.alike,
            each.batch.keyed,
        )
        names_stream = any(named[batch.base - base : batch.stop - base])
        assert batch.alike == (are_alike(batch) and not names_stream)
        # If the end of a batch cuts messages that look alike except for their keys, both parts have the flag.
        assert batch.keyed >= have_keys(batch)
        if each.stamps is not None:
            assert stamped(batch.items, each.stamps, batch.base) == batch.items


def test_messages_of_many_sizes_are_encoded_by_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message of these is encoded one by one, which would take ten times as long."""

    def single(*_: object) -> None:
        raise AssertionError("encoded one by one")

    monkeypatch.setattr(Encoder, "_add_single", single)
    published = [Message("k", own(["id", "text", "filter"], n, n % 13), b"b" * (n % 61)) for n in range(500)]
    contents = [framed(message, 1, 4096) for message in published]
    (one,) = encoded([run_of(contents, [short_string("") + short_string("k")], 1)], 0, with_stamps=False)
    assert one.batch.count == 500 and one.batch.shape_count > 400


def test_messages_with_several_frames_have_no_columns() -> None:
    published = [Message("k", {}, b"b" * (4000 + 30 * number)) for number in range(10)]
    contents = [framed(message, 1, 4096) for message in published]
    lengths = [len(each) for each in contents]
    assert columns_of(contents[:3], lengths[:3], [b"\0\0"], 1, 0, Layouts()) is not None
    assert columns_of(contents, lengths, [b"\0\0"], 1, 0, Layouts()) is None
