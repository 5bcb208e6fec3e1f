"""Acks read from raw bytes, three ways: whole, byte by byte, and with other data behind them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_server.wire import acks

from .published import acknowledge, raw

Ack = tuple[int, bool]


def expanded(ranges: list[tuple[int, int]]) -> list[Ack]:
    """Expand ranges to the single acks that they stand for."""
    found: list[Ack] = []
    for low, high in ranges:
        if low == acks.NO_TAG:
            found.append((0, False))
        elif low == 0:
            found.append((high, True))
        else:
            found += [(tag, False) for tag in range(low, high + 1)]
    return found


def take_all(data: bytes) -> tuple[int, list[Ack]]:
    """Take the acks of the first frame's channel."""
    pos, found = 0, list[Ack]()
    while data.startswith(data[:3], pos):
        after, ranges = acks.take(data, pos, len(data))
        found += expanded(ranges)
        if after == pos:
            break
        pos = after
    return pos, found


_tags = st.one_of(
    st.integers(0, 20),
    st.sampled_from(
        [254, 255, 256, 257, 511, 512, 65_535, 65_536, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    ),
)
_sequences = st.builds(
    lambda first, count: [(min(tag, (1 << 64) - 1), False) for tag in range(first, first + count)],
    _tags,
    st.integers(1, 40),
)
_streams = st.lists(
    st.one_of(_sequences, st.tuples(_tags, st.booleans()).map(lambda ack: [ack])), max_size=6
).map(lambda parts: [ack for part in parts for ack in part])


@given(_streams, st.sampled_from([1, 2, 0x60, 2047, 65_535]))
def test_acks_of_one_read_are_taken_whole(sent: list[Ack], channel: int) -> None:
    data = b"".join(acknowledge(channel, tag, multiple) for tag, multiple in sent)
    assert take_all(data) == (len(data), sent)


@given(_streams)
def test_byte_by_byte(sent: list[Ack]) -> None:
    data = b"".join(acknowledge(1, tag, multiple) for tag, multiple in sent)
    buffer, found = b"", list[Ack]()
    for index in range(len(data)):
        buffer += data[index : index + 1]
        taken, more = take_all(buffer)
        buffer = buffer[taken:]
        found += more
    assert (buffer, found) == (b"", sent)


@given(
    _streams.filter(bool),
    st.one_of(
        st.binary(max_size=30),
        st.just(acknowledge(2, 1)),  # another channel's
        st.just(acknowledge(1, 1, method_id=120)),
        st.just(acknowledge(1, 1, flags=2)),
        st.just(acknowledge(1, 1)[:-1] + b"\xcd"),
        st.integers(0, 20).map(lambda count: acknowledge(1, 1)[:count]),
    ),
)
def test_other_frames_end_the_acks(sent: list[Ack], trailing: bytes) -> None:
    data = b"".join(acknowledge(1, tag, multiple) for tag, multiple in sent)
    assert take_all(data + trailing) == (len(data), sent)


def test_starts_where_it_is_told() -> None:
    data = acknowledge(1, 1) + acknowledge(1, 2) + acknowledge(1, 3)
    assert acks.take(data, 21, 42) == (42, [(2, 2)])


def test_neighbours_are_one_range() -> None:
    data = b"".join(acknowledge(1, tag) for tag in range(1, 1001))
    assert acks.take(data, 0, len(data)) == (len(data), [(1, 1000)])


def test_tag_0_waits_for_what_stands_before_it() -> None:
    data = acknowledge(1, 1) + acknowledge(1, 0)
    assert acks.take(data, 0, len(data)) == (21, [(1, 1)])


@pytest.mark.parametrize("size", [0, 4, 11, 12, 14, 20, 525])
def test_frame_of_another_size_is_left(size: int) -> None:
    """The fields stand where an ack's do, but the frame's end does not: the scanner must not take it for 21
    bytes.
    """
    payload = (acknowledge(1, 7)[7:-1] + b"\xce" * 600)[:size]
    data = raw(1, 1, payload) + acknowledge(1, 8)
    assert acks.take(data, 0, len(data)) == (0, [])
