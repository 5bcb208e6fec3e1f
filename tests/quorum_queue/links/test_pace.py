"""How much of one read a link passes on at a time: others need not wait for many small frames."""

from __future__ import annotations

from typing import Any, cast

from quorum_queue.links.framing import FrameReader, encode
from quorum_queue.links.handshake import Hello
from quorum_queue.links.ports import LinkOptions
from quorum_queue.links.session import BYTES_AT_ONCE, FRAMES_AT_ONCE, LinkSession
from quorum_queue.links.steady_clock import SteadyClock

READ_BYTES = 1 << 20
READ_S = 0.004


class Node:
    """A session, its peer, which sends these frames, and the time that each of them takes."""

    more, pending_bytes = False, 0

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.seen: list[bytes] = []
        self.takes_s = self.time_s = 0.0
        self.reads = 0
        self.again = False
        options = LinkOptions(read_bytes=READ_BYTES, read_s=READ_S)
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.session = LinkSession(
            cast(Any, self),
            Hello("n2", 1, "disk of n2"),
            1,
            options,
            FrameReader(self.buffer, options.frame_bytes_max),
            SteadyClock(0.0, 1.0),
            lambda: self.time_s,
            cast(Any, self),
            self.received,
            lambda: None,
        )

    def fileno(self) -> int:
        return 0

    def close(self) -> None:
        pass

    def forget_link(self, session: LinkSession) -> None:
        pass

    def receive(self, buffers: list[memoryview]) -> int:
        self.reads += 1
        data = b"".join(b"".join(encode([frame], len(frame))) for frame in self.frames)
        buffers[0][: len(data)] = data
        return len(data)

    def received(self, peer: str, frames: list[memoryview]) -> None:
        self.seen += [bytes(frame) for frame in frames]
        self.time_s += self.takes_s * len(frames)

    def read_again(self, session: LinkSession) -> None:
        self.again = True


def read(node: Node, frames: list[bytes], takes_s: float) -> list[int]:
    """Have the session read these frames, which take so long each; return how many each call passed on."""
    node.frames, node.takes_s = frames, takes_s
    node.again, counts = True, []
    while node.again:
        node.again, before = False, len(node.seen)
        node.session.read()
        counts.append(len(node.seen) - before)
        # Other links use the same buffer meanwhile.
        node.buffer[:] = bytes(READ_BYTES)
    assert node.seen == frames and node.reads == 1
    node.seen, node.reads = [], 0
    return counts


def test_many_small_frames_are_passed_on_while_there_is_time() -> None:
    node = Node()
    small = [b"%d" % number for number in range(100)]
    assert read(node, small, READ_S / 1000) == [100]
    assert read(node, small, READ_S / 40) == [48, 48, 4]
    assert read(node, small, READ_S) == [16] * 6 + [4]


def test_larger_frames_are_passed_on_a_few_at_a_time() -> None:
    node = Node()
    large = [bytes([number]) * (BYTES_AT_ONCE // 2) for number in range(7)]
    assert read(node, large, READ_S) == [2, 2, 2, 1]
    assert read(node, large[:1], READ_S) == [1]


def test_a_session_that_ends_meanwhile_passes_on_nothing_more() -> None:
    node = Node()
    node.frames, node.takes_s = [b"x"] * 100, READ_S
    node.session.read()
    assert len(node.seen) == FRAMES_AT_ONCE and node.again
    node.session.close()
    node.session.read()
    assert len(node.seen) == FRAMES_AT_ONCE
