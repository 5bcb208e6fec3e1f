"""The node prepares a large message for a stream in pieces, before it hands it over: other work has its turns
in between.

Here time goes on with each look at the clock, so a turn is over after a fixed number of looks.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.broker import Broker
from amqp_server.streams.layout.encode import Encoded, Encoder, begin_large
from amqp_server.streams.layout.large import LARGE_CONTENT_BYTES, PIECE_BYTES, PIECE_FRAMES, LargeItem
from amqp_server.streams.layout.layouts import Layouts
from amqp_server.streams.members.entries import decode_entry, encode_batch, encode_entry
from amqp_server.streams.members.replica import StreamReplica
from amqp_server.turn import NoPeers, Turn
from amqp_server.wire import content, frames
from quorum_queue.machine.run import Attributes, LargeRun
from tests.amqp_server.connection.node import Delivery, Peer, make_broker
from tests.amqp_server.streams.node import StreamNode, consume, declare, publish
from tests.amqp_server.streams.test_messages import framed, from_disk, head_of, run_of

#: Looks at the clock within one turn.
LOOKS = 5
MIB = 1 << 20
HEAD = head_of("key")


def body_of(size: int) -> bytes:
    return b"".join([number.to_bytes(4, "big") for number in range(-(-size // 4))])[:size]


def irregular(payload: bytes, body: bytes, channel: int, sizes: list[int]) -> bytes:
    """Put a body into frames of these sizes in turn."""
    parts = [frames.raw_frame(frames.HEADER, channel, payload)]
    at = number = 0
    while at < len(body):
        size = sizes[number % len(sizes)]
        parts.append(frames.raw_frame(frames.BODY, channel, body[at : at + size]))
        at += size
        number += 1
    return b"".join(parts)


def split_item(encoded: Encoded) -> tuple[bytes, list[bytes]]:
    """Return the body of the one message in a batch, and its frames."""
    shape = encoded.batch.shapes[0]
    items = bytes(encoded.batch.items)
    at = 2 + shape.first + 8 + shape.second
    parts: list[bytes] = []
    while at < len(items):
        size = int.from_bytes(items[at + 3 : at + 7], "big")
        parts.append(items[at : at + size + 8])
        at += size + 8
    return b"".join([part[7:-1] for part in parts]), parts


@pytest.mark.parametrize("channel", [1, 2, 700])
@pytest.mark.parametrize("sizes", [[131_064], [4088], [4 * MIB], [40, 300_000, 1, 262_137], [9]])
@pytest.mark.parametrize("made", [True, False], ids=["in pieces", "at once"])
def test_what_is_made_in_pieces_is_what_was_published(channel: int, sizes: list[int], made: bool) -> None:
    body = body_of(LARGE_CONTENT_BYTES + 12_345)
    payload = content.header_of(framed({"message_id": "m"}, body, channel, 131_072))
    item = irregular(payload, body, channel, sizes)
    layouts = Layouts()
    ready: dict[int, Any] = {}
    pieces = 0
    if made:
        ready[id(item)] = large = begin_large(layouts, item, HEAD, channel)
        pieces = 1
        while large.go_on():
            pieces += 1
        assert pieces >= len(item) // PIECE_BYTES
        assert pieces <= len(item) // PIECE_BYTES + 3 + len(body) // min(sizes) // PIECE_FRAMES
    encoder = Encoder(layouts, 70_000, 77)
    small = framed({}, b"small", channel, 131_072)
    encoder.add(run_of([small], [HEAD], channel))
    encoder.add(LargeRun(range(1), [item], HEAD, Attributes(channel=channel), len(item), ready))
    encoder.add(run_of([small, item, small], [HEAD] * 3, channel))
    assert encoder.next_offset == 70_005
    first, second, third, fourth, fifth = encoder.finish()
    offset = 70_000
    for each in (first, second, third, fourth, fifth):
        # The batch's checksums are right.
        batch = from_disk(each)
        assert (batch.base, batch.count, bytes(batch.items)) == (offset, each.batch.count, each.batch.items)
        offset = batch.stop
    for each in (second, fourth):
        text, parts = split_item(each)
        assert text == body
        assert {part[:3] for part in parts} == {b"\x03\x00\x01"}
        assert each.batch.shapes[0].third == max(map(len, parts))
        assert each.batch.base.to_bytes(8, "big") in bytes(each.batch.items)[:400]


@pytest.mark.parametrize("made", [True, False], ids=["in pieces", "at once"])
@pytest.mark.parametrize(("codec", "copies"), [("none", 1), ("zstd", 2), ("lz4", 1)])
def test_members_get_what_was_published(codec: str, copies: int, made: bool) -> None:
    body = body_of(4 * MIB)
    layouts = Layouts()
    item = framed({"message_id": "m"}, body, 2, 131_072)
    ready: dict[int, Any] = {}
    if made:
        ready[id(item)] = large = begin_large(layouts, item, HEAD, 2, codec)
        while large.go_on():
            pass
    encoder = Encoder(layouts, 0, 0, stamped=True, codec=codec)
    small = framed({}, b"small", 2, 131_072)
    encoder.add(run_of([small], [HEAD], 2))
    encoder.add(LargeRun(range(1), [item], HEAD, Attributes(channel=2), len(item), ready))
    batch = encode_batch("node", 1, 1, encoder.finish(), codec=codec)
    # LZ4 has no blocks that grow.
    assert (len(batch) < 3 * MIB) is (codec == "zstd")
    entry = encode_entry(77, [batch])
    replica = StreamReplica()
    replica.next_offset = 70_000
    tracemalloc.start()
    try:
        now_ms, found = decode_entry(entry)
        applied = replica.apply(1, now_ms, found, ("node", 1))
        assert tracemalloc.get_traced_memory()[1] < (copies + 0.1) * len(body)
    finally:
        tracemalloc.stop()
    first, second = applied.batches
    for each, offset in ((first, 70_000), (second, 70_001)):
        # The batch's checksums are right.
        read = from_disk(each)
        assert (read.base, read.time_ms, bytes(read.items)) == (offset, 77, each.batch.items)
        assert offset.to_bytes(8, "big") in bytes(read.items)[:400]
    assert split_item(second)[0] == body
    assert replica.next_offset == 70_002


class SlicedNode(StreamNode):
    """A node whose driver runs turns when the test says so."""

    looks = 0

    def _broker(self) -> Broker:
        commits = self._commits()
        return make_broker(
            self.config,
            self.environment,
            self.clock,
            commits,
            marks=self.marks,
            turn=Turn(commits, NoPeers(), lambda: None, now=self._now, lasts_s=LOOKS),
            streams=self._stream_services,
        )

    def _now(self) -> float:
        self.looks += 1
        return self.looks


@pytest.fixture
def node() -> SlicedNode:
    return SlicedNode()


@pytest.fixture
def peer(node: SlicedNode) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    declare(peer)
    return peer


class Pieces:
    """Counts the pieces of each turn."""

    def __init__(self, node: SlicedNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.count = 0
        self.turns: list[int] = []
        go_on = LargeItem.go_on

        def counted(item: LargeItem) -> bool:
            self.count += 1
            return go_on(item)

        monkeypatch.setattr(LargeItem, "go_on", counted)

    def turn(self, call: Any, *arguments: Any) -> None:
        self.count = 0
        call(*arguments)
        self.turns.append(self.count)

    def drive(self, between: Any = lambda: None) -> None:
        while self.node.turn.behind:
            self.turn(self.node.turn.run, self.node.turn.catch_up)
            between()


@pytest.mark.pure
@pytest.mark.parametrize("channel", [1, 2])
def test_others_have_turns_while_a_large_message_is_made_ready(
    node: SlicedNode, peer: Peer, monkeypatch: pytest.MonkeyPatch, channel: int
) -> None:
    other = node.peer()
    other.call(1, commands.Channel.Open())
    other.call(1, commands.Queue.Declare(queue="bystander"))
    other.call(1, commands.Basic.Consume(queue="bystander", no_ack=True))
    if channel > 1:
        peer.call(channel, commands.Channel.Open())
    peer.call(channel, commands.Confirm.Select())
    used = node.broker.services.memory.used
    body = body_of(8 * MIB)
    pieces = Pieces(node, monkeypatch)
    pieces.turn(publish, peer, [b"before", body, b"behind"], "s", None, channel)
    held: list[int] = []

    def between() -> None:
        publish(other, [b"hello"], "bystander")
        (delivery,) = [each for _, each in other.answers()]
        assert isinstance(delivery, Delivery) and delivery.body == b"hello"
        held.append(node.broker.services.memory.used - used)

    pieces.drive(between)
    assert sum(pieces.turns) == -(-(8 * MIB) // PIECE_BYTES) + 1
    assert max(pieces.turns) <= LOOKS + 1 and len(pieces.turns) >= 8 * MIB // PIECE_BYTES // (LOOKS + 1)
    assert max(held) > 16 * MIB
    assert peer.answers() == []
    node.work()
    (confirm,) = [each for _, each in peer.answers()]
    assert isinstance(confirm, commands.Basic.Ack) and confirm.delivery_tag == 3
    assert node.broker.services.memory.used == used
    node.restart()
    reader = node.peer()
    reader.call(1, commands.Channel.Open())
    answers = consume(reader)
    node.work()
    answers += reader.answers()
    found = [each.body for _, each in answers if isinstance(each, Delivery)]
    assert found == [b"before", body, b"behind"]


@pytest.mark.pure
def test_a_large_message_of_a_transaction_is_made_ready_in_pieces(
    node: SlicedNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.call(1, commands.Tx.Select())
    pieces = Pieces(node, monkeypatch)
    pieces.turn(publish, peer, [b"before", body_of(8 * MIB), b"behind"])
    pieces.turn(peer.send, frames.method_frame(1, commands.Tx.Commit()))
    while node.turn.behind:
        pieces.drive()
        node.sync()
    assert max(pieces.turns) <= LOOKS + 1 and sum(pieces.turns) > 8 * MIB // PIECE_BYTES
    node.work()
    (answer,) = [each for _, each in peer.answers()]
    assert isinstance(answer, commands.Tx.CommitOk)
    assert node.host().next_offset == 3


@pytest.mark.pure
@pytest.mark.parametrize("fails", [False, True])
def test_a_message_whose_client_is_lost_meanwhile_is_not_counted_for_ever(
    node: SlicedNode, peer: Peer, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    used = node.broker.services.memory.used
    pieces = Pieces(node, monkeypatch)
    pieces.turn(publish, peer, [body_of(8 * MIB)])
    assert node.broker.services.memory.used > used + 16 * MIB
    if fails:
        node.turn.run(peer.session.failed, RuntimeError("planted"))
    else:
        node.turn.run(peer.session.lost)
    pieces.drive()
    node.work()
    assert node.broker.services.memory.used == used
    assert node.host().next_offset in (0, 1)
