"""Large body frames are taken as they come, without copies: wherever reads cut them, the messages are the
same.
"""

from __future__ import annotations

import tracemalloc
from functools import partial
from itertools import combinations
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from pamqp import commands

from amqp_server.broker.reply import PSEUDO_QUEUE
from amqp_server.channel import assembly as assembly_module
from amqp_server.connection import incoming as incoming_module
from amqp_server.errors import PreconditionFailed
from amqp_server.wire import frames

from ..wire.published import Message, header_payload, long, raw, short
from .node import Delivery, MemoryNode, Peer, decoded

MIB = 1 << 20

#: Some body frames are taken whole, others in pieces, and the small ones like any frame.
SIZES = st.sampled_from([1, 300, 16_383, 16_384, 16_385, 40_000, 131_064])
LARGE_BODY_BYTES, READ_BYTES = 8 * MIB, 256 << 10


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
        # The last size is used for all further reads.
        size = reads.pop(0) if len(reads) > 1 else max(reads[0], 20_000)
        peer.send(data[at : at + size])
        at += size
    found: dict[int, list[bytes]] = {1: [], 2: []}
    for channel, answer in peer.answers():
        if isinstance(answer, Delivery):
            found[channel].append(answer.body)
    assert found == wanted


@pytest.mark.parametrize("reads", [1, 7, 100_000])
@pytest.mark.parametrize("before", [(), (1,), (2,), (1, 2), (2, 1)])
def test_frames_of_two_channels_come_in_any_order(before: tuple[int, ...], reads: int) -> None:
    """All messages have equal headers, and those before have shown them to the scanner."""
    for firsts in combinations(range(6), 3):
        peer = opened(MemoryNode())
        first = b"".join(frame for channel in before for frame in sent(channel, 0, [1])[1])
        framed = {channel: sent(channel, 1, [1])[1] for channel in (1, 2)}
        data = first + b"".join(framed[1 if at in firsts else 2].pop(0) for at in range(6))
        for at in range(0, len(data), reads):
            peer.send(data[at : at + reads])
        found = [(channel, answer.body) for channel, answer in peer.answers() if isinstance(answer, Delivery)]
        wanted = [(channel, sent(channel, 0, [1])[0]) for channel in (*before, 1, 2)]
        assert sorted(found) == sorted(wanted), firsts


