"""Messages whose last frame never comes: the memory alarm stops their publishers, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from pamqp import commands

from amqp_server.errors import PreconditionFailed
from conformance_tests.patience import PATIENCE_S

from ..wire.published import Message, header_payload, message, method, raw
from .node import MemoryNode, Peer
from .served import client, served, until

CHANNELS = 15
FRAME = 100_000


def begun(channel: int, body_bytes: int = 10 * FRAME) -> bytes:
    """A message with no body frame yet."""
    publish = Message(b"", b"q", 0, header_payload({}, body_bytes), b"", ())
    return b"".join(publish.frames(channel))


def opened(node: MemoryNode) -> Peer:
    peer = node.peer()
    for channel in range(1, CHANNELS + 1):
        peer.call(channel, commands.Channel.Open())
    peer.call(1, commands.Queue.Declare(queue="q"))
    peer.answers()
    return peer


def unfinished_bytes(peer: Peer) -> int:
    return sum(
        len(piece)
        for channel in peer.session.channels.values()
        if channel.assembly is not None
        for piece in channel.assembly.framed
    )


def told(peer: Peer) -> list[Any]:
    return [type(each) for _, each in peer.answers()]


@pytest.mark.parametrize("piece", [FRAME, 5_000, 70_000], ids=["frames", "bits", "cut"])
def test_an_alarm_stops_content_that_is_not_complete(piece: int) -> None:
    node = MemoryNode(blocked_input_bytes_max=2 * FRAME)
    peer = opened(node)
    for channel in range(1, CHANNELS + 1):
        peer.send(begun(channel))
    node.turn.run(node.broker.alarms.set, "memory", True)
    body = b"".join(raw(3, channel, b"x" * FRAME) for channel in range(1, CHANNELS + 1))
    at = 0
    while at < len(body) and not peer.session.incoming.stalled:
        peer.send(body[at : at + piece])
        at += piece
    assert peer.session.incoming.stalled
    assert unfinished_bytes(peer) <= 2 * FRAME + 2 * piece + 200 * CHANNELS
    assert told(peer) == [commands.Connection.Blocked]
    # Frames that the node has read already wait.
    peer.send(body[at:])
    # Now the node takes them all.
    node.turn.run(node.broker.alarms.set, "memory", False)
    peer.send(*(raw(3, channel, b"x" * FRAME) * 9 for channel in range(1, CHANNELS + 1)))
    node.sync()
    assert told(peer) == [commands.Connection.Unblocked]
    assert [len(body) for _, body, _ in node.contents()["q"]] == [
        len(b"".join(replaced(1).frames(1)[1:]))
    ] * CHANNELS


def replaced(channel: int) -> Message:
    return Message(b"", b"q", 0, header_payload({}, 10 * FRAME), b"x" * 10 * FRAME, (FRAME,) * 10)


def test_a_message_that_is_finished_under_an_alarm_waits() -> None:
    node = MemoryNode()
    peer = opened(node)
    whole = message("", "q", b"x" * 50_000).encode(1)
    peer.send(whole[:30_000])
    node.turn.run(node.broker.alarms.set, "memory", True)
    peer.send(whole[30_000:])
    assert node.contents()["q"] == []
    node.turn.run(node.broker.alarms.set, "memory", False)
    assert len(node.contents()["q"]) == 1


def test_under_an_alarm_an_ack_passes_content_that_is_not_complete() -> None:
    node = MemoryNode()
    peer = opened(node)
    peer.send(message("", "q", b"first").encode(2), method(2, commands.Basic.Get(queue="q")))
    node.turn.run(node.broker.alarms.set, "memory", True)
    peer.send(begun(1), raw(3, 1, b"x" * FRAME), method(2, commands.Basic.Ack(1)))
    assert node.broker.vhost("/").queues["q"].host.unacked_count == 0


async def test_over_sockets_no_more_is_read(tmp_path: Path) -> None:
    """As much data as 137 channels of one client can begin, while the alarm stands."""
    channels = tuple(range(1, 138))
    async with served(tmp_path) as node, client(node, channels=channels) as sender:
        (transport,) = node.server.transports
        incoming = transport.session.incoming
        await sender.send(b"".join(map(begun, channels)))
        node.broker.alarms.set("test", True)
        before = incoming.received_bytes
        one_each = b"".join(raw(3, channel, b"x" * FRAME) for channel in channels)

        async def send() -> None:
            # This lasts as long as the alarm stands.
            for _ in range(5):
                await sender.stream.send_all(one_each)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await until(lambda: incoming.stalled)
            held = incoming.received_bytes
            assert held - before <= 4 << 20
            await trio.sleep(0.6)
            assert incoming.received_bytes == held
            node.broker.alarms.set("test", False)
            with trio.fail_after(PATIENCE_S):
                while incoming.received_bytes - before < 5 * len(one_each):
                    await trio.sleep(0.01)


# -- the memory budget ---------------------------------------------------------------------------------------


def end_by_last_frame(node: MemoryNode, peer: Peer) -> None:
    for channel in range(1, CHANNELS + 1):
        peer.send(raw(3, channel, b"x" * FRAME) * 9)
    peer.send(method(1, commands.Queue.Purge(queue="q")))


def end_by_channel(node: MemoryNode, peer: Peer) -> None:
    for channel in range(1, CHANNELS + 1):
        peer.session.close_channel(
            peer.session.channels[channel], PreconditionFailed("a test closes it"), (60, 40)
        )


def end_by_error(node: MemoryNode, peer: Peer) -> None:
    # More body than the header announced.
    peer.send(raw(3, 1, b"x" * FRAME) * 10)


def end_by_socket(node: MemoryNode, peer: Peer) -> None:
    node.turn.run(peer.session.lost)


@pytest.mark.parametrize("end", [end_by_last_frame, end_by_channel, end_by_error, end_by_socket])
def test_what_has_come_counts_until_it_is_complete_or_given_up(
    end: Callable[[MemoryNode, Peer], None],
) -> None:
    node = MemoryNode()
    peer = opened(node)
    for channel in range(1, CHANNELS + 1):
        whole = begun(channel) + raw(3, channel, b"x" * FRAME)
        # In two reads, so that the large frame comes in pieces.
        peer.send(whole[:50_000])
        peer.send(whole[50_000:])
    memory = node.broker.services.memory
    assert memory.used == unfinished_bytes(peer) > CHANNELS * FRAME
    end(node, peer)
    assert memory.used == node.broker.vhost("/").queues["q"].host.resident_bytes
    assert end is end_by_error or memory.used == 0


def test_bodies_of_queues_make_room_for_it() -> None:
    node = MemoryNode()
    peer = opened(node)
    # Each message is a run of its own.
    for number in range(40):
        mode = b"\x02" if number % 2 else b"\x01"
        peer.send(message("", "q", b"x" * FRAME, delivery_mode=mode).encode(1))
    memory = node.broker.services.memory
    memory.budget_bytes = memory.used + 10 * FRAME
    host = node.broker.vhost("/").queues["q"].host
    assert host.resident_bytes == memory.used
    peer.send(begun(1, 30 * FRAME), raw(3, 1, b"x" * FRAME) * 20)
    assert memory.used <= memory.budget_bytes + 11 * FRAME
    assert host.resident_bytes < 35 * FRAME
    assert host.ready_count == 40
