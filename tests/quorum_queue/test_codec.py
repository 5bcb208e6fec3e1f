"""Runs as bytes and back; and bytes that are no runs."""

from __future__ import annotations

import contextlib
from array import array

import hypothesis.strategies as st
import pytest
from hypothesis import given

from quorum_queue.machine import codec
from quorum_queue.machine.run import NEVER, Attributes, Run
from tests.quorum_queue.kinds import in_turns

attributes = st.builds(
    Attributes,
    persistent=st.booleans(),
    priority=st.integers(0, 255),
    ttl_ms=st.none() | st.integers(0, (1 << 32) - 1),
    channel=st.integers(1, 65535),
    frame_bytes=st.integers(8, (1 << 32) - 1),
    overhead=st.integers(0, (1 << 32) - 1),
)
routings = st.binary(max_size=20)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    contents = draw(st.lists(st.binary(max_size=30), min_size=1, max_size=8))
    expires_at = draw(st.none() | st.integers(0, 1 << 60))
    run = Run(range(len(contents)), contents, draw(routings), draw(attributes), expires_at)
    if draw(st.booleans()):
        run.heads = [draw(routings) for _ in contents]
    in_turns(run, draw(st.lists(attributes, max_size=2)))
    if draw(st.booleans()):
        run.deadlines = array("q", [draw(st.integers(0, NEVER)) for _ in contents])
        run.expires_at = min(run.deadlines)
    return run


Plain = tuple[int, bytes, Attributes, int | None, int]


def heads_of(found: list[Run]) -> list[Plain]:
    plain: list[Plain] = []
    for run in found:
        sizes = run.sizes if run.contents is None else list(map(len, run.contents))
        assert sizes is not None
        assert run.size == sum(sizes)
        assert len(sizes) == len(run.seqs)
        for index, seq in enumerate(run.seqs):
            due = run.due_of(index)
            plain.append((seq, run.head_of(index), run.attributes_of(index), due, sizes[index]))
    return plain


def encoded(written: list[Run], first_seq: int) -> bytes:
    for run in written:
        run.seqs = range(first_seq, first_seq + len(run.seqs))
        first_seq = run.seqs.stop
    return b"".join(codec.encode(written))


@given(st.lists(runs(), min_size=1, max_size=5), st.integers(1, 1 << 50))
def test_what_is_written_is_read(written: list[Run], first_seq: int) -> None:
    payload = encoded(written, first_seq)
    for form in (payload, memoryview(payload)):
        assert heads_of(codec.decode_heads(form, first_seq)) == heads_of(written)
        assert codec.decode_contents(form) == [content for run in written for content in run.contents or ()]


@given(st.lists(runs(), min_size=1, max_size=3))
def test_heads_need_no_bodies(written: list[Run]) -> None:
    payload = encoded(written, 1)
    bodies = sum(run.size for run in written)
    assert heads_of(codec.decode_heads(payload[: len(payload) - bodies], 1)) == heads_of(written)


@given(st.lists(runs(), min_size=1, max_size=3), st.data())
def test_a_truncated_batch_is_refused(written: list[Run], data: st.DataObject) -> None:
    payload = encoded(written, 1)
    bodies = sum(run.size for run in written)
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(codec.CodecError):
        codec.decode_contents(payload[:cut])
    if cut < len(payload) - bodies:
        with pytest.raises(codec.CodecError):
            codec.decode_heads(payload[:cut], 1)


@given(st.lists(runs(), min_size=1, max_size=3), st.data())
def test_a_damaged_batch_is_refused_or_read(written: list[Run], data: st.DataObject) -> None:
    """Whatever the bytes are, CodecError is the only exception. (The record's
    checksum is what finds damage.)
    """
    payload = bytearray(encoded(written, 1))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(codec.CodecError):
        for run in codec.decode_heads(bytes(payload), 1):
            assert run.sizes is not None
            assert len(run.sizes) == len(run.seqs)
    with contextlib.suppress(codec.CodecError):
        assert sum(map(len, codec.decode_contents(bytes(payload)))) <= len(payload)


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_an_error(payload: bytes) -> None:
    for form in (payload, bytes([codec.VERSION]) + len(payload).to_bytes(4, "big") + payload):
        with contextlib.suppress(codec.CodecError):
            codec.decode_heads(form, 1)
        with contextlib.suppress(codec.CodecError):
            codec.decode_contents(form)


def test_another_version_is_refused() -> None:
    payload = encoded([Run(range(1), [b"x"], b"")], 1)
    with pytest.raises(codec.CodecError, match="version 99, this mqd reads version"):
        codec.decode_heads(b"\x63" + payload[1:], 1)
