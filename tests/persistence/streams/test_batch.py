"""The format of a batch, the index, and the decisions of retention."""

from typing import NamedTuple
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.streams import batch, index
from persistence.streams.batch import Damaged, Shape
from persistence.streams.index import BATCH, SEAL, Entry
from persistence.streams.retention import RetentionLimits, due_ms, outdated

MESSAGES = st.lists(
    st.tuples(st.binary(max_size=20), st.none() | st.binary(max_size=5)), min_size=1, max_size=30
)


def encoded(messages: list[tuple[bytes, bytes | None]], base: int = 5, time_ms: int = 6) -> bytes:
    values = list(dict.fromkeys(name for _, name in messages))
    filters = [values.index(name) for _, name in messages] if len(values) > 1 else []
    shapes = [Shape(1, len(body), 1, 2, 3) for body, _ in messages]
    return b"".join(
        batch.encode(base, time_ms, shapes, b"".join(body for body, _ in messages), values, filters)
    )


@given(MESSAGES, st.binary(max_size=10), st.binary(max_size=10))
def test_a_batch_is_read_back(
    messages: list[tuple[bytes, bytes | None]], before: bytes, after: bytes
) -> None:
    data = before + encoded(messages) + after
    head = batch.decode_head(data, len(before))
    assert (head.base, head.count, head.time_ms, head.stop) == (5, len(messages), 6, 5 + len(messages))
    assert head.size == len(data) - len(before) - len(after)
    found = batch.decode(head, data, len(before))
    assert bytes(found.items) == b"".join(body for body, _ in messages)
    assert [shape.size for shape in found.shapes] == [len(body) for body, _ in messages]
    names = [found.values[number] for number in found.filters] or found.values * len(messages)
    assert names == [name for _, name in messages]


@given(MESSAGES, st.data())
def test_a_changed_byte_is_noticed(messages: list[tuple[bytes, bytes | None]], data: st.DataObject) -> None:
    damaged = bytearray(encoded(messages))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Damaged):
        batch.decode(batch.decode_head(bytes(damaged)), bytes(damaged))


@given(MESSAGES, st.data())
def test_a_torn_batch_is_noticed(messages: list[tuple[bytes, bytes | None]], data: st.DataObject) -> None:
    whole = encoded(messages)
    torn = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(Damaged):
        batch.decode(batch.decode_head(torn), torn)


def test_the_next_sound_head_is_found() -> None:
    first, second = encoded([(b"a", None)]), encoded([(b"b", None)], base=6)
    data = batch.MAGIC + b"x" * 50 + first + second
    assert batch.find_head(data, 0, 0) == 54
    assert batch.find_head(data, 55, 0) == 54 + len(first)
    assert batch.find_head(data, 0, 6) == 54 + len(first)
    assert batch.find_head(data, 0, 7) == -1


@pytest.mark.parametrize(
    ("values", "wanted", "unfiltered", "answer"),
    [
        ([None], {b"a"}, False, False),
        ([None], {b"a"}, True, True),
        ([b"a", b"b"], {b"b"}, False, True),
        ([b"a", b"b"], {b"c"}, True, False),
    ],
)
def test_filters(values: list[bytes | None], wanted: set[bytes], unfiltered: bool, answer: bool) -> None:
    assert batch.matches(values, frozenset(wanted), unfiltered=unfiltered) is answer


def test_an_index_leads_to_the_batch_before() -> None:
    entries = [Entry(0, 100, 0), Entry(10, 200, 1000), Entry(20, 200, 2000), Entry(30, 300, 3000, SEAL)]
    assert index.decode(b"".join(map(index.encode, entries))) == entries
    assert [index.span_of(entries, offset).start for offset in (0, 9, 10, 19, 20, 29, 30)] == [
        0,
        0,
        1000,
        1000,
        2000,
        2000,
        2000,
    ]
    assert [index.span_before(entries, time_ms).start for time_ms in (50, 100, 101, 200, 201, 301)] == [
        0,
        0,
        0,
        0,
        2000,
        2000,
    ]
    assert entries[0].kind == BATCH
    assert index.span_of(entries, 12) == index.Span(1000, 2000, 3000, 10)
    assert index.span_of(entries, 21) == index.span_of(entries, 31) == index.Span(2000, 3000, 0, 20)
    assert index.span_before(entries, 150) == index.Span(0, 1000, 2000, 0)
    assert index.span_of(entries[1:], 5) == index.Span(0, 1000, 2000)
    assert index.span_of([], 5) == index.Span(0)


