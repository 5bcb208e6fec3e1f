"""Large body frames are taken as they come, without copies: wherever reads cut them, the messages are the same."""

from __future__ import annotations

import tracemalloc

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from pamqp import commands

from amqp_server.wire.frames import method_frame

from ..wire.published import Message, header_payload, raw
from .node import Delivery, MemoryNode, Peer, decoded

#: Some body frames are taken whole, others in pieces, the small ones as any frame.
SIZES = st.sampled_from([1, 300, 16_383, 16_384, 16_385, 40_000, 131_064])
LARGE_BODY_BYTES, READ_BYTES = 8 << 20, 256 << 10


def opened(node: MemoryNode) -> Peer:
    peer = node.peer()
    for channel in (1, 2):
        peer.call(channel, commands.Channel.Open())
        peer.call(channel, commands.Queue.Declare(queue=f"q{channel}"))
        peer.call(channel, commands.Basic.Consume(queue=f"q{channel}", no_ack=True))
    return peer


def sent(channel: int, number: int, cuts: list[int]) -> tuple[bytes, list[bytes]]:
    """The body of a message, and its frames."""
    pattern = bytes([65 + channel, 48 + number, *range(97, 120)])
    body = (pattern * (sum(cuts) // len(pattern) + 1))[: sum(cuts)]
    header = header_payload({}, len(body))
    return body, Message(b"", b"q%d" % channel, 0, header, body, tuple(cuts)).frames(channel)


@settings(deadline=None, max_examples=50)
@given(
    cuts=st.lists(st.lists(SIZES, min_size=1, max_size=6), min_size=2, max_size=6),
    order=st.randoms(use_true_random=False),
    reads=st.lists(st.sampled_from([1, 7, 8, 5_000, 16_000, 70_000, 300_000]), min_size=1, max_size=60),
)
def test_messages_of_two_channels_are_whole(cuts: list[list[int]], order: object, reads: list[int]) -> None:
    peer = opened(MemoryNode())
    waiting: dict[int, list[bytes]] = {1: [], 2: []}
    wanted: dict[int, list[bytes]] = {1: [], 2: []}
    for number, sizes in enumerate(cuts):
        channel = 1 + number % 2
        body, framed = sent(channel, number, sizes)
        wanted[channel].append(body)
        waiting[channel] += framed
    data = b""
    while any(waiting.values()):
        channel = order.choice([each for each, left in waiting.items() if left])  # type: ignore[attr-defined]
        data += waiting[channel].pop(0)
    at = 0
    while at < len(data):
        # The last one is that of all further reads.
        size = reads.pop(0) if len(reads) > 1 else max(reads[0], 20_000)
        peer.send(data[at : at + size])
        at += size
    found: dict[int, list[bytes]] = {1: [], 2: []}
    for channel, answer in peer.answers():
        if isinstance(answer, Delivery):
            found[channel].append(answer.body)
    assert found == wanted


@pytest.mark.parametrize("cut", [1, 3, 20_000, 40_016, 80_000, 200_000])
@pytest.mark.parametrize("damage", ["end", "too long", "channel"])
def test_a_bad_frame_behind_large_ones_is_told_however_it_is_cut(cut: int, damage: str) -> None:
    peer = opened(MemoryNode())
    _, framed = sent(1, 0, [40_000, 40_000])
    if damage == "end":
        framed[3] = framed[3][:-1] + b"\x00"
        text = "invalid_frame_end_marker"
    elif damage == "too long":
        framed[3] = raw(3, 1, b"x" * 40_001)
        text = "body of 80001 bytes is longer than the 80000 announced"
    else:
        framed[3] = raw(3, 3, b"x" * 40_000)
        text = "expected method frame, got non method frame instead"
    data = b"".join(framed)
    for start in range(0, len(data), max(cut, 200)):
        peer.send(data[start : start + max(cut, 200)])
    (told,) = [answer for _, answer in peer.answers() if isinstance(answer, commands.Connection.Close)]
    assert text in told.reply_text


@pytest.mark.parametrize("channel", [1, 2])
def test_a_large_body_is_copied_once(channel: int) -> None:
    """Its frames, as they were received, are put together; that is what each consumer gets, on any channel."""
    node = MemoryNode()
    peer, consumer = opened(node), node.peer()
    consumer.call(channel, commands.Channel.Open())
    consumer.call(channel, commands.Queue.Declare(queue="large"))
    header = header_payload({}, LARGE_BODY_BYTES)
    body = bytes(range(256)) * (LARGE_BODY_BYTES // 256)
    frame_max = 131_064
    cuts = (frame_max,) * (LARGE_BODY_BYTES // frame_max) + (LARGE_BODY_BYTES % frame_max,)
    data = b"".join(Message(b"", b"large", 0, header, body, cuts).frames(1))
    tracemalloc.start()
    try:
        for at in range(0, len(data), READ_BYTES):
            node.turn.receive(peer.session, data[at : at + READ_BYTES])
        kept, most = tracemalloc.get_traced_memory()
        # What was received, and the copy.
        assert most < 2.1 * LARGE_BODY_BYTES
        assert kept < 1.1 * LARGE_BODY_BYTES
        tracemalloc.reset_peak()
        wanted = commands.Basic.Consume(queue="large", no_ack=True), commands.Basic.Get(queue="large")
        node.turn.receive(consumer.session, method_frame(channel, wanted[channel - 1]))
        chunks = consumer.outbox.take()
        sent_bytes = sum(map(len, chunks))
        assert tracemalloc.get_traced_memory()[1] < kept + LARGE_BODY_BYTES // 10
    finally:
        tracemalloc.stop()
    assert sent_bytes > LARGE_BODY_BYTES
    (delivery,) = [each for _, each in decoded(b"".join(chunks)) if isinstance(each, Delivery)]
    assert delivery.body == body
