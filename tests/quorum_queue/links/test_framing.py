"""Frames in any pieces, and wrong lengths."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_queue.links.framing import HEAD, JOIN_BYTES_MAX, KEEP_ALIVE, FrameError, FrameReader, encode

LIMIT = 5000


def feed(reader: FrameReader, data: bytes) -> list[bytes]:
    """Feed as a socket would: into the buffers in order, never more than they hold."""
    frames = []
    while data:
        count = 0
        for buffer in reader.buffers(1 << 20):
            part = data[: len(buffer)]
            buffer[: len(part)] = part
            data, count = data[len(part) :], count + len(part)
        frames += [bytes(frame) for frame in reader.received(count)]
    return frames


def new_reader(size: int = 64) -> FrameReader:
    return FrameReader(memoryview(bytearray(size)), LIMIT)


def wire(frames: list[bytes]) -> bytes:
    return b"".join(b"".join(encode([frame], len(frame))) for frame in frames)


@given(
    st.lists(st.one_of(st.binary(min_size=1, max_size=40), st.integers(41, LIMIT).map(bytes)), max_size=12),
    st.lists(st.integers(1, 300), min_size=1, max_size=20),
    st.sampled_from([8, 64, 1000, 20_000]),
    st.booleans(),
)
def test_frames_are_read_however_they_are_cut(
    frames: list[bytes], cuts: list[int], size: int, keep_alives: bool
) -> None:
    data = (KEEP_ALIVE if keep_alives else b"").join(wire([frame]) for frame in frames)
    reader = new_reader(size)
    found, at, turn = [], 0, 0
    while at < len(data):
        count = cuts[turn % len(cuts)]
        found += feed(reader, data[at : at + count])
        at, turn = at + count, turn + 1
    assert found == frames


def test_byte_by_byte() -> None:
    frames = [b"a", b"bc" * 50, b"d" * 300]
    reader = new_reader()
    data = KEEP_ALIVE + wire(frames) + KEEP_ALIVE
    assert [frame for byte in data for frame in feed(reader, bytes((byte,)))] == frames


def test_sessions_share_the_buffer() -> None:
    """A read of one session does not disturb what another has begun to read."""
    shared = memoryview(bytearray(64))
    one, two = FrameReader(shared, LIMIT), FrameReader(shared, LIMIT)
    first, second = wire([b"1" * 100, b"1" * 5]), wire([b"2" * 30, b"2" * 80])
    found: dict[str, list[bytes]] = {"one": [], "two": []}
    for at in range(0, len(second), 7):
        found["one"] += feed(one, first[at : at + 7])
        found["two"] += feed(two, second[at : at + 7])
    assert found == {"one": [b"1" * 100, b"1" * 5], "two": [b"2" * 30, b"2" * 80]}


def test_too_long_is_refused_before_anything_is_allocated() -> None:
    tracemalloc.start()
    try:
        for size in (LIMIT + 1, 0xFFFFFFFF):
            with pytest.raises(FrameError, match=str(size)):
                feed(new_reader(), HEAD.pack(size) + b"x")
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    assert feed(new_reader(), HEAD.pack(LIMIT) + bytes(LIMIT)) == [bytes(LIMIT)]


@given(st.binary(max_size=2000))
def test_any_bytes_are_frames_or_an_error(data: bytes) -> None:
    """Either a length is too long, or the sizes of the frames add up."""
    try:
        frames = feed(new_reader(), data)
    except FrameError:
        return
    assert sum(4 + len(frame) for frame in frames) <= len(data)


def test_big_parts_are_not_copied() -> None:
    big = bytes(JOIN_BYTES_MAX + 1)
    chunks = encode([b"head", big], 4 + len(big))
    assert any(chunk is big for chunk in chunks)
    assert b"".join(chunks) == HEAD.pack(4 + len(big)) + b"head" + big
    assert encode([b"a", b"b"], 2) == [HEAD.pack(2) + b"ab"]
