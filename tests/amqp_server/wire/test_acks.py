"""Acks, rejects and nacks read from raw bytes, three ways: whole, byte by byte, and with other data behind
them.
"""

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


def take_all(data: bytes, verbs: tuple[str, ...] = ("settle",)) -> tuple[int, list[Ack]]:
    """Take the acks of the first frame's channel."""
    pos, found = 0, list[Ack]()
    while data.startswith(data[:3], pos):
        after, verb, ranges = acks.take(data, pos, len(data))
        if verb not in verbs:
            break
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
    assert acks.take(data, 21, 42) == (42, "settle", [(2, 2)])


def test_neighbours_are_one_range() -> None:
    data = b"".join(acknowledge(1, tag) for tag in range(1, 1001))
    assert acks.take(data, 0, len(data)) == (len(data), "settle", [(1, 1000)])


def test_tag_0_waits_for_what_stands_before_it() -> None:
    data = acknowledge(1, 1) + acknowledge(1, 0)
    assert acks.take(data, 0, len(data)) == (21, "settle", [(1, 1)])


@pytest.mark.parametrize("size", [0, 4, 11, 12, 14, 20, 525])
def test_frame_of_another_size_is_left(size: int) -> None:
    """The fields stand where an ack's do, but the frame's end does not: the scanner must not take it for 21
    bytes.
    """
    payload = (acknowledge(1, 7)[7:-1] + b"\xce" * 600)[:size]
    data = raw(1, 1, payload) + acknowledge(1, 8)
    assert acks.take(data, 0, len(data)) == (0, "", [])


#: Method, bits of one tag, bits of `multiple`, and what becomes of the messages.
KINDS = [
    (80, 0, 1, "settle"),
    (90, 0, None, "discard"),
    (90, 1, None, "fail"),
    (120, 0, 1, "discard"),
    (120, 2, 3, "return"),
]


@given(_streams, st.sampled_from(KINDS))
def test_rejects_and_nacks_are_taken_whole(sent: list[Ack], kind: tuple[int, int, int | None, str]) -> None:
    method, single, multiple, verb = kind
    if multiple is None:
        sent = [(tag, False) for tag, _ in sent]
    flags = {False: single, True: multiple}
    data = b"".join(acknowledge(1, tag, method_id=method, flags=flags[each]) for tag, each in sent)
    assert take_all(data, (verb,)) == (len(data), sent)


@pytest.mark.parametrize(
    ("method", "flags"), [(80, 2), (90, 2), (90, 3), (120, 4), (70, 0), (110, 1), (121, 0)]
)
def test_other_bits_and_methods_are_left(method: int, flags: int) -> None:
    data = acknowledge(1, 7, method_id=method, flags=flags)
    assert acks.take(data, 0, len(data)) == (0, "", [])


def test_another_kind_ends_the_range() -> None:
    fail, discard = (acknowledge(1, tag, method_id=90, flags=flags) for tag, flags in ((1, 1), (2, 0)))
    assert acks.take(fail + discard, 0, 42) == (21, "fail", [(1, 1)])
    assert acks.take(fail + discard, 21, 42) == (42, "discard", [(2, 2)])