def test_an_index_that_was_cut_short_or_is_that_of_another_segment_is_not_whole() -> None:
    entries = [Entry(0, 100, 0), Entry(10, 200, 1000), Entry(20, 300, 3000, SEAL)]
    data = b"".join(map(index.encode, entries))
    assert index.is_whole(data, 20, 3000)
    assert not any(index.is_whole(data[:size], 20, 3000) for size in range(len(data)))
    assert not index.is_whole(data, 21, 3000) and not index.is_whole(data, 20, 3001)
    for at in (3, len(data) - 3):
        assert not index.is_whole(data[:at] + b"?" + data[at + 1 :], 20, 3000)


def test_damaged_entries_are_passed_over() -> None:
    data = bytearray(b"".join(map(index.encode, [Entry(0, 1, 0), Entry(10, 2, 500), Entry(20, 3, 900)])))
    data[index.ENTRY_BYTES + 3] ^= 1
    assert index.decode(bytes(data) + b"torn") == [Entry(0, 1, 0), Entry(20, 3, 900)]


class Segment(NamedTuple):
    size: int
    last_ms: int


@pytest.mark.parametrize(
    ("limits", "gone"),
    [
        (RetentionLimits(), 0),
        (RetentionLimits(max_age_ms=1000), 0),
        (RetentionLimits(max_age_ms=500), 2),
        (RetentionLimits(max_age_ms=499), 2),
        (RetentionLimits(max_age_ms=1), 3),
        (RetentionLimits(max_bytes=300), 0),
        (RetentionLimits(max_bytes=299), 1),
        (RetentionLimits(max_bytes=1), 2),
        (RetentionLimits(max_age_ms=700, max_bytes=100), 2),
    ],
)
def test_retention(limits: RetentionLimits, gone: int) -> None:
    segments = [Segment(100, 200), Segment(100, 500), Segment(100, 900)]
    assert outdated(segments, limits, now_ms=1000) == gone


def test_an_empty_segment_stays_and_is_never_due() -> None:
    segments = [Segment(0, 0)]
    assert outdated(segments, RetentionLimits(1, 0), now_ms=1000) == 0
    assert due_ms(segments, RetentionLimits(1, 0)) is None
    assert due_ms([Segment(10, 70)], RetentionLimits(5)) == 75
    assert due_ms([Segment(10, 70)], RetentionLimits()) is None


# -- compression ---------------------------------------------------------------------------------------------