@settings(deadline=None, max_examples=50)
@given(
    cuts=st.lists(st.lists(SIZES, min_size=1, max_size=6), min_size=2, max_size=6),
    order=st.randoms(use_true_random=False),
    reads=st.lists(st.sampled_from([1, 7, 8, 5_000, 16_000, 70_000, 300_000]), min_size=1, max_size=60),
)
def test_those_that_are_put_together_as_they_come_are_whole(
    cuts: list[list[int]], order: object, reads: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (assembly_module, incoming_module):
            patch.setattr(module, "LARGE_BODY_BYTES", 20_000)
        test_messages_of_two_channels_are_whole.hypothesis.inner_test(cuts, order, reads)  # type: ignore[attr-defined]


@pytest.mark.parametrize("frame_bytes", [5_000, 100_000])
def test_the_end_of_a_large_body_moves_nothing(frame_bytes: int) -> None:
    """The last frame takes no memory and no time: all earlier ones are in their place."""
    peer = opened(MemoryNode())
    body, framed = sent(1, 0, [frame_bytes] * (4_000_000 // frame_bytes))
    tracemalloc.start()
    try:
        peer.send(*framed[:-1])
        peer.reads = False
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        peer.send(framed[-1])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < MIB // 4
    peer.reads = True
    peer.collect()
    ((_, answer),) = [each for each in peer.answers() if isinstance(each[1], Delivery)]
    assert isinstance(answer, Delivery) and answer.body == body


def test_who_announces_much_and_sends_little_gets_no_room() -> None:
    peer = opened(MemoryNode())
    tracemalloc.start()
    try:
        peer.send(*Message(b"", b"q1", 0, header_payload({}, 128 * MIB), b"", ()).frames(1))
        peer.send(raw(3, 1, bytes(100_000)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * MIB


@pytest.mark.parametrize("size", [128 * MIB + 1, 100 << 30, 1 << 63, (1 << 64) - 1])
def test_who_announces_more_than_may_be_is_refused(size: int) -> None:
    peer = opened(MemoryNode())
    peer.send(*Message(b"", b"q1", 0, header_payload({}, size), b"", ()).frames(1))
    peer.send(raw(3, 1, bytes(100_000)))
    ((_, answer),) = peer.answers()
    assert isinstance(answer, commands.Channel.Close) and answer.reply_code == 406


def test_room_that_the_machine_does_not_have_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may refuse the room for a large announced body."""

    def refused(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(assembly_module, "BytesIO", refused)
    peer = opened(MemoryNode())
    body, framed = sent(1, 0, [100_000] * 30)
    peer.send(*framed)
    ((_, answer),) = peer.answers()
    assert isinstance(answer, Delivery) and answer.body == body


@pytest.mark.parametrize("size", [100_000, 2 * MIB])
@pytest.mark.parametrize("small", [b"", b"x"], ids=["empty", "one byte"])
def test_small_frames_take_no_more_memory_than_they_count(small: bytes, size: int) -> None:
    """Each frame would be an object of 50 bytes or more, and the client may send any number of them."""
    peer = opened(MemoryNode())
    unfinished = peer.session.incoming.unfinished
    count = 4_000
    some = raw(3, 1, small) * (count // 2)
    parts = [bytes(each) for each in (100_000,) * (size // 100_000)]
    body = small * count + b"".join(parts)
    tracemalloc.start()
    try:
        peer.send(*Message(b"", b"q1", 0, header_payload({}, len(body)), b"", ()).frames(1))
        peer.send(some)
        before, _ = tracemalloc.get_traced_memory()
        peer.send(some)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2 * len(some)
    assert unfinished.bytes >= 2 * len(some) if small else unfinished.bytes < 100
    peer.send(*(raw(3, 1, each) for each in parts))
    assert raw(3, 1, b"") not in peer.output
    ((_, answer),) = peer.answers()
    assert isinstance(answer, Delivery) and answer.body == body
    assert not unfinished.bytes


def test_frames_as_long_as_frame_max_without_what_is_around_them() -> None:
    """Like RabbitMQ, mqd accepts them, and no client gets a frame that is too long."""
    peer = opened(MemoryNode())
    frame_max = peer.session.limits.frame_max
    body, framed = sent(1, 0, [frame_max] * 10)
    peer.send(*framed)
    peer.send(b"".join(framed))
    first, second = (answer for _, answer in peer.answers())
    assert isinstance(first, Delivery) and isinstance(second, Delivery)
    assert first.body == second.body == body


@pytest.mark.parametrize("how", ["lost", "forced", "method", "channel error"])
@pytest.mark.parametrize("cut", [0, 5_000], ids=["between frames", "within one"])
def test_what_has_come_is_given_back_when_it_ends_in_the_middle(how: str, cut: int) -> None:
    node = MemoryNode()
    peer = opened(node)
    memory = node.broker.services.memory
    before, unfinished = memory.used, peer.session.incoming.unfinished
    _, framed = sent(1, 0, [100_000] * 30)
    tracemalloc.start()
    try:
        peer.send(b"".join(framed[:-1]), framed[-1][: len(framed[-1]) - cut] if cut else b"")
        assert memory.used - before > 2 * MIB and unfinished.bytes > 2 * MIB
        if how == "lost":
            node.turn.run(peer.session.lost)
        elif how == "forced":
            node.turn.run(partial(peer.session.force_close, "test"))
        elif how == "channel error":
            node.turn.run(
                partial(
                    peer.session.close_channel, peer.session.channels[1], PreconditionFailed("test"), (60, 40)
                )
            )
        else:
            # Only frames of this body may come on this channel; the rest of a frame may be any bytes.
            peer.send(bytes(cut), frames.method_frame(1, commands.Channel.Close(0, "", 0, 0)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert memory.used == before and not unfinished.bytes
    assert held < MIB


@pytest.mark.parametrize("small", [True, False], ids=["small", "large"])
@pytest.mark.parametrize("how", ["BCC", "reply", "reply to another"])
def test_headers_that_are_not_kept(small: bool, how: str) -> None:
    peer = opened(MemoryNode())
    body = b"x" * (100 if small else 3 * MIB)
    parts = [body[at : at + 100_000] for at in range(0, len(body), 100_000)]
    table = long(b"\x03BCC" + b"A" + long(b"S" + long(b"q2")) + b"\x04kept" + b"S" + long(b"v"))
    properties = {"headers": table} if how == "BCC" else {"reply_to": short(PSEUDO_QUEUE.encode())}
    consume: Any = commands.Basic.Consume(queue=PSEUDO_QUEUE, no_ack=True, consumer_tag="r")
    if how != "BCC":
        peer.call(1, consume)
    begun = Message(b"", b"q1", 0, header_payload(properties, len(body)), b"", ()).frames(1)
    peer.send(*begun)
    peer.send(*(raw(3, 1, each) for each in parts[:-1]))
    if how == "reply to another":
        # The channel that the reply address named when the header came is gone.
        peer.call(2, commands.Channel.Close(0, "", 0, 0), commands.Channel.Open())
        channel = peer.session.channels[1]
        assert channel.reply_host is not None
        channel.reply_host.name = channel.reply_host.name[:-1] + "other"
    peer.send(raw(3, 1, parts[-1]))
    found = [answer for _, answer in peer.answers() if isinstance(answer, Delivery)]
    assert {each.body == body for each in found} == {True}
    assert len(found) == (2 if how == "BCC" else 1)
    for each in found:
        if how == "BCC":
            assert each.properties.headers == {"kept": "v"}
        else:
            host = peer.session.channels[1].reply_host
            assert host is not None and each.properties.reply_to == host.name


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
    """The frames are put together as they were received; every consumer gets the result, on any channel."""
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
        # The frames as received, and the copy.
        assert most < 2.1 * LARGE_BODY_BYTES
        assert kept < 1.1 * LARGE_BODY_BYTES
        tracemalloc.reset_peak()
        wanted = commands.Basic.Consume(queue="large", no_ack=True), commands.Basic.Get(queue="large")
        node.turn.receive(consumer.session, frames.method_frame(channel, wanted[channel - 1]))
        chunks = consumer.outbox.take()
        sent_bytes = sum(map(len, chunks))
        assert tracemalloc.get_traced_memory()[1] < kept + LARGE_BODY_BYTES // 10
    finally:
        tracemalloc.stop()
    assert sent_bytes > LARGE_BODY_BYTES
    (delivery,) = [each for _, each in decoded(b"".join(chunks)) if isinstance(each, Delivery)]
    assert delivery.body == body


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_frames_of_a_few_bytes_do_not_make_a_small_body_large(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message is kept with its frames, and its frames must fit into an entry of a replicated queue."""
    node = MemoryNode(message_bytes_max=20_000, frame_max_bytes=4096)
    monkeypatch.setattr(incoming_module, "FRAMES_ROOM_BYTES", 0)
    peer = opened(node)
    left = 20_000 * 9 // 8 + 4096 + more - len(raw(2, 1, header_payload({}, 0)))
    # Frames of one byte take nine, and the last one what is left.
    count = left // 9 - 1
    cuts = (1,) * count + (left - 9 * count - 8,)
    body = bytes(sum(cuts))
    peer.send(*Message(b"", b"q1", 0, header_payload({}, len(body)), body, cuts).frames(1))
    answers = [answer for _, answer in peer.answers()]
    if more <= 0:
        assert [answer.body for answer in answers if isinstance(answer, Delivery)] == [body]
        return
    (close,) = answers
    assert isinstance(close, commands.Channel.Close) and close.reply_code == 406
    assert "the frames are too small" in close.reply_text
    assert node.broker.services.memory.used == 0
