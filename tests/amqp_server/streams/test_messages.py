"""Messages on their way through a stream's batches: a consumer gets each message as it was published, with
its offset.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, header

from amqp_server.streams.layout import encode, group_headers
from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.encode import Encoded, Encoder
from amqp_server.streams.layout.group_headers import PIECE, SHAPES_MAX, Headers
from amqp_server.streams.layout.layouts import LAYOUTS_MAX, Layouts
from amqp_server.wire import content, frames
from amqp_server.wire.deliver import DeliverTemplate
from persistence.streams import batch as batches
from persistence.streams.batch import Batch
from quorum_queue.machine.run import Attributes, Run
from tests.amqp_server.connection.node import Delivery, decoded

PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "content_type": st.just("text/plain"),
        "content_encoding": st.sampled_from(["utf-8", "gzip"]),
        "headers": st.dictionaries(
            st.sampled_from(["a", "x-stream-offset", "z"]),
            st.integers(0, 1000) | st.text(max_size=5),
            max_size=3,
        ),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 9),
        "correlation_id": st.text("xyz", max_size=4),
        "message_id": st.text("xyz", max_size=4),
        "timestamp": st.just(datetime(2026, 1, 2, tzinfo=UTC)),
        "app_id": st.just("app"),
    },
)
FILTERS = st.none() | st.sampled_from(["red", "green"])
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["", "k", "key.word"]),
        PROPERTIES,
        FILTERS,
        st.sampled_from([0, 1, 10, 10, 10, 4088, 4089, 9000, 20_000]),
        st.integers(1, 30),
        st.sampled_from(["", "", "id", "header", "both", "filter", "offset", "length"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def with_own(properties: dict[str, Any], own: str, number: int) -> dict[str, Any]:
    """Return the properties of this one of several messages, which differ in their own ones."""
    found = dict(properties)
    headers = found.get("headers", {})
    if own in ("id", "both"):
        found["message_id"] = f"{number:04}"
    if own in ("header", "both"):
        found["headers"] = {**headers, "own": f"{number:04}"}
    elif own == "filter":
        found["headers"] = {**headers, "x-stream-filter-value": ["red", "lab"][number % 2]}
    elif own == "offset":
        found["headers"] = {**headers, "x-stream-offset": number}
    elif own == "length":
        found["message_id"] = str(number)
    return found


def framed(properties: dict[str, Any], body: bytes, channel: int, frame_max: int) -> bytes:
    payload = header.ContentHeader(0, len(body), commands.Basic.Properties(**properties)).marshal()
    return content.build(payload, body, channel, frame_max)


def head_of(key: str) -> bytes:
    return frames.short_string("ex") + frames.short_string(key)


def run_of(contents: list[bytes], heads: list[bytes], channel: int) -> Run:
    run = Run(range(len(contents)), contents, heads[0], Attributes(channel=channel))
    if len(set(heads)) > 1:
        run.heads = heads
    return run


def from_disk(encoded: Encoded) -> batches.Batch:
    data = b"".join(encoded.parts)
    return batches.decode(batches.decode_head(data), data)


@settings(max_examples=60)
@given(
    MESSAGES,
    st.sampled_from([1, 1, 2, 300]),
    st.sampled_from([1, 1, 7, 700]),
    st.sampled_from([4096, 4096, 131_072]),
    st.sampled_from([4096, 131_072]),
    st.integers(0, 600),
    st.data(),
)
def test_every_consumer_gets_what_was_published(
    messages: list[tuple[str, dict[str, Any], str | None, int, int, str, bool]],
    channel: int,
    consumer_channel: int,
    publisher_frame: int,
    consumer_frame: int,
    base: int,
    data: st.DataObject,
) -> None:
    encoder = Encoder(Layouts(), base, 77)
    expected: list[tuple[str, dict[str, Any], str | None, bytes]] = []
    for key, properties, name, size, count, own, keyed in messages:
        named = dict(properties)
        if name is not None:
            named["headers"] = {**named.get("headers", {}), "x-stream-filter-value": name}
        bodies = [bytes([number + 32]) * size for number in range(count)]
        each_named = [with_own(named, own, number) for number in range(count)]
        contents = [
            framed(each, body, channel, publisher_frame)
            for each, body in zip(each_named, bodies, strict=True)
        ]
        keys = [f"{key}{number:02}" if keyed else key for number in range(count)]
        encoder.add(run_of(contents, list(map(head_of, keys)), channel))
        names = [each.get("headers", {}).get("x-stream-filter-value") for each in each_named]
        expected += zip(keys, each_named, names, bodies, strict=True)
    encoded = encoder.finish()
    assert encoder.next_offset == base + len(expected)
    template = DeliverTemplate(consumer_channel, "tag", consumer_frame)
    tag = data.draw(st.integers(1, 1000))
    out: list[bytes | memoryview] = []
    values: list[bytes | None] = []
    offset = base
    for each in encoded:
        batch = from_disk(each)
        assert (batch.base, batch.time_ms, batch.shapes) == (offset, 77, each.batch.shapes)
        assert bytes(batch.items) == each.batch.items
        offset = batch.stop
        values += [batch.values[number] for number in batch.filters] or batch.values * batch.count
        reader = BatchReader(batch if data.draw(st.booleans()) else each.batch)
        while reader.left:
            count = data.draw(st.integers(1, reader.left))
            reader.take(count, template, tag, out)
            tag += count
    got = decoded(b"".join(out))
    assert len(got) == len(expected)
    first = tag - len(expected)
    assert values == [None if name is None else name.encode() for _, _, name, _ in expected]
    for number, ((at, delivery), (key, named, _, body)) in enumerate(zip(got, expected, strict=True)):
        assert isinstance(delivery, Delivery) and isinstance(delivery.method, commands.Basic.Deliver)
        method = delivery.method
        assert (at, method.delivery_tag, method.redelivered) == (consumer_channel, first + number, False)
        assert (method.consumer_tag, method.exchange, method.routing_key) == ("tag", "ex", key)
        assert delivery.body == body
        headers = {**named.get("headers", {}), "x-stream-offset": base + number}
        wanted = named | {"headers": headers}
        # An empty text is no text to pamqp.
        assert {name: value for name, value in delivery.properties if value} == {
            name: value for name, value in wanted.items() if value
        }
        assert list(delivery.properties.headers or {})[-1] == "x-stream-offset"


@pytest.mark.parametrize("first_tag", [1, 100, 255, 256, 257, 65_500])
@pytest.mark.parametrize("channel", [1, 3])
def test_a_long_run_of_messages_that_look_alike(first_tag: int, channel: int) -> None:
    encoder = Encoder(Layouts(), 200, 0)
    bodies = [b"%04d" % number for number in range(1500)]
    encoder.add(run_of([framed({}, body, 1, 4096) for body in bodies], [head_of("k")] * 1500, 1))
    (encoded,) = encoder.finish()
    assert len(encoded.batch.shapes) == 1
    out: list[bytes | memoryview] = []
    reader = BatchReader(encoded.batch)
    reader.take(3, DeliverTemplate(channel, "t", 4096), first_tag, out)
    reader.take(1497, DeliverTemplate(channel, "t", 4096), first_tag + 3, out)
    got = [each for _, each in decoded(b"".join(out)) if isinstance(each, Delivery)]
    assert [each.body for each in got] == bodies
    assert [(each.properties.headers or {})["x-stream-offset"] for each in got] == list(range(200, 1700))
    tags = [each.method.delivery_tag for each in got if isinstance(each.method, commands.Basic.Deliver)]
    assert tags == list(range(first_tag, first_tag + 1500))


def in_frames(properties: dict[str, Any], *parts: bytes) -> bytes:
    """Return a content whose body is cut into these frames."""
    payload = header.ContentHeader(0, len(b"".join(parts)), commands.Basic.Properties(**properties)).marshal()
    bodies = [b"\x03\x00\x01" + len(part).to_bytes(4, "big") + part + b"\xce" for part in parts]
    return content.build(payload, b"", 1, 4096) + b"".join(bodies)


#: Messages of one shape, which differ only in what stands before their headers.
ALIKE_BUT_FOR = {
    "nothing": [("k", in_frames({"content_type": "a/b"}, each)) for each in (b"x", b"y")],
    "what is behind it": [("k", in_frames({"message_id": each}, b"x")) for each in ("x", "y")],
    "their headers": [("k", in_frames({"headers": {"n": each}}, b"x")) for each in ("x", "y")],
    "the key": [("k1", in_frames({}, b"x")), ("k2", in_frames({}, b"x"))],
    "flags": [("k", in_frames({"priority": 2}, b"x")), ("k", in_frames({"delivery_mode": 2}, b"x"))],
    "the type": [("k", in_frames({"content_type": each}, b"x")) for each in ("a/b", "c/d")],
    "where the headers are": [
        ("k", in_frames({"content_type": "abcdefg", "message_id": "i"}, b"x")),
        ("k", in_frames({"content_type": "a", "message_id": "abcdefi"}, b"x")),
    ],
    "the length of the headers": [
        ("k", in_frames({"headers": {"a": "12"}, "message_id": "i"}, b"x")),
        ("k", in_frames({"headers": {"a": "1"}, "message_id": "ii"}, b"x")),
    ],
    "the size of the body": [
        ("k", in_frames({}, b"x" * 100, b"y" * 60)),
        ("k", in_frames({}, b"x" * 100, b"y" * 26, b"z" * 26)),
    ],
}


def take_headed(
    batch: Batch, template: DeliverTemplate, tag: int, out: list[bytes | memoryview]
) -> list[int]:
    """Take all of a batch with the headers of a group; return the number of messages taken at a time."""
    headers, place, parts = Headers("s"), BatchReader(batch), list[int]()
    while place.left:
        count = headers.most(place)
        headers.reader(place).take(count, template, tag, out)
        place.skip(count)
        tag += count
        parts.append(count)
    return parts


@pytest.mark.parametrize("what", ALIKE_BUT_FOR)
@pytest.mark.parametrize("count", [2, 600])
@pytest.mark.parametrize("channel", [1, 3])
@pytest.mark.parametrize("told", [True, False])
def test_messages_of_one_shape_get_more_headers_and_keep_what_differs(
    what: str, count: int, channel: int, told: bool
) -> None:
    """The batch says whether they are alike; a batch of an earlier version does not."""
    messages = [ALIKE_BUT_FOR[what][number // 3 % 2 if count > 2 else number] for number in range(count)]
    encoder = Encoder(Layouts(), 0, 0)
    for key, framed_content in messages:
        encoder.add(run_of([framed_content], [head_of(key)], 1))
    (encoded,) = encoder.finish()
    assert len(encoded.batch.shapes) == 1, encoded.batch.shapes
    assert encoded.batch.alike == (what in ("nothing", "what is behind it", "their headers", "the key"))
    assert encoded.batch.keyed == (what == "the key")
    encoded.batch.alike, encoded.batch.keyed = encoded.batch.alike and told, encoded.batch.keyed and told
    plain = list[bytes | memoryview]()
    dressed = list[bytes | memoryview]()
    template = DeliverTemplate(channel, "t", 4096)
    BatchReader(encoded.batch).take(count, template, 250, plain)
    take_headed(encoded.batch, template, 250, dressed)
    for (_, before), (_, after) in zip(decoded(b"".join(plain)), decoded(b"".join(dressed)), strict=True):
        assert isinstance(before, Delivery) and isinstance(after, Delivery)
        assert after.method is not None and before.method is not None
        assert dict(after.method) == dict(before.method)
        assert after.body == before.body
        found, wanted = dict(after.properties), dict(before.properties)
        assert found.pop("headers") == {"x-stream": "s"} | (wanted.pop("headers") or {})  # type: ignore[operator]
        assert found == wanted


@settings(max_examples=60)
@given(
    MESSAGES,
    st.sampled_from([1, 1, 7]),
    st.sampled_from([4096, 131_072]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([{"x-stream": "s"}, {"x-stream-timestamp": 77}]),
    st.data(),
)
def test_members_of_a_group_and_consumers_with_times_get_what_consumers_get_and_a_header(
    messages: list[tuple[str, dict[str, Any], str | None, int, int, str, bool]],
    channel: int,
    frame_max: int,
    named: bool,
    told: bool,
    more: dict[str, Any],
    data: st.DataObject,
) -> None:
    encoder = Encoder(Layouts(), 0, 77)
    for number, (key, properties, _, size, count, own, keyed) in enumerate(messages):
        if named and number % 2:
            # The message has the header already, as a dead letter of another group has.
            other = dict.fromkeys(more, "other")
            properties = properties | {"headers": properties.get("headers", {}) | other}
        for at in range(count):
            body = bytes([at + 32]) * (size + at % 3)
            one = framed(with_own(properties, own, at), body, 1, 131_072)
            encoder.add(run_of([one], [head_of(f"{key}{at:02}" if keyed else key)], 1))
    template = DeliverTemplate(channel, "t", frame_max)
    plain, dressed = list[bytes | memoryview](), list[bytes | memoryview]()
    for each in encoder.finish():
        batch = from_disk(each)
        assert (batch.alike, batch.keyed) == (each.batch.alike, each.batch.keyed)
        batch.alike, batch.keyed = batch.alike and told, batch.keyed and told
        BatchReader(batch).take(batch.count, template, 1, plain)
        headers, place, tag = (
            Headers(more.get("x-stream", ""), timed="x-stream" not in more),
            BatchReader(batch),
            1,
        )
        while place.left:
            count = min(headers.most(place), data.draw(st.integers(1, 40)))
            headers.reader(place).take(count, template, tag, dressed)
            place.skip(count)
            tag += count
    for (_, before), (_, after) in zip(decoded(b"".join(plain)), decoded(b"".join(dressed)), strict=True):
        assert isinstance(before, Delivery) and isinstance(after, Delivery)
        assert after.method is not None and before.method is not None
        assert dict(after.method) == dict(before.method) and after.body == before.body
        found, wanted = dict(after.properties), dict(before.properties)
        assert found.pop("headers") == (wanted.pop("headers") or {}) | more  # type: ignore[operator]
        assert found == wanted


@pytest.mark.parametrize(("sizes", "named"), [(1, True), (SHAPES_MAX + 1, True), (SHAPES_MAX + 1, False)])
def test_messages_that_differ_get_more_headers_a_piece_at_a_time(sizes: int, named: bool) -> None:
    count = 3 * SHAPES_MAX
    encoder = Encoder(Layouts(), 7, 0)
    for number in range(count):
        # A dead letter of another group names a stream already.
        own = {"x-stream": "other", "n": number} if named else {"n": number}
        framed_content = in_frames({"headers": own}, b"x" * (1 + number % sizes))
        encoder.add(run_of([framed_content], [head_of("k")], 1))
    (encoded,) = encoder.finish()
    out: list[bytes | memoryview] = []
    parts = take_headed(encoded.batch, DeliverTemplate(1, "t", 4096), 1, out)
    assert max(parts) <= PIECE and sum(parts) == count
    for number, (_, each) in enumerate(decoded(b"".join(out))):
        assert isinstance(each, Delivery)
        found = {"x-stream": "s", "n": number, "x-stream-offset": 7 + number}
        assert each.properties.headers == found
        assert each.body == b"x" * (1 + number % sizes)
        assert each.method is not None and dict(each.method)["delivery_tag"] == 1 + number


@pytest.mark.pure
def test_a_piece_that_is_taken_by_and_by_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(Layouts(), 0, 0)
    for number in range(2 * PIECE):
        encoder.add(run_of([in_frames({"headers": {"x-stream": "s", "n": number}}, b"x")], [head_of("k")], 1))
    (encoded,) = encoder.finish()
    made: list[int] = []

    def count_headed(batch: Batch, fields: dict[bytes, bytes]) -> Batch:
        made.append(batch.count)
        return before(batch, fields)

    before = group_headers.headed
    monkeypatch.setattr(group_headers, "headed", count_headed)
    headers, place, out = Headers("s"), BatchReader(encoded.batch), list[bytes | memoryview]()
    while place.left:
        count = min(headers.most(place), 10)
        headers.reader(place).take(count, DeliverTemplate(1, "t", 4096), 1, out)
        place.skip(count)
    assert made == [PIECE, PIECE]
    place = BatchReader(encoded.batch)
    place.skip(5)
    headers.reader(place).take(1, DeliverTemplate(1, "t", 4096), 1, out)
    (_, last) = list(decoded(b"".join(out)))[-1]
    assert isinstance(last, Delivery) and last.properties.headers["x-stream-offset"] == 5  # type: ignore[index]


def test_frames_are_not_larger_than_the_consumer_takes() -> None:
    encoder = Encoder(Layouts(), 0, 0)
    encoder.add(run_of([framed({}, b"x" * 20_000, 1, 131_072)] * 3, [head_of("k")], 1))
    out: list[bytes | memoryview] = []
    BatchReader(encoder.finish()[0].batch).take(3, DeliverTemplate(1, "t", 4096), 1, out)
    data = b"".join(out)
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 3 : at + 7], "big") + 8
        assert size <= 4096
        at += size
    assert [len(each.body) for _, each in decoded(data) if isinstance(each, Delivery)] == [20_000] * 3


def test_skipped_messages_are_not_sent() -> None:
    encoder = Encoder(Layouts(), 100, 0)
    for number in range(20):
        encoder.add(run_of([framed({}, b"x" * (number // 5), 1, 4096)], [head_of("k")], 1))
    reader = BatchReader(encoder.finish()[0].batch)
    out: list[bytes | memoryview] = []
    for _ in range(4):
        reader.skip(3)
        reader.take(2, DeliverTemplate(1, "t", 4096), 1, out)
    assert reader.left == 0
    got = [each for _, each in decoded(b"".join(out)) if isinstance(each, Delivery)]
    assert [(each.properties.headers or {})["x-stream-offset"] for each in got] == [
        103, 104, 108, 109, 113, 114, 118, 119
    ]  # fmt: skip


def test_a_batch_ends_where_it_is_large_enough() -> None:
    encoder = Encoder(Layouts(), 0, 0)
    encoder.add(run_of([framed({}, b"x" * 1000, 1, 4096)] * 1000, [head_of("k")], 1))
    sizes = [each.batch.size for each in encoder.finish()]
    assert len(sizes) > 3 and max(sizes) < encode.BATCH_BYTES + 1000


def test_only_few_layouts_are_remembered() -> None:
    layouts = Layouts()
    for number in range(LAYOUTS_MAX * 2):
        layouts.of(framed({"message_id": str(number)}, b"", 1, 4096))
        assert len(layouts._known) <= LAYOUTS_MAX