TEXTS = st.lists(
    st.tuples(st.sampled_from([b"abc" * 100, b"x", b"", b"0123456789" * 7]), st.none()), min_size=3
)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("whole", [False, True], ids=["parts", "whole"])
@given(messages=TEXTS)
def test_a_compressed_batch_is_read_back(codec: str, whole: bool, messages: list[tuple[bytes, None]]) -> None:
    data = encoded(list(messages))
    head = batch.decode_head(data)
    cut = (batch.HEAD_BYTES, batch.HEAD_BYTES + head.meta_bytes)
    parts = [data] if whole else [data[: cut[0]], data[cut[0] : cut[1]], data[cut[1] :]]
    packed = b"".join(batch.compressed(parts, codec))
    assert len(packed) <= len(data)
    assert (len(packed) < len(data) // 2) == (head.items_bytes >= 4096) or head.items_bytes < 4096
    packed_head = batch.decode_head(packed)
    assert (packed_head.base, packed_head.stop, packed_head.size) == (head.base, head.stop, len(packed))
    found, plain = batch.decode(packed_head, packed), batch.decode(head, data)
    assert bytes(found.items) == bytes(plain.items)
    assert (found.shapes, found.values, found.size) == (plain.shapes, plain.values, len(data))
    # Compressed data is not compressed once more.
    assert b"".join(batch.compressed([packed], codec)) == packed or packed == data


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_what_cannot_be_decompressed_is_damaged(codec: str) -> None:
    packed = bytearray(b"".join(batch.compressed([encoded([(b"abc" * 1000, None)])], codec)))
    head = batch.decode_head(bytes(packed))
    assert head.size == len(packed) < 500
    start = batch.HEAD_BYTES + head.meta_bytes
    items = bytearray(packed[start:])
    items[len(items) // 2 :] = bytes(len(items) - len(items) // 2)
    forged = head._replace(items_crc=crc32(bytes(items)))
    with pytest.raises(Damaged, match="at 5"):
        batch.decode(forged, bytes(packed[:start] + items))
    # A head with too small a size: the reader makes nothing that is larger.
    with pytest.raises(Damaged, match="at 5"):
        batch.decode(
            *[
                (batch.decode_head(each), each)
                for each in [_with_shape(bytes(packed), Shape(1, 10, 1, 2, 3))]
            ][0]
        )


def _with_shape(data: bytes, shape: Shape) -> bytes:
    head = batch.decode_head(data)
    meta = batch._SHAPE.pack(*shape)
    head = head._replace(meta_crc=crc32(meta))
    front = batch._FRONT.pack(batch.MAGIC, batch.VERSION, *head)
    return front + batch._CRC.pack(crc32(front)) + meta + data[batch.HEAD_BYTES + head.meta_bytes :]


def test_what_compression_does_not_make_smaller_stays() -> None:
    for body in (b"abc" * 10, bytes(range(256)) + b"again" * 3):
        data = encoded([(body, None)])
        assert list(batch.compressed([data], "lz4")) == [data]
    dense = batch.encode(5, 6, [Shape(1, 3000, 1, 2, 3)], b"abc" * 1000, [None], [], flags=batch.DENSE)
    assert batch.compressed(dense, "zstd") is dense


@given(MESSAGES, st.lists(st.binary(min_size=1, max_size=20)))
def test_names_are_read_back(messages: list[tuple[bytes, bytes | None]], names: list[bytes]) -> None:
    values = list(dict.fromkeys(name for _, name in messages))
    filters = [values.index(name) for _, name in messages] if len(values) > 1 else []
    shapes = [Shape(1, len(body), 1, 2, 3) for body, _ in messages]
    parts = batch.encode(5, 6, shapes, b"".join(body for body, _ in messages), values, filters, names)
    head = batch.decode_head(b"".join(parts))
    assert batch.decode_names(head, parts[1]) == names
    assert batch.decode_values(head, parts[1]) == values
    assert batch.decode(head, b"".join(parts)).values == values
    if names:
        with pytest.raises(Damaged):
            batch.decode_names(head, parts[1][:-1] + bytes((parts[1][-1] ^ 1,)))


# -- searches in an index ------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40), st.booleans(), st.data())
def test_a_search_finds_the_same_without_decoding_all(
    steps: list[tuple[int, int]], sealed: bool, data: st.DataObject
) -> None:
    entries, offset, time_ms = [], 0, 0
    for number, (more, passed) in enumerate(steps):
        entries.append(Entry(offset, time_ms, number * 100))
        offset, time_ms = offset + more, time_ms + passed
    if sealed:
        entries.append(Entry(offset, time_ms, len(steps) * 100, SEAL))
    raw = b"".join(map(index.encode, entries))
    wanted = data.draw(st.integers(-1, offset + 2))
    for search in (index.span_of, index.span_before):
        assert search(index.Entries(raw), wanted) == search(entries, wanted)
    assert index.last_position(index.Entries(raw)) == index.last_position(entries)


def test_a_search_decodes_few_entries() -> None:
    class Counting(index.Entries):
        looked = 0

        def __getitem__(self, number):  # type: ignore[no-untyped-def]
            Counting.looked += 1
            return super().__getitem__(number)

    raw = b"".join([index.encode(Entry(number * 10, number, number * 100)) for number in range(8000)])
    assert index.span_of(Counting(raw), 43_219).start == 432_100
    assert Counting.looked < 20
